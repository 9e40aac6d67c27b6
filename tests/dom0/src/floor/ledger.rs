//! The vbds and how far each is: what xenstore says goes in, the table's next step comes out.

use std::collections::BTreeMap;

use xen_proto::xenbus::{Destroy, MIN_REMOVAL_DWELL, Phase, Seen, State, Step, Times, next_step};
use xen_proto::{DomId, Nanos};

use crate::paths::VbdId;

/// What xenstore says of a vbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The backend's `state`.
    pub(super) own: Option<State>,
    /// The backend's `online`.
    pub(super) online: bool,
    /// The frontend's `state`.
    pub(super) frontend: Option<State>,
}

/// All vbds.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    devices: BTreeMap<VbdId, Device>,
    guests: BTreeMap<DomId, Guest>,
}

#[derive(Debug)]
struct Device {
    phase: Phase,
    seen: Seen,
    hold_until: Nanos,
    /// Since when it is closed for good.
    closed_at: Option<Nanos>,
    /// The toolstack removes it; counted in its guest.
    closing: bool,
    /// When that was first read.
    asked_at: Nanos,
    /// When it is to be looked at without an event.
    timer: Option<Nanos>,
}

#[derive(Debug, Default)]
struct Guest {
    devices: usize,
    closing: usize,
    /// When the toolstack asked for those that it removes, if it does.
    destroy: Option<Destroy>,
}

impl Ledger {
    /// Takes in what xenstore says.
    pub(super) fn read(&mut self, now: Nanos, id: VbdId, reading: Reading) {
        let Reading { own, online, frontend } = reading;
        if own.is_none() && !self.devices.contains_key(&id) {
            return;
        }
        let guest = self.guests.entry(id.guest).or_default();
        let device = self.devices.entry(id).or_insert_with(|| {
            guest.devices += 1;
            Device::new()
        });
        device.seen = Seen { own, online, frontend, frontend_before: device.seen.frontend_before };
        let removed = !online && matches!(own, Some(State::CLOSING | State::CLOSED));
        if removed && !device.closing {
            device.asked_at = now;
            guest.begin_closing(now);
        } else if !removed && device.closing && own.is_some() {
            guest.end_closing();
        }
        device.closing = removed || (own.is_none() && device.closing);
        device.note_closed(now);
    }

    /// What is next for a vbd. What it is then has to be told: [`Self::wrote`], [`Self::reached`] or [`Self::forget`].
    pub(super) fn step(&mut self, now: Nanos, id: VbdId) -> Step {
        let (Some(device), Some(guest)) = (self.devices.get_mut(&id), self.guests.get(&id.guest)) else {
            return Step::Rest;
        };
        let closed_for = device.closed_at.unwrap_or(now) + MIN_REMOVAL_DWELL;
        let remove_at = guest.destroy.map_or(closed_for, |destroy| destroy.remove_at(device.asked_at).max(closed_for));
        let times = Times { now, hold_until: device.hold_until, remove_at, drain_until: Nanos::default() };
        let step = next_step(device.phase, device.seen, times);
        device.seen.frontend_before = device.seen.frontend;
        device.timer = if let Step::Wait(until) = step { Some(until) } else { None };
        step
    }

    /// Our state is this now, by our own hand.
    pub(super) fn wrote(&mut self, now: Nanos, id: VbdId, state: State, hold_until: Nanos) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.seen.own = Some(state);
            device.hold_until = device.hold_until.max(hold_until);
            device.note_closed(now);
        }
    }

    /// We removed its directory.
    pub(super) fn removed(&mut self, id: VbdId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.seen.own = None;
        }
    }

    /// We are so far with it.
    pub(super) fn reached(&mut self, id: VbdId, phase: Phase) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.phase = phase;
        }
    }

    /// It is no more; true when it was the guest's last.
    pub(super) fn forget(&mut self, id: VbdId) -> bool {
        let (Some(device), Some(guest)) = (self.devices.remove(&id), self.guests.get_mut(&id.guest)) else {
            return false;
        };
        guest.devices -= 1;
        if device.closing {
            guest.end_closing();
        }
        let last = guest.devices == 0;
        if last {
            self.guests.remove(&id.guest);
        }
        last
    }

    /// Our state of a vbd.
    pub(super) fn own(&self, id: VbdId) -> Option<State> {
        self.devices.get(&id).and_then(|device| device.seen.own)
    }

    /// Whether a guest has vbds.
    pub(super) fn knows(&self, guest: DomId) -> bool {
        self.guests.contains_key(&guest)
    }

    /// A guest's vbds.
    pub(super) fn of(&self, guest: DomId) -> impl Iterator<Item = VbdId> {
        self.devices.keys().copied().filter(move |id| id.guest == guest)
    }

    /// When the next vbd is to be looked at without an event.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.devices.values().filter_map(|device| device.timer).min()
    }

    /// The vbds that are to be looked at now.
    pub(super) fn due(&self, now: Nanos) -> Vec<VbdId> {
        let due = |device: &Device| device.timer.is_some_and(|at| at <= now);
        self.devices.iter().filter(|(_, device)| due(device)).map(|(id, _)| *id).collect()
    }
}

