//! A connected vbd: its ring, what it has under way, and whether it is to be served.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::{Add, Sub};

use slab::Slab;
use xen_proto::Port;
use xen_proto::blkif::{Abi, Request as RawRequest, Slot, Status};
use xen_proto::platform::{Events, SharedRing};
use xen_proto::ring::{BackRing, Broken, Check, Wake};

use crate::backend::{Connection, Drained, Report, VbdId};
use crate::owed::Owed;
use crate::request::{Action, Bounds, Request};
use crate::stats::Stats;
use crate::volume::Volume;

/// A vbd's place in the [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VbdIndex(usize);

/// Requests under way and their segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) segments: usize,
}

impl Load {
    pub(crate) fn within(self, limit: Self) -> bool {
        self.requests <= limit.requests && self.segments <= limit.segments
    }
}

impl Add for Load {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, segments: self.segments + other.segments }
    }
}

impl Sub for Load {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { requests: self.requests - other.requests, segments: self.segments - other.segments }
    }
}

/// Whether requests are taken from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// The ring was empty at its final check: an event will come.
    Armed,
    /// It is in its lane's queue.
    Queued,
    /// It has its share under way: the end of one of its requests puts it into the queue again.
    OverShare,
    /// Nothing more is taken: the ring is broken.
    Broken,
    /// Nothing more is taken: it was told to disconnect.
    Draining,
}

/// What [`Vbd::next`] found.
#[derive(Debug)]
pub(crate) enum Next {
    Request(Owed, Request),
    /// A request that was answered already.
    Refused,
    /// Nothing, and the ring passed its final check.
    Dry,
}

/// A connected vbd.
#[derive(Debug)]
pub(crate) struct Vbd<R> {
    pub(crate) id: VbdId,
    /// The ring: only this module puts answers into it.
    ring: BackRing<R>,
    port: Port,
    abi: Abi,
    pub(crate) volume: Volume,
    pub(crate) bounds: Bounds,
    /// A request taken for which there was no room.
    held: Option<(Owed, Request)>,
    pub(crate) intake: Intake,
    pub(crate) load: Load,
    /// Whether its lane counts it as busy.
    pub(crate) busy: bool,
    /// Whether its disk turned out not to flush.
    pub(crate) flush_unsupported: bool,
    /// Whether it is in [`Table::dirty`].
    dirty: bool,
    /// What it did, up to the last [`Table::publish`].
    stats: Stats,
    /// And since then.
    recent: Stats,
}

impl<R: SharedRing> Vbd<R> {
    fn new(connection: Connection<R>, bounds: Bounds) -> Self {
        let Connection { id, ring, port, abi, volume, mode: _ } = connection;
        Self {
            id,
            ring: BackRing::attach(ring, abi.slot_bytes()),
            port,
            abi,
            volume,
            bounds,
            held: None,
            intake: Intake::Armed,
            load: Load::default(),
            busy: false,
            flush_unsupported: false,
            dirty: false,
            stats: Stats::default(),
            recent: Stats::default(),
        }
    }

    /// The next request: the one held, or one from the ring.
    pub(crate) fn next(&mut self) -> Result<Next, Broken> {
        if let Some((owed, request)) = self.held.take() {
            return Ok(Next::Request(owed, request));
        }
        let mut slot: Slot = [0; _];
        let (bytes, _) = slot.split_at_mut(self.abi.slot_bytes());
        if !self.ring.take(bytes)? {
            match self.ring.final_check()? {
                Check::Sleep => return Ok(Next::Dry),
                Check::More if self.ring.take(bytes)? => {}
                // It went back. Looking until it stands still would be looking as long as the guest likes.
                Check::More => return Err(Broken),
            }
        }
        let raw = RawRequest::from_slot(self.abi, &slot);
        let owed = Owed::for_request(&raw);
        Ok(match Request::parse(&raw, &self.bounds) {
            Ok(request) => Next::Request(owed, request),
            Err(status) => {
                self.answer_refused(owed, status);
                Next::Refused
            }
        })
    }

    /// Keeps a request for the next [`Vbd::next`].
    pub(crate) fn hold(&mut self, owed: Owed, request: Request) {
        assert!(self.held.is_none(), "a vbd holds one request");
        self.held = Some((owed, request));
    }

    /// Puts the answer of a request that moved `sectors` into the ring.
    pub(crate) fn answer(&mut self, owed: Owed, action: Action, sectors: u64, status: Status) {
        self.recent.count(action, sectors, status);
        self.respond(owed, status);
    }

