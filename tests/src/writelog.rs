//! QEMU's log of what a disk was told, in its order (`blklogwrites`, in the format of Linux' dm-log-writes).

use std::path::Path;

use anyhow::{Context, ensure};

/// Bytes of a sector, as given to QEMU with `log-sector-size`; entries begin at sectors.
const SECTOR: usize = 512;

/// First word of the log's first sector (dm-log-writes: `WRITE_LOG_MAGIC`).
const MAGIC: u64 = 0x006a_7366_7773_6872;

/// Flag bits of an entry (dm-log-writes).
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;

/// One thing that the disk was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Bytes for a byte offset.
    Write {
        /// Byte offset on the disk.
        offset: u64,
        /// The data.
        data: Vec<u8>,
    },
    /// All writes before it shall last.
    Flush,
    /// A range may be forgotten.
    Discard,
}

/// The entries of the log so far. QEMU writes their number at each flush only: what came after the last flush is not in it.
///
/// # Errors
/// When it is not such a log.
pub fn read(file: &Path) -> anyhow::Result<Vec<Entry>> {
    parse(&std::fs::read(file).with_context(|| file.display().to_string())?)
}

fn parse(log: &[u8]) -> anyhow::Result<Vec<Entry>> {
    ensure!(word(log, 0)? == MAGIC, "not a write log");
    let count = word(log, 16)?;
    let mut at = SECTOR;
    let mut entries = vec![];
    for _ in 0..count {
        let (sector, sectors, flags) = (word(log, at)?, word(log, at + 8)?, word(log, at + 16)?);
        at += SECTOR;
        let length = usize::try_from(sectors)? * SECTOR;
        if flags & DISCARD != 0 {
            entries.push(Entry::Discard);
            continue;
        }
        if length != 0 {
            let data = log.get(at..at + length).context("a write log cut short")?.to_vec();
            entries.push(Entry::Write { offset: sector * SECTOR as u64, data });
            at += length;
        }
        if flags & FLUSH != 0 {
            entries.push(Entry::Flush);
        }
    }
    Ok(entries)
}

fn word(log: &[u8], at: usize) -> anyhow::Result<u64> {
    let bytes = log.get(at..at + 8).context("a write log cut short")?;
    Ok(u64::from_le_bytes(bytes.try_into()?))
}

/// Whether a write of `pattern` stands in the log with a flush after it.
#[must_use]
pub fn flushed(entries: &[Entry], pattern: &[u8]) -> bool {
    let holds = |entry: &Entry| matches!(entry, Entry::Write { data, .. } if data.windows(pattern.len()).any(|part| part == pattern));
    let written = entries.iter().position(holds);
    written.is_some_and(|at| entries[at..].contains(&Entry::Flush))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[(u64, u64, u64, u8)]) -> Vec<u8> {
        let mut log = vec![];
        let mut sector = |words: &[u64]| {
            let start = log.len();
            for word in words {
                log.extend(word.to_le_bytes());
            }
            log.resize(start + SECTOR, 0);
            log.len()
        };
        sector(&[MAGIC, 1, entries.len() as u64, SECTOR as u64]);
        for (at, sectors, flags, fill) in entries {
            sector(&[*at, *sectors, *flags, 0]);
            for _ in 0..if flags & DISCARD == 0 { *sectors } else { 0 } {
                sector(&[u64::from_le_bytes([*fill; 8])]);
            }
        }
        log
    }

    #[test]
    fn entries_are_read_in_order() {
        let entries =
            parse(&log(&[(8, 2, 0, 7), (0, 0, FLUSH, 0), (4, 9, DISCARD, 0), (1, 1, FLUSH, 3)])).expect("a log");
        assert!(
            matches!(&entries[0], Entry::Write { offset: 4096, data } if data.len() == 1024 && data.starts_with(&[7; 8]))
        );
        assert_eq!(entries[1..3], [Entry::Flush, Entry::Discard]);
        assert!(matches!(&entries[3], Entry::Write { offset: 512, .. }));
        assert_eq!(entries[4..], [Entry::Flush]);
    }

    #[test]
    fn only_a_flush_after_the_write_counts() {
        let seen = |entries| flushed(&parse(&log(entries)).expect("a log"), &[7; 8]);
        assert!(seen(&[(8, 1, 0, 7), (0, 0, FLUSH, 0)]));
        assert!(!seen(&[(0, 0, FLUSH, 0), (8, 1, 0, 7)]));
        assert!(!seen(&[(8, 1, 0, 6), (0, 0, FLUSH, 0)]));
        assert!(!seen(&[]));
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(parse(&[]).is_err());
        assert!(parse(&[0; SECTOR]).is_err());
        let whole = log(&[(8, 2, 0, 7)]);
        assert!(parse(&whole[..whole.len() - 1]).is_err());
    }
}
