//! What is in use and how attaches went, published in xenstore for people and tests: `data/driverdom/counters` and
//! `data/driverdom/attaches`, at most once a second.

use alloc::string::ToString;
use core::fmt;

use xen_proto::Nanos;
use xen_proto::xenstore::{Client, Event, RequestId};

use super::platform::Usage;
use crate::hotplug::{Histogram, Statistics};

/// Where [`Resources`] are, relative to our own directory.
const COUNTERS: &str = "data/driverdom/counters";
/// And [`Attaches`].
const ATTACHES: &str = "data/driverdom/attaches";
/// xenstored shares 200 writes a second among all domains (contract 6.4), so ours are few.
const INTERVAL: Nanos = Nanos::from_millis(1000);

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) resources: Resources,
    /// None before guests are served.
    pub(super) attaches: Option<Attaches>,
}

/// What is in use: after the same work it is the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resources {
    /// Vbds that hold a volume.
    pub(super) vbds: usize,
    /// What the machine says.
    pub(super) usage: Usage,
}

/// How attaches went since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attaches {
    /// From seeing a directory to having answered it.
    attach: Times,
    /// From a frontend being ready to being connected.
    connect: Times,
    refused: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    count: u64,
    /// In microseconds: what 500, 990 and 999 of a thousand did not exceed, and the longest.
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

/// Decides when to write what.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Something may have changed since the last write.
    marked: bool,
    not_before: Nanos,
    /// What was published last.
    published: Option<Snapshot>,
    writing: [Option<RequestId>; 2],
}

impl Counters {
    /// Something may have changed.
    pub(super) fn mark(&mut self) {
        self.marked = true;
    }

    /// When [`Counters::write`] wants to be called next, if at all.
    #[must_use]
    pub(super) fn due(&self) -> Option<Nanos> {
        (self.marked && self.writing == [None; 2]).then_some(self.not_before)
    }

    /// Writes what changed if it is time.
    pub(super) fn write(&mut self, now: Nanos, client: &mut Client, snapshot: impl FnOnce() -> Snapshot) {
        if self.due().is_none_or(|due| now < due) || client.room() < self.writing.len() {
            return;
        }
        let (before, snapshot) = (self.published, snapshot());
        let resources = Some(snapshot.resources).filter(|new| before.is_none_or(|before| before.resources != *new));
        let attaches = snapshot.attaches.filter(|new| before.is_none_or(|before| before.attaches != Some(*new)));
        self.writing = [
            resources.and_then(|new| client.write(None, COUNTERS, new.to_string().as_bytes()).ok()),
            attaches.and_then(|new| client.write(None, ATTACHES, new.to_string().as_bytes()).ok()),
        ];
        self.published = Some(snapshot);
        self.marked = false;
        self.not_before = now + INTERVAL;
    }

    /// Keeps the answer to our own write; gives back every other event.
    pub(super) fn store_event(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Reply { request, ref result }
                if let Some(writing) = self.writing.iter_mut().find(|writing| **writing == Some(request)) =>
            {
                if let Err(error) = result {
                    log::warn!("the counters cannot be written: {error:?}");
                }
                *writing = None;
                None
            }
            other => Some(other),
        }
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
        let Self { vbds, usage: Usage { rings, mapped_pages, granted_pages, free_pages, heap_bytes, longest_batch } } =
            self;
        write!(
            f,
            "vbds={vbds} rings={rings} mapped_pages={mapped_pages} granted_pages={granted_pages} free_pages={free_pages} heap_bytes={heap_bytes} longest_batch={longest_batch}"
        )
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
