//! What is known of the whole domain at a moment, in the form in which programs read it: words `key=value`, bounded in length
//! whatever the number of devices.

use alloc::string::{String, ToString};
use core::fmt;

use blkback_core::disk::SECTOR_BYTES;
use blkback_core::stats::Stats;
use xen_proto::Nanos;

use super::platform::{Peaks, Usage};
use crate::hotplug::{Histogram, Statistics};

/// What is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) resources: Option<Resources>,
    /// None before guests are served.
    pub(super) attaches: Option<Attaches>,
    pub(super) io: Option<Io>,
}

/// A part of a [`Snapshot`], which has its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Resources,
    Attaches,
    Io,
}

/// What is in use: after the same work it is the same again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    /// Devices that the toolstack has made and not taken away.
    pub(super) devices: u64,
    /// Of these, vbds that hold a volume.
    pub(super) vbds: usize,
    /// Of these, vbds whose frontend is connected.
    pub(super) connected: u64,
    /// What the machine says.
    pub(super) usage: Usage,
}

/// How attaches went since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attaches {
    /// From seeing a directory to having answered it.
    pub(super) attach: Times,
    /// From a frontend being ready to being connected.
    pub(super) connect: Times,
    pub(super) refused: u64,
    pub(super) failed: u64,
}

/// How long something took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) count: u64,
    /// In microseconds: what 500, 990 and 999 of a thousand did not exceed, and the longest.
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
}

/// What was read and written since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Io {
    pub(super) stats: Stats,
    pub(super) peaks: Peaks,
}

impl Part {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Resources, Self::Attaches, Self::Io];

    /// Its node, relative to our home.
    pub(super) const fn node(self) -> &'static str {
        match self {
            Self::Resources => "data/driverdom/counters",
            Self::Attaches => "data/driverdom/attaches",
            Self::Io => "data/driverdom/io",
        }
    }
}

impl Snapshot {
    /// The text of a part that is another than `before`.
    pub(super) fn news(&self, part: Part, before: &Self) -> Option<String> {
        match part {
            Part::Resources => news(self.resources, before.resources),
            Part::Attaches => news(self.attaches, before.attaches),
            Part::Io => news(self.io, before.io),
        }
    }

    /// Takes a part over from another.
    pub(super) fn take(&mut self, part: Part, from: &Self) {
        match part {
            Part::Resources => self.resources = from.resources,
            Part::Attaches => self.attaches = from.attaches,
            Part::Io => self.io = from.io,
        }
    }
}

fn news<T: fmt::Display + PartialEq>(now: Option<T>, before: Option<T>) -> Option<String> {
    if now == before { None } else { now.map(|now| now.to_string()) }
}

impl Io {
    /// Bytes read and written.
    pub(super) const fn bytes(&self) -> (u64, u64) {
        (self.stats.sectors_read.saturating_mul(SECTOR_BYTES), self.stats.sectors_written.saturating_mul(SECTOR_BYTES))
    }
}

impl From<&Statistics> for Attaches {
    fn from(statistics: &Statistics) -> Self {
        let &Statistics { refused, failed, .. } = statistics;
        Self { attach: (&statistics.attach).into(), connect: (&statistics.connect).into(), refused, failed }
    }
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self {
            count: histogram.count(),
            p50: micros(histogram.percentile(500)),
            p99: micros(histogram.percentile(990)),
            p999: micros(histogram.percentile(999)),
            max: micros(histogram.max()),
        }
    }
}

/// Rounded up.
fn micros(time: Nanos) -> u64 {
    time.0.div_ceil(1_000)
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, vbds, connected, usage } = self;
        let Usage { rings, ports, mapped_pages, granted_pages, free_pages, pool_pages, heap_bytes, heap_size } = usage;
        write!(f, "devices={devices} vbds={vbds} connected={connected} rings={rings} ports={ports} ")?;
        write!(f, "mapped_pages={mapped_pages} granted_pages={granted_pages} ")?;
        write!(f, "free_pages={free_pages} pool_pages={pool_pages} heap_bytes={heap_bytes} heap_size={heap_size}")
    }
}

impl fmt::Display for Attaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, Times { count, p50, p99, p999, max }) in [("attach", self.attach), ("connect", self.connect)] {
            write!(f, "{name}_count={count} {name}_p50_us={p50} {name}_p99_us={p99} ")?;
            write!(f, "{name}_p999_us={p999} {name}_max_us={max} ")?;
        }
        write!(f, "refused={} failed={}", self.refused, self.failed)
    }
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stats: Stats { reads, writes, flushes, errors, in_flight, .. }, peaks } = self;
        let (read, written) = self.bytes();
        write!(f, "reads={reads} writes={writes} flushes={flushes} bytes_read={read} bytes_written={written} ")?;
        write!(f, "errors={errors} in_flight={in_flight} ")?;
        write!(f, "mapped_pages_max={} longest_batch={}", peaks.mapped_pages, peaks.longest_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_texts_fit_into_a_node() {
        const NODE: usize = 2048;
        let times = Times { count: u64::MAX, p50: u64::MAX, p99: u64::MAX, p999: u64::MAX, max: u64::MAX };
        let full = Snapshot {
            resources: Some(Resources {
                devices: u64::MAX,
                vbds: usize::MAX,
                connected: u64::MAX,
                usage: Usage {
                    rings: usize::MAX,
                    ports: usize::MAX,
                    mapped_pages: usize::MAX,
                    granted_pages: usize::MAX,
                    free_pages: usize::MAX,
                    pool_pages: usize::MAX,
                    heap_bytes: usize::MAX,
                    heap_size: usize::MAX,
                },
            }),
            attaches: Some(Attaches { attach: times, connect: times, refused: u64::MAX, failed: u64::MAX }),
            io: Some(Io {
                stats: Stats {
                    reads: u64::MAX,
                    writes: u64::MAX,
                    flushes: u64::MAX,
                    sectors_read: u64::MAX,
                    sectors_written: u64::MAX,
                    errors: u64::MAX,
                    in_flight: u32::MAX,
                },
                peaks: Peaks { mapped_pages: usize::MAX, longest_batch: usize::MAX },
            }),
        };
        for part in Part::ALL {
            let text = full.news(part, &Snapshot::default()).expect("it is another");
            assert!(text.len() < NODE / 2, "{} has {} bytes", part.node(), text.len());
            assert_eq!(full.news(part, &full), None);
        }
    }

    #[test]
    fn each_word_is_a_key_and_a_number() {
        let some = Snapshot {
            resources: Some(Resources::default()),
            attaches: Some(Attaches::default()),
            io: Some(Io::default()),
        };
        let mut keys = alloc::collections::BTreeSet::new();
        for part in Part::ALL {
            for word in some.news(part, &Snapshot::default()).expect("it is another").split(' ') {
                let (key, value) = word.split_once('=').expect("a pair");
                assert_eq!(value, "0", "{word}");
                assert!(keys.insert(key.to_string()), "{key} is there twice");
            }
        }
    }
}
