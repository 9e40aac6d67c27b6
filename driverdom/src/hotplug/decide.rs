//! From the table's steps to tasks and actions.

use alloc::format;
use alloc::string::{String, ToString};

use blkback_core::backend::VbdId;
use xen_proto::Nanos;
use xen_proto::xenbus::{Phase, Seen, State, Step, next_step, next_step_draining};

use super::batch::Batch;
use super::change::{Change, Kind};
use super::device::{Activity, Device, Question, Verdict};
use super::engine::{DRAINING_VOLUME_PATIENCE, Hotplug, Turn};
use super::task::{Purpose, Stage, Task};
use super::{Action, Claim, paths};

/// What is next for a device.
enum Next {
    /// Nothing until something changes.
    Nothing,
    /// Nothing until then, or until something changes.
    At(Nanos),
    /// Its nodes must be read first.
    Refresh,
    /// Read what the frontend published.
    Rings,
    Change(Change),
    Ask(Question, Action),
    Close,
    Forget,
}

impl Hotplug {
    /// A device comes out of the queue and has a place.
    pub(super) fn begin(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        let Some(device) = self.devices.get_mut(&id) else { panic!("{id:?} was queued and is not there") };
        device.activity = Activity::Running(None);
        // The transaction that offers a volume looks for itself whether its directory is still the one that was read; the
        // events of its making, which come one by one, need no look before.
        let look_first = device.changed && device.phase != Phase::Opened;
        if look_first { self.refresh(turn, id) } else { self.decide(turn, id) }
    }

    /// Does what is next for a device that has a place and no task. What changed since its nodes were read is for the next
    /// time: a guest must not keep its place by changing them all the time.
    pub(super) fn decide(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        loop {
            match self.next(turn, id) {
                Next::Nothing => return self.finish(id),
                Next::At(at) => {
                    self.set_timer(id, at);
                    return self.finish(id);
                }
                Next::Refresh => return self.refresh(turn, id),
                Next::Rings => return self.read_rings(turn, id),
                Next::Change(change) => {
                    self.expect(Purpose::Device(id, 0), turn.client.start_transaction());
                    return self.run(id, Stage::Start(change), 1);
                }
                Next::Ask(question, action) => return self.ask(id, question, action),
                Next::Close => self.close(id),
                Next::Forget => return self.forget(turn, id),
            }
        }
    }

    /// What is next: what was decided about the device before, or what the table says.
    fn next(&mut self, turn: &mut Turn<'_>, id: VbdId) -> Next {
        let (Some(device), Some(guest)) = (self.devices.get_mut(&id), self.guests.get_mut(&id.domain)) else {
            panic!("{id:?} is not there")
        };
        let Some(seen) = device.seen else { return Next::Refresh };
        let claim = if self.drain_until.is_some() { Claim::Draining } else { claim(seen) };
        if let Some(verdict) = device.verdict.take()
            && let Some(next) = carry_out(device, id, seen, verdict, claim)
        {
            return next;
        }
        let times = device.times(turn.now, guest, self.drain_until);
        let table = if self.drain_until.is_some() { next_step_draining } else { next_step };
        let step = table(device.phase, seen, times);
        device.seen = Some(Seen { frontend_before: seen.frontend, ..seen });
        let withdraw_flush = step == Step::Rest && device.flush_withdrawn && device.phase == Phase::Connected;
        let by_the_guest =
            seen.online && matches!(step, Step::Connect | Step::Announce | Step::Switch(_) | Step::Fail(_));
        let step = match by_the_guest.then(|| guest.spend_change(turn.now)) {
            Some(Err(until)) => Step::Wait(until),
            _ => step,
        };
        let after_others = step == Step::Remove && !guest.may_remove(id.device);
        if seen.own.is_some() && !guest.watched {
            // The guest's devices are read again when the watch is there, so nothing is missed.
            guest.watched = true;
            let request = turn.client.watch(&paths::frontends(id.domain), &id.domain.to_string());
            self.expect(Purpose::WatchGuest(id.domain), request);
        }
        // The table writes only where there is a state to go from.
        let own = seen.own.unwrap_or(State::UNKNOWN);
        let change = |kind| Next::Change(Change { kind, own, online: seen.online });
        match step {
            Step::Rest if withdraw_flush && own == State::CONNECTED => change(Kind::WithdrawFlush),
            Step::Rest => Next::Nothing,
            Step::Wait(until) => Next::At(until),
            Step::Open => self.open(turn, id, change),
            Step::Offer => change(Kind::Offer),
            Step::Connect => Next::Rings,
            Step::Announce => change(Kind::Announce),
            Step::Switch(state) => change(Kind::Switch(state)),
            Step::Fail(state) => change(Kind::Fail(format!("the frontend's state is {state}, which makes no sense"))),
            Step::Disconnect => Next::Ask(Question::Disconnect, Action::Disconnect { device: id, claim }),
            Step::Close => Next::Close,
            Step::Remove if after_others => Next::Nothing,
            Step::Remove => change(Kind::Remove(self.removed_along(id))),
            Step::Forget => Next::Forget,
        }
    }

