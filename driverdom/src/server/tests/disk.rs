//! A passed-through disk: completes out of order, late, wrongly or never, and interrupts only when it was asked to, like a
//! virtio disk. It checks what it is given: tags, limits, blocks, bounds, and that memory is mapped when it reaches for it.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

use blkback_core::disk::{Command, Disk, DmaSegment, Geometry, Limits, Outcome, Tag};
use xen_proto::Nanos;

use super::image;
use super::rng::Rng;
use super::xen::Xen;
use crate::drivers::pci::Address;
use crate::server::platform::OwnedDisk;

/// Enough for every request that the server takes to be one command.
pub(super) const AMPLE: Limits = Limits { segments: 256, depth: 128 };
const NEVER: Nanos = Nanos(u64::MAX);

/// The virtual clock that a disk looks at.
pub(super) type Clock = Rc<Cell<Nanos>>;

/// The disk, as somebody has it: the tests, or a driver from its start to its end.
#[derive(Clone)]
pub(super) struct FakeDisk {
    pub(super) address: Address,
    xen: Xen,
    clock: Clock,
    inner: Rc<RefCell<Inner>>,
    /// Which of its drivers this is, counted from 1; 0 for the tests.
    driver: u32,
    /// Commands that ended without the device's doing, so without an interrupt.
    at_once: VecDeque<(Tag, Outcome)>,
}

/// What is in it, and how it behaves.
pub(super) struct Inner {
    pub(super) geometry: Geometry,
    pub(super) limits: Limits,
    pub(super) content: Vec<u8>,
    pub(super) latency: Latency,
    /// A command fails once in so many times.
    pub(super) fault: Option<u64>,
    /// Whether it knows what a flush is.
    pub(super) flushes: bool,
    /// Something was written since the last flush.
    pub(super) dirty: bool,
    pub(super) power: Power,
    /// How long its driver waits when it starts it.
    pub(super) start_takes: Nanos,
    queued: Vec<Job>,
    active: Vec<Job>,
    /// Drivers that it has had.
    drivers: u32,
    /// It was asked for completions and had none, so it interrupts for the next.
    interrupts: bool,
    rng: Rng,
    buffer: Vec<u8>,
}

/// How long a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Latency {
    /// At most so long, and not always the same.
    UpTo(Nanos),
    /// So long.
    Fixed(Nanos),
    /// Until it is something else.
    Stuck,
}

/// Whether it reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    /// Nobody has started it.
    Off,
    /// It was started.
    Running,
    /// It was reset: all commands fail.
    Stopped,
}

struct Job {
    tag: Tag,
    command: Command,
    segments: Vec<DmaSegment>,
    done_at: Nanos,
}

impl FakeDisk {
    /// A disk with these partitions (name and sectors), all zero but for the table.
    pub(super) fn new(slot: u8, partitions: &[(&str, u64)], xen: &Xen, clock: &Clock) -> Self {
        let content = image::with_partitions(partitions);
        let geometry = Geometry {
            sectors: (content.len() / 512) as u64,
            logical_block: 512,
            physical_block: 4096,
            writable: true,
            write_cache: true,
        };
        let inner = Inner {
            geometry,
            limits: AMPLE,
            content,
            latency: Latency::UpTo(Nanos(0)),
            fault: None,
            flushes: true,
            dirty: false,
            power: Power::Off,
            start_takes: Nanos(0),
            queued: Vec::new(),
            active: Vec::new(),
            drivers: 0,
            interrupts: true,
            rng: Rng::new(slot.into()),
            buffer: Vec::new(),
        };
        let address = Address { segment: 0, bus: 0, slot, function: 0 };
        let inner = Rc::new(RefCell::new(inner));
        Self { address, xen: xen.clone(), clock: clock.clone(), inner, driver: 0, at_once: VecDeque::new() }
    }

    pub(super) fn inner(&self) -> RefMut<'_, Inner> {
        self.inner.borrow_mut()
    }

    /// Sets how long commands take, also those under way.
    pub(super) fn set_latency(&self, latency: Latency) {
        let mut inner = self.inner();
        inner.latency = latency;
        let now = self.clock.get();
        for at in 0..inner.active.len() {
            inner.active[at].done_at = inner.done_at(now);
        }
    }

    /// A driver starts it and has it from now on.
    pub(super) fn start(&self) -> Self {
        let mut inner = self.inner();
        assert!(inner.active.is_empty() && inner.power != Power::Running, "it has one driver at a time");
        (inner.power, inner.interrupts) = (Power::Running, true);
        inner.drivers += 1;
        self.clock.set(self.clock.get() + inner.start_takes);
        Self { driver: inner.drivers, ..self.clone() }
    }

    /// Its driver resets it.
    pub(super) fn stop(&mut self) {
        let inner = &mut *self.inner.borrow_mut();
        assert!(inner.power == Power::Running && inner.drivers == self.driver, "a disk is stopped once");
        inner.power = Power::Stopped;
        let lost = inner.queued.drain(..).chain(inner.active.drain(..));
        self.at_once.extend(lost.map(|job| (job.tag, Outcome::Failed)));
    }

    /// Whether this driver's commands reach it.
    fn is_running(&self) -> bool {
        let inner = self.inner();
        inner.power == Power::Running && inner.drivers == self.driver
    }

    /// Commands that the device has not completed.
    pub(super) fn under_way(&self) -> usize {
        let inner = self.inner();
        inner.queued.len() + inner.active.len()
    }

    /// Runs of memory that the device may reach for, each in a page of its own.
    pub(super) fn segments(&self) -> usize {
        let inner = self.inner();
        inner.queued.iter().chain(&inner.active).map(|job| job.segments.len()).sum()
    }

    /// Whether it interrupts now.
    pub(super) fn interrupts(&self) -> bool {
        let inner = self.inner();
        inner.interrupts && inner.active.iter().any(|job| job.done_at <= self.clock.get())
    }

    /// When it is next done with a command.
    pub(super) fn next_done(&self) -> Option<Nanos> {
        self.inner().active.iter().map(|job| job.done_at).filter(|at| *at > self.clock.get() && *at < NEVER).min()
    }
}

