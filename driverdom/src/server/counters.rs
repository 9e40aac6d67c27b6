//! Publishes what is known of the domain in xenstore for people, programs and tests: a node a [`Part`], one write a second at
//! most in all, none when nothing has changed.

use xen_proto::Nanos;
use xen_proto::xenstore::{Client, Event, RequestId};

use super::snapshot::{Part, Snapshot};

/// xenstored shares 200 writes a second among all domains (contract 6.4), so ours are few.
const INTERVAL: Nanos = Nanos::from_millis(1000);

/// Decides when to write what.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Something may have changed since it was last published.
    marked: bool,
    not_before: Nanos,
    /// What was published last.
    published: Snapshot,
    /// The part, by its place in [`Part::ALL`], that comes first if several have changed.
    first: usize,
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

    /// Writes a part that changed if it is time; the others have their turn later.
    pub(super) fn write(&mut self, now: Nanos, client: &mut Client, snapshot: impl FnOnce() -> Snapshot) {
        if self.due().is_none_or(|due| now < due) || client.room() == 0 {
            return;
        }
        let snapshot = snapshot();
        let places = (self.first..).map(|place| place % Part::ALL.len()).take(Part::ALL.len());
        let changed = |place: usize| Some((place, snapshot.news(Part::ALL[place], &self.published)?));
        let mut changed = places.filter_map(changed);
        let Some((place, text)) = changed.next() else {
            self.marked = false;
            return;
        };
        self.marked = changed.next().is_some();
        let part = Part::ALL[place];
        self.writing = client.write(None, part.node(), text.as_bytes()).ok();
        self.published.take(part, &snapshot);
        self.first = place + 1;
        self.not_before = now + INTERVAL;
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
