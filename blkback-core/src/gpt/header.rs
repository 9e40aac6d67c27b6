//! The table's header (UEFI 5.3.2).

use core::mem::offset_of;
use core::ops::RangeInclusive;

use xen_proto::ids::PAGE_SIZE;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{CRC, GptError, MAX_ENTRIES};

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// The smallest size of an entry; others are this times a power of two.
const ENTRY_BYTES: usize = 128;

/// What of a sound header is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// First block of the array of entries.
    pub(super) array: u64,
    /// Number of entries.
    count: usize,
    /// Bytes of an entry; a power of two, so that entries do not cross pages.
    pub(super) entry_bytes: usize,
    /// The checksum of the array.
    pub(super) array_crc: u32,
    /// Blocks that partitions may use.
    pub(super) usable: RangeInclusive<u64>,
}

/// The header on the disk.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    signature: [u8; 8],
    _revision: U32,
    header_bytes: U32,
    header_crc: U32,
    _reserved: U32,
    my_block: U64,
    _alternate_block: U64,
    first_usable: U64,
    last_usable: U64,
    _disk_guid: [u8; 16],
    array: U64,
    entries: U32,
    entry_bytes: U32,
    array_crc: U32,
}

impl Header {
    /// Checks the header in the block `block` of a disk of `blocks` blocks.
    pub(super) fn parse(bytes: &[u8], block: u64, blocks: u64) -> Result<Self, GptError> {
        let (raw, _) = RawHeader::ref_from_prefix(bytes).map_err(|_| GptError::Io)?;
        if raw.signature != *SIGNATURE {
            return Err(GptError::Absent);
        }
        let count = raw.entries.get();
        let header = Self {
            array: raw.array.get(),
            count: count as usize,
            entry_bytes: raw.entry_bytes.get() as usize,
            array_crc: raw.array_crc.get(),
            usable: raw.first_usable.get()..=raw.last_usable.get(),
        };
        let sound = header_crc(bytes, raw.header_bytes.get()) == Some(raw.header_crc.get())
            && raw.my_block.get() == block
            && *header.usable.end() < blocks
            && (1..=MAX_ENTRIES).contains(&count)
            && (ENTRY_BYTES..=PAGE_SIZE).contains(&header.entry_bytes)
            && header.entry_bytes.is_power_of_two();
        if sound { Ok(header) } else { Err(GptError::Damaged) }
    }

    /// Bytes of the array of entries, at most [`MAX_ENTRIES`] pages.
    pub(super) fn array_bytes(&self) -> usize {
        self.count.saturating_mul(self.entry_bytes)
    }
}

/// The checksum of a header of so many bytes with its own field zero, `None` if that is too few or more than a block.
fn header_crc(block: &[u8], header_bytes: u32) -> Option<u32> {
    const CRC_FIELD: usize = offset_of!(RawHeader, header_crc);
    let header = block.get(..header_bytes as usize).filter(|header| header.len() >= size_of::<RawHeader>())?;
    let (before, rest) = header.split_at_checked(CRC_FIELD)?;
    let (_, after) = rest.split_at_checked(size_of::<U32>())?;
    let mut digest = CRC.digest();
    for part in [before, &[0; size_of::<U32>()], after] {
        digest.update(part);
    }
    Some(digest.finalize())
}