impl Inner {
    fn done_at(&mut self, now: Nanos) -> Nanos {
        match self.latency {
            Latency::UpTo(most) => now + Nanos(self.rng.below(most.0 + 1)),
            Latency::Fixed(span) => now + span,
            Latency::Stuck => NEVER,
        }
    }

    fn check(&self, job: &Job) {
        let limits = self.limits;
        assert!(usize::from(job.tag.0) < limits.depth, "{:?} is beyond the depth", job.tag);
        let known = self.queued.iter().chain(&self.active).any(|other| other.tag == job.tag);
        assert!(!known, "a tag is used twice");
        let bytes: u64 = job.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let first = match job.command {
            Command::Flush => return assert!(job.segments.is_empty()),
            Command::Read(first) | Command::Write(first) => first,
        };
        assert!((1..=limits.segments).contains(&job.segments.len()));
        assert!(bytes > 0 && bytes.is_multiple_of(512), "whole blocks: {:?}", job.command);
        assert!(first + bytes / 512 <= self.geometry.sectors, "beyond the disk");
    }

    fn run(&mut self, job: &Job, xen: &Xen) -> Outcome {
        // Even a command that will fail reaches for all of its memory.
        job.segments.iter().for_each(|segment| xen.check_reachable(segment.addr, segment.len));
        if self.fault.is_some_and(|one_in| self.rng.one_in(one_in)) {
            return Outcome::Failed;
        }
        match job.command {
            Command::Flush if !self.flushes => return Outcome::Unsupported,
            Command::Flush => self.dirty = false,
            Command::Read(first) => self.transfer(first, job, |segment, bytes| xen.dma_write(segment.addr, bytes)),
            Command::Write(first) => {
                self.dirty = true;
                self.transfer(first, job, |segment, bytes| xen.dma_read(segment.addr, bytes));
            }
        }
        Outcome::Done
    }

    fn transfer(&mut self, first: u64, job: &Job, each: impl Fn(&DmaSegment, &mut [u8])) {
        let mut at = usize::try_from(first).expect("it is on the disk") * 512;
        for segment in &job.segments {
            let len = segment.len as usize;
            each(segment, &mut self.content[at..at + len]);
            at += len;
        }
    }
}

impl Disk for FakeDisk {
    fn geometry(&self) -> Geometry {
        self.inner().geometry
    }

    fn limits(&self) -> Limits {
        self.inner().limits
    }

    fn submit(&mut self, tag: Tag, command: Command, segments: &[DmaSegment]) {
        let job = Job { tag, command, segments: segments.to_vec(), done_at: NEVER };
        segments.iter().for_each(|segment| self.xen.check_reachable(segment.addr, segment.len));
        assert!(self.at_once.iter().all(|(known, _)| *known != tag), "a tag is used twice");
        self.inner().check(&job);
        if !self.is_running() {
            self.at_once.push_back((tag, Outcome::Failed));
        } else if command == Command::Flush && !self.geometry().write_cache {
            self.at_once.push_back((tag, Outcome::Done));
        } else {
            self.inner().queued.push(job);
        }
    }

    fn kick(&mut self) {
        let now = self.clock.get();
        let inner = &mut *self.inner();
        for mut job in std::mem::take(&mut inner.queued) {
            job.done_at = inner.done_at(now);
            inner.active.push(job);
        }
    }

    fn complete(&mut self) -> Option<(Tag, Outcome)> {
        if !self.at_once.is_empty() || !self.is_running() {
            return self.at_once.pop_front();
        }
        let inner = &mut *self.inner.borrow_mut();
        let now = self.clock.get();
        let done: Vec<usize> = (0..inner.active.len()).filter(|at| inner.active[*at].done_at <= now).collect();
        inner.interrupts = done.is_empty();
        if done.is_empty() {
            return None;
        }
        let job = inner.active.swap_remove(done[inner.rng.index(done.len())]);
        let outcome = inner.run(&job, &self.xen);
        Some((job.tag, outcome))
    }
}

impl OwnedDisk for FakeDisk {
    fn address(&self) -> Address {
        self.address
    }

    fn start_reading(&mut self, sector: u64, bytes: usize) {
        assert!(bytes <= 4096 && bytes.is_multiple_of(512));
        if !self.is_running() {
            return self.at_once.push_back((Tag(0), Outcome::Failed));
        }
        let inner = &mut *self.inner.borrow_mut();
        assert!(inner.active.is_empty() && self.at_once.is_empty(), "it is the only command");
        let at = usize::try_from(sector).expect("it is on the disk") * 512;
        inner.buffer = inner.content[at..at + bytes].to_vec();
        let done_at = inner.done_at(self.clock.get());
        inner.active.push(Job { tag: Tag(0), command: Command::Read(sector), segments: Vec::new(), done_at });
    }

    fn bytes_read(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.inner().buffer);
    }
}
