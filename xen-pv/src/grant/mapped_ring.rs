//! A frontend's ring, mapped into the window of empty page-table entries.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{GNTST_GENERAL_ERROR, GNTST_NO_DEVICE_SPACE, GrantStatus, SharedRing};
use xen_proto::{DomId, GrantRef};

use super::batch::run;
use super::{map_operation, status, unmap_all, unmap_operation};
use crate::abi::grant::{GNTST_OKAY, MapFlags};
use crate::memory::{Window, copy_bytes};

/// Pages of a ring at most (ring order 4).
const MAX_PAGES: usize = 16;
const HOST: MapFlags = MapFlags::HOST_MAP.union(MapFlags::CONTAINS_PTE);

/// A mapped ring. It is no longer there once it is unmapped, which takes it by value.
#[derive(Debug)]
pub struct MappedRing {
    base: usize,
    slot: usize,
    pages: usize,
    handles: [u32; MAX_PAGES],
}

impl MappedRing {
    pub(super) fn map(window: &mut Window, domain: DomId, grefs: &[GrantRef]) -> Result<Self, GrantStatus> {
        let pages = grefs.len();
        if !(1..=MAX_PAGES).contains(&pages) {
            return Err(GNTST_GENERAL_ERROR);
        }
        let slot = window.take(pages).ok_or(GNTST_NO_DEVICE_SPACE)?;
        let mut operations = [map_operation(domain, GrantRef(0), HOST, None); MAX_PAGES];
        for (page, (operation, gref)) in operations.iter_mut().zip(grefs).enumerate() {
            *operation = map_operation(domain, *gref, HOST, Some(window.entry(slot + page)));
        }
        let operations = &mut operations[..pages];
        // SAFETY: the entries are empty ones of the window, at addresses that nobody uses.
        unsafe { run(operations) };
        let mut ring = Self { base: window.address(slot), slot, pages: 0, handles: [0; MAX_PAGES] };
        let refused = operations.iter().find_map(|operation| status(operation.status).err());
        if let Some(refused) = refused {
            let mapped = operations.iter().enumerate().filter(|(_, operation)| operation.status == GNTST_OKAY);
            for (page, operation) in mapped {
                unmap_all(&mut [unmap_operation(operation.handle, Some(window.entry(slot + page)))]);
            }
            window.give_back(slot, pages);
            return Err(refused);
        }
        ring.pages = pages;
        for (handle, operation) in ring.handles.iter_mut().zip(operations) {
            *handle = operation.handle;
        }
        Ok(ring)
    }

    pub(super) fn unmap(self, window: &mut Window) {
        let mut operations = [unmap_operation(0, None); MAX_PAGES];
        for (page, (operation, handle)) in operations.iter_mut().zip(self.handles).take(self.pages).enumerate() {
            *operation = unmap_operation(handle, Some(window.entry(self.slot + page)));
        }
        unmap_all(&mut operations[..self.pages]);
        window.give_back(self.slot, self.pages);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, size_of::<u32>());
        assert!(offset.is_multiple_of(align_of::<u32>()), "unaligned offset {offset:#x}");
        let word: *mut u32 = core::ptr::with_exposed_provenance_mut(self.base + offset);
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; both sides use it as an atomic word.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len());
        assert!(inside, "{bytes} bytes at {offset:#x} leave the ring");
    }
}

impl SharedRing for MappedRing {
    fn len(&self) -> usize {
        self.pages * PAGE_SIZE
    }

    fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        let from: *const u8 = core::ptr::with_exposed_provenance(self.base + offset);
        // SAFETY: just checked to lie in the mapping, which lives as long as `self` and holds no object of Rust's.
        unsafe { copy_bytes(into.as_mut_ptr(), from, into.len()) };
    }

    fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let to: *mut u8 = core::ptr::with_exposed_provenance_mut(self.base + offset);
        // SAFETY: as for reading.
        unsafe { copy_bytes(to, from.as_ptr(), from.len()) };
    }
}
