//! The floor: a backend that answers as it must, as soon as it can, and has no rings, no disk and nothing to wait for.
//!
//! It makes the decisions of driverdom's own table, in the order in which changes are heard of.

mod ledger;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use xen_proto::xenbus::{HOLD_INIT_WAIT, Phase, State, Step};
use xen_proto::{DomId, Nanos};

use crate::paths::{Place, VbdId, backends, frontends, place, watched};
use crate::store::{Change, Outcome, Store};
use ledger::{Ledger, Reading};

/// What a backend can do, published with `InitWait`.
const FEATURES: [(&str, &str); 3] =
    [("feature-max-indirect-segments", "256"), ("max-ring-page-order", "4"), ("max-ring-pages", "16")];
/// What its disk is, published with `Connected`.
const PROPERTIES: [(&str, &str); 5] = [
    ("sectors", "2048"),
    ("sector-size", "512"),
    ("physical-sector-size", "512"),
    ("info", "0"),
    ("feature-flush-cache", "1"),
];

/// Serves the vbds of `domain` until it is killed.
pub(crate) fn run(domain: DomId) -> anyhow::Result<()> {
    let mut floor = Floor {
        domain,
        store: Store::connect()?,
        ledger: Ledger::default(),
        changed: BTreeSet::new(),
        start: Instant::now(),
    };
    floor.store.watch(&watched(domain))?;
    floor.find_devices()?;
    loop {
        while let Some(id) = floor.changed.pop_first() {
            floor.serve(id)?;
            while let Some(path) = floor.store.heard_change() {
                floor.note(&path);
            }
        }
        let deadline = floor.ledger.deadline().map(|at| floor.start + Duration::from_nanos(at.0));
        if let Some(path) = floor.store.next_change(deadline)? {
            floor.note(&path);
        }
        floor.changed.extend(floor.ledger.due(floor.now()));
    }
}

struct Floor {
    domain: DomId,
    store: Store,
    ledger: Ledger,
    /// To be looked at.
    changed: BTreeSet<VbdId>,
    start: Instant,
}

impl Floor {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Finds devices that were there before.
    fn find_devices(&mut self) -> anyhow::Result<()> {
        let root = backends(self.domain);
        for guest in self.store.list(&root)? {
            for device in self.store.list(&format!("{root}/{guest}"))? {
                self.note(&format!("{root}/{guest}/{device}/state"));
            }
        }
        Ok(())
    }

    fn note(&mut self, path: &str) {
        match place(self.domain, path) {
            Place::BackendNode(id, "state" | "online") | Place::Backend(id) => {
                self.changed.insert(id);
            }
            Place::FrontendNode(id, "state") | Place::Frontend(id) => {
                self.changed.extend(self.ledger.of(id.guest).filter(|known| *known == id));
            }
            Place::Guest(guest) => self.changed.extend(self.ledger.of(guest)),
            Place::BackendNode(..) | Place::FrontendNode(..) | Place::Other => {}
        }
    }

    /// Reads a device's nodes and does all that follows, up to where something must change first.
    fn serve(&mut self, id: VbdId) -> anyhow::Result<()> {
        let new = !self.ledger.knows(id.guest);
        self.read(id)?;
        if new && self.ledger.knows(id.guest) {
            // Its first event has the device read again: nothing is missed.
            self.store.watch(&frontends(id.guest))?;
        }
        loop {
            let now = self.now();
            match self.ledger.step(now, id) {
                Step::Rest | Step::Wait(_) => return Ok(()),
                Step::Open => self.ledger.reached(id, Phase::Opened),
                Step::Offer => {
                    let hold = self.ledger.own(id) == Some(State::INITIALISING);
                    if self.write(id, &FEATURES, State::INIT_WAIT)? == Outcome::Committed {
                        let until = if hold { self.now() + HOLD_INIT_WAIT } else { now };
                        self.ledger.wrote(now, id, State::INIT_WAIT, until);
                        self.ledger.reached(id, Phase::Ready);
                    }
                }
                Step::Connect => self.ledger.reached(id, Phase::Linked),
                Step::Announce => {
                    if self.switch(id, &PROPERTIES, State::CONNECTED)? == Outcome::Committed {
                        self.ledger.reached(id, Phase::Connected);
                    }
                }
                Step::Switch(state) => {
                    self.switch(id, &[], state)?;
                }
                Step::Fail(_) => {
                    self.switch(id, &[], State::CLOSING)?;
                }
                Step::Disconnect => self.ledger.reached(id, Phase::Ready),
                Step::Close => self.ledger.reached(id, Phase::Fresh),
                Step::Remove => self.remove(id)?,
                Step::Forget => {
                    if self.ledger.forget(id) {
                        self.store.unwatch(&frontends(id.guest))?;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn read(&mut self, id: VbdId) -> anyhow::Result<()> {
        let (backend, frontend) = (id.backend(self.domain), id.frontend());
        let paths = [format!("{backend}/state"), format!("{backend}/online"), format!("{frontend}/state")];
        let values = self.store.read(&paths)?;
        let value = |at: usize| values.get(at).and_then(Option::as_deref);
        let reading = Reading {
            own: value(0).map(State::parse),
            online: value(1) != Some(b"0"),
            frontend: value(2).map(State::parse),
        };
        self.ledger.read(self.now(), id, reading);
        Ok(())
    }

    fn switch(&mut self, id: VbdId, nodes: &[(&str, &str)], state: State) -> anyhow::Result<Outcome> {
        let outcome = self.write(id, nodes, state)?;
        if outcome == Outcome::Committed {
            self.ledger.wrote(self.now(), id, state, Nanos::default());
        }
        Ok(outcome)
    }

    /// Writes nodes and a state together. If the state was no longer what the decision was made on, everything is read again.
    fn write(&mut self, id: VbdId, nodes: &[(&str, &str)], state: State) -> anyhow::Result<Outcome> {
        let directory = id.backend(self.domain);
        let state = ("state", state.to_string());
        let nodes = nodes.iter().map(|(key, value)| (*key, (*value).to_owned())).chain([state]);
        let writes: Vec<_> = nodes.map(|(key, value)| Change::Write(format!("{directory}/{key}"), value)).collect();
        self.change(id, &writes)
    }

    fn remove(&mut self, id: VbdId) -> anyhow::Result<()> {
        let directory = id.backend(self.domain);
        if self.change(id, &[Change::Remove(directory)])? == Outcome::Committed {
            self.ledger.removed(id);
        }
        Ok(())
    }

    fn change(&mut self, id: VbdId, changes: &[Change]) -> anyhow::Result<Outcome> {
        let own = self.ledger.own(id).unwrap_or(State::UNKNOWN);
        let given = [(format!("{}/state", id.backend(self.domain)), own.to_string().into_bytes())];
        let outcome = self.store.change(&given, changes)?;
        if outcome == Outcome::Stale {
            self.read(id)?;
        }
        Ok(outcome)
    }
}
