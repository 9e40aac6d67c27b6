//! Volumes: what a `target=` names, and where it lies.
//!
//! ```text
//! target    = disk | [ disk "/" ] "gpt:" partition | "ram:" number unit
//! disk      = "disk" number                whole device, in the order of discovery: disk0
//! partition = NAME | GUID                  as in its GPT entry, to the end of the target; a GUID in any case
//! unit      = "K" | "M" | "G"              1024, 1024^2, 1024^3 bytes; at least 4K
//! ```
//! Without a disk a partition is sought on all of them. A name or GUID that fits two partitions is refused.
//! A RAM volume is private to its vbd, empty at first and gone with it.

use core::fmt;

use alloc::vec::Vec;

use crate::disk::{DiskId, Geometry};
use crate::gpt::{GptError, Guid, Partition};
use crate::ram::RamVolume;

/// Whether a vbd may write (`mode` in its directory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `r`.
    ReadOnly,
    /// `w`.
    ReadWrite,
}

/// A run of sectors of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Which disk.
    pub disk: DiskId,
    /// First sector of 512 bytes.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u64,
}

/// What a vbd reads and writes.
#[derive(Debug)]
pub enum Volume {
    /// Part of a disk, or all of it.
    Disk(Extent),
    /// Pages of our own.
    Ram(RamVolume),
}

/// A parsed `target=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A whole disk.
    Disk(DiskId),
    /// A GPT partition.
    Partition {
        /// Only on this disk, if given.
        disk: Option<DiskId>,
        /// Which one.
        key: PartitionKey<'a>,
    },
    /// A new RAM volume of so many bytes, a multiple of the page size.
    Ram {
        /// Its size.
        bytes: u64,
    },
}

/// How a target names a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKey<'a> {
    /// By its name.
    Name(&'a str),
    /// By its unique GUID.
    Guid(Guid),
}

/// Why a target names nothing; its text is the reason told to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// Not in the grammar.
    Syntax,
    /// A RAM volume of no bytes or of more than can be counted.
    Size,
    /// No such disk.
    NoDisk(DiskId),
    /// No such partition on the disks that were sought.
    NoPartition,
    /// No such partition, and this disk's table could not be read.
    Unreadable(DiskId, GptError),
    /// Two partitions fit.
    Ambiguous,
}

/// A disk as the search for volumes sees it.
#[derive(Clone, Debug)]
pub struct DiskTable {
    /// What the disk is.
    pub geometry: Geometry,
    /// Its partitions, or why they are unknown.
    pub partitions: Result<Vec<Partition>, GptError>,
}

impl<'a> Target<'a> {
    /// Parses a `target=`.
    ///
    /// # Errors
    /// [`TargetError::Syntax`] or [`TargetError::Size`].
    pub fn parse(text: &'a str) -> Result<Self, TargetError> {
        todo!("{text}")
    }
}

/// Finds a whole disk or a partition; `disks` are in the order of their ids.
///
/// # Errors
/// Why there is no such volume.
pub fn locate_disk(id: DiskId, disks: &[DiskTable]) -> Result<Extent, TargetError> {
    todo!("{id} {disks:?}")
}

/// Finds a partition.
///
/// # Errors
/// Why there is no such volume, or that it is not the only one.
pub fn locate_partition(
    disk: Option<DiskId>,
    key: PartitionKey<'_>,
    disks: &[DiskTable],
) -> Result<Extent, TargetError> {
    todo!("{disk:?} {key:?} {disks:?}")
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str(
                "not a volume name: expected diskN, [diskN/]gpt:NAME, [diskN/]gpt:GUID or ram:SIZE",
            ),
            Self::Size => f.write_str("a RAM volume needs a size of at least 4K, such as ram:64M"),
            Self::NoDisk(disk) => write!(f, "there is no {disk}"),
            Self::NoPartition => f.write_str("no partition of that name or GUID"),
            Self::Unreadable(disk, error) => {
                write!(f, "no partition of that name or GUID, but {disk}: {error}")
            }
            Self::Ambiguous => f.write_str(
                "more than one partition has that name or GUID: use diskN/gpt:NAME or the GUID",
            ),
        }
    }
}
