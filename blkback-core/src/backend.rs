//! The engine: all connected vbds, and the bounded turn that moves their requests to the disks and back.

mod turn;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use xen_proto::blkif::Abi;
use xen_proto::platform::{DeviceMapping, Events, Grants, PageBytes, Pages, SharedRing};
use xen_proto::{DomId, Port};

use crate::disk::{Disk, DiskId, Geometry, Limits, SECTOR_BYTES};
use crate::intake::{BATCH_SEGMENTS, Batch};
use crate::lane::{Finished, Lane};
use crate::ram::Copier;
use crate::request::Bounds;
use crate::stats::Stats;
use crate::vbd::{Intake, Table, VbdIndex};
use crate::volume::{Extent, Mode, Volume};

/// A vbd: one virtual disk of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VbdId {
    /// The guest, which granted the ring and all data pages.
    pub domain: DomId,
    /// Its name for the disk: the last part of `backend/vbd/<domain>/<device>`.
    pub device: u32,
}

/// All that a vbd needs to run. It comes back in [`Drained`].
#[derive(Debug)]
pub struct Connection<R> {
    /// Which vbd.
    pub id: VbdId,
    /// The frontend's ring, mapped.
    pub ring: R,
    /// The bound event channel.
    pub port: Port,
    /// The layout of requests.
    pub abi: Abi,
    /// What it reads and writes.
    pub volume: Volume,
    /// Whether it may write.
    pub mode: Mode,
}

/// How much a disk's vbds together may have under way; reserved once, in [`Backend::add_disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests; at least 1.
    pub requests: usize,
    /// Segments, i.e. mapped pages; at least [`crate::request::MAX_SEGMENTS`].
    pub segments: usize,
}

/// What a turn works with.
#[derive(Debug)]
pub struct Platform<'a, G, E, M, D> {
    /// Grant operations.
    pub grants: &'a mut G,
    /// Event channels, to notify frontends.
    pub events: &'a mut E,
    /// Our own pages, to read indirect descriptors.
    pub memory: &'a M,
    /// The disks, in the order of [`Backend::add_disk`].
    pub disks: &'a mut [D],
}

/// Whether there is more to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Call [`Backend::turn`] again; other work may come first.
    More,
    /// Nothing to do until an event channel, a disk's interrupt or the control plane calls. Every ring passed its final check.
    Sleep,
}

/// What the control plane must know.
#[derive(Debug)]
pub enum Report<R> {
    /// The frontend wrote impossible ring indices. Nothing more is taken from this vbd; disconnect it.
    Broken(VbdId),
    /// The disk does not know flushes though it has a write cache; said once for each connection.
    FlushUnsupported(VbdId),
    /// A disconnected vbd has nothing under way any more: no device can reach a page of the guest on its behalf.
    Drained(Drained<R>),
}

/// What is left of a vbd, to be given back: unmap the ring, close the port, release the claim, keep or free the volume.
#[derive(Debug)]
pub struct Drained<R> {
    /// Which vbd.
    pub id: VbdId,
    /// Its ring, still mapped.
    pub ring: R,
    /// Its event channel, still open.
    pub port: Port,
    /// Its volume; that of a RAM volume still has its content.
    pub volume: Volume,
    /// What it did.
    pub stats: Stats,
}

/// All connected vbds and the requests under way.
#[derive(Debug)]
pub struct Backend<R> {
    vbds: Table<R>,
    lanes: Vec<Lane>,
    /// Vbds on RAM volumes with requests to take, in turn.
    ram_queue: VecDeque<VbdIndex>,
    reports: VecDeque<Report<R>>,
    batch: Batch,
    copier: Copier,
    /// Requests of a disk that are over, and mappings to be ended: both are empty between the steps of a turn.
    finished: Vec<Finished>,
    mappings: Vec<DeviceMapping>,
}

impl<R: SharedRing> Backend<R> {
    /// An engine without vbds. It takes a few pages for indirect descriptors; `None` if there are not enough.
    pub fn new(pages: &mut impl Pages) -> Option<Self> {
        Some(Self {
            vbds: Table::new(),
            lanes: Vec::new(),
            ram_queue: VecDeque::new(),
            reports: VecDeque::new(),
            batch: Batch::new(pages)?,
            copier: Copier::new(),
            finished: Vec::new(),
            mappings: Vec::new(),
        })
    }

    /// Adds a disk and reserves what its requests will need. `None` if there is not enough memory: nothing is added.
    ///
    /// # Panics
    /// If its commands cannot carry a logical block, or the capacity is below what [`Capacity`] says.
    pub fn add_disk(&mut self, geometry: Geometry, limits: Limits, capacity: Capacity) -> Option<DiskId> {
        let id = u16::try_from(self.lanes.len()).expect("fewer disks than PCI functions");
        // Both are empty, and between two disks too, so that they hold what the largest has under way.
        self.finished.try_reserve_exact(capacity.requests).ok()?;
        self.mappings.try_reserve_exact(capacity.segments.max(BATCH_SEGMENTS)).ok()?;
        self.lanes.push(Lane::new(geometry, limits, capacity)?);
        Some(DiskId(id))
    }

    /// What a volume is like: its disk, with its own size.
    ///
    /// # Panics
    /// If it is on an unknown disk.
    pub fn geometry(&self, volume: &Volume) -> Geometry {
        match volume {
            Volume::Disk(extent) => Geometry { sectors: extent.sectors, ..self.lane(extent.disk).geometry },
            Volume::Ram(ram) => ram.geometry(),
        }
    }

