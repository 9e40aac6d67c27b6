//! What belongs to a guest rather than to a device: its watch, its dwell, and its turn in the queue.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use blkback_core::backend::VbdId;
use xen_proto::xenbus::{Destroy, MAX_REMOVAL_DWELL, MIN_REMOVAL_DWELL, removal_dwell};
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
/// Where xenstored takes long to answer us, dom0 is busy and slow to look: the devices stay for so many times what our looks
/// take, up to [`MOST_FOR_LOOKS`]. Five commands of xl's at a time were seen to need more than half a second for three disks.
const LOOKS: u64 = 32;
const MOST_FOR_LOOKS: Nanos = Nanos::from_millis(3_000);

/// Directories that are removed along with another. xenstored lets a transaction touch 1,024 nodes, and a device has some 25.
const REMOVALS_ALONG: usize = 15;

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
    /// When dom0 asked for those that it removes by force, if it does.
    destroy: Option<Destroy>,
    /// Whose directory is being removed. All removals change the directory above, so side by side they would conflict.
    removing: Option<u32>,
    /// Devices whose directories are to be removed after that.
    to_remove: BTreeSet<u32>,
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
    /// `look` is how long it takes us to see that.
    pub(super) fn begin_closing(&mut self, now: Nanos, removal: Removal, look: Nanos) {
        self.closing += 1;
        let dwell = match removal {
            Removal::Asked => removal_dwell(self.closing),
            Removal::Forced => self.forced_dwell(now),
        };
        let busy = Nanos(look.0.saturating_mul(LOOKS)).min(MOST_FOR_LOOKS);
        self.quiet_until = now + dwell.max(busy).min(MAX_REMOVAL_DWELL);
    }

    /// A destroyed guest's devices go all of them: before the last there is more to come, and dom0 may pause before it.
    fn forced_dwell(&mut self, now: Nanos) -> Nanos {
        self.destroy.get_or_insert(Destroy::begin(now)).ask(now);
        if self.closing < self.devices { DESTROY_PAUSE } else { MIN_REMOVAL_DWELL }
    }

    /// When a device may be removed that dom0 began to remove at `asked_at`. Once dom0 removes devices by force, it is a destroy, and
    /// all have their place in it, those that it had asked to close before too.
    pub(super) fn remove_at(&self, asked_at: Nanos) -> Nanos {
        self.destroy.map_or(self.quiet_until, |destroy| self.quiet_until.max(destroy.remove_at(asked_at)))
    }

    /// Whether it is this device's turn to have its directory removed; if not, it will be.
    pub(super) fn may_remove(&mut self, device: u32) -> bool {
        let turn = *self.removing.get_or_insert(device) == device;
        if !turn {
            self.to_remove.insert(device);
        }
        turn
    }

    /// Takes devices of which this holds from those that wait for their removal, as many as one transaction takes.
    pub(super) fn take_removals(&mut self, at_rest: impl Fn(u32) -> bool) -> Vec<u32> {
        let taken: Vec<u32> =
            self.to_remove.iter().copied().filter(|device| at_rest(*device)).take(REMOVALS_ALONG).collect();
        taken.iter().for_each(|device| _ = self.to_remove.remove(device));
        taken
    }

    /// The device does nothing for now, or is gone. If it was its turn, it is this device's now.
    pub(super) fn pass_removal(&mut self, device: u32) -> Option<u32> {
        self.removing.take_if(|removing| *removing == device)?;
        self.removing = self.to_remove.pop_first();
        self.removing
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

    /// A device is no more: its turn to be removed never comes.
    pub(super) fn forget(&mut self, device: u32) {
        self.devices -= 1;
        self.to_remove.remove(&device);
    }

    /// One that was being removed is gone.
    pub(super) fn end_closing(&mut self) {
        self.closing -= 1;
        if self.closing == 0 {
            self.destroy = None;
        }
    }
}

/// How long looks at devices take lately, whosever they are: the one that sees a removal may have been quick by luck.
#[derive(Debug, Default)]
pub(super) struct Looks {
    average: Nanos,
    /// When the last one was.
    last_at: Nanos,
}

/// Looks over which their time is averaged, about.
const LOOKS_AVERAGED: u64 = 8;
/// For how long after a look it says something about the next.
const LOOKS_KEPT: Nanos = Nanos::from_millis(10_000);
/// A look that took longer makes no dwell longer.
const LONGEST_LOOK: Nanos = Nanos(MOST_FOR_LOOKS.0 / LOOKS);

impl Looks {
    /// Takes down what a look took.
    pub(super) fn add(&mut self, now: Nanos, took: Nanos) {
        let took = took.min(LONGEST_LOOK);
        let before = self.lately(now).unwrap_or(took);
        self.average = Nanos((before.0 * (LOOKS_AVERAGED - 1) + took.0) / LOOKS_AVERAGED);
        self.last_at = now;
    }

    /// How long a look takes, of which the last took so long.
    pub(super) fn usual(&self, now: Nanos, last: Nanos) -> Nanos {
        self.lately(now).map_or(last, |average| average.max(last))
    }

