//! Reads a disk's GUID partition table (UEFI specification 2.10, section 5.3) without I/O: it says what it wants to read next and
//! is fed.
//!
//! The primary table is tried first, then the backup in the disk's last block. A copy counts only if both of its checksums are
//! right; the protective MBR is not looked at, and entries that leave the usable blocks are passed over. What is on the disk is
//! hostile: it makes this module neither panic nor keep more than [`MAX_ENTRIES`] partitions.

mod entry;
mod header;

pub use entry::{Guid, Partition};

use alloc::vec::Vec;
use core::fmt;
use core::mem;

use crc::{Crc, Digest, Table};
use xen_proto::ids::PAGE_SIZE;

use crate::disk::{Geometry, SECTOR_BYTES};
use header::Header;

/// Entries of a table, used or not. The specification reserves room for at least 128; disks have that many.
pub const MAX_ENTRIES: u32 = 1024;

/// The checksum of header and entries: CCITT-32.
static CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&crc::CRC_32_ISO_HDLC);

/// What to read next: at most a page, whole logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// First sector of 512 bytes.
    pub sector: u64,
    /// Bytes.
    pub bytes: usize,
}

/// Why a disk has no usable table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GptError {
    /// Neither copy is there.
    Absent,
    /// A copy is there, but neither is sound.
    Damaged,
    /// The disk failed to read, and neither copy could be read and is sound.
    Io,
}

/// How far the reader is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read this and [`Reader::feed`] it.
    Read(Want),
    /// The partitions.
    Done(Vec<Partition>),
    /// There is no table.
    Failed(GptError),
}

/// Reads the table of one disk.
pub struct Reader {
    blocks: Blocks,
    which: Which,
    /// The entries being read; the header is when there are none.
    entries: Option<Entries>,
    /// The worst that was wrong with a copy.
    error: GptError,
}

/// The disk in logical blocks.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// How many there are.
    count: u64,
    /// Bytes of one: 512 to 4096.
    bytes: usize,
}

/// Which of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Primary,
    Backup,
}

/// A table whose header is sound.
struct Entries {
    header: Header,
    /// The checksum of what was read.
    digest: Digest<'static, u32, Table<1>>,
    /// Bytes of the array that were read.
    read: usize,
    found: Vec<Partition>,
}

impl Reader {
    /// A reader for a disk, and its first wish.
    #[must_use]
    pub fn new(geometry: &Geometry) -> (Self, Step) {
        let bytes = usize::try_from(geometry.logical_block).unwrap_or(0);
        let sectors = (bytes as u64).checked_div(SECTOR_BYTES).unwrap_or(0);
        let blocks = Blocks { count: geometry.sectors.checked_div(sectors).unwrap_or(0), bytes };
        let mut reader = Self { blocks, which: Which::Primary, entries: None, error: GptError::Absent };
        let first = if bytes <= PAGE_SIZE { reader.read_header() } else { Step::Failed(GptError::Absent) };
        (reader, first)
    }

    /// Takes the bytes that were wanted, or `None` if the disk could not read them.
    pub fn feed(&mut self, bytes: Option<&[u8]>) -> Step {
        let next = match (bytes, self.entries.take()) {
            (None, _) => Err(GptError::Io),
            (Some(bytes), None) => self.take_header(bytes),
            (Some(bytes), Some(entries)) => self.take_entries(entries, bytes),
        };
        next.unwrap_or_else(|error| self.give_up(error))
    }

    /// This copy is of no use: try the other.
    fn give_up(&mut self, error: GptError) -> Step {
        self.error = self.error.max(error);
        match mem::replace(&mut self.which, Which::Backup) {
            Which::Primary => self.read_header(),
            Which::Backup => Step::Failed(self.error),
        }
    }

    /// The block of this copy's header: the second or the last.
    fn header_block(&self) -> Option<u64> {
        let last = self.blocks.count.checked_sub(1)?;
        let block = if self.which == Which::Primary { 1 } else { last };
        (1..=last).contains(&block).then_some(block)
    }

    fn read_header(&mut self) -> Step {
        let want = self.header_block().and_then(|block| self.blocks.want(block, self.blocks.bytes));
        want.map_or(Step::Failed(self.error), Step::Read)
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<Step, GptError> {
        let block = self.header_block().ok_or(GptError::Absent)?;
        let header = Header::parse(bytes, block, self.blocks.count)?;
        self.read_entries(Entries { header, digest: CRC.digest(), read: 0, found: Vec::new() })
    }

    /// Asks for the next page of the array.
    fn read_entries(&mut self, entries: Entries) -> Result<Step, GptError> {
        let bytes = entries.header.array_bytes().saturating_sub(entries.read).min(PAGE_SIZE);
        let skipped = entries.read.checked_div(self.blocks.bytes).unwrap_or(0) as u64;
        let block = entries.header.array.checked_add(skipped);
        let want = block.and_then(|block| self.blocks.want(block, bytes)).ok_or(GptError::Damaged)?;
        self.entries = Some(entries);
        Ok(Step::Read(want))
    }

    fn take_entries(&mut self, mut entries: Entries, bytes: &[u8]) -> Result<Step, GptError> {
        let left = entries.header.array_bytes().saturating_sub(entries.read);
        let bytes = bytes.get(..left.min(PAGE_SIZE)).ok_or(GptError::Io)?;
        entries.digest.update(bytes);
        entries.read = entries.read.saturating_add(bytes.len());
        let sectors = (self.blocks.bytes as u64).checked_div(SECTOR_BYTES).unwrap_or(0);
        let used = bytes.chunks_exact(entries.header.entry_bytes);
        entries.found.extend(used.filter_map(|entry| Partition::parse(entry, &entries.header.usable, sectors)));
        if entries.read < entries.header.array_bytes() {
            return self.read_entries(entries);
        }
        if entries.digest.finalize() == entries.header.array_crc {
            Ok(Step::Done(entries.found))
        } else {
            Err(GptError::Damaged)
        }
    }
}

impl Blocks {
    /// The blocks from this one on with so many bytes, if the disk has them.
    fn want(self, block: u64, bytes: usize) -> Option<Want> {
        let blocks = bytes.div_ceil(self.bytes);
        let end = block.checked_add(blocks as u64)?;
        let sectors = (self.bytes as u64).checked_div(SECTOR_BYTES)?;
        let want = Want { sector: block.checked_mul(sectors)?, bytes: blocks.checked_mul(self.bytes)? };
        (end <= self.count).then_some(want)
    }
}

impl fmt::Display for GptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "it has no GUID partition table",
            Self::Damaged => "its GUID partition table is damaged",
            Self::Io => "its partition table cannot be read",
        })
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("which", &self.which).field("error", &self.error).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
