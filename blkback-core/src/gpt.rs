//! Reads a disk's GUID partition table (UEFI specification 5.3) without I/O: it says what it wants to read next and is fed.

use core::fmt;

use alloc::vec::Vec;

use crate::disk::Geometry;

/// A GUID in its on-disk byte order (the first three fields little-endian, UEFI appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

/// A used entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its unique GUID.
    pub guid: Guid,
    /// Its name in UTF-16, ended by 0 unless all units are used.
    pub name: [u16; 36],
    /// First sector of 512 bytes.
    pub start: u64,
    /// Number of sectors of 512 bytes; at least 1.
    pub sectors: u64,
}

/// What to read next: at most a page, whole logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// First sector of 512 bytes.
    pub sector: u64,
    /// Bytes.
    pub bytes: usize,
}

/// Why a disk has no usable table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptError {
    /// Neither copy is there.
    Absent,
    /// Both copies are damaged, or one is and the other is not there.
    Damaged,
    /// The disk failed to read.
    Io,
}

/// How far the reader is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read this and [`Reader::feed`] it.
    Read(Want),
    /// The table.
    Done(Vec<Partition>),
    /// There is none.
    Failed(GptError),
}

/// Reads the table of one disk.
#[derive(Debug)]
pub struct Reader {
    geometry: Geometry,
}

impl Reader {
    /// A reader for a disk, and its first wish.
    #[must_use]
    pub fn new(geometry: &Geometry) -> (Self, Step) {
        todo!("{geometry:?}")
    }

    /// Takes the bytes that were wanted, or `None` if the disk could not read them.
    pub fn feed(&mut self, bytes: Option<&[u8]>) -> Step {
        todo!("{bytes:?} {:?}", self.geometry)
    }
}

impl fmt::Display for GptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "has no GUID partition table",
            Self::Damaged => "has a damaged GUID partition table",
            Self::Io => "failed to read its partition table",
        })
    }
}
