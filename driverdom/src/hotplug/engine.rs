//! The engine: events in, requests and actions out. See the module above for the design.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use blkback_core::backend::VbdId;
use xen_proto::xenbus::Phase;
use xen_proto::xenstore::{Client, Event, Payload, QueueError, RequestId, StoreError};
use xen_proto::{DomId, Nanos};

use super::control::Control;
use super::device::{Activity, Device, Question, Verdict};
use super::guest::{FairQueue, Guest, Looks};
use super::listing::Listing;
use super::paths::{self, Change};
use super::reasons::{self, Reasons};
use super::task::Purpose;
use super::{Action, Answer, FlushCache, Statistics};

/// Tasks under way at once; each has at most one transaction, of which the client allows
/// [`xen_proto::xenstore::MAX_TRANSACTIONS`].
pub const MAX_TASKS: usize = 8;
/// How long a device waits for a volume that is being drained, before it is refused. libxl waits 10 s for it.
pub const DRAINING_VOLUME_PATIENCE: Nanos = Nanos::from_millis(8_000);
/// How long frontends may take to close by themselves when the domain goes away.
pub const DRAIN_GRACE: Nanos = Nanos::from_millis(5_000);

/// Requests that one step of the engine sends at most: the longest stage is the removal of 16 directories, with as many notes.
const STEP_REQUESTS: usize = 64;
/// Requests that answer others at once: listings at the start, the clearing of a node in `control`, the taking back of `ready`.
const RESERVE: usize = 8;

/// Tokens of the watches that are always there; a guest's watch has the guest's number as its token.
const BACKEND_TOKEN: &str = "backend";
const SHUTDOWN_TOKEN: &str = "shutdown";
const SYSRQ_TOKEN: &str = "sysrq";

/// All devices of the domain.
pub struct Hotplug {
    pub(super) devices: BTreeMap<VbdId, Device>,
    pub(super) guests: BTreeMap<DomId, Guest>,
    pub(super) queue: FairQueue,
    /// Devices whose task's stage is complete.
    complete: VecDeque<VbdId>,
    /// Places for tasks that are taken.
    pub(super) running: usize,
    pending: BTreeMap<RequestId, Purpose>,
    pub(super) actions: VecDeque<Action>,
    pub(super) timers: BTreeSet<(Nanos, VbdId)>,
    /// Devices whose volume was being drained when they asked for it, and which have not asked again.
    pub(super) waiting: BTreeSet<VbdId>,
    pub(super) looks: Looks,
    listing: Listing,
    pub(super) reasons: Reasons,
    pub(super) statistics: Statistics,
    pub(super) drain_until: Option<Nanos>,
    /// Nodes in `control` that are to be read.
    control_changed: BTreeSet<Control>,
    /// Kinds of device other than ours were logged.
    other_kinds_logged: bool,
}

/// When it is, and by whom to send.
pub(super) struct Turn<'a> {
    pub(super) now: Nanos,
    pub(super) client: &'a mut Client,
}

impl Hotplug {
    /// Begins to look after our devices: those that are there, and all that come.
    #[must_use]
    pub fn new(client: &mut Client) -> Self {
        let mut hotplug = Self {
            devices: BTreeMap::new(),
            guests: BTreeMap::new(),
            queue: FairQueue::default(),
            complete: VecDeque::new(),
            running: 0,
            pending: BTreeMap::new(),
            actions: VecDeque::new(),
            timers: BTreeSet::new(),
            waiting: BTreeSet::new(),
            looks: Looks::default(),
            listing: Listing::default(),
            reasons: Reasons::default(),
            statistics: Statistics::default(),
            drain_until: None,
            control_changed: BTreeSet::new(),
            other_kinds_logged: false,
        };
        hotplug.expect(Purpose::WatchBackend, client.watch(paths::BACKEND, BACKEND_TOKEN));
        for (control, token) in [(Control::Shutdown, SHUTDOWN_TOKEN), (Control::Sysrq, SYSRQ_TOKEN)] {
            hotplug.expect(Purpose::Courtesy("watching control"), client.watch(control.path(), token));
        }
        hotplug
    }