    /// The other devices of the guest whose directories are to be removed, as many as go with this one.
    fn removed_along(&mut self, id: VbdId) -> alloc::vec::Vec<u32> {
        let Some(guest) = self.guests.get_mut(&id.domain) else { return alloc::vec::Vec::new() };
        let devices = &self.devices;
        let at_rest = |device: u32| {
            devices.get(&VbdId { device, ..id }).is_some_and(|device| matches!(device.activity, Activity::Idle))
        };
        guest.take_removals(at_rest)
    }

    /// The volume is wanted: asks for it, unless there are reasons not to.
    fn open(&self, turn: &Turn<'_>, id: VbdId, change: impl Fn(Kind) -> Next) -> Next {
        let Some(device) = self.devices.get(&id) else { return Next::Nothing };
        let refuse = |reason: String| change(Kind::Refuse(reason));
        if self.drain_until.is_some() {
            return refuse("the driver domain is shutting down".to_string());
        }
        if self.waiting.contains(&id)
            && let Some(since) = device.waiting_since
        {
            let until = since + DRAINING_VOLUME_PATIENCE;
            return if turn.now < until {
                Next::At(until)
            } else {
                refuse("the volume is still being given back by the device that had it before".to_string())
            };
        }
        let Some(config) = &device.config else { return Next::Refresh };
        match config.parse() {
            Ok((target, mode)) => Next::Ask(Question::Open, Action::Open { device: id, target, mode }),
            Err(reason) => refuse(reason),
        }
    }

    /// Gives up the volume.
    pub(super) fn close(&mut self, id: VbdId) {
        self.actions.push_back(Action::Close { device: id });
        self.set_phase(id, Phase::Fresh);
        if let Some(device) = self.devices.get_mut(&id) {
            (device.properties, device.config, device.flush_withdrawn) = (None, None, false);
        }
    }

    /// The device has a task now.
    pub(super) fn run(&mut self, id: VbdId, stage: Stage, requests: usize) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.activity = Activity::Running(Some(Task { stage, batch: Batch::new(requests) }));
        }
    }

    /// The device's place is given up until an action's answer.
    pub(super) fn ask(&mut self, id: VbdId, question: Question, action: Action) {
        self.give_up_place(id);
        self.actions.push_back(action);
        if let Some(device) = self.devices.get_mut(&id) {
            device.activity = Activity::Asked(question);
        }
    }

    /// The device's place is given up. If it changed meanwhile, it waits for the next.
    pub(super) fn finish(&mut self, id: VbdId) {
        self.give_up_place(id);
        if let Some(device) = self.devices.get_mut(&id) {
            device.activity = Activity::Idle;
            if device.changed {
                self.enqueue(id);
            }
        }
    }

    /// The device's place is given up for a while, or until an event; then it is looked at anew.
    pub(super) fn pause(&mut self, turn: &Turn<'_>, id: VbdId, span: Nanos) {
        self.give_up_place(id);
        self.set_timer(id, turn.now + span);
        if let Some(device) = self.devices.get_mut(&id) {
            device.changed = true;
            device.activity = Activity::Idle;
        }
    }

    pub(super) fn give_up_place(&mut self, id: VbdId) {
        self.running -= 1;
        let next = self.guests.get_mut(&id.domain).and_then(|guest| guest.pass_removal(id.device));
        if let Some(device) = next {
            self.enqueue(VbdId { device, ..id });
        }
    }

    fn set_timer(&mut self, id: VbdId, at: Nanos) {
        if let Some(device) = self.devices.get_mut(&id) {
            if let Some(before) = device.timer.replace(at) {
                self.timers.remove(&(before, id));
            }
            self.timers.insert((at, id));
        }
    }
}

/// Whether a device that is disconnected now is on its way out: its directory is gone, was made anew, or is to go.
fn claim(seen: Seen) -> Claim {
    match seen.own {
        Some(own) if own != State::INITIALISING && seen.online => Claim::Kept,
        _ => Claim::Draining,
    }
}

/// What a verdict demands next; it stands until nothing is left in its way. None: it has become pointless.
fn carry_out(device: &mut Device, id: VbdId, seen: Seen, verdict: Verdict, claim: Claim) -> Option<Next> {
    if matches!(device.phase, Phase::Linked | Phase::Connected) {
        let claim = if matches!(verdict, Verdict::Refuse(_)) { Claim::Draining } else { claim };
        device.verdict = Some(verdict);
        return Some(Next::Ask(Question::Disconnect, Action::Disconnect { device: id, claim }));
    }
    let own = seen.own.filter(|own| *own != State::CLOSING && (seen.online || *own != State::CLOSED))?;
    let change = |kind| Some(Next::Change(Change { kind, own, online: seen.online }));
    match (verdict, device.phase) {
        (verdict @ Verdict::Refuse(_), Phase::Opened | Phase::Ready) => {
            device.verdict = Some(verdict);
            Some(Next::Close)
        }
        (Verdict::Refuse(reason), _) => change(Kind::Refuse(reason)),
        (Verdict::Fail(reason), Phase::Ready) if own != State::INITIALISING => change(Kind::Fail(reason)),
        (Verdict::Fail(_), _) => None,
    }
}
