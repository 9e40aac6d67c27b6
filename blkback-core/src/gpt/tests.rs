//! Tables built byte by byte, then spoilt byte by byte.

use proptest::prelude::*;

use super::*;

/// A disk's content, with a table in both places.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    block: usize,
}

/// `(name, first block, last block)`
type Entry = (&'static str, u64, u64);

const ENTRIES: [Entry; 2] = [("demo", 40, 49), ("größe", 60, 60)];
const BLOCKS: usize = 200;

fn put(bytes: &mut [u8], at: usize, from: &[u8]) {
    bytes[at..at + from.len()].copy_from_slice(from);
}

impl Image {
    fn new(block: usize, entries: &[Entry], count: u32, entry_bytes: u32) -> Self {
        let mut image = Self { bytes: vec![0; BLOCKS * block], block };
        let mut array = vec![0; (count * entry_bytes) as usize];
        for (entry, (name, first, last)) in array.chunks_mut(entry_bytes as usize).zip(entries) {
            put(entry, 0, &[7; 16]);
            put(entry, 16, &[u8::try_from(*first).unwrap(); 16]);
            put(entry, 32, &first.to_le_bytes());
            put(entry, 40, &last.to_le_bytes());
            let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
            put(entry, 56, &units);
        }
        let array_blocks = array.len().div_ceil(block);
        for (header, array_at) in [(1, 2), (BLOCKS - 1, BLOCKS - 1 - array_blocks)] {
            put(&mut image.bytes, array_at * block, &array);
            let at = header * block;
            let fields: [(usize, &[u8]); 10] = [
                (0, b"EFI PART"),
                (8, &0x1_0000_u32.to_le_bytes()),
                (12, &92_u32.to_le_bytes()),
                (24, &(header as u64).to_le_bytes()),
                (40, &34_u64.to_le_bytes()),
                (48, &150_u64.to_le_bytes()),
                (72, &(array_at as u64).to_le_bytes()),
                (80, &count.to_le_bytes()),
                (84, &entry_bytes.to_le_bytes()),
                (88, &CRC.checksum(&array).to_le_bytes()),
            ];
            fields.iter().for_each(|(field, value)| put(&mut image.bytes, at + field, value));
            image.sign(header);
        }
        image
    }

    fn usual(block: usize) -> Self {
        Self::new(block, &ENTRIES, 128, 128)
    }

    /// Makes a header's checksum right again.
    fn sign(&mut self, header: usize) {
        let at = header * self.block;
        put(&mut self.bytes, at + 16, &[0; 4]);
        let crc = CRC.checksum(&self.bytes[at..at + 92]);
        put(&mut self.bytes, at + 16, &crc.to_le_bytes());
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.bytes.len() as u64 / 512,
            logical_block: u32::try_from(self.block).unwrap(),
            physical_block: 4096,
            writable: true,
            write_cache: true,
        }
    }

    /// Drives a reader to its end; blocks below `readable` can be read.
    fn read_some(&self, readable: usize) -> Result<Vec<Partition>, GptError> {
        let (mut reader, mut step) = Reader::new(&self.geometry());
        for _ in 0..5000 {
            match step {
                Step::Done(partitions) => return Ok(partitions),
                Step::Failed(error) => return Err(error),
                Step::Read(Want { sector, bytes }) => {
                    assert!(bytes > 0 && bytes <= PAGE_SIZE && bytes.is_multiple_of(self.block));
                    let at = usize::try_from(sector).unwrap() * 512;
                    assert!(at.is_multiple_of(self.block));
                    let wanted = &self.bytes[at..at + bytes];
                    step = reader.feed((at + bytes <= readable * self.block).then_some(wanted));
                }
            }
        }
        panic!("it wants more than two tables can have");
    }

    fn read(&self) -> Result<Vec<Partition>, GptError> {
        self.read_some(BLOCKS)
    }
}

/// Checks that the usual partitions are found.
fn check_usual(image: &Image) {
    let found = image.read().unwrap();
    let sectors = image.block as u64 / 512;
    assert_eq!(found.len(), ENTRIES.len());
    for (partition, (name, first, last)) in found.iter().zip(ENTRIES) {
        assert!(partition.has_name(name));
        assert_eq!((partition.start, partition.sectors), (first * sectors, (last - first + 1) * sectors));
        assert_eq!(partition.guid, Guid([u8::try_from(first).unwrap(); 16]));
    }
}

#[test]
fn both_block_sizes_and_odd_arrays() {
    for block in [512, 4096] {
        check_usual(&Image::usual(block));
    }
    for (count, entry_bytes) in [(2, 128), (5, 256), (100, 128), (4, 4096)] {
        check_usual(&Image::new(4096, &ENTRIES, count, entry_bytes));
    }
}

