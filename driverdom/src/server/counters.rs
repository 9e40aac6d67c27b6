//! What is in use, published in xenstore for people and tests: `data/driverdom/counters`, at most once a second.

use alloc::format;

use xen_proto::Nanos;
use xen_proto::xenstore::{Client, Event, RequestId};

use super::platform::Usage;

/// Where, relative to our own directory.
const PATH: &str = "data/driverdom/counters";
/// xenstored shares 200 writes a second among all domains (contract 6.4), so ours are few.
const INTERVAL: Nanos = Nanos::from_millis(1000);

/// The counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Vbds that hold a volume.
    pub(super) vbds: usize,
    /// What the machine says.
    pub(super) usage: Usage,
}

/// Decides when to write.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Something may have changed since the last write.
    marked: bool,
    not_before: Nanos,
    writing: Option<RequestId>,
}

impl Counters {
    /// Something may have changed.
    pub(super) fn mark(&mut self) {
        self.marked = true;
    }

    /// When [`Counters::write`] wants to be called next, if at all.
    #[must_use]
    pub(super) fn due(&self) -> Option<Nanos> {
        (self.marked && self.writing.is_none()).then_some(self.not_before)
    }

    /// Writes if something changed and it is time.
    pub(super) fn write(&mut self, now: Nanos, client: &mut Client, snapshot: impl FnOnce() -> Snapshot) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let Snapshot { vbds, usage: Usage { rings, mapped_pages, granted_pages, free_pages, heap_bytes } } = snapshot();
        let text = format!(
            "vbds={vbds} rings={rings} mapped_pages={mapped_pages} granted_pages={granted_pages} free_pages={free_pages} heap_bytes={heap_bytes}"
        );
        if let Ok(request) = client.write(None, PATH, text.as_bytes()) {
            self.writing = Some(request);
            self.marked = false;
            self.not_before = now + INTERVAL;
        }
    }

    /// Keeps the answer to our own write; gives back every other event.
    pub(super) fn store_event(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Reply { request, ref result } if self.writing == Some(request) => {
                if let Err(error) = result {
                    log::warn!("the counters cannot be written: {error:?}");
                }
                self.writing = None;
                None
            }
            other => Some(other),
        }
    }
}
