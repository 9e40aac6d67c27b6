//! RAM volumes: pages of our own; data moves by grant copy, so a request is over in the turn that takes it.
//!
//! Requests were checked before they come here: they stay on their volume. A page is made zero by the first request that touches it:
//! others do not wait while a big volume is made.

use alloc::vec::Vec;

use xen_proto::blkif::Status;
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{CopyDirection, GNTST_GENERAL_ERROR, GrantCopy, Grants, PageBytes, Pages};
use xen_proto::{DomId, GrantRef, Mfn};

use crate::disk::{Geometry, SECTOR_BYTES};
use crate::intake::{BATCH_REQUESTS, BATCH_SEGMENTS, Batch, Checked, Taken, in_page};
use crate::request::{Action, Run};

/// Copies that a segment may need: it crosses a page of the volume unless both begin alike.
const COPIES_PER_SEGMENT: usize = 2;

/// A RAM volume's pages. Give them back with [`RamVolume::release`]: dropping it leaks them.
#[derive(Debug)]
pub struct RamVolume {
    pages: Vec<Mfn>,
    /// A bit for each page in which there is nothing of an earlier owner's.
    zeroed: Vec<u64>,
}

impl RamVolume {
    /// A volume that reads as zeros, `None` if there is not enough memory. `bytes` is rounded down to pages.
    pub fn create(bytes: u64, pages: &mut impl Pages) -> Option<Self> {
        let count = usize::try_from(bytes / PAGE_SIZE as u64).ok()?;
        let mut volume = Self { pages: Vec::new(), zeroed: Vec::new() };
        volume.pages.try_reserve_exact(count).ok()?;
        volume.zeroed.try_reserve_exact(count.div_ceil(64)).ok()?;
        volume.zeroed.resize(count.div_ceil(64), 0);
        while volume.pages.len() < count {
            let Some(page) = pages.take_page() else {
                volume.release(pages);
                return None;
            };
            volume.pages.push(page);
        }
        Some(volume)
    }

    /// Its size in sectors of 512 bytes.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.pages.len() as u64 * (PAGE_SIZE as u64 / SECTOR_BYTES)
    }

    /// What it is like: a disk of 512-byte blocks without a write cache.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.sectors(),
            logical_block: 512,
            physical_block: 4096,
            writable: true,
            write_cache: false,
        }
    }

    /// Gives its pages back.
    pub fn release(self, pages: &mut impl Pages) {
        self.pages.into_iter().for_each(|page| pages.give_page(page));
    }

    /// The page with this byte, and where in it; the page is the volume's own from then on.
    fn place(&mut self, byte: usize, memory: &impl PageBytes) -> (Mfn, usize) {
        let (number, offset) = (byte / PAGE_SIZE, byte % PAGE_SIZE);
        let page = *self.pages.get(number).expect("requests stay on their volume");
        let (zeroed, bit) = (self.zeroed.get_mut(number / 64).expect("a bit for each page"), 1 << (number % 64));
        if *zeroed & bit == 0 {
            *zeroed |= bit;
            memory.zero_page(page);
        }
        (page, offset)
    }
}

/// The copies of one batch; its memory is used again.
#[derive(Debug)]
pub(crate) struct Copier {
    copies: Vec<GrantCopy>,
    /// How many of them each request takes.
    counts: Vec<usize>,
}

impl Copier {
    pub(crate) fn new() -> Self {
        Self {
            copies: Vec::with_capacity(BATCH_SEGMENTS * COPIES_PER_SEGMENT),
            counts: Vec::with_capacity(BATCH_REQUESTS),
        }
    }

    /// Copies the segments of a batch of a vbd on `volume`.
    pub(crate) fn copy(
        &mut self,
        domain: DomId,
        volume: &mut RamVolume,
        batch: &Batch,
        grants: &mut impl Grants,
        memory: &impl PageBytes,
    ) {
        self.copies.clear();
        self.counts.clear();
        let mut segments = batch.maps.iter().map(|map| map.gref).zip(batch.runs.iter().copied());
        for Taken { request, checked, .. } in &batch.taken {
            let before = self.copies.len();
            if let Ok(Checked { segments: count, .. }) = checked {
                let mut byte = in_memory(request.sector);
                for (gref, run) in segments.by_ref().take(*count) {
                    self.add(GuestPage { domain, gref }, run, request.action, byte, |byte| volume.place(byte, memory));
                    byte += in_memory(run.sectors.into());
                }
            }
            self.counts.push(self.copies.len() - before);
        }
        if !self.copies.is_empty() {
            grants.copy(&mut self.copies);
        }
    }

    /// How each request of that batch ended; one without segments, e.g. a flush, is done.
    pub(crate) fn results(&self) -> impl Iterator<Item = Status> {
        let mut copies = self.copies.iter();
        self.counts.iter().map(move |&count| {
            let failed = copies.by_ref().take(count).filter(|copy| copy.result.is_err()).count();
            if failed == 0 { Status::Okay } else { Status::Error }
        })
    }

    /// Adds the copies for one segment, whose data lies at `byte` of the volume: `place` says in which page.
    fn add(
        &mut self,
        page: GuestPage,
        run: Run,
        action: Action,
        mut byte: usize,
        mut place: impl FnMut(usize) -> (Mfn, usize),
    ) {
        let mut guest_offset = in_memory(run.first.into());
        let mut left = in_memory(run.sectors.into());
        while left > 0 {
            let (frame, offset) = place(byte);
            let len = left.min(PAGE_SIZE - offset);
            self.copies.push(GrantCopy {
                domain: page.domain,
                gref: page.gref,
                guest_offset: in_page(guest_offset),
                frame,
                offset: in_page(offset),
                len: in_page(len),
                direction: direction(action),
                result: Err(GNTST_GENERAL_ERROR),
            });
            guest_offset += len;
            byte += len;
            left -= len;
        }
    }
}

#[derive(Clone, Copy)]
struct GuestPage {
    domain: DomId,
    gref: GrantRef,
}

fn direction(action: Action) -> CopyDirection {
    match action {
        Action::Read => CopyDirection::ToGuest,
        Action::Write | Action::Flush => CopyDirection::FromGuest,
    }
}

/// The bytes of so many sectors of a volume, which lies in memory.
fn in_memory(sectors: u64) -> usize {
    usize::try_from(sectors * SECTOR_BYTES).expect("a RAM volume fits into memory")
}
