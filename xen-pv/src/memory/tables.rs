//! Page tables. They are ordinary frames of ours that only Xen may write; we read them through the direct map.

use xen_proto::{MachineAddr, Mfn, Pfn};

use super::{DirectMap, entry};
use crate::abi::DOMID_SELF;
use crate::abi::mmu::{MMU_NORMAL_PT_UPDATE, MmuUpdate};
use crate::hypercall::{self, entry_address};

/// The machine frame in an entry.
const FRAME_MASK: u64 = 0x000f_ffff_ffff_f000;
/// `_PAGE_PRESENT`
const PRESENT: u64 = 1;
/// Address bits below the index into each upper level, from the top.
const UPPER_LEVELS: [u32; 3] = [39, 30, 21];
/// And into the last.
const LAST_LEVEL: u32 = 12;

/// The tree of page tables that the domain builder made and we extend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    direct: DirectMap,
    root: Pfn,
}

impl Tables {
    pub(crate) const fn new(direct: DirectMap, root: Pfn) -> Self {
        Self { direct, root }
    }

    /// Whether an address is mapped.
    pub(crate) fn is_mapped(&self, address: usize) -> bool {
        self.last_table(address, || None)
            .is_some_and(|table| self.read(table, index(address, LAST_LEVEL)) & PRESENT != 0)
    }

    /// The machine address of the last-level entry of an address, with the tables above it made from zeroed, writable
    /// frames as needed. `None` if there is no frame left.
    pub(crate) fn make_entry(&self, address: usize, frame: impl FnMut() -> Option<Pfn>) -> Option<MachineAddr> {
        let table = self.last_table(address, frame)?;
        Some(entry_address(self.direct.mfn(table).start(), index(address, LAST_LEVEL)))
    }

    fn last_table(&self, address: usize, mut frame: impl FnMut() -> Option<Pfn>) -> Option<Pfn> {
        let mut table = self.root;
        for level in UPPER_LEVELS {
            let index = index(address, level);
            let entry = self.read(table, index);
            table = if entry & PRESENT != 0 {
                self.direct.frame_of(Mfn((entry & FRAME_MASK) >> 12)).expect("a table of ours")
            } else {
                let lower = frame()?;
                self.hang(table, index, lower);
                lower
            };
        }
        Some(table)
    }

    /// Makes a zeroed frame a table. Xen wants no writable mapping of it left.
    fn hang(&self, table: Pfn, index: usize, lower: Pfn) {
        let machine = self.direct.mfn(lower).start();
        // SAFETY: the frame is the caller's to give; from now on it is only read.
        unsafe { hypercall::update_va_mapping(self.direct.address(lower), machine.0 | entry::READ) }
            .expect("a page of ours can be made read-only");
        let at = entry_address(self.direct.mfn(table).start(), index);
        let update = MmuUpdate { ptr: at.0 | MMU_NORMAL_PT_UPDATE, val: machine.0 | entry::TABLE };
        // SAFETY: the new table is empty, so nothing is mapped by this.
        unsafe { hypercall::mmu_update(&[update], DOMID_SELF) }.expect("Xen takes an empty table");
    }

    fn read(&self, table: Pfn, index: usize) -> u64 {
        let at: *const u64 = core::ptr::with_exposed_provenance(self.direct.address(table) + index * size_of::<u64>());
        // SAFETY: a table is a mapped frame of ours, and the index is below 512. Xen may set bits meanwhile, so volatile.
        unsafe { at.read_volatile() }
    }
}

const fn index(address: usize, level: u32) -> usize {
    (address >> level) & 511
}