    /// Takes an event from xenstore. Gives it back if it is none of ours.
    pub fn store_event(&mut self, now: Nanos, event: Event, client: &mut Client) -> Option<Event> {
        let mut turn = Turn { now, client };
        match event {
            Event::Reply { request, result } => match self.pending.remove(&request) {
                Some(purpose) => self.reply(&mut turn, purpose, result),
                None => return Some(Event::Reply { request, result }),
            },
            Event::Watch { path, token } => match token.as_str() {
                BACKEND_TOKEN => self.backend_changed(now, &path),
                SHUTDOWN_TOKEN => _ = self.control_changed.insert(Control::Shutdown),
                SYSRQ_TOKEN => _ = self.control_changed.insert(Control::Sysrq),
                _ => match paths::domain_number(&token) {
                    Some(domain) => self.frontend_changed(domain, &path),
                    None => return Some(Event::Watch { path, token }),
                },
            },
        }
        self.work(&mut turn);
        None
    }

    /// Does what the time has come for. To be called when [`Self::next_deadline`] has passed; more often does no harm.
    pub fn tick(&mut self, now: Nanos, client: &mut Client) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            if let Some(device) = self.devices.get_mut(&id) {
                device.timer = None;
                self.enqueue(id);
            }
        }
        let mut turn = Turn { now, client };
        while turn.client.room() >= STEP_REQUESTS + RESERVE
            && let Some(id) = self.reasons.expired(now)
        {
            self.remove_reason(&mut turn, id);
        }
        self.work(&mut turn);
    }

    /// When [`Self::tick`] is to be called next, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.reasons.next_deadline()].into_iter().flatten().min()
    }

    /// The next thing to be done outside of xenstore. To be called until there is none, before more bytes go to xenstore.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes the answer to an action.
    ///
    /// # Panics
    /// If that device has no such action under way.
    pub fn done(&mut self, now: Nanos, id: VbdId, answer: Answer, client: &mut Client) {
        let Some(device) = self.devices.get_mut(&id) else { panic!("an answer for {id:?}, which is not there") };
        let Activity::Asked(question) = core::mem::replace(&mut device.activity, Activity::Idle) else {
            panic!("an answer for {id:?}, which has no question")
        };
        match (question, answer) {
            (Question::Open, Answer::Opened(properties)) => {
                device.properties = Some(properties);
                device.info = device.config.as_ref().map_or(0, super::device::Config::info);
                self.set_phase(id, Phase::Opened);
            }
            (Question::Open, Answer::Draining) => {
                device.waiting_since = device.waiting_since.or(Some(now));
                self.waiting.insert(id);
            }
            (Question::Open, Answer::Refused(reason)) => device.verdict = Some(Verdict::Refuse(reason)),
            (Question::Connect, Answer::Connected) => self.set_phase(id, Phase::Linked),
            (Question::Connect, Answer::ConnectFailed(reason)) => device.verdict = Some(Verdict::Fail(reason)),
            (Question::Disconnect, Answer::Disconnected) => {
                // It may have taken long.
                device.changed = true;
                self.set_phase(id, Phase::Ready);
            }
            (question, answer) => panic!("{answer:?} for {id:?} is no answer to {question:?}"),
        }
        self.enqueue(id);
        self.work(&mut Turn { now, client });
    }

    /// A volume's claim was given up, or a draining one's is gone: devices that wait for one ask again.
    pub fn volume_released(&mut self, now: Nanos, client: &mut Client) {
        for id in core::mem::take(&mut self.waiting) {
            self.enqueue(id);
        }
        self.work(&mut Turn { now, client });
    }

    /// The frontend broke the ring's protocol: it is disconnected and told so; other devices go on.
    pub fn frontend_failed(&mut self, now: Nanos, id: VbdId, reason: alloc::string::String, client: &mut Client) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.verdict = Some(Verdict::Fail(reason));
            self.enqueue(id);
        }
        self.work(&mut Turn { now, client });
    }

    /// The device turned out not to know flushes: the frontend is told.
    pub fn flush_unsupported(&mut self, now: Nanos, id: VbdId, client: &mut Client) {
        if let Some(Device { properties: Some(properties), flush_withdrawn, .. }) = self.devices.get_mut(&id)
            && properties.flush_cache == FlushCache::Offered
        {
            properties.flush_cache = FlushCache::Absent;
            *flush_withdrawn = true;
            self.enqueue(id);
        }
        self.work(&mut Turn { now, client });
    }

    /// The domain is about to end: takes nothing new, asks all frontends to close, serves them until they do or [`DRAIN_GRACE`]
    /// is over, and gives up all volumes. Directories stay where the toolstack does not remove them; they go with our home.
    pub fn drain(&mut self, now: Nanos, client: &mut Client) {
        if self.drain_until.is_none() {
            self.drain_until = Some(now + DRAIN_GRACE);
            self.expect(Purpose::Courtesy("writing ready"), client.write(None, paths::READY, b"0"));
            self.all_changed();
        }
        self.work(&mut Turn { now, client });
    }

    /// Whether [`Self::drain`] has come to its end: no volume is held and nothing is under way.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.drain_until.is_some()
            && self.statistics.held == 0
            && self.running == 0
            && self.queue.is_empty()
            && self.actions.is_empty()
    }

    /// What was counted.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics { devices: self.devices.len() as u64, ..self.statistics }
    }

    /// Does all that can be done now: bounded by the places for tasks and the client's queue.
    fn work(&mut self, turn: &mut Turn<'_>) {
        while turn.client.room() >= STEP_REQUESTS + RESERVE {
            if let Some(control) = self.control_changed.pop_first() {
                self.expect(Purpose::Control(control), turn.client.read(None, control.path()));
            } else if let Some(id) = self.complete.pop_front() {
                self.proceed(turn, id);
            } else if self.running < MAX_TASKS
                && let Some(id) = self.queue.pop()
            {
                self.running += 1;
                self.begin(turn, id);
            } else if let Some(domain) = self.listing.next() {
                self.expect(Purpose::ListDevices(domain), turn.client.directory(None, &paths::guest(domain)));
            } else if self.listing.just_completed() {
                self.expect(Purpose::Courtesy("writing ready"), turn.client.write(None, paths::READY, b"1"));
            } else {
                break;
            }
            self.statistics.steps += 1;
        }
    }

    fn reply(&mut self, turn: &mut Turn<'_>, purpose: Purpose, result: Result<Payload, StoreError>) {
        match (purpose, result) {
            (Purpose::Device(id, slot), result) => self.device_reply(id, slot, result),
            (Purpose::WatchBackend, Ok(_) | Err(StoreError::Exists)) => {
                self.expect(Purpose::ListKinds, turn.client.directory(None, paths::BACKEND));
                self.expect(Purpose::ListGuests, turn.client.directory(None, paths::VBDS));
            }
            (Purpose::WatchBackend, Err(error)) => {
                self.actions.push_back(Action::Unusable(alloc::format!("cannot watch our backends: {error:?}")));
            }
            // What the guest wrote between our first look and the watch is seen now.
            (Purpose::WatchGuest(domain), Ok(_) | Err(StoreError::Exists)) => self.guest_changed(domain),
            (Purpose::WatchGuest(domain), Err(error)) => self.watch_failed(domain, error),
            (Purpose::ListKinds, Ok(Payload::Children(kinds))) => {
                kinds.iter().filter(|kind| *kind != "vbd").for_each(|kind| self.log_other_kind(kind));
            }
            (Purpose::ListGuests, Ok(Payload::Children(guests))) => {
                self.listing.found_guests(guests.iter().filter_map(paths::domain_number));
            }
            (Purpose::ListGuests, Err(StoreError::NoEntry)) => self.listing.found_guests(core::iter::empty()),
            (Purpose::ListGuests, result) => {
                self.actions.push_back(Action::Unusable(alloc::format!("cannot list our backends: {result:?}")));
            }
            (Purpose::ListDevices(domain), result) => {
                self.listing.listed_guest();
                if let Ok(Payload::Children(devices)) = result {
                    let found = devices.iter().filter_map(|device| paths::vbd(&alloc::format!("{domain}"), device));
                    found.for_each(|id| self.found(turn.now, id));
                }
            }
            (Purpose::Control(control), Ok(Payload::Value(value))) => {
                if let Some(action) = control.parse(&value) {
                    // Emptied, the node says that we have seen it.
                    self.expect(
                        Purpose::Courtesy("clearing what control asked for"),
                        turn.client.write(None, control.path(), b""),
                    );
                    self.actions.push_back(action);
                }
            }
            (Purpose::Courtesy(what), Err(error)) => log::warn!("xenstore: {what}: {error:?}"),
            (Purpose::ListKinds | Purpose::Control(_) | Purpose::Courtesy(_), _) => {}
        }
    }

    fn device_reply(&mut self, id: VbdId, slot: usize, result: Result<Payload, StoreError>) {
        let task = self.devices.get_mut(&id).and_then(|device| match &mut device.activity {
            Activity::Running(task) => task.as_mut(),
            _ => None,
        });
        let Some(task) = task else { panic!("a reply for {id:?}, which has no task") };
        task.batch.reply(slot, result);
        if task.batch.is_complete() {
            self.complete.push_back(id);
        }
    }

    fn watch_failed(&mut self, domain: DomId, error: StoreError) {
        if let Some(guest) = self.guests.get_mut(&domain) {
            guest.watched = false;
        }
        let reason = if error.is_quota() {
            reasons::quota("a watch")
        } else {
            alloc::format!("xenstored does not let us watch the guest: {error:?}")
        };
        for id in self.of_guest(domain) {
            if let Some(device) = self.devices.get_mut(&id) {
                device.verdict = Some(Verdict::Refuse(reason.clone()));
                self.enqueue(id);
            }
        }
    }

    fn backend_changed(&mut self, now: Nanos, path: &str) {
        match paths::backend_change(path) {
            Change::Device(id) => self.found(now, id),
            Change::Guest(domain) => self.guest_changed(domain),
            Change::All => self.all_changed(),
            Change::OtherKind(kind) => self.log_other_kind(kind),
            Change::Nothing => {}
        }
    }

    fn frontend_changed(&mut self, domain: DomId, path: &str) {
        match paths::frontend_change(domain, path) {
            Change::Device(id) => self.changed(id),
            Change::Guest(domain) => self.guest_changed(domain),
            _ => {}
        }
    }

    fn guest_changed(&mut self, domain: DomId) {
        for id in self.of_guest(domain) {
            self.changed(id);
        }
    }

    fn log_other_kind(&mut self, kind: &str) {
        if !core::mem::replace(&mut self.other_kinds_logged, true) {
            log::warn!("backend/{kind}: only vbd is served here; the toolstack will wait in vain");
        }
    }

    /// A directory was seen, or something in it changed.
    fn found(&mut self, now: Nanos, id: VbdId) {
        if let Entry::Vacant(vacant) = self.devices.entry(id) {
            vacant.insert(Device::new(now));
            self.guests.entry(id.domain).or_default().devices += 1;
        }
        self.changed(id);
    }

    /// Something above all devices changed, which is rare.
    fn all_changed(&mut self) {
        let all: alloc::vec::Vec<VbdId> = self.devices.keys().copied().collect();
        for id in all {
            self.changed(id);
        }
    }

    pub(super) fn of_guest(&self, domain: DomId) -> alloc::vec::Vec<VbdId> {
        let all = VbdId { domain, device: 0 }..=VbdId { domain, device: u32::MAX };
        self.devices.range(all).map(|(id, _)| *id).collect()
    }

    /// The device's nodes may have changed.
    pub(super) fn changed(&mut self, id: VbdId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.changed = true;
            self.enqueue(id);
        }
    }

    /// Puts a device of which nothing is under way into the queue.
    pub(super) fn enqueue(&mut self, id: VbdId) {
        if let Some(device) = self.devices.get_mut(&id)
            && matches!(device.activity, Activity::Idle)
        {
            device.activity = Activity::Queued;
            self.queue.push(id);
        }
    }

    /// Takes down what a request is for.
    ///
    /// # Panics
    /// If the client did not take it: there was room for it, unless others used the client up, and its path is our own.
    pub(super) fn expect(&mut self, purpose: Purpose, request: Result<RequestId, QueueError>) {
        match request {
            Ok(request) => {
                self.pending.insert(request, purpose);
            }
            Err(error) => panic!("{purpose:?}: {error:?}"),
        }
    }

    pub(super) fn set_phase(&mut self, id: VbdId, phase: Phase) {
        if let Some(device) = self.devices.get_mut(&id) {
            let before = (device.holds_volume(), device.phase == Phase::Connected);
            device.phase = phase;
            self.statistics.held += u64::from(device.holds_volume());
            self.statistics.held -= u64::from(before.0);
            self.statistics.connected += u64::from(phase == Phase::Connected);
            self.statistics.connected -= u64::from(before.1);
        }
    }
}
