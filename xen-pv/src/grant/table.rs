//! Our own grant table, version 1: what we grant to others. It grows by frames that Xen gives.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::Access;
use xen_proto::{DomId, GrantRef, Mfn};

use super::StillInUse;
use crate::abi::DOMID_SELF;
use crate::abi::grant::{
    GNTST_GENERAL_ERROR, GNTST_OKAY, GNTTAB_NR_RESERVED_ENTRIES, GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY,
    GTF_WRITING, GrantEntry, QuerySize, SetupTable,
};
use crate::abi::mmu::{MMU_NORMAL_PT_UPDATE, MmuUpdate};
use crate::hypercall::{Errno, grant_table_op, mmu_update};
use crate::memory::{Window, entry};

/// Entries in a frame of the table.
const FRAME_ENTRIES: u32 = 512;
const _: () = assert!(FRAME_ENTRIES as usize * size_of::<GrantEntry>() == PAGE_SIZE);

pub(super) struct OwnTable {
    frames: Vec<&'static [GrantEntry; FRAME_ENTRIES as usize]>,
    max_frames: usize,
    free: Vec<GrantRef>,
    granted: usize,
    peak: usize,
}

impl OwnTable {
    pub(super) fn new(window: &mut Window) -> Result<Self, Errno> {
        let mut size = QuerySize { dom: DOMID_SELF.0, nr_frames: 0, max_nr_frames: 0, status: GNTST_GENERAL_ERROR };
        // SAFETY: a query changes nothing but its argument.
        unsafe { grant_table_op(core::slice::from_mut(&mut size)) }?;
        let max_frames = size.max_nr_frames as usize;
        let mut table = Self { frames: Vec::new(), max_frames, free: Vec::new(), granted: 0, peak: 0 };
        table.grow(window);
        Ok(table)
    }

    pub(super) const fn granted(&self) -> usize {
        self.granted
    }

    pub(super) const fn peak(&self) -> usize {
        self.peak
    }

    /// `None` if the table is full and cannot grow.
    pub(super) fn grant(&mut self, window: &mut Window, to: DomId, page: Mfn, access: Access) -> Option<GrantRef> {
        if self.free.is_empty() {
            self.grow(window);
        }
        let frame = u32::try_from(page.0).ok()?;
        let gref = self.free.pop()?;
        let read_only = if access == Access::ReadOnly { GTF_READONLY } else { 0 };
        let entry = self.entry(gref);
        entry.domid.store(to.0, Ordering::Relaxed);
        entry.frame.store(frame, Ordering::Relaxed);
        // The flags make it valid, so they come last.
        entry.flags.store(GTF_PERMIT_ACCESS | read_only, Ordering::Release);
        self.granted += 1;
        self.peak = self.peak.max(self.granted);
        Some(gref)
    }

    pub(super) fn end(&mut self, gref: GrantRef) -> Result<(), StillInUse> {
        let flags = &self.entry(gref).flags;
        // Xen sets the two bits in the same word as the grantee maps, so the end is one atomic exchange.
        let ended = flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, |flags| {
            (flags & (GTF_READING | GTF_WRITING) == 0).then_some(0)
        });
        let before = ended.map_err(|_| StillInUse)?;
        assert!(before & GTF_PERMIT_ACCESS != 0, "grant {gref} has ended already");
        self.free.push(gref);
        self.granted -= 1;
        Ok(())
    }

    fn entry(&self, gref: GrantRef) -> &'static GrantEntry {
        assert!(gref.0 >= GNTTAB_NR_RESERVED_ENTRIES, "grant {gref} is the toolstack's");
        &self.frames[(gref.0 / FRAME_ENTRIES) as usize][(gref.0 % FRAME_ENTRIES) as usize]
    }

    /// Adds a frame to the table, if Xen has one.
    fn grow(&mut self, window: &mut Window) {
        let count = self.frames.len() + 1;
        if count > self.max_frames {
            return;
        }
        let Some(frame) = setup_table(count) else { return };
        let Some(slot) = window.take(1) else { return };
        let update =
            MmuUpdate { ptr: window.entry(slot).0 | MMU_NORMAL_PT_UPDATE, val: frame.start().0 | entry::WRITE };
        // SAFETY: the entry is an empty one of the window; the page is Xen's.
        unsafe { mmu_update(&[update], DOMID_SELF) }.expect("frames of the grant table can be mapped");
        let entries: *const [GrantEntry; FRAME_ENTRIES as usize] =
            core::ptr::with_exposed_provenance(window.address(slot));
        // SAFETY: just mapped, never unmapped, and all fields are atomics, which Xen changes as such.
        self.frames.push(unsafe { &*entries });
        let first = u32::try_from(count - 1).expect("few frames") * FRAME_ENTRIES;
        let usable = first.max(GNTTAB_NR_RESERVED_ENTRIES)..first + FRAME_ENTRIES;
        self.free.extend(usable.rev().map(GrantRef));
    }
}

/// Makes the table `count` frames long and returns the last one.
fn setup_table(count: usize) -> Option<Mfn> {
    let mut list = vec![0u64; count];
    let nr_frames = u32::try_from(count).ok()?;
    let mut setup =
        SetupTable { dom: DOMID_SELF.0, nr_frames, status: GNTST_GENERAL_ERROR, frame_list: list.as_mut_ptr() };
    // SAFETY: Xen writes `nr_frames` frames to the list, which has room for them.
    let result = unsafe { grant_table_op(core::slice::from_mut(&mut setup)) };
    (result.is_ok() && setup.status == GNTST_OKAY).then(|| list.last().copied().map(Mfn)).flatten()
}
