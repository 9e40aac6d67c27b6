//! The world around the shipped server, on a virtual clock.
//!
//! The server sleeps as it does in the guest: it is turned only when it asked for another turn, when its deadline has come, or
//! when something woke it: an event, a disk's interrupt, xenstored having taken or sent bytes. A lost wake-up is a test that
//! comes to rest too early; a deadline that does not move on is one that never does.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use blkback_core::backend::VbdId;
use blkback_core::volume::Mode;
use xen_proto::{DomId, Nanos};

use super::blkfront::{Blkfront, Manner};
use super::disk::{AMPLE, Clock, FakeDisk, Power};
use super::hostile::Hostile;
use super::image::FIRST_SECTOR;
use super::machine::{Machine, STORE_RING};
use super::pciback::PciBack;
use super::rng::Rng;
use super::truth::Truth;
use super::xen::Xen;
use crate::drivers::pci::Address;
use crate::fake::{Connection, Force, Limits, Outcome, Store, Toolstack};
use crate::hotplug::Shutdown;
use crate::server::console::PAUSE;
use crate::server::platform::{OwnedDisk, Platform};
use crate::server::{Next, Server};

pub(super) const DRIVER_DOMAIN: DomId = DomId(2);
const DOM0: DomId = DomId(0);
/// Time passes in steps of at least this.
const GRAIN: Nanos = Nanos(10_000);
/// Pages for RAM volumes.
pub(super) const FREE_PAGES: usize = 2_000;

/// A device by guest and number.
pub(super) fn id(domain: u16, device: u32) -> VbdId {
    VbdId { domain: DomId(domain), device }
}

/// Everything.
pub(super) struct World {
    /// Requests under way panic when they are dropped, which must not happen while a failed test unwinds.
    pub(super) server: ManuallyDrop<Server<Machine>>,
    pub(super) machine: Machine,
    pub(super) xen: Xen,
    pub(super) store: Store,
    pub(super) connection: Connection,
    pub(super) toolstack: Toolstack,
    pub(super) pci: Option<PciBack>,
    pub(super) disks: Vec<FakeDisk>,
    pub(super) fronts: BTreeMap<VbdId, Blkfront>,
    pub(super) hostile: BTreeMap<VbdId, Hostile>,
    /// What is on each volume of the disks, by its name.
    pub(super) truths: BTreeMap<String, Truth>,
    /// How long xenstored takes for each request.
    pub(super) store_delay: Nanos,
    /// The toolstack looks at nothing: it is busy starting removals.
    pub(super) toolstack_busy: bool,
    /// Nodes that we published about ourselves so far.
    pub(super) published: usize,
    /// Turns so far.
    pub(super) turns: usize,
    pub(super) clock: Clock,
    /// Pages that are free when no vbd has any.
    pub(super) pages_at_rest: usize,
    /// Frontends that have something to look at.
    dirty: BTreeSet<VbdId>,
    next: Next,
    woken: bool,
    store_free_at: Nanos,
    outcomes_seen: usize,
    /// Devices whose removal goes on whatever we do.
    forced: BTreeSet<VbdId>,
    rng: Rng,
}

impl World {
    /// A driver domain that serves, with these guests and a disk for each list of partitions.
    pub(super) fn new(guests: impl IntoIterator<Item = u16>, disks: &[&[(&str, u64)]]) -> Self {
        let mut world = Self::asleep(guests, disks);
        world.pass(50);
        assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
        world
    }

