//! Plans a load: which request comes next and what a read must find, so that lost, stale and misplaced writes show.
//!
//! The area is cut into slots of one request each. A slot has a generation, counted with each write and mixed into the seed, and
//! at most one request in flight: what it must hold is known at every moment.

use alloc::vec;
use alloc::vec::Vec;

use crate::script::Mix;

/// One request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Which part of the area.
    pub slot: u32,
    /// Its first sector.
    pub sector: u64,
    /// What is done.
    pub task: Task,
}

/// What a request of a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Writes the pattern of this seed.
    Write(u64),
    /// Reads, and finds the pattern of this seed.
    Verify(u64),
    /// Reads whatever is there.
    Read,
}

/// The state of a load on one vbd.
#[derive(Debug)]
pub struct Plan {
    mix: Mix,
    seed: u64,
    first: u64,
    size: u64,
    slots: Vec<Slot>,
    /// Where the search for the next slot starts.
    cursor: usize,
    phase: Phase,
    chance: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Writes so far; 0: what it holds is not known.
    generation: u32,
    busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// As many requests as are wanted.
    Run,
    /// Each written slot is read once more, from the cursor on.
    Check,
}

/// Slots of an area when the script does not say how large it is.
pub const SLOTS: u64 = 256;
/// The most slots that a plan takes; what is left of the area stays untouched.
const MOST_SLOTS: u64 = 1 << 16;

impl Plan {
    /// Plans for `sectors` sectors from `first` on, `size` to a request; `None` if not even one request fits.
    #[must_use]
    pub fn new(mix: Mix, seed: u64, first: u64, sectors: u64, size: u64) -> Option<Self> {
        let count = usize::try_from(sectors.checked_div(size)?.min(MOST_SLOTS)).ok()?;
        let slots = vec![Slot::default(); count];
        (count > 0).then_some(Self { mix, seed, first, size, slots, cursor: 0, phase: Phase::Run, chance: seed })
    }

    /// The next request, or `None` while every slot that could be used has one in flight.
    pub fn next_job(&mut self) -> Option<Job> {
        match self.phase {
            Phase::Run => self.next_of_run(),
            Phase::Check => self.next_of_check(),
        }
    }

    fn next_of_run(&mut self) -> Option<Job> {
        let chance = self.random();
        if self.mix == Mix::Both {
            // The remainder is below the length.
            self.cursor = usize::try_from(chance >> 8).unwrap_or(0) % self.slots.len();
        }
        let count = self.slots.len();
        let at = (0..count).map(|step| (self.cursor + step) % count).find(|&at| !self.slots[at].busy)?;
        self.cursor = (at + 1) % count;
        let written = self.slots[at].generation > 0;
        let task = match self.mix {
            Mix::Reads => Task::Read,
            Mix::Both if written && chance.is_multiple_of(2) => Task::Verify(self.seed_of(at)),
            Mix::Both | Mix::Writes => {
                self.slots[at].generation += 1;
                Task::Write(self.seed_of(at))
            }
        };
        Some(self.start(at, task))
    }

    fn next_of_check(&mut self) -> Option<Job> {
        let left = self.slots.get(self.cursor..).unwrap_or_default();
        let skip = left.iter().position(|slot| slot.generation > 0)?;
        let at = self.cursor + skip;
        self.cursor = at + 1;
        let task = Task::Verify(self.seed_of(at));
        Some(self.start(at, task))
    }

    /// From now on each slot that was written is read once and checked; nothing may be in flight.
    pub fn check_all(&mut self) {
        debug_assert!(self.slots.iter().all(|slot| !slot.busy));
        self.phase = Phase::Check;
        self.cursor = 0;
    }

    /// A request has been answered. A write that failed leaves its slot unknown.
    pub fn done(&mut self, job: Job, went: Went) {
        let Some(slot) = usize::try_from(job.slot).ok().and_then(|at| self.slots.get_mut(at)) else { return };
        slot.busy = false;
        if matches!((job.task, went), (Task::Write(_), Went::Wrong)) {
            slot.generation = 0;
        }
    }

