//! Disk images with a GUID partition table (UEFI 5.3) in blocks of 512 bytes.

const BLOCK: usize = 512;
/// Where the first partition begins: after the table with room for 128 entries.
pub(super) const FIRST_SECTOR: u64 = 40;
const ENTRIES: usize = 128;
const ENTRY_BYTES: usize = 128;

/// An image with these partitions one after the other, each a name and a number of sectors.
pub(super) fn with_partitions(partitions: &[(&str, u64)]) -> Vec<u8> {
    let used: u64 = partitions.iter().map(|(_, sectors)| sectors).sum();
    let end = FIRST_SECTOR + used;
    let sectors = usize::try_from(end).expect("it is small") + 1 + ENTRIES * ENTRY_BYTES / BLOCK;
    let mut image = vec![0; sectors * BLOCK];
    let mut array = vec![0; ENTRIES * ENTRY_BYTES];
    let mut start = FIRST_SECTOR;
    for (number, ((name, sectors), entry)) in partitions.iter().zip(array.chunks_mut(ENTRY_BYTES)).enumerate() {
        put(entry, 0, &[0x0f; 16]);
        put(entry, 16, &[u8::try_from(number + 1).expect("few"); 16]);
        put(entry, 32, &start.to_le_bytes());
        start += sectors;
        put(entry, 40, &(start - 1).to_le_bytes());
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        put(entry, 56, &name);
    }
    put(&mut image, 2 * BLOCK, &array);
    put(&mut image, BLOCK, &header(end, &array));
    image
}

fn header(end: u64, array: &[u8]) -> [u8; 92] {
    let mut header = [0; 92];
    put(&mut header, 0, b"EFI PART");
    put(&mut header, 8, &0x1_0000_u32.to_le_bytes());
    put(&mut header, 12, &92_u32.to_le_bytes());
    put(&mut header, 24, &1_u64.to_le_bytes());
    put(&mut header, 40, &FIRST_SECTOR.to_le_bytes());
    put(&mut header, 48, &(end - 1).max(FIRST_SECTOR).to_le_bytes());
    put(&mut header, 72, &2_u64.to_le_bytes());
    put(&mut header, 80, &u32::try_from(ENTRIES).expect("few").to_le_bytes());
    put(&mut header, 84, &u32::try_from(ENTRY_BYTES).expect("small").to_le_bytes());
    put(&mut header, 88, &crc32(array).to_le_bytes());
    let sum = crc32(&header);
    put(&mut header, 16, &sum.to_le_bytes());
    header
}

fn put(bytes: &mut [u8], at: usize, from: &[u8]) {
    bytes[at..at + from.len()].copy_from_slice(from);
}

/// CCITT-32, as the table wants it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}
