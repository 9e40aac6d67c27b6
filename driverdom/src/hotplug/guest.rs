//! What belongs to a guest rather than to a device: its watch, its dwell, and its turn in the queue.

use alloc::collections::{BTreeMap, VecDeque};

use blkback_core::backend::VbdId;
use xen_proto::xenbus::removal_dwell;
use xen_proto::{DomId, Nanos};

/// Changes of our states, and connections, that a guest may cause in [`CHANGES_INTERVAL`]: this many, and
/// [`CHANGES_PER_DEVICE`] for each device it has. Whoever closes and comes back without pause would else use up the rate of
/// writes that xenstored grants us all, our time, and the console.
const CHANGES: usize = 20;
const CHANGES_PER_DEVICE: usize = 4;
const CHANGES_INTERVAL: Nanos = Nanos::from_millis(1_000);

/// How long dom0 may pause between two devices of a guest that it destroys: a loaded one was seen to pause for 3.5 s. It must
/// not find the first devices gone before it has looked at their answers.
const DESTROY_PAUSE: Nanos = Nanos::from_millis(5_000);

/// How the toolstack removes a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// It asks the frontend to close.
    Asked,
    /// It took the frontend's directory away at the same time, as it does when it destroys the guest.
    Forced,
}

/// A guest with at least one device.
#[derive(Debug, Default)]
pub(super) struct Guest {
    /// Devices that we know.
    pub(super) devices: usize,
    /// Of these, devices that the toolstack removes.
    closing: usize,
    /// Until when none of them may be removed.
    pub(super) quiet_until: Nanos,
    /// Changes that it caused since [`Self::changes_since`].
    changes: usize,
    changes_since: Nanos,
    /// Its directory is watched.
    pub(super) watched: bool,
    /// When a mistake of its frontends was last logged.
    pub(super) failure_logged_at: Option<Nanos>,
}

impl Guest {
    /// The toolstack began to remove one more device: the dwell of all of them begins anew.
    pub(super) fn begin_closing(&mut self, now: Nanos, removal: Removal) {
        self.closing += 1;
        let dwell = removal_dwell(self.closing);
        // A destroyed guest's devices go all of them, so there is more to come, and dom0 may pause before it.
        let more_to_come = removal == Removal::Forced && self.closing < self.devices;
        self.quiet_until = now + if more_to_come { dwell.max(DESTROY_PAUSE) } else { dwell };
    }

    /// The guest causes a change of our state.
    ///
    /// # Errors
    /// It has caused too many: not before this moment.
    pub(super) fn spend_change(&mut self, now: Nanos) -> Result<(), Nanos> {
        if now >= self.changes_since + CHANGES_INTERVAL {
            (self.changes, self.changes_since) = (0, now);
        }
        if self.changes >= CHANGES + CHANGES_PER_DEVICE * self.devices {
            return Err(self.changes_since + CHANGES_INTERVAL);
        }
        self.changes += 1;
        Ok(())
    }

    /// One that was being removed is gone.
    pub(super) fn end_closing(&mut self) {
        self.closing -= 1;
    }
}

/// Devices that wait for a task: each guest has its own line, and the guests take turns.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    turns: VecDeque<DomId>,
    lines: BTreeMap<DomId, VecDeque<u32>>,
}

impl FairQueue {
    /// Adds a device, which must not be in the queue.
    pub(super) fn push(&mut self, id: VbdId) {
        let line = self.lines.entry(id.domain).or_default();
        if line.is_empty() {
            self.turns.push_back(id.domain);
        }
        line.push_back(id.device);
    }

    /// Takes the first device of the guest whose turn it is.
    pub(super) fn pop(&mut self) -> Option<VbdId> {
        let domain = self.turns.pop_front()?;
        let line = self.lines.get_mut(&domain)?;
        let device = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&domain);
        } else {
            self.turns.push_back(domain);
        }
        Some(VbdId { domain, device })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn changes_are_limited_by_time_and_devices() {
        let mut guest = Guest { devices: 3, ..Guest::default() };
        let spent = |guest: &mut Guest, millis| {
            (0..100).filter(|_| guest.spend_change(Nanos::from_millis(millis)).is_ok()).count()
        };
        assert_eq!(spent(&mut guest, 5_000), 32);
        assert_eq!(spent(&mut guest, 5_999), 0);
        assert_eq!(guest.spend_change(Nanos::from_millis(5_999)), Err(Nanos::from_millis(6_000)));
        assert_eq!(spent(&mut guest, 6_000), 32);
    }

    #[test]
    fn guests_take_turns() {
        let mut queue = FairQueue::default();
        for (domain, device) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)] {
            queue.push(VbdId { domain: DomId(domain), device });
        }
        let order: Vec<_> = core::iter::from_fn(|| queue.pop()).map(|id| (id.domain.0, id.device)).collect();
        assert_eq!(order, [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (1, 3)]);
        assert!(queue.is_empty());
    }
}
