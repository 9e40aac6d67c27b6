//! A disk that completes out of order, fails at times, and checks what it is given: tags, limits, blocks, bounds, and that memory
//! is mapped when it reaches for it.

use blkback_core::disk::{Command, Disk, DmaSegment, Geometry, Limits, Outcome, Tag};

use crate::rng::Rng;
use crate::world::World;

/// The disk.
pub(crate) struct FakeDisk {
    world: World,
    geometry: Geometry,
    limits: Limits,
    pub(crate) content: Vec<u8>,
    /// Submitted and not kicked.
    queued: Vec<Job>,
    /// At work.
    active: Vec<Job>,
    rng: Rng,
    /// Commands that it will complete; the others stay at work.
    pub(crate) allowance: usize,
    /// A command fails once in so many times.
    pub(crate) fault: Option<u64>,
    /// Whether it knows flushes.
    pub(crate) flushes: bool,
    /// Everything it did, in order.
    pub(crate) log: Vec<Command>,
}

#[derive(Clone)]
struct Job {
    tag: Tag,
    command: Command,
    segments: Vec<DmaSegment>,
}

impl FakeDisk {
    pub(crate) fn new(world: &World, geometry: Geometry, limits: Limits, seed: u64) -> Self {
        Self {
            world: world.clone(),
            geometry,
            limits,
            content: vec![0; usize::try_from(geometry.sectors).unwrap() * 512],
            queued: Vec::new(),
            active: Vec::new(),
            rng: Rng::new(seed),
            allowance: usize::MAX,
            fault: None,
            flushes: true,
            log: Vec::new(),
        }
    }

    /// Commands it was given and has not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.queued.len() + self.active.len()
    }

    fn check(&self, job: &Job) {
        assert!(usize::from(job.tag.0) < self.limits.depth, "{:?} is beyond the depth", job.tag);
        assert!(self.queued.iter().chain(&self.active).all(|other| other.tag != job.tag), "a tag is used twice");
        let bytes: u64 = job.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let first = match job.command {
            Command::Flush => return assert!(job.segments.is_empty()),
            Command::Read(first) | Command::Write(first) => first,
        };
        let block = u64::from(self.geometry.logical_block);
        assert!((1..=self.limits.segments).contains(&job.segments.len()));
        assert!(
            bytes > 0 && bytes.is_multiple_of(block) && (first * 512).is_multiple_of(block),
            "whole blocks: {:?}",
            job.command
        );
        assert!(first + bytes / 512 <= self.geometry.sectors, "beyond the disk");
        for segment in &job.segments {
            assert!(segment.len > 0 && segment.len % 512 == 0 && segment.addr.0 % 512 == 0);
            self.world.check_reachable(segment.addr, segment.len);
        }
    }

    fn run(&mut self, job: &Job) -> Outcome {
        // Even a command that will fail reaches for all of its memory.
        job.segments.iter().for_each(|segment| self.world.check_reachable(segment.addr, segment.len));
        if job.command == Command::Flush && !self.flushes {
            return Outcome::Unsupported;
        }
        if self.fault.is_some_and(|one_in| self.rng.one_in(one_in)) {
            return Outcome::Failed;
        }
        self.log.push(job.command);
        match job.command {
            Command::Flush => {}
            Command::Read(first) => self.transfer(first, job, |world, segment, bytes| {
                world.dma_write(segment.addr, bytes);
            }),
            Command::Write(first) => self.transfer(first, job, |world, segment, bytes| {
                world.dma_read(segment.addr, bytes);
            }),
        }
        Outcome::Done
    }

    fn transfer(&mut self, first: u64, job: &Job, each: impl Fn(&World, &DmaSegment, &mut [u8])) {
        let mut at = usize::try_from(first).unwrap() * 512;
        for segment in &job.segments {
            let len = segment.len as usize;
            each(&self.world, segment, &mut self.content[at..at + len]);
            at += len;
        }
    }
}

impl Disk for FakeDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, tag: Tag, command: Command, segments: &[DmaSegment]) {
        let job = Job { tag, command, segments: segments.to_vec() };
        self.check(&job);
        self.queued.push(job);
    }

    fn kick(&mut self) {
        assert!(!self.queued.is_empty(), "a kick for nothing");
        self.active.append(&mut self.queued);
    }

    fn complete(&mut self) -> Option<(Tag, Outcome)> {
        if self.allowance == 0 || self.active.is_empty() {
            return None;
        }
        self.allowance -= 1;
        let job = self.active.swap_remove(self.rng.index(self.active.len()));
        let outcome = self.run(&job);
        Some((job.tag, outcome))
    }
}