    /// Starts serving a vbd. Requests that are in its ring already are served without an event.
    ///
    /// # Panics
    /// If the vbd is connected or draining, if its volume is on an unknown disk or leaves it, or if its port is in use.
    pub fn connect(&mut self, connection: Connection<R>) {
        if let Volume::Disk(Extent { disk, start, sectors }) = connection.volume {
            let end = start.checked_add(sectors);
            assert!(end.is_some_and(|end| end <= self.lane(disk).geometry.sectors), "a volume stays on its disk");
        }
        let geometry = self.geometry(&connection.volume);
        let bounds = Bounds {
            sectors: geometry.sectors,
            block: u64::from(geometry.logical_block) / SECTOR_BYTES,
            mode: connection.mode,
        };
        let index = self.vbds.insert(connection, bounds);
        let vbds = self.vbds.len();
        self.queue_of(index).reserve(vbds);
        self.enqueue(index);
    }

    /// Takes no more requests of this vbd and lets those under way finish and be answered; then, in the next turn or later,
    /// comes [`Report::Drained`]. Does nothing for a vbd that is unknown or draining.
    pub fn disconnect(&mut self, id: VbdId) {
        let Some(index) = self.vbds.find(id) else {
            return;
        };
        self.queue_of(index).retain(|queued| *queued != index);
        self.vbds.drain(index);
        self.recount(index);
    }

    /// Whether the vbd is connected or draining.
    pub fn is_known(&self, id: VbdId) -> bool {
        self.vbds.find(id).is_some()
    }

    /// An event arrived on this port. Returns whether it is a vbd's.
    pub fn event(&mut self, port: Port) -> bool {
        let index = self.vbds.find_port(port);
        if let Some(index) = index
            && self.vbds.get(index).intake == Intake::Armed
        {
            self.enqueue(index);
        }
        index.is_some()
    }

    /// One bounded turn: completions, new requests, unmaps, responses, notifications. Call it after events of vbds, interrupts
    /// of disks, `connect` and `disconnect`, and again while it says [`Progress::More`].
    pub fn turn<G, E, M, D>(&mut self, platform: &mut Platform<'_, G, E, M, D>) -> Progress
    where
        G: Grants,
        E: Events,
        M: PageBytes,
        D: Disk,
    {
        self.complete(platform);
        self.serve_disks(platform);
        self.serve_ram(platform);
        // What was just given to a disk may be over at once, of which nobody would tell us.
        self.complete(platform);
        self.vbds.publish(platform.events, &mut self.reports);
        let disks = self.lanes.iter().any(|lane| !lane.quiet || (lane.may_take() && !lane.queue.is_empty()));
        if disks || !self.ram_queue.is_empty() { Progress::More } else { Progress::Sleep }
    }

    /// The next thing that the control plane must know; ask after each turn until `None`.
    pub fn next_report(&mut self) -> Option<Report<R>> {
        self.reports.pop_front()
    }

    /// Whether no request is under way on a disk.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn is_idle(&self, disk: DiskId) -> bool {
        self.lane(disk).is_idle()
    }

    /// What all vbds have done since the start, those that are gone too.
    pub fn totals(&self) -> Stats {
        let in_flight: usize = self.lanes.iter().map(Lane::under_way).sum();
        Stats { in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX), ..self.vbds.totals }
    }

    /// What a vbd has done, `None` if it is unknown.
    pub fn stats(&self, id: VbdId) -> Option<Stats> {
        Some(self.vbds.get(self.vbds.find(id)?).stats())
    }

    fn lane(&self, disk: DiskId) -> &Lane {
        self.lanes.get(usize::from(disk.0)).expect("volumes are on known disks")
    }

    fn lane_mut(&mut self, disk: DiskId) -> &mut Lane {
        self.lanes.get_mut(usize::from(disk.0)).expect("volumes are on known disks")
    }

    /// The lane of a vbd, `None` if its volume is in RAM.
    fn lane_of(&mut self, index: VbdIndex) -> Option<&mut Lane> {
        match self.vbds.get(index).volume {
            Volume::Disk(Extent { disk, .. }) => Some(self.lane_mut(disk)),
            Volume::Ram(_) => None,
        }
    }

    fn queue_of(&mut self, index: VbdIndex) -> &mut VecDeque<VbdIndex> {
        match self.vbds.get(index).volume {
            Volume::Disk(Extent { disk, .. }) => &mut self.lane_mut(disk).queue,
            Volume::Ram(_) => &mut self.ram_queue,
        }
    }

    /// Puts a vbd at the end of its lane's queue.
    fn enqueue(&mut self, index: VbdIndex) {
        self.vbds.get_mut(index).intake = Intake::Queued;
        self.queue_of(index).push_back(index);
        self.recount(index);
    }

    /// Keeps the number of busy vbds of its lane right after a change of a vbd.
    fn recount(&mut self, index: VbdIndex) {
        let vbd = self.vbds.get_mut(index);
        let now = vbd.wants_lane();
        let before = core::mem::replace(&mut vbd.busy, now);
        if let Some(lane) = self.lane_of(index) {
            lane.busy = lane.busy + usize::from(now) - usize::from(before);
        }
    }
}