    /// The same, before its first turn.
    pub(super) fn asleep(guests: impl IntoIterator<Item = u16>, disks: &[&[(&str, u64)]]) -> Self {
        let xen = Xen::new(FREE_PAGES);
        let clock = Clock::default();
        clock.set(Nanos::from_millis(1_000));
        let mut machine = Machine::new(&xen);
        let mut store = Store::new(guests.into_iter().map(DomId).chain([DOM0, DRIVER_DOMAIN]));
        store.limits = Limits { nodes: 1_000_000, watches: 1_000, ..Limits::default() };
        let mut truths = BTreeMap::new();
        let disks: Vec<FakeDisk> = (0..)
            .zip(disks)
            .map(|(slot, partitions)| {
                let disk = FakeDisk::new(slot, partitions, &xen, &clock);
                let whole = Truth::zeros(disk.inner().geometry.sectors);
                // The table is nobody's to check.
                whole.part(0, FIRST_SECTOR).forget();
                let mut start = FIRST_SECTOR;
                for (name, sectors) in *partitions {
                    truths.insert(format!("disk{slot}/gpt:{name}"), whole.part(start, *sectors));
                    truths.insert(format!("gpt:{name}"), whole.part(start, *sectors));
                    start += sectors;
                }
                truths.insert(format!("disk{slot}"), whole);
                disk
            })
            .collect();
        let addresses: Vec<Address> = disks.iter().map(OwnedDisk::address).collect();
        let pci = (!disks.is_empty()).then(|| PciBack::new(&mut store, DRIVER_DOMAIN, addresses));
        machine.hardware.borrow_mut().disks.clone_from(&disks);
        let server = Server::new(&mut machine).expect("there is enough memory");
        Self {
            server: ManuallyDrop::new(server),
            pages_at_rest: xen.free_pages(),
            machine,
            xen,
            store,
            connection: Connection::new(DRIVER_DOMAIN),
            toolstack: Toolstack::new(DRIVER_DOMAIN),
            pci,
            disks,
            fronts: BTreeMap::new(),
            hostile: BTreeMap::new(),
            truths,
            store_delay: Nanos(0),
            toolstack_busy: false,
            published: 0,
            turns: 0,
            clock,
            dirty: BTreeSet::new(),
            next: Next::Again,
            woken: true,
            store_free_at: Nanos(0),
            outcomes_seen: 0,
            forced: BTreeSet::new(),
            rng: Rng::new(1),
        }
    }