    fn start(&mut self, at: usize, task: Task) -> Job {
        self.slots[at].busy = true;
        // At most MOST_SLOTS.
        #[expect(clippy::cast_possible_truncation)]
        let slot = at as u32;
        Job { slot, sector: self.first + at as u64 * self.size, task }
    }

    /// Neighbouring slots and generations never share a seed: a generation is worth more than all slots.
    fn seed_of(&self, at: usize) -> u64 {
        let generation = u64::from(self.slots[at].generation) * MOST_SLOTS;
        self.seed.wrapping_add(generation).wrapping_add(at as u64)
    }

    /// A linear congruential generator (Knuth's MMIX numbers); its upper half is random enough to pick slots.
    fn random(&mut self) -> u64 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.chance >> 32
    }
}

/// How a request of a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// As it should.
    Well,
    /// With an error.
    Wrong,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Runs a plan against a perfect disk with up to `depth` requests in flight, answered in an odd order.
    fn run(mix: Mix, sectors: u64, depth: usize, requests: usize) -> (Plan, BTreeMap<u64, u64>, usize) {
        let mut plan = Plan::new(mix, 5, 1000, sectors, 8).unwrap();
        let (mut disk, mut flight, mut reads) = (BTreeMap::new(), vec![], 0);
        let mut answer = |plan: &mut Plan, job: Job| {
            match job.task {
                Task::Write(seed) => drop(disk.insert(job.sector, seed)),
                Task::Verify(seed) => assert_eq!(disk.get(&job.sector), Some(&seed)),
                Task::Read => (),
            }
            reads += usize::from(!matches!(job.task, Task::Write(_)));
            plan.done(job, Went::Well);
        };
        for turn in 0..requests {
            while flight.len() < depth {
                let Some(job) = plan.next_job() else { break };
                assert!(flight.iter().all(|other: &Job| other.sector != job.sector), "two in one slot");
                assert!((1000..1000 + sectors).contains(&job.sector));
                flight.push(job);
            }
            let job = flight.swap_remove(turn * 7 % flight.len());
            answer(&mut plan, job);
        }
        flight.drain(..).for_each(|job| answer(&mut plan, job));
        (plan, disk, reads)
    }

    #[test]
    fn writes_go_round_and_are_all_checked() {
        let (mut plan, disk, reads) = run(Mix::Writes, 80, 4, 35);
        assert_eq!((disk.len(), reads), (10, 0));
        plan.check_all();
        let checked: BTreeMap<u64, u64> = core::iter::from_fn(|| plan.next_job())
            .map(|job| match job.task {
                Task::Verify(seed) => (job.sector, seed),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(checked, disk);
    }

    #[test]
    fn a_mix_reads_back_what_it_wrote() {
        let (_, disk, reads) = run(Mix::Both, 800, 16, 2000);
        assert!(disk.len() > 90, "{} slots written", disk.len());
        assert!((700..1300).contains(&reads), "{reads} reads of about 1000");
    }

    #[test]
    fn a_depth_beyond_the_slots_waits() {
        let mut plan = Plan::new(Mix::Writes, 1, 0, 16, 8).unwrap();
        let first = plan.next_job().unwrap();
        assert!(plan.next_job().is_some());
        assert_eq!(plan.next_job(), None);
        plan.done(first, Went::Well);
        assert_eq!(plan.next_job().map(|job| job.sector), Some(0));
    }

    #[test]
    fn a_failed_write_is_not_checked() {
        let mut plan = Plan::new(Mix::Writes, 1, 0, 16, 8).unwrap();
        let jobs = [plan.next_job().unwrap(), plan.next_job().unwrap()];
        plan.done(jobs[0], Went::Wrong);
        plan.done(jobs[1], Went::Well);
        plan.check_all();
        assert_eq!(plan.next_job().map(|job| job.sector), Some(8));
        assert_eq!(plan.next_job(), None);
    }

    #[test]
    fn an_area_too_small_has_no_plan() {
        assert!(Plan::new(Mix::Reads, 1, 0, 7, 8).is_none());
    }
}