#[test]
fn one_spoilt_copy_does_no_harm() {
    // (byte of the first or last block's header, or of the arrays)
    for header in [1, BLOCKS - 1] {
        for byte in [0, 8, 16, 24, 40, 48, 72, 80, 84, 88, 91] {
            let mut image = Image::usual(512);
            image.bytes[header * 512 + byte] ^= 1;
            check_usual(&image);
        }
    }
    let mut image = Image::usual(512);
    image.bytes[2 * 512 + 16000] ^= 1;
    check_usual(&image);
}

#[test]
fn what_is_wrong_with_a_header() {
    let field = |at: usize, value: u64, bytes: usize| (at, value.to_le_bytes()[..bytes].to_vec());
    // Both headers get the field, and right checksums.
    let cases = [
        ("signature", field(0, 0, 8), GptError::Absent),
        ("header too short", field(12, 91, 4), GptError::Damaged),
        ("header longer than a block", field(12, 513, 4), GptError::Damaged),
        ("header of 4 GiB", field(12, 0xffff_ffff, 4), GptError::Damaged),
        ("not its own block", field(24, 2, 8), GptError::Damaged),
        ("usable beyond the disk", field(48, BLOCKS as u64, 8), GptError::Damaged),
        ("array beyond the disk", field(72, BLOCKS as u64 - 5, 8), GptError::Damaged),
        ("array beyond all numbers", field(72, u64::MAX, 8), GptError::Damaged),
        ("no entries", field(80, 0, 4), GptError::Damaged),
        ("too many entries", field(80, 1025, 4), GptError::Damaged),
        ("4 G entries", field(80, 0xffff_ffff, 4), GptError::Damaged),
        ("entries of nothing", field(84, 0, 4), GptError::Damaged),
        ("entries of odd size", field(84, 192, 4), GptError::Damaged),
        ("entries of 8 KiB", field(84, 8192, 4), GptError::Damaged),
        ("wrong checksum of the array", field(88, 0, 4), GptError::Damaged),
    ];
    for (name, (at, value), expect) in cases {
        let mut image = Image::usual(512);
        for header in [1, BLOCKS - 1] {
            put(&mut image.bytes, header * 512 + at, &value);
            image.sign(header);
        }
        assert_eq!(image.read(), Err(expect), "{name}");
    }
}

#[test]
fn entries_outside_the_usable_blocks_are_passed_over() {
    let bad = [("low", 33, 40), ("high", 140, 151), ("backward", 50, 49), ("far", 40, u64::MAX)];
    for entry in bad {
        let found = Image::new(512, &[entry, ENTRIES[0]], 128, 128).read().unwrap();
        assert_eq!(found.len(), 1, "{entry:?}");
        assert!(found[0].has_name("demo"));
    }
}

#[test]
fn disks_without_a_table() {
    let blank = Image { bytes: vec![0; BLOCKS * 512], block: 512 };
    assert_eq!(blank.read(), Err(GptError::Absent));
    for blocks in 0..3 {
        let tiny = Image { bytes: vec![0; blocks * 512], block: 512 };
        assert_eq!(tiny.read(), Err(GptError::Absent), "{blocks} blocks");
    }
    assert_eq!(Image::usual(512).read_some(0), Err(GptError::Io));
    // The primary copy lies in the first 34 blocks.
    assert!(Image::usual(512).read_some(34).is_ok());
    assert_eq!(Image::usual(512).read_some(33), Err(GptError::Io));
}

proptest! {
    #[test]
    fn whatever_is_on_the_disk(bytes in prop::collection::vec(any::<u8>(), 0..8192), block in prop::sample::select(vec![512, 4096])) {
        let mut image = Image { bytes, block };
        image.bytes.truncate(image.bytes.len() / block * block);
        let _ = image.read();
    }

    #[test]
    fn whatever_a_signed_header_says(fields in prop::collection::vec((24..92_usize, any::<u8>()), 0..12), low in any::<bool>()) {
        let mut image = Image::usual(512);
        for header in [1, BLOCKS - 1] {
            for (at, value) in &fields {
                image.bytes[header * 512 + at] = if low { value % 4 } else { *value };
            }
            image.sign(header);
        }
        if let Ok(found) = image.read() {
            prop_assert!(found.len() <= MAX_ENTRIES as usize);
            prop_assert!(found.iter().all(|p| p.sectors > 0 && p.start + p.sectors <= BLOCKS as u64));
        }
    }
}
