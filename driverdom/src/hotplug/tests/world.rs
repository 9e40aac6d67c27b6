//! A world on a virtual clock.

use std::collections::{BTreeMap, BTreeSet};

use blkback_core::backend::VbdId;
use blkback_core::volume::Mode;
use xen_proto::xenstore::Client;
use xen_proto::{DomId, Nanos};

use crate::fake::{Connection, Force, Frontend, Outcome, Store, Toolstack};
use crate::hotplug::{Action, Answer, FlushCache, Hotplug, Properties, Shutdown};

pub(super) const DRIVER_DOMAIN: DomId = DomId(2);

pub(super) const PROPERTIES: Properties =
    Properties { sectors: 2048, sector_size: 512, physical_sector_size: 4096, flush_cache: FlushCache::Offered };

/// A device by guest and number.
pub(super) fn id(domain: u16, device: u32) -> VbdId {
    VbdId { domain: DomId(domain), device }
}

/// What the block backend holds for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Volume(String),
    Rings(String),
}

/// The block backend: grants what is asked, unless told otherwise.
#[derive(Default)]
pub(super) struct Glue {
    pub(super) held: BTreeMap<VbdId, Held>,
    /// Targets that cannot be had.
    pub(super) unknown: BTreeSet<String>,
    /// Targets that are being drained.
    pub(super) draining: BTreeSet<String>,
    /// Whether rings cannot be mapped.
    pub(super) unmappable: bool,
    /// Whether disconnects take until [`World::finish_disconnects`].
    pub(super) slow: bool,
    pub(super) disconnecting: Vec<VbdId>,
    /// All actions, oldest first.
    pub(super) log: Vec<Action>,
    pub(super) shutdown: Option<Shutdown>,
    pub(super) crashed: bool,
}

impl Glue {
    /// Carries out an action; the answer, if it comes at once.
    fn act(&mut self, action: Action) -> Option<(VbdId, Answer)> {
        self.log.push(action.clone());
        match action {
            Action::Open { device, target, mode } => {
                assert!(!self.held.contains_key(&device), "{device:?} holds a volume already");
                let answer = if self.unknown.contains(&target) {
                    Answer::Refused(format!("no volume is named {target}"))
                } else if self.draining.contains(&target) {
                    Answer::Draining
                } else {
                    assert!(matches!(mode, Mode::ReadOnly | Mode::ReadWrite));
                    self.held.insert(device, Held::Volume(target));
                    Answer::Opened(PROPERTIES)
                };
                Some((device, answer))
            }
            Action::Connect { device, rings } => {
                assert!(rings.pages.len().is_power_of_two() && rings.pages.len() <= 16);
                let Some(Held::Volume(target)) = self.held.get(&device).cloned() else {
                    panic!("{device:?} has no volume")
                };
                if self.unmappable {
                    return Some((device, Answer::ConnectFailed("a ring page cannot be mapped".into())));
                }
                self.held.insert(device, Held::Rings(target));
                Some((device, Answer::Connected))
            }
            Action::Disconnect { device, .. } => {
                assert!(matches!(self.held.get(&device), Some(Held::Rings(_))), "{device:?} has no rings");
                if self.slow {
                    self.disconnecting.push(device);
                    return None;
                }
                Some((device, self.disconnected(device)))
            }
            Action::Close { device } => {
                assert!(matches!(self.held.remove(&device), Some(Held::Volume(_))), "{device:?} has rings or nothing");
                None
            }
            Action::Shutdown(shutdown) => {
                self.shutdown = Some(shutdown);
                None
            }
            Action::Crash => {
                self.crashed = true;
                None
            }
            Action::Unusable(reason) => panic!("{reason}"),
        }
    }

    fn disconnected(&mut self, device: VbdId) -> Answer {
        if let Some(Held::Rings(target)) = self.held.remove(&device) {
            self.held.insert(device, Held::Volume(target));
        }
        Answer::Disconnected
    }

    pub(super) fn count(&self, is: impl Fn(&Action) -> bool) -> usize {
        self.log.iter().filter(|action| is(action)).count()
    }
}

pub(super) struct World {
    pub(super) store: Store,
    pub(super) connection: Connection,
    pub(super) client: Client,
    pub(super) hotplug: Hotplug,
    pub(super) toolstack: Toolstack,
    pub(super) glue: Glue,
    pub(super) now: Nanos,
    /// Bytes that come from xenstored at once.
    pub(super) chunk: usize,
    /// A guest that rewrites its state whenever it may.
    pub(super) rewriting: Option<(Frontend, u32)>,
}

impl World {
    /// A driver domain that has just started, with these guests.
    pub(super) fn new(guests: impl IntoIterator<Item = u16>) -> Self {
        let mut world = Self::asleep(guests);
        world.run();
        world
    }

    /// The same, before it has done anything.
    pub(super) fn asleep(guests: impl IntoIterator<Item = u16>) -> Self {
        let mut client = Client::new();
        let hotplug = Hotplug::new(&mut client);
        Self {
            store: Store::new(guests.into_iter().map(DomId).chain([DRIVER_DOMAIN])),
            connection: Connection::new(DRIVER_DOMAIN),
            client,
            hotplug,
            toolstack: Toolstack::new(DRIVER_DOMAIN),
            glue: Glue::default(),
            now: Nanos::from_millis(1_000),
            chunk: 77,
            rewriting: None,
        }
    }

