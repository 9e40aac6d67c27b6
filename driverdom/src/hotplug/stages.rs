//! What tasks do stage by stage, and what follows from their ends.

use alloc::format;
use alloc::string::{String, ToString};

use blkback_core::backend::VbdId;
use xen_proto::Nanos;
use xen_proto::xenbus::{HOLD_INIT_WAIT, Phase, State};
use xen_proto::xenstore::{End, Payload, StoreError};

use super::batch::Batch;
use super::change::{Change, Kind, Operation, Outcome, is_online};
use super::device::{Activity, Config, Question, Verdict};
use super::engine::{Hotplug, Turn};
use super::frontend::{self, Found};
use super::task::{CONFIG, CONFIG_SLOT, FRONTEND_SLOT, Purpose, REFRESH, Stage, Task};
use super::{Action, Rings, paths, reasons};

/// How long to wait when xenstored answered what it should not have.
const RETRY: Nanos = Nanos::from_millis(500);
/// Conflicts in a row after which a device waits for [`CONFLICT_PAUSE`].
const CONFLICTS_IN_A_ROW: u32 = 8;
/// Long enough for whoever changes the directory to come to an end.
const CONFLICT_PAUSE: Nanos = Nanos::from_millis(20);
/// A guest's mistakes are logged no more often than this.
const FAILURE_LOG_INTERVAL: Nanos = Nanos::from_millis(1_000);

impl Hotplug {
    /// A stage of a device's task is complete.
    pub(super) fn proceed(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        let task = self.devices.get_mut(&id).and_then(|device| match &mut device.activity {
            Activity::Running(task) => task.take(),
            _ => None,
        });
        let Some(Task { stage, batch }) = task else { panic!("{id:?} has no task to go on with") };
        match stage {
            Stage::Refresh => self.refreshed(turn, id, &batch),
            Stage::Rings => match frontend::parse_keys(&batch) {
                Ok(Found::Complete(rings)) => self.connect(turn, id, Ok(rings)),
                Ok(Found::More(rings, pages)) => self.read_pages(turn, id, rings, pages),
                Err(reason) => self.connect(turn, id, Err(reason)),
            },
            Stage::RingPages(rings, pages) => self.connect(turn, id, frontend::parse_pages(rings, pages, &batch)),
            Stage::Start(change) => self.fill(turn, id, change, &batch),
            Stage::Body(change, transaction) => {
                let Some(device) = self.devices.get(&id) else { return };
                let outcome = change.judge(device, &batch);
                let end = if outcome == Outcome::Done { End::Commit } else { End::Abort };
                self.expect(Purpose::Device(id, 0), turn.client.end_transaction(transaction, end));
                self.run(id, Stage::End(change, outcome), 1);
            }
            Stage::End(change, outcome) => self.ended(turn, id, change, outcome, batch.error_from(0)),
        }
    }

    /// The transaction of a change has come to its end, with this error if any.
    fn ended(&mut self, turn: &mut Turn<'_>, id: VbdId, change: Change, outcome: Outcome, error: Option<StoreError>) {
        self.look_at_others(id, &change);
        match (outcome, error) {
            (Outcome::Done, None) => self.committed(turn, id, change),
            (Outcome::Done, Some(StoreError::Again)) => self.conflicted(turn, id, change),
            (Outcome::Done, Some(error)) | (Outcome::Failed(error), _) => {
                self.change_failed(turn, id, &change, error);
            }
            (Outcome::Stale, _) => {
                if matches!(change.kind, Kind::Offer) {
                    // The directory may be another by now, which wants another volume.
                    self.close(id);
                }
                self.look_again(id);
            }
        }
    }

    /// Devices that were to be removed along with this one are looked at: whether they have been, or are still to be.
    fn look_at_others(&mut self, id: VbdId, change: &Change) {
        change.others().iter().for_each(|device| self.changed(VbdId { device: *device, ..id }));
    }

    pub(super) fn refresh(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        device.changed = false;
        device.refresh_began = turn.now;
        let config = if device.phase == Phase::Fresh { &CONFIG[..] } else { &[] };
        let directory = paths::backend(id);
        let ours = |key: &&str| format!("{directory}/{key}");
        let theirs = [format!("{}/state", paths::frontend(id))];
        let reads = REFRESH.iter().map(ours).chain(theirs).chain(config.iter().map(ours));
        for (slot, path) in reads.enumerate() {
            self.expect(Purpose::Device(id, slot), turn.client.read(None, &path));
        }
        self.statistics.refreshes += 1;
        self.run(id, Stage::Refresh, CONFIG_SLOT + config.len());
    }

