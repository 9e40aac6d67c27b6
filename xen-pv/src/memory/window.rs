//! A range of addresses with empty page-table entries, given out in short runs: Xen puts mappings of grants there.

use alloc::vec::Vec;

use xen_proto::MachineAddr;
use xen_proto::ids::PAGE_SIZE;

use super::{SharedPool, Tables};
use crate::hypercall::entry_address;

/// Pages that one page table maps.
const TABLE_PAGES: usize = 512;
/// The longest run: a word of the bitmap.
const MAX_RUN: usize = 64;

/// A window that grows by whole page tables, up to a bound.
#[derive(Debug)]
pub(crate) struct Window {
    start: usize,
    max_tables: usize,
    tables: Tables,
    pool: SharedPool,
    /// The machine address of each page table.
    entries: Vec<MachineAddr>,
    slots: Slots,
}

impl Window {
    /// A window at `start`, which is aligned to 2 MiB.
    pub(crate) fn new(start: usize, max_tables: usize, tables: Tables, pool: SharedPool) -> Self {
        assert!(start.is_multiple_of(TABLE_PAGES * PAGE_SIZE), "one page table maps from {start:#x} on");
        Self { start, max_tables, tables, pool, entries: Vec::new(), slots: Slots { used: Vec::new() } }
    }

    /// Takes a run of neighbouring pages and returns the first one's slot; `None` if window or memory is used up.
    pub(crate) fn take(&mut self, pages: usize) -> Option<usize> {
        self.slots.take(pages).or_else(|| {
            self.grow()?;
            self.slots.take(pages)
        })
    }

    /// Gives back a run. Its entries are empty again.
    pub(crate) fn give_back(&mut self, slot: usize, pages: usize) {
        self.slots.give_back(slot, pages);
    }

    /// Where a slot is.
    pub(crate) const fn address(&self, slot: usize) -> usize {
        self.start + slot * PAGE_SIZE
    }

    /// The machine address of a slot's page-table entry.
    pub(crate) fn entry(&self, slot: usize) -> MachineAddr {
        entry_address(self.entries[slot / TABLE_PAGES], slot % TABLE_PAGES)
    }

    fn grow(&mut self) -> Option<()> {
        let table = self.entries.len();
        if table == self.max_tables {
            return None;
        }
        let mut pool = self.pool.borrow_mut();
        let first = self.tables.make_entry(self.address(table * TABLE_PAGES), || pool.take_for_ever())?;
        self.entries.push(first);
        self.slots.used.extend([0; TABLE_PAGES / MAX_RUN]);
        Some(())
    }
}

/// Which slots are used.
#[derive(Debug)]
struct Slots {
    used: Vec<u64>,
}

impl Slots {
    /// A run starts at a multiple of its length rounded up to a power of two, so that runs leave no odd holes.
    fn take(&mut self, pages: usize) -> Option<usize> {
        let run = run(pages);
        for (word, used) in self.used.iter_mut().enumerate() {
            let free = (0..MAX_RUN).step_by(pages.next_power_of_two()).find(|at| *used & (run << at) == 0);
            if let Some(at) = free {
                *used |= run << at;
                return Some(word * MAX_RUN + at);
            }
        }
        None
    }

    fn give_back(&mut self, slot: usize, pages: usize) {
        let run = run(pages) << (slot % MAX_RUN);
        let used = &mut self.used[slot / MAX_RUN];
        assert!(*used & run == run, "slot {slot} is not taken");
        *used &= !run;
    }
}

fn run(pages: usize) -> u64 {
    assert!((1..=MAX_RUN).contains(&pages), "a run of {pages} pages");
    u64::MAX >> (MAX_RUN - pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_aligned_disjoint_and_reusable() {
        let mut slots = Slots { used: vec![0; 2] };
        assert_eq!([1, 16, 1, 2, 4, 64].map(|pages| slots.take(pages)), [0, 16, 1, 2, 4, 64].map(Some));
        assert_eq!(slots.take(64), None);
        slots.give_back(64, 64);
        assert_eq!([16, 16, 16, 16, 16].map(|pages| slots.take(pages)), [32, 48, 64, 80, 96].map(Some));
        slots.give_back(1, 1);
        assert_eq!(slots.take(1), Some(1));
    }

    #[test]
    #[should_panic(expected = "is not taken")]
    fn a_run_is_given_back_once() {
        let mut slots = Slots { used: vec![0] };
        let slot = slots.take(4).unwrap();
        slots.give_back(slot, 4);
        slots.give_back(slot, 4);
    }
}