    /// Puts the answer of a request that never started into the ring.
    pub(crate) fn answer_refused(&mut self, owed: Owed, status: Status) {
        self.recent.errors += 1;
        self.respond(owed, status);
    }

    fn respond(&mut self, owed: Owed, status: Status) {
        let slot = owed.answer(status).to_slot();
        let (bytes, _) = slot.split_at(self.abi.slot_bytes());
        self.ring.respond(bytes);
    }

    /// Where its volume starts on its disk.
    pub(crate) fn disk_start(&self) -> u64 {
        match self.volume {
            Volume::Disk(extent) => extent.start,
            Volume::Ram(_) => 0,
        }
    }

    /// Whether it takes part in sharing its lane.
    pub(crate) fn wants_lane(&self) -> bool {
        self.load.requests > 0 || matches!(self.intake, Intake::Queued | Intake::OverShare)
    }

    fn is_drained(&self) -> bool {
        self.intake == Intake::Draining && self.load.requests == 0
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { in_flight: u32::try_from(self.load.requests).unwrap_or(u32::MAX), ..self.stats }
    }
}

/// All connected vbds.
#[derive(Debug)]
pub(crate) struct Table<R> {
    vbds: Slab<Vbd<R>>,
    by_id: BTreeMap<VbdId, VbdIndex>,
    by_port: BTreeMap<Port, VbdIndex>,
    /// Those with responses to publish or with their end to report.
    dirty: Vec<VbdIndex>,
    /// What all vbds did, those that are gone too.
    pub(crate) totals: Stats,
}

impl<R: SharedRing> Table<R> {
    pub(crate) fn new() -> Self {
        Self {
            vbds: Slab::new(),
            by_id: BTreeMap::new(),
            by_port: BTreeMap::new(),
            dirty: Vec::new(),
            totals: Stats::default(),
        }
    }

    pub(crate) fn insert(&mut self, connection: Connection<R>, bounds: Bounds) -> VbdIndex {
        let (id, port) = (connection.id, connection.port);
        let index = VbdIndex(self.vbds.insert(Vbd::new(connection, bounds)));
        assert!(self.by_id.insert(id, index).is_none(), "a vbd is connected once");
        assert!(self.by_port.insert(port, index).is_none(), "a port belongs to one vbd");
        self.dirty.reserve(self.vbds.len());
        index
    }

    pub(crate) fn len(&self) -> usize {
        self.vbds.len()
    }

    pub(crate) fn find(&self, id: VbdId) -> Option<VbdIndex> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn find_port(&self, port: Port) -> Option<VbdIndex> {
        self.by_port.get(&port).copied()
    }

    pub(crate) fn get(&self, index: VbdIndex) -> &Vbd<R> {
        self.vbds.get(index.0).expect("indices end with their vbds")
    }

    pub(crate) fn get_mut(&mut self, index: VbdIndex) -> &mut Vbd<R> {
        self.vbds.get_mut(index.0).expect("indices end with their vbds")
    }

    /// Has it looked at by the next [`Table::publish`].
    pub(crate) fn mark(&mut self, index: VbdIndex) {
        let vbd = self.get_mut(index);
        if !core::mem::replace(&mut vbd.dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Ends the intake of a vbd; what it holds is answered.
    pub(crate) fn drain(&mut self, index: VbdIndex) {
        let vbd = self.get_mut(index);
        vbd.intake = Intake::Draining;
        if let Some((owed, _)) = vbd.held.take() {
            vbd.answer_refused(owed, Status::Error);
        }
        self.mark(index);
    }

    /// Shows the responses of all marked vbds to their frontends, with one event for each that wants one, and reports those
    /// that are drained by it.
    pub(crate) fn publish(&mut self, events: &mut impl Events, reports: &mut VecDeque<Report<R>>) {
        while let Some(index) = self.dirty.pop() {
            let vbd = self.get_mut(index);
            vbd.dirty = false;
            if vbd.ring.publish() == Wake::Notify {
                events.notify(vbd.port);
            }
            let (recent, drained) = (core::mem::take(&mut vbd.recent), vbd.is_drained());
            vbd.stats += recent;
            self.totals += recent;
            if drained {
                reports.push_back(Report::Drained(self.remove(index)));
            }
        }
    }

    fn remove(&mut self, index: VbdIndex) -> Drained<R> {
        let vbd = self.vbds.remove(index.0);
        self.by_id.remove(&vbd.id);
        self.by_port.remove(&vbd.port);
        let stats = vbd.stats();
        let Vbd { id, ring, port, volume, .. } = vbd;
        Drained { id, ring: ring.into_shared(), port, volume, stats }
    }
}