    fn lately(&self, now: Nanos) -> Option<Nanos> {
        (self.average > Nanos(0) && now.since(self.last_at) < LOOKS_KEPT).then_some(self.average)
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
    fn a_destroyed_guests_devices_go_at_the_pace_at_which_dom0_asked() {
        for (devices, pause, first, last) in [
            (1, 0, 500, 500),
            (8, 10, 500, 500),
            (101, 10, 500, 1_000),
            (101, 60, 2_000, 6_000),
            (101, 900, 8_000, 8_000),
        ] {
            let mut guest = Guest { devices, ..Guest::default() };
            let asked_at = |asked: usize| Nanos::from_millis(10 + asked as u64 * pause);
            for asked in 1..=devices {
                assert!(asked == 1 || guest.quiet_until > asked_at(asked), "all are asked for first");
                guest.begin_closing(asked_at(asked), Removal::Forced, Nanos(0));
            }
            let all: Vec<_> = (1..=devices).map(|asked| guest.remove_at(asked_at(asked))).collect();
            assert!(all.is_sorted());
            let after = |millis| asked_at(devices) + Nanos::from_millis(millis);
            assert_eq!((all[0], all[devices - 1]), (after(first), after(last)), "{devices} devices");
            let steps: BTreeSet<_> = all.iter().collect();
            assert!(steps.len() <= 16, "{} transactions", steps.len());
        }
    }

    #[test]
    fn a_device_that_was_asked_to_close_before_has_its_place_in_a_destroy() {
        let at = Nanos::from_millis;
        let mut guest = Guest { devices: 31, ..Guest::default() };
        guest.begin_closing(at(0), Removal::Asked, Nanos(0));
        assert_eq!(guest.remove_at(at(0)), at(500));
        (1..=30).for_each(|asked| guest.begin_closing(at(1_000 + asked * 100), Removal::Forced, Nanos(0)));
        assert_eq!(guest.remove_at(at(0)).0 / 1_000_000, 4_966, "a third of the 2.9 s of asking after the last");
    }

    #[test]
    fn detaches_do_not_hold_up_one_by_force() {
        let at = Nanos::from_millis;
        let mut guest = Guest { devices: 20, ..Guest::default() };
        guest.begin_closing(at(0), Removal::Forced, Nanos(0));
        assert_eq!(guest.remove_at(at(0)), at(5_000));
        (1..=8).for_each(|asked| guest.begin_closing(at(1_000 * asked), Removal::Asked, Nanos(0)));
        assert_eq!(guest.remove_at(at(0)), at(8_500), "half a second after the last of anything");
    }

    #[test]
    fn where_looking_takes_long_the_dwell_does_too() {
        for (look, dwell) in [(5, 500), (15, 500), (50, 1_600), (5_000, 3_000)] {
            for removal in [Removal::Asked, Removal::Forced] {
                let mut guest = Guest { devices: 1, ..Guest::default() };
                guest.begin_closing(Nanos(0), removal, Nanos::from_millis(look));
                assert_eq!(guest.quiet_until, Nanos::from_millis(dwell), "{look} ms");
            }
        }
    }

    #[test]
    fn a_quick_look_among_slow_ones_is_luck_and_a_slow_one_among_quick_ones_is_not() {
        let at = Nanos::from_millis;
        for (lately, last, later, usual) in [
            (40, 5, 0, 40),
            (40, 5, 9_999, 40),
            (40, 5, 10_000, 5),
            (10, 200, 0, 200),
            (10, 5, 0, 10),
            (0, 5, 0, 5),
            (9_000, 5, 0, 93),
        ] {
            let mut looks = Looks::default();
            (0..20).for_each(|_| looks.add(at(1_000), at(lately)));
            let found = looks.usual(at(1_000 + later), at(last)).0 / 1_000_000;
            assert_eq!(found, usual, "{last} ms, {later} ms after looks of {lately} ms");
        }
        let mut looks = Looks::default();
        looks.add(at(1_000), at(9_000));
        (0..8).for_each(|_| looks.add(at(1_000), at(8)));
        assert!(looks.usual(at(1_000), at(8)) < at(40), "one stall is soon forgotten");
    }

    #[test]
    fn removals_take_turns() {
        let mut guest = Guest::default();
        assert_eq!([7, 9, 8, 7].map(|device| guest.may_remove(device)), [true, false, false, true]);
        assert_eq!(guest.pass_removal(9), None, "it was not its turn");
        assert_eq!(guest.pass_removal(7), Some(8));
        assert_eq!([9, 8].map(|device| guest.may_remove(device)), [false, true]);
        assert_eq!(guest.pass_removal(8), Some(9));
        assert_eq!(guest.pass_removal(9), None);
        assert!(guest.may_remove(5));
    }

    #[test]
    fn a_device_that_is_gone_holds_up_no_removal() {
        let mut guest = Guest { devices: 3, ..Guest::default() };
        assert_eq!([7, 8, 9].map(|device| guest.may_remove(device)), [true, false, false]);
        guest.forget(8);
        assert_eq!(guest.pass_removal(7), Some(9));
        guest.forget(9);
        assert_eq!(guest.pass_removal(9), None);
        assert!(guest.may_remove(7));
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