impl Guest {
    /// The dwell of all begins anew with each that the toolstack begins to remove.
    fn begin_closing(&mut self, now: Nanos) {
        self.closing += 1;
        self.destroy.get_or_insert(Destroy::begin(now)).ask(now);
    }

    fn end_closing(&mut self) {
        self.closing -= 1;
        if self.closing == 0 {
            self.destroy = None;
        }
    }
}

impl Device {
    const fn new() -> Self {
        let seen = Seen { own: None, online: true, frontend: None, frontend_before: None };
        Self {
            phase: Phase::Fresh,
            seen,
            hold_until: Nanos(0),
            closed_at: None,
            closing: false,
            asked_at: Nanos(0),
            timer: None,
        }
    }

    fn note_closed(&mut self, now: Nanos) {
        let closed = self.seen.own == Some(State::CLOSED) && !self.seen.online;
        self.closed_at = if closed { self.closed_at.or(Some(now)) } else { None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xen_proto::xenbus::{HOLD_INIT_WAIT, MAX_REMOVAL_DWELL};

    fn id(device: u32) -> VbdId {
        VbdId { guest: DomId(7), device }
    }

    fn reading(own: u32, online: bool, frontend: Option<u32>) -> Reading {
        Reading { own: Some(State(own)), online, frontend: frontend.map(State) }
    }

    /// Takes all steps that there are at a moment, as if each succeeded, and returns them.
    fn steps(ledger: &mut Ledger, now: Nanos, id: VbdId) -> Vec<Step> {
        let mut taken = vec![];
        loop {
            let step = ledger.step(now, id);
            taken.push(step);
            match step {
                Step::Rest | Step::Wait(_) => return taken,
                Step::Open => ledger.reached(id, Phase::Opened),
                Step::Offer => {
                    ledger.wrote(now, id, State::INIT_WAIT, now + HOLD_INIT_WAIT);
                    ledger.reached(id, Phase::Ready);
                }
                Step::Connect => ledger.reached(id, Phase::Linked),
                Step::Announce => {
                    ledger.wrote(now, id, State::CONNECTED, Nanos(0));
                    ledger.reached(id, Phase::Connected);
                }
                Step::Switch(state) => ledger.wrote(now, id, state, Nanos(0)),
                Step::Fail(_) => ledger.wrote(now, id, State::CLOSING, Nanos(0)),
                Step::Disconnect => ledger.reached(id, Phase::Ready),
                Step::Close => ledger.reached(id, Phase::Fresh),
                Step::Remove => ledger.removed(id),
                Step::Forget => {
                    ledger.forget(id);
                    return taken;
                }
            }
        }
    }

    fn connected(ledger: &mut Ledger, device: u32) {
        let at = Nanos::from_millis(1);
        ledger.read(at, id(device), reading(1, true, Some(1)));
        steps(ledger, at, id(device));
        ledger.read(at, id(device), reading(2, true, Some(3)));
        let held = at + HOLD_INIT_WAIT;
        steps(ledger, held, id(device));
        ledger.read(held, id(device), reading(4, true, Some(4)));
        assert_eq!(steps(ledger, held, id(device)), [Step::Rest]);
    }

    #[test]
    fn a_quick_frontend_waits_for_the_end_of_the_hold() {
        let mut ledger = Ledger::default();
        let at = Nanos::from_millis(100);
        ledger.read(at, id(1), reading(1, true, Some(1)));
        assert_eq!(steps(&mut ledger, at, id(1)), [Step::Open, Step::Offer, Step::Rest]);
        ledger.read(at, id(1), reading(2, true, Some(3)));
        let held = at + HOLD_INIT_WAIT;
        assert_eq!(steps(&mut ledger, at, id(1)), [Step::Wait(held)]);
        assert_eq!((ledger.deadline(), ledger.due(at), ledger.due(held)), (Some(held), vec![], vec![id(1)]));
        assert_eq!(steps(&mut ledger, held, id(1)), [Step::Connect, Step::Announce, Step::Rest]);
        assert_eq!(ledger.deadline(), None);
    }

    #[test]
    fn a_destroyed_guests_devices_stay_until_the_dwell_after_the_last_5() {
        let mut ledger = Ledger::default();
        (0..100).for_each(|device| connected(&mut ledger, device));
        let at = |device: u32| Nanos::from_millis(10_000 + 20 * u64::from(device));
        for device in 0..100 {
            ledger.read(at(device), id(device), reading(5, false, None));
            let steps = steps(&mut ledger, at(device), id(device));
            assert!(steps.contains(&Step::Switch(State::CLOSED)), "6 at once: {steps:?}");
            assert!(matches!(steps.last(), Some(Step::Wait(_))), "{steps:?}");
        }
        for (device, dwell) in [(0, 660), (25, 660), (26, 1_000), (99, 2_000)] {
            let end = at(99) + Nanos::from_millis(dwell);
            assert_eq!(steps(&mut ledger, Nanos(end.0 - 1), id(device)), [Step::Wait(end)]);
        }
        for device in 0..100 {
            assert_eq!(steps(&mut ledger, at(99) + MAX_REMOVAL_DWELL, id(device)), [Step::Remove, Step::Forget]);
        }
        assert!(!ledger.knows(DomId(7)));
    }

    #[test]
    fn where_the_toolstack_is_slow_to_ask_devices_stay_longer() {
        let mut ledger = Ledger::default();
        (0..2).for_each(|device| connected(&mut ledger, device));
        for (device, seconds) in [(0, 10), (1, 19)] {
            let at = Nanos::from_millis(seconds * 1000);
            ledger.read(at, id(device), reading(5, false, None));
            steps(&mut ledger, at, id(device));
        }
        assert_eq!(steps(&mut ledger, Nanos::from_millis(19_000), id(1)), [Step::Wait(Nanos::from_millis(27_000))]);
    }

    #[test]
    fn a_detach_is_a_handshake() {
        let mut ledger = Ledger::default();
        connected(&mut ledger, 1);
        let at = Nanos::from_millis(5_000);
        ledger.read(at, id(1), reading(5, false, Some(4)));
        assert_eq!(steps(&mut ledger, at, id(1)), [Step::Rest], "what is in use is not cut off");
        ledger.read(at, id(1), reading(5, false, Some(6)));
        let taken = steps(&mut ledger, at, id(1));
        assert_eq!(taken[..3], [Step::Disconnect, Step::Close, Step::Switch(State::CLOSED)]);
        assert_eq!(taken[3], Step::Wait(at + MIN_REMOVAL_DWELL));
    }

    #[test]
    fn a_frontend_that_closes_by_itself_may_come_back() {
        let mut ledger = Ledger::default();
        connected(&mut ledger, 1);
        let at = Nanos::from_millis(5_000);
        ledger.read(at, id(1), reading(4, true, Some(6)));
        assert_eq!(steps(&mut ledger, at, id(1)), [Step::Disconnect, Step::Switch(State::CLOSED), Step::Rest]);
        ledger.read(at, id(1), reading(6, true, Some(1)));
        assert_eq!(steps(&mut ledger, at, id(1)).first(), Some(&Step::Switch(State::INIT_WAIT)));
    }

    #[test]
    fn a_vanished_directory_is_forgotten_and_one_never_seen_is_not_known() {
        let mut ledger = Ledger::default();
        let gone = Reading { own: None, online: false, frontend: None };
        ledger.read(Nanos(1), id(2), gone);
        assert!(!ledger.knows(DomId(7)));
        connected(&mut ledger, 1);
        ledger.read(Nanos(2), id(1), gone);
        assert_eq!(steps(&mut ledger, Nanos(2), id(1)), [Step::Disconnect, Step::Close, Step::Forget]);
        assert!(!ledger.knows(DomId(7)));
    }
}