    fn refreshed(&mut self, turn: &mut Turn<'_>, id: VbdId, batch: &Batch) {
        let (Some(device), Some(guest)) = (self.devices.get_mut(&id), self.guests.get_mut(&id.domain)) else { return };
        let own = match batch.value(0) {
            Ok(value) => Some(State::parse(value)),
            Err(StoreError::NoEntry | StoreError::Access) => None,
            Err(error) => {
                log::warn!("{}: xenstore: {error:?}", name(id));
                return self.pause(turn, id, RETRY);
            }
        };
        let online = is_online(batch.value(1));
        let frontend = batch.value(FRONTEND_SLOT).ok().map(State::parse);
        let quiet_until = guest.quiet_until;
        let look = turn.now.since(device.refresh_began);
        if device.seen.is_some() {
            // The first look at a device waits for the events of its making.
            self.looks.add(turn.now, look);
        }
        device.update(turn.now, own, online, frontend, guest, self.looks.usual(turn.now, look));
        let dwell_shortened = guest.quiet_until < quiet_until;
        if device.phase == Phase::Fresh {
            let text = |slot: usize| batch.value(CONFIG_SLOT + slot).unwrap_or_default().to_vec();
            device.config = Some(Config { params: text(0), mode: text(1), device_type: text(2) });
        }
        if device.phase != Phase::Fresh || own != Some(State::INITIALISING) {
            device.waiting_since = None;
            self.waiting.remove(&id);
        }
        if dwell_shortened {
            // The others wait for a later moment.
            self.of_guest(id.domain).into_iter().for_each(|other| self.enqueue(other));
        }
        self.decide(turn, id);
    }

    pub(super) fn read_rings(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        let directory = paths::frontend(id);
        for (slot, key) in frontend::KEYS.iter().enumerate() {
            self.expect(Purpose::Device(id, slot), turn.client.read(None, &format!("{directory}/{key}")));
        }
        self.run(id, Stage::Rings, frontend::KEYS.len());
    }

    fn read_pages(&mut self, turn: &mut Turn<'_>, id: VbdId, rings: Rings, pages: usize) {
        let directory = paths::frontend(id);
        for page in 0..pages {
            let path = format!("{directory}/{}", frontend::page_key(page));
            self.expect(Purpose::Device(id, page), turn.client.read(None, &path));
        }
        self.run(id, Stage::RingPages(rings, pages), pages);
    }

