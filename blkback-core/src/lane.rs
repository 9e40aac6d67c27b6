//! One disk with the requests under way on it, and the vbds that wait to use it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use slab::Slab;
use xen_proto::blkif::Status;
use xen_proto::platform::DeviceMapping;

use crate::backend::Capacity;
use crate::disk::{Disk, DmaSegment, Geometry, Limits, Outcome, SECTOR_BYTES, Tag};
use crate::flight::{After, Flight, status};
use crate::heap;
use crate::owed::Owed;
use crate::pool::Pool;
use crate::request::{Action, MAX_SEGMENTS};
use crate::vbd::{Load, VbdIndex};

/// A disk's part of the engine. All of it is reserved in [`Lane::new`].
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) geometry: Geometry,
    limits: Limits,
    capacity: Load,
    flights: Slab<Flight>,
    pub(crate) pool: Pool,
    tags: Tags,
    /// Requests with commands to submit, in order.
    unsubmitted: VecDeque<usize>,
    /// The segments of one command.
    dma: Vec<DmaSegment>,
    /// Vbds with requests to take, in turn.
    pub(crate) queue: VecDeque<VbdIndex>,
    /// Vbds that have requests to take or under way: those that share the lane.
    pub(crate) busy: usize,
    /// The vbd at the head of the queue has a request that does not fit until another is over.
    pub(crate) full: bool,
    /// The disk had nothing completed when it was last asked and was given nothing since, so it will call.
    pub(crate) quiet: bool,
}

/// Tags of commands, and the request of each that is at the disk.
#[derive(Debug)]
struct Tags {
    free: Vec<Tag>,
    flights: Vec<Option<usize>>,
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) owed: Owed,
    pub(crate) vbd: VbdIndex,
    pub(crate) action: Action,
    pub(crate) sectors: u64,
    pub(crate) load: Load,
    pub(crate) status: Status,
}

/// Whether a request fits beside what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It does.
    Fits,
    /// Not while its vbd has so much under way: it is over its share.
    OverShare,
    /// Not while the lane has so much under way.
    Full,
}

impl Lane {
    /// A lane with nothing under way, `None` if there is not enough memory.
    pub(crate) fn new(geometry: Geometry, limits: Limits, capacity: Capacity) -> Option<Self> {
        let block = u64::from(geometry.logical_block) / SECTOR_BYTES;
        assert!(block.is_power_of_two() && limits.segments as u64 >= block, "a command must be able to carry a block");
        assert!(capacity.requests > 0 && limits.depth > 0, "a disk must be able to take a request");
        assert!(capacity.segments >= MAX_SEGMENTS, "a disk must be able to take the largest request");
        let pool = Pool::new(capacity.segments)?;
        heap::has_spare().then(|| Self {
            geometry,
            limits,
            capacity: Load { requests: capacity.requests, segments: capacity.segments },
            flights: Slab::with_capacity(capacity.requests),
            pool,
            tags: Tags::new(limits.depth),
            unsubmitted: VecDeque::with_capacity(capacity.requests),
            dma: Vec::with_capacity(limits.segments.min(MAX_SEGMENTS)),
            queue: VecDeque::new(),
            busy: 0,
            full: false,
            quiet: false,
        })
    }

    /// Whether its vbds may take requests now: the disk has taken all that was taken before.
    pub(crate) fn may_take(&self) -> bool {
        !self.full && self.unsubmitted.is_empty()
    }

    /// Whether a vbd with `load` under way may add `new`, a request of it. With nothing under way it always may when there is
    /// room, else each busy vbd may use an equal share of the lane.
    pub(crate) fn room(&self, load: Load, pending: Load, new: Load) -> Room {
        let free = Load { requests: self.capacity.requests - self.flights.len(), segments: self.pool.left() };
        if !(pending + new).within(free) {
            return Room::Full;
        }
        let share = Load {
            requests: self.capacity.requests / self.busy.max(1),
            segments: self.capacity.segments / self.busy.max(1),
        };
        let mine = load + pending;
        if mine.requests == 0 || (mine + new).within(share) { Room::Fits } else { Room::OverShare }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Starts a request for which there is room.
    pub(crate) fn start(&mut self, flight: Flight) {
        self.unsubmitted.push_back(self.flights.insert(flight));
    }

    /// Hands commands to the disk until it has no more tags.
    pub(crate) fn submit(&mut self, disk: &mut impl Disk) {
        let mut submitted = 0_usize;
        while let Some(&at) = self.unsubmitted.front()
            && let Some(tag) = self.tags.take(at)
        {
            let flight = self.flights.get_mut(at).expect("queued requests are under way");
            let command = flight
                .next_command(&self.pool, &self.geometry, &self.limits, &mut self.dma)
                .expect("queued requests have a command");
            if !flight.has_more() {
                self.unsubmitted.pop_front();
            }
            disk.submit(tag, command, &self.dma);
            submitted += 1;
        }
        if submitted > 0 {
            self.quiet = false;
            disk.kick();
        }
    }

    /// Takes completed commands from the disk, at most as many as it can have. Requests that are over go to `finished`, their
    /// mappings to `mappings`.
    pub(crate) fn complete(
        &mut self,
        disk: &mut impl Disk,
        finished: &mut Vec<Finished>,
        mappings: &mut Vec<DeviceMapping>,
    ) {
        // Once more than there can be: the disk announces the next completion only after it has said that there is none.
        for _ in 0..=self.limits.depth {
            let Some((tag, outcome)) = disk.complete() else {
                self.quiet = true;
                break;
            };
            let at = self.tags.give(tag);
            let flight = self.flights.get_mut(at).expect("tags belong to requests under way");
            match flight.completed(outcome, &self.geometry) {
                After::Wait => {}
                After::Submit => self.unsubmitted.push_back(at),
                After::Answer(outcome) => finished.push(self.finish(at, outcome, mappings)),
            }
        }
    }

    fn finish(&mut self, at: usize, outcome: Outcome, mappings: &mut Vec<DeviceMapping>) -> Finished {
        let Flight { owed, vbd, action, sectors, chain, segments, .. } = self.flights.remove(at);
        self.pool.free(chain, |mapping| mappings.push(mapping));
        self.full = false;
        let load = Load { requests: 1, segments };
        Finished { owed, vbd, action, sectors, load, status: status(action, outcome) }
    }
}

impl Tags {
    fn new(depth: usize) -> Self {
        let free: Vec<Tag> = (0..u16::MAX).take(depth).map(Tag).collect();
        Self { flights: alloc::vec![None; free.len()], free }
    }

    fn take(&mut self, flight: usize) -> Option<Tag> {
        let tag = self.free.pop()?;
        *self.flights.get_mut(usize::from(tag.0))? = Some(flight);
        Some(tag)
    }

    /// # Panics
    /// If no command with this tag is at the disk: its driver lied.
    fn give(&mut self, tag: Tag) -> usize {
        let flight = self.flights.get_mut(usize::from(tag.0)).and_then(Option::take);
        self.free.push(tag);
        flight.expect("a disk completes only what it was given")
    }
}
