//! What a person reads on the console: lines made of what is known, without effects. A report is bounded in lines whatever the
//! number of devices, and a line in characters.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use blkback_core::backend::VbdId;
use blkback_core::disk::SECTOR_BYTES;
use blkback_core::stats::Stats;
use blkback_core::volume::Mode;

use super::snapshot::{Attaches, Io, Resources, Snapshot, Times};

/// Devices of one report; a key that is typed again goes on with the next.
pub(super) const DEVICES: usize = 16;
/// Characters of a volume's name that are shown.
const VOLUME: usize = 24;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Summary,
    Devices,
    Help,
}

impl Key {
    /// What a byte typed asks for, if anything.
    pub(super) const fn parse(byte: u8) -> Option<Self> {
        match byte {
            b's' | b'S' => Some(Self::Summary),
            b'd' | b'D' => Some(Self::Devices),
            b'h' | b'H' | b'?' => Some(Self::Help),
            _ => None,
        }
    }
}

/// A vbd that holds a volume, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) id: VbdId,
    pub(super) volume: &'a str,
    pub(super) mode: Mode,
    /// None while no frontend is connected.
    pub(super) stats: Option<Stats>,
}

/// What the keys are.
pub(super) fn help() -> Vec<String> {
    ["keys: s  a summary", "      d  the devices, again for more of them", "      h  this help"]
        .map(ToString::to_string)
        .into()
}

/// All devices together, and what the machine gives them.
pub(super) fn summary(snapshot: &Snapshot) -> Vec<String> {
    let Resources { devices, vbds, connected, usage } = snapshot.resources.unwrap_or_default();
    let Attaches { attach, connect, refused, failed } = snapshot.attaches.unwrap_or_default();
    let io = snapshot.io.unwrap_or_default();
    let Io { stats: Stats { reads, writes, flushes, errors, in_flight, .. }, peaks } = io;
    let (read, written) = io.bytes();
    alloc::vec![
        format!("devices   {devices}: {vbds} with a volume, {connected} connected; {refused} refused, {failed} failed"),
        format!("attach    {}", times(attach)),
        format!("connect   {}", times(connect)),
        format!("read      {reads} requests, {}", amount(read)),
        format!("written   {writes} requests, {}, {flushes} flushes", amount(written)),
        format!("requests  {in_flight} under way, {errors} failed"),
        format!(
            "memory    heap {} of {}, {} of {} pages free",
            amount(usage.heap_bytes as u64),
            amount(usage.heap_size as u64),
            usage.free_pages,
            usage.pool_pages
        ),
        format!(
            "grants    {} pages mapped, at most {}; at most {} operations at once; {} rings; {} granted",
            usage.mapped_pages, peaks.mapped_pages, peaks.longest_batch, usage.rings, usage.granted_pages
        ),
        format!("channels  {}", usage.ports),
    ]
}

/// At most [`DEVICES`] vbds, and how many follow them.
pub(super) fn devices<'a>(rows: impl Iterator<Item = Row<'a>>, following: usize) -> Vec<String> {
    let mut lines = alloc::vec![format!(
        "{:<16} {:<VOLUME$} {:>5} {:>5} {:>9} {:>9} {:>9} {:>9} {:>7} {:>6}",
        "vbd", "volume", "mode", "queue", "reads", "writes", "read", "written", "flushes", "errors"
    )];
    lines.extend(rows.take(DEVICES).map(|row| device(&row)));
    if lines.len() == 1 {
        return alloc::vec!["no device holds a volume".to_string()];
    }
    if following > 0 {
        lines.push(format!("and {following} more: press d again"));
    }
    lines
}

fn device(row: &Row<'_>) -> String {
    let name = format!("{}/{}", row.id.domain, row.id.device);
    let volume: String = row.volume.chars().take(VOLUME).collect();
    let mode = match row.mode {
        Mode::ReadOnly => "r",
        Mode::ReadWrite => "rw",
    };
    let Some(Stats { reads, writes, flushes, sectors_read, sectors_written, errors, in_flight }) = row.stats else {
        return format!("{name:<16} {volume:<VOLUME$} {mode:>5} not connected");
    };
    let [read, written] = [sectors_read, sectors_written].map(|sectors| amount(sectors.saturating_mul(SECTOR_BYTES)));
    format!(
        "{name:<16} {volume:<VOLUME$} {mode:>5} {in_flight:>5} {reads:>9} {writes:>9} {read:>9} {written:>9} {flushes:>7} {errors:>6}"
    )
}

fn times(Times { count, p50, p99, p999: _, max }: Times) -> String {
    if count == 0 {
        return "none".to_string();
    }
    format!(
        "{count}: half within {} ms, 99 of 100 within {} ms, the longest {} ms",
        millis(p50),
        millis(p99),
        millis(max)
    )
}