    /// The frontend's rings are known, or that they make no sense.
    fn connect(&mut self, turn: &mut Turn<'_>, id: VbdId, rings: Result<Rings, String>) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        match rings {
            Ok(rings) => self.ask(id, Question::Connect, Action::Connect { device: id, rings }),
            // They may make no sense because they are gone: its state is looked at before it is blamed.
            Err(_) if device.changed => self.finish(id),
            Err(reason) => {
                device.verdict = Some(Verdict::Fail(reason));
                self.decide(turn, id);
            }
        }
    }

    /// The transaction of a change is open: reads and writes in it.
    fn fill(&mut self, turn: &mut Turn<'_>, id: VbdId, change: Change, batch: &Batch) {
        let transaction = match batch.payload(0) {
            Ok(Payload::Started(transaction)) => *transaction,
            other => {
                log::warn!("{}: no transaction: {other:?}", name(id));
                self.look_at_others(id, &change);
                return self.pause(turn, id, RETRY);
            }
        };
        let Some(device) = self.devices.get(&id) else { return };
        let operations = change.operations(device);
        let others = change.others();
        let devices = core::iter::once(id.device).chain(others.iter().copied());
        let within = Some(transaction);
        let all = devices.flat_map(|device| operations.iter().map(move |operation| (device, operation)));
        let requests = operations.len() * (1 + others.len());
        for (slot, (device, operation)) in all.enumerate() {
            let directory = paths::backend(VbdId { device, ..id });
            let request = match operation {
                Operation::Read(key) => turn.client.read(within, &format!("{directory}/{key}")),
                Operation::Write(key, value) => {
                    turn.client.write(within, &format!("{directory}/{key}"), value.as_bytes())
                }
                Operation::Remove => turn.client.rm(within, &directory),
            };
            self.expect(Purpose::Device(id, slot), request);
        }
        self.run(id, Stage::Body(change, transaction), requests);
    }

    fn committed(&mut self, turn: &mut Turn<'_>, id: VbdId, change: Change) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        device.conflicts = 0;
        match change.kind {
            Kind::Offer => {
                if change.own == State::INITIALISING {
                    device.hold_until = turn.now + HOLD_INIT_WAIT;
                    self.statistics.attach.add(turn.now.since(device.found_at));
                }
                device.config = None;
                device.wrote(turn.now, State::INIT_WAIT);
                self.set_phase(id, Phase::Ready);
            }
            Kind::Announce => {
                if let Some(ready_at) = device.frontend_ready_at {
                    self.statistics.connect.add(turn.now.since(ready_at.max(device.hold_until)));
                }
                device.flush_withdrawn = false;
                device.wrote(turn.now, State::CONNECTED);
                self.set_phase(id, Phase::Connected);
                self.remove_reason(turn, id);
            }
            Kind::Switch(state) => device.wrote(turn.now, state),
            Kind::Fail(reason) => {
                device.wrote(turn.now, State::CLOSING);
                self.statistics.failed += 1;
                self.log_failure(turn, id, &reason);
                self.give_reason(turn, id, &reason);
            }
            Kind::Remove(others) => {
                device.removed();
                self.statistics.removed += 1 + others.len() as u64;
                for device in core::iter::once(id.device).chain(others) {
                    self.remove_reason(turn, VbdId { device, ..id });
                }
            }
            Kind::Refuse(reason) => {
                device.removed();
                self.statistics.refused += 1;
                log::warn!("{}: refused: {reason}", name(id));
                self.give_reason(turn, id, &reason);
            }
            Kind::WithdrawFlush => device.flush_withdrawn = false,
        }
        self.decide(turn, id);
    }

    /// The directory is not what it was: the device waits for its next turn to be looked at.
    fn look_again(&mut self, id: VbdId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.changed = true;
        }
        self.finish(id);
    }

    fn conflicted(&mut self, turn: &mut Turn<'_>, id: VbdId, change: Change) {
        self.statistics.conflicts += 1;
        let Some(device) = self.devices.get_mut(&id) else { return };
        device.conflicts += 1;
        if let Kind::Fail(reason) = change.kind {
            device.verdict = Some(Verdict::Fail(reason));
        }
        if device.conflicts.is_multiple_of(CONFLICTS_IN_A_ROW) {
            self.pause(turn, id, CONFLICT_PAUSE);
        } else {
            self.look_again(id);
        }
    }

    fn change_failed(&mut self, turn: &mut Turn<'_>, id: VbdId, change: &Change, error: StoreError) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let reason =
            if error.is_quota() { reasons::quota("nodes") } else { format!("xenstored refuses our nodes: {error:?}") };
        match change.kind {
            Kind::Offer => device.verdict = Some(Verdict::Refuse(reason)),
            Kind::Announce => device.verdict = Some(Verdict::Fail(reason)),
            _ => {
                log::warn!("{}: {reason}", name(id));
                return self.pause(turn, id, RETRY);
            }
        }
        self.decide(turn, id);
    }

    /// The directory is gone and nothing is held.
    pub(super) fn forget(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        if self.devices.get(&id).is_some_and(|device| device.changed) {
            // It may be there again.
            return self.finish(id);
        }
        self.give_up_place(id);
        let (Some(device), Some(guest)) = (self.devices.get(&id), self.guests.get_mut(&id.domain)) else { return };
        if let Some(at) = device.timer {
            self.timers.remove(&(at, id));
        }
        if device.closing.is_some() {
            guest.end_closing();
        }
        self.waiting.remove(&id);
        self.devices.remove(&id);
        guest.forget(id.device);
        if guest.devices == 0 {
            if guest.watched {
                let request = turn.client.unwatch(&paths::frontends(id.domain), &id.domain.to_string());
                self.expect(Purpose::Courtesy("ending a watch"), request);
            }
            self.guests.remove(&id.domain);
        }
    }

    fn log_failure(&mut self, turn: &Turn<'_>, id: VbdId, reason: &str) {
        if let Some(guest) = self.guests.get_mut(&id.domain)
            && guest.failure_logged_at.is_none_or(|at| turn.now.since(at) >= FAILURE_LOG_INTERVAL)
        {
            guest.failure_logged_at = Some(turn.now);
            log::warn!("{}: closed by the frontend's fault: {reason}", name(id));
        }
    }

    fn give_reason(&mut self, turn: &mut Turn<'_>, id: VbdId, reason: &str) {
        let path = format!("{}/error", paths::reason(id));
        let request = turn.client.write(None, &path, reasons::shortened(reason).as_bytes());
        self.expect(Purpose::Courtesy("writing a reason"), request);
        if let Some(oldest) = self.reasons.add(turn.now, id) {
            self.remove_reason(turn, oldest);
        }
    }

    pub(super) fn remove_reason(&mut self, turn: &mut Turn<'_>, id: VbdId) {
        if let Some(path) = self.reasons.remove(id) {
            self.expect(Purpose::Courtesy("removing a reason"), turn.client.rm(None, &path));
        }
    }
}

/// A device as people know it.
fn name(id: VbdId) -> String {
    format!("vbd {}/{}", id.domain, id.device)
}
