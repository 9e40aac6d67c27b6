//! The engine: all connected vbds, and the bounded turn that moves their requests to the disks and back.

use alloc::vec::Vec;

use xen_proto::blkif::Abi;
use xen_proto::platform::{Events, Grants, PageBytes, Pages, SharedRing};
use xen_proto::{DomId, Port};

use crate::disk::{Disk, DiskId, Geometry, Limits};
use crate::stats::Stats;
use crate::volume::{Mode, Volume};

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
    rings: Vec<R>,
}

#[expect(unused_variables, clippy::todo, reason = "being built")]
impl<R: SharedRing> Backend<R> {
    /// An engine without vbds. It takes a few pages for indirect descriptors; `None` if there are not enough.
    pub fn new(pages: &mut impl Pages) -> Option<Self> {
        todo!()
    }

    /// Adds a disk and reserves what its requests will need.
    pub fn add_disk(&mut self, geometry: Geometry, limits: Limits, capacity: Capacity) -> DiskId {
        todo!()
    }

    /// What a disk is.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn geometry(&self, disk: DiskId) -> Geometry {
        todo!()
    }

    /// Starts serving a vbd. Requests that are in its ring already are served without an event.
    ///
    /// # Panics
    /// If the vbd is connected or draining, if its volume is on an unknown disk or leaves it, or if its port is in use.
    pub fn connect(&mut self, connection: Connection<R>) {
        todo!()
    }

    /// Takes no more requests of this vbd, lets those under way finish and be answered, then reports [`Report::Drained`],
    /// perhaps at once. Does nothing for a vbd that is unknown or draining.
    pub fn disconnect(&mut self, id: VbdId) {
        todo!()
    }

    /// Whether the vbd is connected and was not told to disconnect.
    pub fn is_connected(&self, id: VbdId) -> bool {
        todo!()
    }

    /// An event arrived on this port. Returns whether it is a vbd's.
    pub fn event(&mut self, port: Port) -> bool {
        todo!()
    }

    /// One bounded turn: completions, new requests, unmaps, responses, notifications. Call it after events of vbds, interrupts
    /// of disks, `connect` and `disconnect`, and again while it says [`Progress::More`].
    pub fn turn<G, E, M, D>(&mut self, platform: &mut Platform<'_, G, E, M, D>) -> Progress
    where
        G: Grants<Ring = R>,
        E: Events,
        M: PageBytes,
        D: Disk,
    {
        todo!()
    }

    /// The next thing that the control plane must know; ask after each turn and each `disconnect` until `None`.
    pub fn next_report(&mut self) -> Option<Report<R>> {
        todo!()
    }

    /// What a vbd has done, `None` if it is unknown.
    pub fn stats(&self, id: VbdId) -> Option<Stats> {
        todo!()
    }
}
