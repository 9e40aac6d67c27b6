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

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use xen_proto::ids::PAGE_SIZE;

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
        if let Some(size) = text.strip_prefix("ram:") {
            return parse_size(size).map(|bytes| Self::Ram { bytes });
        }
        if let Some(partition) = text.strip_prefix("gpt:") {
            return Ok(Self::Partition { disk: None, key: PartitionKey::parse(partition)? });
        }
        let (disk, partition) = match text.split_once("/gpt:") {
            Some((disk, partition)) => (disk, Some(partition)),
            None => (text, None),
        };
        let disk = parse_disk(disk).ok_or(TargetError::Syntax)?;
        match partition {
            Some(partition) => Ok(Self::Partition { disk: Some(disk), key: PartitionKey::parse(partition)? }),
            None => Ok(Self::Disk(disk)),
        }
    }
}

impl<'a> PartitionKey<'a> {
    fn parse(text: &'a str) -> Result<Self, TargetError> {
        match Guid::parse(text) {
            Some(guid) => Ok(Self::Guid(guid)),
            None if text.is_empty() => Err(TargetError::Syntax),
            None => Ok(Self::Name(text)),
        }
    }

    fn fits(self, partition: &Partition) -> bool {
        match self {
            Self::Name(name) => partition.has_name(name),
            Self::Guid(guid) => partition.guid == guid,
        }
    }
}

/// A number in decimal digits alone: no sign, no leading zero.
fn parse_number<T: FromStr>(digits: &str) -> Option<T> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if plain { digits.parse().ok() } else { None }
}

fn parse_disk(text: &str) -> Option<DiskId> {
    text.strip_prefix("disk").and_then(parse_number).map(DiskId)
}

fn parse_size(text: &str) -> Result<u64, TargetError> {
    let unit = |(suffix, bytes)| Some((text.strip_suffix(suffix)?, bytes));
    let units = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30_u64)];
    let (digits, unit) = units.into_iter().find_map(unit).ok_or(TargetError::Syntax)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TargetError::Syntax);
    }
    let bytes = parse_number::<u64>(digits).and_then(|n| n.checked_mul(unit)).ok_or(TargetError::Size)?;
    let bytes = bytes & !(PAGE_SIZE as u64).wrapping_sub(1);
    if bytes > 0 { Ok(bytes) } else { Err(TargetError::Size) }
}

/// Finds a whole disk; `disks` are in the order of their ids.
///
/// # Errors
/// There is no such disk.
pub fn locate_disk(disk: DiskId, disks: &[DiskTable]) -> Result<Extent, TargetError> {
    let table = disks.get(usize::from(disk.0)).ok_or(TargetError::NoDisk(disk))?;
    Ok(Extent { disk, start: 0, sectors: table.geometry.sectors })
}

/// Finds a partition on one disk or on all; `disks` are in the order of their ids.
///
/// # Errors
/// Why there is no such volume, or that it is not the only one.
pub fn locate_partition(
    disk: Option<DiskId>,
    key: PartitionKey<'_>,
    disks: &[DiskTable],
) -> Result<Extent, TargetError> {
    if let Some(disk) = disk {
        locate_disk(disk, disks)?;
    }
    let mut found = None;
    let mut unreadable = None;
    let sought = |id: &DiskId| disk.is_none_or(|disk| disk == *id);
    for (id, table) in (0..=u16::MAX).map(DiskId).zip(disks).filter(|(id, _)| sought(id)) {
        let partitions = table.partitions.as_deref().unwrap_or_else(|error| {
            unreadable.get_or_insert(TargetError::Unreadable(id, *error));
            &[]
        });
        for partition in partitions.iter().filter(|partition| key.fits(partition)) {
            let extent = Extent { disk: id, start: partition.start, sectors: partition.sectors };
            if found.replace(extent).is_some() {
                return Err(TargetError::Ambiguous);
            }
        }
    }
    found.ok_or(unreadable.unwrap_or(TargetError::NoPartition))
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => {
                f.write_str("not a volume name: expected diskN, [diskN/]gpt:NAME, [diskN/]gpt:GUID or ram:SIZE")
            }
            Self::Size => f.write_str("a RAM volume needs a size of at least 4K, such as ram:64M"),
            Self::NoDisk(disk) => write!(f, "there is no {disk}"),
            Self::NoPartition => f.write_str("no partition of that name or GUID"),
            Self::Unreadable(disk, error) => {
                write!(f, "no partition of that name or GUID, but as to {disk}, {error}")
            }
            Self::Ambiguous => {
                f.write_str("more than one partition has that name or GUID: use diskN/gpt:NAME or the GUID")
            }
        }
    }
}

#[cfg(test)]
mod tests;