/// Microseconds in milliseconds, rounded up to a tenth.
fn millis(micros: u64) -> String {
    let tenths = micros.div_ceil(100);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Bytes with three digits or four, rounded down.
fn amount(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let power = bytes.ilog2() / 10;
    let (whole, rest) = (bytes >> (10 * power), bytes & ((1 << (10 * power)) - 1));
    let unit = UNITS[power as usize - 1];
    if whole < 100 {
        let tenth = (u128::from(rest) * 10) >> (10 * power);
        return format!("{whole}.{tenth} {unit}");
    }
    format!("{whole} {unit}")
}

#[cfg(test)]
mod tests {
    use xen_proto::DomId;

    use super::*;
    use crate::server::platform::{Peaks, Usage};

    #[test]
    fn only_these_keys_ask_for_anything() {
        for byte in 0..=u8::MAX {
            let key = match byte {
                b's' | b'S' => Some(Key::Summary),
                b'd' | b'D' => Some(Key::Devices),
                b'h' | b'H' | b'?' => Some(Key::Help),
                _ => None,
            };
            assert_eq!(Key::parse(byte), key, "{byte:#x}");
        }
    }

    #[test]
    fn amounts() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (100 << 10, "100 KiB"),
            ((1 << 20) - 1, "1023 KiB"),
            (1 << 20, "1.0 MiB"),
            (99 * (1 << 30) + (1 << 29), "99.5 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(amount(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn a_summary() {
        let usage = Usage {
            rings: 2,
            ports: 5,
            mapped_pages: 3,
            granted_pages: 1,
            free_pages: 700,
            pool_pages: 900,
            heap_bytes: 100_000,
            heap_size: 2 << 20,
        };
        let stats =
            Stats { reads: 7, writes: 8, flushes: 2, sectors_read: 56, sectors_written: 4096, errors: 1, in_flight: 3 };
        let snapshot = Snapshot {
            resources: Some(Resources { devices: 4, vbds: 3, connected: 2, usage }),
            attaches: Some(Attaches {
                attach: Times { count: 4, p50: 4_901, p99: 20_000, p999: 23_000, max: 23_000 },
                connect: Times::default(),
                refused: 1,
                failed: 0,
            }),
            io: Some(Io { stats, peaks: Peaks { mapped_pages: 320, longest_batch: 64 } }),
        };
        let expected = [
            "devices   4: 3 with a volume, 2 connected; 1 refused, 0 failed",
            "attach    4: half within 5.0 ms, 99 of 100 within 20.0 ms, the longest 23.0 ms",
            "connect   none",
            "read      7 requests, 28.0 KiB",
            "written   8 requests, 2.0 MiB, 2 flushes",
            "requests  3 under way, 1 failed",
            "memory    heap 97.6 KiB of 2.0 MiB, 700 of 900 pages free",
            "grants    3 pages mapped, at most 320; at most 64 operations at once; 2 rings; 1 granted",
            "channels  5",
        ];
        assert_eq!(summary(&snapshot), expected);
        assert_eq!(summary(&Snapshot::default()).len(), expected.len(), "also before guests are served");
    }

    fn row(device: u32, volume: &str, stats: Option<Stats>) -> Row<'_> {
        Row { id: VbdId { domain: DomId(7), device }, volume, mode: Mode::ReadWrite, stats }
    }

    #[test]
    fn devices_are_a_table() {
        let stats =
            Stats { reads: 12, writes: 4, sectors_read: 96, sectors_written: 8, in_flight: 1, ..Stats::default() };
        let rows = [
            row(51712, "gpt:demo", Some(stats)),
            Row { mode: Mode::ReadOnly, ..row(51728, "gpt:a-name-much-longer-than-most", None) },
        ];
        let expected = [
            "vbd              volume                    mode queue     reads    writes      read   written flushes errors",
            "7/51712          gpt:demo                    rw     1        12         4  48.0 KiB   4.0 KiB       0      0",
            "7/51728          gpt:a-name-much-longer-t     r not connected",
            "and 5 more: press d again",
        ];
        assert_eq!(devices(rows.into_iter(), 5), expected);
        assert_eq!(devices(core::iter::empty(), 0), ["no device holds a volume"]);
    }

    #[test]
    fn a_report_is_bounded() {
        const LINE: usize = 256;
        let full = Stats {
            reads: u64::MAX,
            writes: u64::MAX,
            flushes: u64::MAX,
            sectors_read: u64::MAX,
            sectors_written: u64::MAX,
            errors: u64::MAX,
            in_flight: u32::MAX,
        };
        let name = "\u{fffd}".repeat(256);
        let lines = devices((0..1000).map(|_| row(u32::MAX, &name, Some(full))), usize::MAX);
        assert_eq!(lines.len(), DEVICES + 2);
        assert!(lines.iter().all(|line| line.len() <= LINE), "{lines:?}");
    }
}