    /// Lets all go on until nothing happens any more without time passing.
    pub(super) fn run(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// One small step of each; whether anything happened.
    pub(super) fn step(&mut self) -> bool {
        let mut happened = self.act();
        let mut bytes = [0; 100];
        let count = self.client.output(&mut bytes);
        self.connection.receive(&bytes[..count], &self.store);
        happened |= count > 0;
        if let Some((frontend, state)) = self.rewriting {
            frontend.state(&mut self.store, state);
        }
        let before = self.connection.served;
        self.connection.serve(&mut self.store);
        happened |= self.connection.served != before;
        self.check_effects();
        let bytes = self.connection.send(self.chunk);
        happened |= !bytes.is_empty();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            if let Some(event) = self.client.input(&mut rest).expect("a sound stream") {
                assert_eq!(self.hotplug.store_event(self.now, event, &mut self.client), None);
            }
        }
        happened
    }

    fn act(&mut self) -> bool {
        let mut happened = false;
        while let Some(action) = self.hotplug.next_action() {
            happened = true;
            let released = matches!(action, Action::Close { .. });
            if let Some((device, answer)) = self.glue.act(action) {
                self.hotplug.done(self.now, device, answer, &mut self.client);
            }
            if released {
                self.hotplug.volume_released(self.now, &mut self.client);
            }
        }
        happened
    }

    /// What we wrote is checked against what is held: nothing is held when the toolstack is told that a device is closed.
    fn check_effects(&mut self) {
        for (path, value) in core::mem::take(&mut self.connection.effects) {
            let parts: Vec<&str> = path.split('/').collect();
            let ["backend", "vbd", domain, device, ..] = parts[..] else { continue };
            let id = id(domain.parse().expect("a number"), device.parse().expect("a number"));
            let held = self.glue.held.get(&id);
            if value.is_none() {
                assert_eq!(held, None, "{id:?} was removed");
            } else if path.ends_with("/state") && value.as_deref() == Some("6") {
                assert!(!matches!(held, Some(Held::Rings(_))), "{id:?} is closed");
                let online = self.toolstack.own(&mut self.store, id, "online");
                assert!(held.is_none() || online.as_deref() != Some("0"), "{id:?} is closed for good");
            }
            self.toolstack.changed(&mut self.store, self.now, id);
        }
    }

    /// Time passes; all goes on.
    pub(super) fn pass(&mut self, millis: u64) {
        let end = self.now + Nanos::from_millis(millis);
        self.run();
        self.toolstack.look(&mut self.store, self.now);
        while self.now < end {
            let deadlines = [self.hotplug.next_deadline(), self.toolstack.next_deadline(self.now)];
            let next = deadlines.into_iter().flatten().min().unwrap_or(end).min(end);
            self.now = next.max(self.now + Nanos(1_000_000)).min(end);
            self.toolstack.look(&mut self.store, self.now);
            self.hotplug.tick(self.now, &mut self.client);
            self.run();
        }
    }

    pub(super) fn attach(&mut self, id: VbdId) {
        self.attach_as(id, "disk0", "w");
    }

    pub(super) fn attach_as(&mut self, id: VbdId, params: &str, mode: &str) {
        self.toolstack.attach(&mut self.store, self.now, id, params, mode);
    }

    pub(super) fn remove(&mut self, id: VbdId, force: Force) {
        self.toolstack.remove(&mut self.store, self.now, id, force);
    }

    pub(super) fn frontend(&mut self, id: VbdId, state: u32) {
        Frontend(id).state(&mut self.store, state);
    }

    /// Attaches a device and lets its frontend connect.
    pub(super) fn connected(&mut self, id: VbdId) {
        self.attach(id);
        self.run();
        Frontend(id).publish(&mut self.store);
        self.pass(500);
        assert_eq!(self.own(id), "4", "{id:?} is connected");
        self.frontend(id, 4);
        self.run();
    }

    pub(super) fn finish_disconnects(&mut self) {
        for device in core::mem::take(&mut self.glue.disconnecting) {
            let answer = self.glue.disconnected(device);
            self.hotplug.done(self.now, device, answer, &mut self.client);
        }
        self.run();
    }

    /// Our state of a device, "-" if its directory is gone.
    pub(super) fn own(&mut self, id: VbdId) -> String {
        self.key(id, "state")
    }

    pub(super) fn key(&mut self, id: VbdId, key: &str) -> String {
        self.toolstack.own(&mut self.store, id, key).unwrap_or("-".into())
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

    /// Nothing is left of any device: not in us, not in the backend, not in xenstore.
    pub(super) fn assert_nothing_left(&mut self) {
        assert!(self.glue.held.is_empty(), "held: {:?}", self.glue.held);
        let statistics = self.hotplug.statistics();
        assert_eq!((statistics.devices, statistics.held), (0, 0));
        assert_eq!(self.store.watches_of(DRIVER_DOMAIN), 3, "watches");
        let home = format!("/local/domain/{DRIVER_DOMAIN}");
        let ours = [
            "",
            "/backend",
            "/control",
            "/control/shutdown",
            "/control/sysrq",
            "/data",
            "/data/driverdom",
            "/data/driverdom/ready",
        ];
        let allowed: BTreeSet<String> = ours
            .iter()
            .map(|path| format!("{home}{path}"))
            .chain(["/device", "/device/vbd", "/error"].map(|path| format!("{home}{path}")))
            .collect();
        let left: Vec<_> =
            self.store.below(&home).into_iter().filter(|path| !allowed.contains(*path)).map(String::from).collect();
        assert_eq!(left, Vec::<String>::new());
        assert!(self.connection.is_idle() && self.client.is_idle());
    }
}