    /// Other random choices than usual.
    pub(super) fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.get()
    }

    /// Lets all go on until nothing happens any more without time passing.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// A small step of each; whether anything happened.
    pub(super) fn step(&mut self) -> bool {
        let mut happened = self.xenstored();
        happened |= self.turn_if_due();
        happened |= self.guests();
        if let Some(pci) = &mut self.pci {
            happened |= pci.step(&mut self.store, self.clock.get());
        }
        happened
    }

    /// xenstored moves some bytes and serves a request.
    fn xenstored(&mut self) -> bool {
        let hardware = Rc::clone(&self.machine.hardware);
        let hardware = &mut *hardware.borrow_mut();
        let most = 1 + self.rng.index(STORE_RING);
        let count = most.min(hardware.to_store.len());
        let taken: Vec<u8> = hardware.to_store.drain(..count).collect();
        self.connection.receive(&taken, &self.store);
        let mut happened = count > 0;
        if self.now() >= self.store_free_at {
            let before = self.connection.served;
            self.connection.serve(&mut self.store);
            if self.connection.served > before {
                happened = true;
                self.store_free_at = self.now() + self.store_delay;
                self.effects();
            }
        }
        let room = STORE_RING - hardware.from_store.len();
        let sent = self.connection.send(room.min(1 + self.rng.index(STORE_RING)));
        hardware.from_store.extend(&sent);
        self.woken |= count > 0 || !sent.is_empty();
        happened || !sent.is_empty()
    }

    /// What we wrote is checked: nothing is held when others are told so. Then those who watch see it.
    fn effects(&mut self) {
        for (path, value) in std::mem::take(&mut self.connection.effects) {
            self.published += usize::from(path.starts_with("data/driverdom/"));
            let parts: Vec<&str> = path.split('/').collect();
            let ["backend", "vbd", domain, device, ..] = parts[..] else { continue };
            let id = id(domain.parse().expect("a number"), device.parse().expect("a number"));
            if value.is_none() || (path.ends_with("/state") && value.as_deref() == Some("6")) {
                assert_eq!(self.xen.held_of(id), (0, 0, 0), "{id:?}: ring, port and pages at {path}={value:?}");
            }
            self.dirty.insert(id);
            if !self.toolstack_busy {
                self.toolstack.changed(&mut self.store, self.clock.get(), id);
                self.outcomes();
            }
        }
    }

    /// The server has its turn if it is awake.
    fn turn_if_due(&mut self) -> bool {
        let due = match self.next {
            Next::End(_) => return false,
            Next::Again => true,
            Next::Sleep(until) => self.woken || until.is_some_and(|until| until <= self.now()),
        };
        let interrupted = self.disks.iter().any(FakeDisk::interrupts);
        if !(due || interrupted || self.xen.has_pending()) {
            return false;
        }
        self.woken = false;
        self.xen.take_pending().into_iter().for_each(|port| self.server.event(port));
        self.next = self.server.turn(self.clock.get(), &mut self.machine);
        self.turns += 1;
        self.check();
        true
    }

    /// What holds after every turn.
    fn check(&self) {
        self.xen.check_pairs();
        let (mapped, reached) = (self.xen.mappings(), self.disks.iter().map(FakeDisk::segments).sum());
        let ample = self.disks.iter().all(|disk| disk.inner().limits == AMPLE);
        if self.hostile.is_empty() && ample {
            assert_eq!(mapped, reached, "just what is at a disk is mapped");
        } else {
            // Some requests are more than one command, which come one after the other.
            assert!(mapped >= reached, "what is at a disk is mapped");
        }
        if self.disks.iter().all(|disk| disk.under_way() == 0) && self.next != Next::Again {
            assert_eq!(mapped, 0, "nothing is mapped when nothing is under way");
        }
    }

    /// Frontends look at what changed and at their rings.
    fn guests(&mut self) -> bool {
        let notified = self.xen.take_notified();
        let happened = !notified.is_empty();
        for id in notified {
            if let Some(front) = self.fronts.get_mut(&id) {
                front.poll();
            } else if let Some(hostile) = self.hostile.get_mut(&id) {
                hostile.poll();
            }
        }
        for id in std::mem::take(&mut self.dirty) {
            let Some(front) = self.fronts.get_mut(&id).filter(|front| front.alive) else { continue };
            if front.look(&mut self.store, &self.toolstack.path(id, "")) {
                self.dirty.insert(id);
            }
        }
        happened || !self.dirty.is_empty()
    }

    /// Time passes; all goes on.
    pub(super) fn pass(&mut self, millis: u64) {
        let end = self.now() + Nanos::from_millis(millis);
        self.run();
        self.look();
        while self.now() < end {
            let toolstack = self.toolstack.next_deadline(self.now());
            let next = self.next_deadline().unwrap_or(end).max(self.now() + GRAIN);
            self.clock.set(next.min(end));
            if toolstack.is_some_and(|at| at <= self.now()) {
                self.look();
            }
            self.run();
        }
    }

    /// The toolstack looks at all that it waits for.
    fn look(&mut self) {
        if !self.toolstack_busy {
            self.toolstack.look(&mut self.store, self.clock.get());
            self.outcomes();
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let server = if let Next::Sleep(until) = self.next { until } else { None };
        let store = (!self.connection.is_idle()).then_some(self.store_free_at);
        let toolstack = if self.toolstack_busy { None } else { self.toolstack.next_deadline(self.now()) };
        let disks = self.disks.iter().filter_map(FakeDisk::next_done);
        let pci = self.pci.as_ref().and_then(PciBack::next_deadline);
        [server, store, toolstack, pci].into_iter().flatten().chain(disks).min()
    }

    /// A removal by force goes on after a timeout: dom0 wipes what is left.
    fn outcomes(&mut self) {
        for at in self.outcomes_seen..self.toolstack.outcomes.len() {
            let (id, outcome) = self.toolstack.outcomes[at];
            let failed = matches!(outcome, Outcome::CloseTimedOut | Outcome::RemovalTimedOut | Outcome::RemovedTooSoon);
            if self.forced.remove(&id) && failed {
                let path = self.toolstack.path(id, "");
                self.store.clean_up(&path);
            }
        }
        self.outcomes_seen = self.toolstack.outcomes.len();
    }

    /// What a volume's name stands for: sectors with a known content.
    pub(super) fn truth(&self, volume: &str) -> Truth {
        match (self.truths.get(volume), volume.strip_prefix("ram:").and_then(|size| size.strip_suffix('K'))) {
            (Some(truth), _) => truth.clone(),
            (None, Some(size)) => Truth::zeros(size.parse::<u64>().expect("a number") * 2),
            (None, None) => Truth::zeros(8),
        }
    }

    /// Attaches a disk whose guest behaves like this.
    pub(super) fn attach(&mut self, id: VbdId, volume: &str, mode: &str, manner: Manner) {
        let access = if mode == "w" { Mode::ReadWrite } else { Mode::ReadOnly };
        self.toolstack.attach(&mut self.store, self.clock.get(), id, volume, mode);
        if self.fronts.remove(&id).is_some() {
            self.xen.forget(id);
        }
        self.fronts.insert(id, Blkfront::new(id, manner, self.truth(volume), access, &self.xen));
        self.dirty.insert(id);
    }

    /// Attaches a disk, waits for its frontend, and says whether it is connected.
    pub(super) fn connect(&mut self, id: VbdId, volume: &str, mode: &str) {
        self.attach(id, volume, mode, Manner::Linux);
        self.pass(600);
        assert_eq!((self.outcome(id), self.own(id).as_str()), (Some(Outcome::Attached), "4"), "{id:?} is connected");
    }

    /// Has a frontend do so many requests.
    pub(super) fn work(&mut self, id: VbdId, requests: usize) {
        let front = self.front(id);
        front.todo += requests;
        front.issue();
    }

    pub(super) fn front(&mut self, id: VbdId) -> &mut Blkfront {
        self.fronts.get_mut(&id).expect("it was attached")
    }

    /// The frontend closes, in whatever order of states.
    pub(super) fn close(&mut self, id: VbdId, state: u32) {
        self.fronts.get_mut(&id).expect("it was attached").close(&mut self.store, state);
        self.dirty.insert(id);
    }

    /// The frontend begins anew.
    pub(super) fn reconnect(&mut self, id: VbdId) {
        self.fronts.get_mut(&id).expect("it was attached").reconnect(&mut self.store);
        self.dirty.insert(id);
    }

    /// `xl block-detach`, or with force.
    pub(super) fn detach(&mut self, id: VbdId, force: Force) {
        if force == Force::On {
            self.forced.insert(id);
        }
        self.toolstack.remove(&mut self.store, self.clock.get(), id, force);
        self.outcomes();
        if let Some(front) = self.fronts.get_mut(&id) {
            self.dirty.insert(id);
            front.may_fail = true;
        }
    }

    /// `xl destroy` up to the point where libxl waits: the guest is paused, and all its disks are being removed.
    pub(super) fn destroy(&mut self, domain: u16) {
        let of = |id: &VbdId| id.domain == DomId(domain);
        let disks: Vec<VbdId> = self.fronts.keys().chain(self.hostile.keys()).copied().filter(of).collect();
        for disk in disks {
            if let Some(front) = self.fronts.get_mut(&disk) {
                front.alive = false;
            }
            self.detach(disk, Force::On);
        }
    }

    /// The end of `xl destroy`: the domain and all it had is gone.
    pub(super) fn bury(&mut self, domain: u16) {
        let domain = DomId(domain);
        self.fronts.retain(|id, _| id.domain != domain);
        self.hostile.retain(|id, _| id.domain != domain);
        self.xen.bury(domain);
        self.store.rm(DOM0, 0, &format!("/local/domain/{domain}")).expect("dom0 may");
        self.run();
    }

    /// Our state of a device, "-" if its directory is gone.
    pub(super) fn own(&mut self, id: VbdId) -> String {
        self.toolstack.own(&mut self.store, id, "state").unwrap_or("-".into())
    }

    /// A node of our home.
    pub(super) fn home(&mut self, path: &str) -> Option<String> {
        self.store.text(&format!("/local/domain/{DRIVER_DOMAIN}/{path}"))
    }

    pub(super) fn reason(&mut self, id: VbdId) -> Option<String> {
        self.home(&format!("error/backend/vbd/{}/{}/error", id.domain, id.device))
    }

    pub(super) fn outcome(&self, id: VbdId) -> Option<Outcome> {
        self.toolstack.outcome(id)
    }

    /// A person types on the console after a pause, when it has room for so many lines more; what it shows then.
    pub(super) fn type_keys(&mut self, keys: &str, room: usize) -> Vec<String> {
        self.pass(PAUSE.as_millis());
        let hardware = Rc::clone(&self.machine.hardware);
        hardware.borrow_mut().typed.extend(keys.bytes());
        hardware.borrow_mut().console_room = room;
        self.woken = true;
        self.run();
        std::mem::take(&mut hardware.borrow_mut().printed)
    }

    /// `xl shutdown` of the driver domain; so it ended, or none.
    pub(super) fn shut_down(&mut self, how: &str, millis: u64) -> Option<Shutdown> {
        let path = format!("/local/domain/{DRIVER_DOMAIN}/control/shutdown");
        self.store.write(DOM0, 0, &path, how.as_bytes()).expect("dom0 may");
        self.pass(millis);
        if let Next::End(how) = self.next { Some(how) } else { None }
    }

    /// The disks are as they must be left: flushed, reset, with what the guests wrote. Returns how many sectors that is.
    pub(super) fn assert_ended_well(&self) -> usize {
        assert!(matches!(self.next, Next::End(_)));
        for disk in &self.disks {
            let inner = disk.inner();
            assert!(!inner.dirty && inner.power == Power::Stopped, "{}: flushed and reset", disk.address());
        }
        self.compare()
    }

    /// Compares what is on the disks with what the guests know; returns how many sectors they wrote.
    pub(super) fn compare(&self) -> usize {
        let disks = self.disks.iter().enumerate();
        disks.map(|(number, disk)| self.truths[&format!("disk{number}")].compare(&disk.inner().content)).sum()
    }

    /// Nothing is left of any vbd: not in Xen, not in us, not in xenstore.
    pub(super) fn assert_nothing_left(&mut self) {
        // The counters are written at most once a second, one node after the other.
        self.pass(4_000);
        assert_eq!((self.xen.connected(), self.xen.mappings()), (0, 0));
        assert_eq!(self.xen.free_pages(), self.pages_at_rest);
        assert_eq!(self.server.vbds.len(), 0);
        let granted = u8::from(self.pci.is_some());
        let free = self.machine.usage().free_pages;
        let counters = format!(
            "devices=0 vbds=0 connected=0 rings=0 ports=0 mapped_pages=0 granted_pages={granted} free_pages={free} pool_pages={FREE_PAGES} heap_bytes=0 heap_size=0"
        );
        assert_eq!(self.home("data/driverdom/counters").unwrap_or(counters.clone()), counters);
        let pci_watches = if self.pci.is_some() { 2 } else { 1 };
        assert_eq!(self.store.watches_of(DRIVER_DOMAIN), 3 + pci_watches, "watches");
        let backends = format!("/local/domain/{DRIVER_DOMAIN}/backend");
        let left: Vec<&str> =
            self.store.below(&backends).into_iter().filter(|path| path.len() > backends.len()).collect();
        assert_eq!(left, Vec::<&str>::new());
        assert!(self.connection.is_idle() && self.server.client.is_idle());
    }
}
