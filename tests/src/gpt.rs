//! Reading a GUID partition table (UEFI 2.10, chapter 5), apart from driverdom's own reader on purpose.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::image::read_at;

/// Bytes of a logical block on the test disks.
pub const SECTOR: u64 = 512;

/// An entry of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its own GUID, as it is written.
    pub guid: String,
    /// First block.
    pub first_lba: u64,
    /// Last block, which is part of it.
    pub last_lba: u64,
}

impl Partition {
    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.last_lba + 1 - self.first_lba) * SECTOR
    }
}

/// The partitions of the image `file`, by its primary table.
///
/// # Errors
/// When there is no table, or one of an unusual form.
pub fn read(file: &Path) -> anyhow::Result<Vec<Partition>> {
    let header = read_at(file, SECTOR, 92)?;
    ensure!(header.starts_with(b"EFI PART"), "{} has no GPT", file.display());
    let (first, count, size) = (u64_at(&header, 72)?, u32_at(&header, 80)?, u32_at(&header, 84)?);
    ensure!(size == 128 && count <= 1024, "GPT with {count} entries of {size} bytes");
    let table = read_at(file, first * SECTOR, (count * size).try_into()?)?;
    table.chunks_exact(128).filter(|entry| entry[..16] != [0; 16]).map(entry).collect()
}

fn entry(bytes: &[u8]) -> anyhow::Result<Partition> {
    let units: Vec<u16> = bytes[56..128].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let name = String::from_utf16(&units).context("a partition's name")?;
    Ok(Partition {
        name: name.trim_end_matches('\0').to_owned(),
        guid: guid(&bytes[16..32]),
        first_lba: u64_at(bytes, 32)?,
        last_lba: u64_at(bytes, 40)?,
    })
}

/// The first three groups are little-endian, the last two are bytes in order (UEFI 2.10, appendix A).
fn guid(b: &[u8]) -> String {
    format!(
        "{:02x}{:02x}{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}{:02x}{:02x}{:02x}{:02x}",
        b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]
    )
}

fn u64_at(bytes: &[u8], at: usize) -> anyhow::Result<u64> {
    Ok(u64::from_le_bytes(bytes[at..at + 8].try_into()?))
}

fn u32_at(bytes: &[u8], at: usize) -> anyhow::Result<u32> {
    Ok(u32::from_le_bytes(bytes[at..at + 4].try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_lies_on_the_disk() {
        let mut bytes = [0u8; 128];
        bytes[..16].fill(9);
        for (byte, value) in bytes[16..32].iter_mut().zip(0x10u8..) {
            *byte = value;
        }
        bytes[32..40].copy_from_slice(&2048u64.to_le_bytes());
        bytes[40..48].copy_from_slice(&4095u64.to_le_bytes());
        bytes[56..60].copy_from_slice(&[b'd', 0, b'm', 0]);
        let partition = entry(&bytes).expect("an entry");
        assert_eq!(partition.name, "dm");
        assert_eq!(partition.guid, "13121110-1514-1716-1819-1a1b1c1d1e1f");
        assert_eq!((partition.first_lba, partition.last_lba, partition.bytes()), (2048, 4095, 1 << 20));
    }
}
