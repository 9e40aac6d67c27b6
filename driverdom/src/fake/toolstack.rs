//! A toolstack that does with xenstore what libxl does, waits as libxl waits, and says how it ended.

use std::collections::BTreeMap;

use blkback_core::backend::VbdId;
use xen_proto::{DomId, Nanos};

use super::store::Store;

const DOM0: DomId = DomId(0);
/// `LIBXL_INIT_TIMEOUT` and `LIBXL_DESTROY_TIMEOUT`.
const TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// Whether the frontend's directory goes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// `xl block-detach`.
    Off,
    /// `xl block-detach -f`, `xl destroy`.
    On,
}

/// How an attach or a removal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It saw state 2.
    Attached,
    /// "wanted state 2 but it was removed".
    AttachRefused,
    /// Ten seconds without state 2.
    AttachTimedOut,
    /// It saw state 6, and then the directory was gone.
    Removed,
    /// "wanted state 6 but it was removed".
    RemovedTooSoon,
    /// Ten seconds without state 6.
    CloseTimedOut,
    /// Ten seconds at state 6 with the directory still there.
    RemovalTimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    InitWait,
    Closed,
    Gone,
}

#[derive(Clone, Copy)]
struct Wait {
    wanted: Wanted,
    since: Nanos,
}

/// The toolstack, in dom0.
pub struct Toolstack {
    backend: DomId,
    waits: BTreeMap<VbdId, Wait>,
    /// How long it does not look at anything after it has looked.
    pub look_every: Nanos,
    next_look: Nanos,
    /// How all attaches and removals ended, oldest first.
    pub outcomes: Vec<(VbdId, Outcome)>,
    /// How the last one of each device ended.
    latest: BTreeMap<VbdId, Outcome>,
}

impl Toolstack {
    /// A toolstack that attaches disks of this driver domain, and sees every change at once.
    pub fn new(backend: DomId) -> Self {
        Self {
            backend,
            waits: BTreeMap::new(),
            look_every: Nanos(0),
            next_look: Nanos(0),
            outcomes: Vec::new(),
            latest: BTreeMap::new(),
        }
    }

    /// The path of a node of our directory of a device.
    pub fn path(&self, id: VbdId, key: &str) -> String {
        format!("/local/domain/{}/backend/vbd/{}/{}{key}", self.backend, id.domain, id.device)
    }

    /// What our directory says of a device.
    pub fn own(&self, store: &mut Store, id: VbdId, key: &str) -> Option<String> {
        store.text(&self.path(id, &format!("/{key}")))
    }

    /// Attaches a disk and begins to wait.
    pub fn attach(&mut self, store: &mut Store, now: Nanos, id: VbdId, params: &str, mode: &str) {
        self.make(store, id, params, mode);
        self.latest.remove(&id);
        self.waits.insert(id, Wait { wanted: Wanted::InitWait, since: now });
    }

    /// Writes what an attach writes, in libxl's order.
    pub fn make(&self, store: &mut Store, id: VbdId, params: &str, mode: &str) {
        let (backend, frontend) = (self.path(id, ""), frontend_path(id));
        for (path, owner, reader) in [(&frontend, id.domain, self.backend), (&backend, self.backend, id.domain)] {
            store.rm(DOM0, 0, path).ok();
            store.mkdir(DOM0, 0, path).expect("dom0 may");
            store.give(path, owner, reader);
        }
        let mut write = |directory: &str, key: &str, value: &str| {
            store.write(DOM0, 0, &format!("{directory}/{key}"), value.as_bytes()).expect("dom0 may");
        };
        for (key, value) in [("backend", backend.as_str()), ("backend-id", &self.backend.to_string()), ("state", "1")] {
            write(&frontend, key, value);
        }
        let domain = id.domain.to_string();
        for (key, value) in [
            ("frontend", frontend.as_str()),
            ("params", params),
            ("script", "/etc/xen/scripts/block"),
            ("frontend-id", &domain),
            ("online", "1"),
            ("removable", "0"),
            ("bootable", "1"),
            ("state", "1"),
            ("dev", "xvda"),
            ("type", "phy"),
            ("mode", mode),
            ("device-type", "disk"),
            ("discard-enable", "1"),
        ] {
            write(&backend, key, value);
        }
    }

    /// Removes a disk and begins to wait.
    pub fn remove(&mut self, store: &mut Store, now: Nanos, id: VbdId, force: Force) {
        if force == Force::On {
            store.clean_up(&frontend_path(id));
        }
        self.latest.remove(&id);
        let Some(state) = self.own(store, id, "state") else {
            store.clean_up(&frontend_path(id));
            store.clean_up(&self.path(id, ""));
            return self.ended(id, Outcome::Removed);
        };
        store.write(DOM0, 0, &self.path(id, "/online"), b"0").expect("dom0 may");
        if state != "6" {
            store.write(DOM0, 0, &self.path(id, "/state"), b"5").expect("dom0 may");
        }
        self.waits.insert(id, Wait { wanted: Wanted::Closed, since: now });
    }

    /// When it will look again, if it waits for anything.
    pub fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        let timeout = self.waits.values().map(|wait| wait.since + TIMEOUT).min()?;
        Some(if self.next_look > now { self.next_look.min(timeout.max(now)) } else { timeout })
    }

    /// Looks at all that it waits for, unless it has just looked.
    pub fn look(&mut self, store: &mut Store, now: Nanos) {
        if now >= self.next_look {
            self.next_look = now + self.look_every;
            let ids: Vec<VbdId> = self.waits.keys().copied().collect();
            ids.into_iter().for_each(|id| self.look_at(store, now, id));
        }
    }

    /// A device has changed: looks at it if it sees every change.
    pub fn changed(&mut self, store: &mut Store, now: Nanos, id: VbdId) {
        if self.look_every == Nanos(0) {
            self.look_at(store, now, id);
        }
    }

    fn look_at(&mut self, store: &mut Store, now: Nanos, id: VbdId) {
        let Some(wait) = self.waits.get(&id).copied() else { return };
        let state = self.own(store, id, "state");
        let late = now.since(wait.since) >= TIMEOUT;
        let outcome = match (wait.wanted, state.as_deref()) {
            (Wanted::InitWait, Some("2")) => Outcome::Attached,
            (Wanted::InitWait, None) => Outcome::AttachRefused,
            (Wanted::InitWait, _) if late => Outcome::AttachTimedOut,
            (Wanted::Closed, Some("6")) => {
                self.waits.insert(id, Wait { wanted: Wanted::Gone, since: now });
                return;
            }
            (Wanted::Closed, None) => Outcome::RemovedTooSoon,
            (Wanted::Closed, _) if late => Outcome::CloseTimedOut,
            (Wanted::Gone, None) => {
                store.clean_up(&frontend_path(id));
                store.clean_up(&self.path(id, ""));
                Outcome::Removed
            }
            (Wanted::Gone, _) if late => Outcome::RemovalTimedOut,
            _ => return,
        };
        self.waits.remove(&id);
        self.ended(id, outcome);
    }

    fn ended(&mut self, id: VbdId, outcome: Outcome) {
        self.outcomes.push((id, outcome));
        self.latest.insert(id, outcome);
    }

    /// How the last attach or removal of a device ended, if it has ended.
    pub fn outcome(&self, id: VbdId) -> Option<Outcome> {
        self.latest.get(&id).copied()
    }
}

fn frontend_path(id: VbdId) -> String {
    format!("/local/domain/{}/device/vbd/{}", id.domain, id.device)
}
