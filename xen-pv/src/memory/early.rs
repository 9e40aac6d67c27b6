//! Memory before there is a heap: protecting the image, mapping all RAM, and dividing it.

use core::ops::Range;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::{MachineAddr, Pfn};

use super::{DirectMap, Tables, entry};
use crate::abi::DOMID_SELF;
use crate::abi::mmu::{MMU_NORMAL_PT_UPDATE, MmuUpdate};
use crate::hypercall::{mmu_update, register, update_va_mapping};
use crate::machine::Image;

/// Entries written by one hypercall.
const BATCH: usize = 128;

/// The frames that the builder mapped and left free, and after [`Early::map_the_rest`] all free frames.
#[derive(Debug)]
pub(crate) struct Early {
    direct: DirectMap,
    tables: Tables,
    /// The first free frame.
    next: usize,
    /// The end of what is mapped.
    mapped: usize,
}

impl Early {
    /// `used`: frames from the first that the image and the builder's own structures have.
    pub(crate) fn new(direct: DirectMap, tables: Tables, used: usize) -> Self {
        let is_mapped = |frame: &usize| tables.is_mapped(direct.address(Pfn(*frame as u64)));
        let mapped = (used..direct.frames()).find(|frame| !is_mapped(frame)).unwrap_or(direct.frames());
        Self { direct, tables, next: used, mapped }
    }

    /// Makes what is mapped either writable or executable, the image's constants and the page tables (frames `builders`)
    /// neither, and takes the page below the stack away: running into it ends the domain.
    ///
    /// # Safety
    /// `image` and `builders` are what they say; nothing in the stack's lowest page is in use.
    pub(crate) unsafe fn protect(&self, image: &Image, builders: &Range<usize>) {
        for frame in 0..self.mapped {
            let address = self.direct.address(Pfn(frame as u64));
            let rights = match address {
                _ if image.text.contains(&address) => entry::EXECUTE,
                _ if image.constants.contains(&address) || builders.contains(&frame) => entry::READ,
                _ => entry::WRITE,
            };
            let machine = self.direct.mfn(Pfn(frame as u64)).start();
            // SAFETY: the page stays where it is; the rights are those that its contents need, by this function's contract.
            unsafe { update_va_mapping(address, machine.0 | rights) }.expect("a page of ours changes its rights");
        }
        // SAFETY: the guard page is part of the stack, and unused by this function's contract.
        unsafe { update_va_mapping(image.stack.start, 0) }.expect("the guard page is taken away");
    }

    /// Gives up a frame and maps a page of Xen's in its place.
    ///
    /// # Safety
    /// `page` is the shared info page.
    pub(crate) unsafe fn map_in_place(&mut self, page: MachineAddr) -> usize {
        let frame = self.take();
        let address = self.direct.address(frame);
        // SAFETY: the frame was free, so Rust has nothing there; what comes instead is the caller's promise.
        unsafe { update_va_mapping(address, page.0 | entry::WRITE) }.expect("Xen's page can be mapped");
        address
    }

    /// Maps all RAM that the builder left unmapped. New page tables come from what is mapped already: one frame of them
    /// maps 512 more.
    pub(crate) fn map_the_rest(&mut self) {
        while self.mapped < self.direct.frames() {
            let first = self.mapped;
            let address = self.direct.address(Pfn(first as u64));
            let tables = self.tables;
            let entry = tables.make_entry(address, || Some(self.take_zeroed())).expect("frames for page tables");
            let in_table = 512 - (address / PAGE_SIZE) % 512;
            let count = in_table.min(self.direct.frames() - first).min(BATCH);
            self.map_batch(first, count, entry);
            self.mapped += count;
        }
    }

    fn map_batch(&self, first: usize, count: usize, entry: MachineAddr) {
        let mut updates = [MmuUpdate { ptr: 0, val: 0 }; BATCH];
        for (i, update) in updates[..count].iter_mut().enumerate() {
            let machine = self.direct.mfn(Pfn((first + i) as u64)).start();
            update.ptr = (entry.0 + (i * size_of::<u64>()) as u64) | MMU_NORMAL_PT_UPDATE;
            update.val = machine.0 | entry::WRITE;
        }
        // SAFETY: these frames were not mapped anywhere, so Rust has nothing in them.
        unsafe { mmu_update(&updates[..count], DOMID_SELF) }.expect("RAM of ours can be mapped");
    }

    /// Divides what is left: the heap's addresses, and the pool's frames.
    pub(crate) fn divide(self) -> (Range<usize>, Range<Pfn>) {
        let heap = heap_pages(self.mapped - self.next);
        let start = self.direct.address(Pfn(self.next as u64));
        let pool = Pfn((self.next + heap) as u64)..Pfn(self.mapped as u64);
        (start..start + heap * PAGE_SIZE, pool)
    }

    fn take(&mut self) -> Pfn {
        assert!(self.next < self.mapped, "not enough memory: raise memory= in the domain's config");
        self.next += 1;
        Pfn((self.next - 1) as u64)
    }

    fn take_zeroed(&mut self) -> Pfn {
        let frame = self.take();
        let page: *mut u8 = core::ptr::with_exposed_provenance_mut(self.direct.address(frame));
        // SAFETY: a whole, mapped, writable frame that was free until now.
        unsafe { page.write_bytes(0, PAGE_SIZE) };
        frame
    }
}

/// The heap gets a quarter of the free pages, between 1 and 64 MiB, and never more than half.
fn heap_pages(free: usize) -> usize {
    const MIB: usize = (1 << 20) / PAGE_SIZE;
    (free / 4).clamp(MIB, 64 * MIB).min(free / 2)
}

/// The frames that the domain builder's structures take, from the first on: everything up to the end of the page tables and
/// the one page of stack that it puts behind them, or what else lies higher.
pub(crate) fn used_frames(ends: &[Pfn]) -> usize {
    ends.iter().map(|end| register(end.0)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_a_bounded_share() {
        for (free, expect) in [(0, 0), (100, 50), (400, 200), (600, 256), (1800, 450), (100_000, 16_384)] {
            assert_eq!(heap_pages(free), expect, "{free} free pages");
        }
    }
}
