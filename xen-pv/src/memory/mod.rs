//! The domain's memory. All RAM is mapped once, at `base + (frame << 12)`; nothing writable is executable.
//!
//! A part of it becomes the heap, the rest a [pool](pool) of single pages that hold no object of Rust's: they are lent as
//! [`DmaPage`]s or by machine frame ([`Pages`]) and touched by volatile accesses only, since devices and other domains
//! write to them. Beside the RAM lie [windows](window) of empty page-table entries for what others let us map.

mod direct;
mod dma;
mod early;
mod pool;
mod tables;
mod window;

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{PageBytes, Pages};
use xen_proto::{MachineAddr, Mfn, Pfn};

use crate::abi::DOMID_IO;
use crate::abi::mmu::{MMU_NORMAL_PT_UPDATE, MmuUpdate};
use crate::heap;
use crate::hypercall::{self, Errno};
use crate::mmio::Mmio;

pub(crate) use direct::DirectMap;
pub use dma::DmaPage;
pub(crate) use early::{Early, used_frames};
pub(crate) use pool::Pool;
pub(crate) use tables::Tables;
pub(crate) use window::Window;

/// Page-table entry bits, and how they combine here. Xen adds what marks a page as the guest kernel's.
pub(crate) mod entry {
    use x86_64::structures::paging::PageTableFlags as Flags;

    const PLAIN: Flags = Flags::PRESENT.union(Flags::ACCESSED);
    /// Readable only.
    pub(crate) const READ: u64 = PLAIN.union(Flags::NO_EXECUTE).bits();
    /// Readable and executable.
    pub(crate) const EXECUTE: u64 = PLAIN.bits();
    /// Readable and writable.
    pub(crate) const WRITE: u64 = READ | Flags::WRITABLE.union(Flags::DIRTY).bits();
    /// Device registers: uncached.
    pub(crate) const DEVICE: u64 = WRITE | Flags::NO_CACHE.union(Flags::WRITE_THROUGH).bits();
    /// A lower table: what is allowed is said in the last level.
    pub(crate) const TABLE: u64 = PLAIN.union(Flags::WRITABLE).union(Flags::USER_ACCESSIBLE).union(Flags::DIRTY).bits();
}

/// Pages that are not lent by machine frame, which is what RAM volumes do with all there are: page tables of the windows come
/// from the same pool, and without them no more rings can be mapped.
const RESERVED_PAGES: usize = 32;

/// Where device registers are mapped: beyond any RAM, in the same GiB as the window for grants.
const MMIO_WINDOW: core::ops::Range<usize> = 0x40_1000_0000..0x40_1400_0000;

/// The RAM that is left after start, and the window for device registers.
#[derive(Debug)]
pub struct Memory {
    pool: SharedPool,
    tables: Tables,
    next_mmio: usize,
    mapped: Vec<MappedDevice>,
}

/// Device pages that were mapped: a device that comes again gets its old mapping.
#[derive(Clone, Copy, Debug)]
struct MappedDevice {
    frame: MachineAddr,
    pages: usize,
    address: usize,
}

/// The pool, shared with those who give pages back by themselves.
pub(crate) type SharedPool = Rc<RefCell<Pool>>;

/// How memory is used, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStatistics {
    /// Pages in the pool that nobody has.
    pub free_pages: usize,
    /// Pages in the pool in all.
    pub pool_pages: usize,
    /// Bytes of the heap in use.
    pub heap_used_bytes: usize,
    /// Bytes of the heap.
    pub heap_bytes: usize,
}

/// Why device registers could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmioError {
    /// The window or the memory for page tables is used up, or the range is empty.
    NoSpace,
    /// Xen refused: not I/O memory, or not ours (`pci=`, `iomem=`).
    Refused(Errno),
}

impl Memory {
    pub(crate) const fn new(pool: SharedPool, tables: Tables) -> Self {
        Self { pool, tables, next_mmio: MMIO_WINDOW.start, mapped: Vec::new() }
    }

    /// Takes a zeroed page for a device or another domain; `None` when memory is used up. Its drop gives it back.
    #[must_use]
    pub fn dma_page(&mut self) -> Option<DmaPage> {
        DmaPage::take(&self.pool)
    }

    /// How much is used.
    #[must_use]
    pub fn statistics(&self) -> MemoryStatistics {
        let pool = self.pool.borrow();
        let (heap_used_bytes, heap_bytes) = heap::used_and_size();
        MemoryStatistics { free_pages: pool.free(), pool_pages: pool.size(), heap_used_bytes, heap_bytes }
    }

    /// Maps device registers, uncached, for ever; the same range again is the same mapping. `start` need not be the start of
    /// a page.
    ///
    /// # Errors
    /// See [`MmioError`]. A part that was mapped before Xen refused stays mapped, unused.
    pub fn map_mmio(&mut self, start: MachineAddr, bytes: usize) -> Result<Mmio, MmioError> {
        let offset = hypercall::register(start.0) % PAGE_SIZE;
        let span = offset.checked_add(bytes).filter(|_| bytes > 0).ok_or(MmioError::NoSpace)?;
        let frame = MachineAddr(start.0 - offset as u64);
        let pages = span.div_ceil(PAGE_SIZE);
        let known = self.mapped.iter().find(|known| known.frame == frame && known.pages == pages);
        let address = match known {
            Some(known) => known.address,
            None => self.map_device_pages(frame, pages)?,
        };
        // SAFETY: mapped, in addresses given out once for these frames, and never unmapped.
        Ok(unsafe { Mmio::new(address + offset, bytes) })
    }

    fn map_device_pages(&mut self, frame: MachineAddr, pages: usize) -> Result<usize, MmioError> {
        let address = self.next_mmio;
        let end = pages.checked_mul(PAGE_SIZE).and_then(|size| address.checked_add(size));
        self.next_mmio = end.filter(|end| *end <= MMIO_WINDOW.end).ok_or(MmioError::NoSpace)?;
        for page in 0..pages {
            let distance = page * PAGE_SIZE;
            self.map_device_page(address + distance, MachineAddr(frame.0 + distance as u64))?;
        }
        self.mapped.push(MappedDevice { frame, pages, address });
        Ok(address)
    }

    fn map_device_page(&mut self, address: usize, frame: MachineAddr) -> Result<(), MmioError> {
        let mut pool = self.pool.borrow_mut();
        let entry = self.tables.make_entry(address, || pool.take_for_ever()).ok_or(MmioError::NoSpace)?;
        let update = MmuUpdate { ptr: entry.0 | MMU_NORMAL_PT_UPDATE, val: frame.0 | entry::DEVICE };
        // SAFETY: the address is fresh, and the page belongs to DOMID_IO (Xen checks), so it is not memory of Rust's.
        unsafe { hypercall::mmu_update(&[update], DOMID_IO) }.map_err(MmioError::Refused)
    }
}

impl Pages for Memory {
    fn take_page(&mut self) -> Option<Mfn> {
        let mut pool = self.pool.borrow_mut();
        if pool.free() <= RESERVED_PAGES {
            return None;
        }
        pool.lend_as_is().map(|frame| pool.direct().mfn(frame))
    }

    fn give_page(&mut self, page: Mfn) {
        let mut pool = self.pool.borrow_mut();
        let frame: Option<Pfn> = pool.lent(page);
        let Some(frame) = frame else { panic!("{page:?} was not taken from the pool") };
        pool.give_back(frame);
    }
}

impl PageBytes for Memory {
    fn zero_page(&self, page: Mfn) {
        let pool = self.pool.borrow();
        let Some(frame) = pool.lent(page) else { panic!("{page:?} was not taken from the pool") };
        pool.zero(frame);
    }

    fn read_page(&self, page: Mfn, offset: usize, into: &mut [u8]) {
        let pool = self.pool.borrow();
        let Some(frame) = pool.lent(page) else { panic!("{page:?} was not taken from the pool") };
        dma::read(pool.direct().address(frame), offset, into);
    }
}

/// Copies bytes from or to memory that others may change meanwhile: each byte is read and written once.
///
/// # Safety
/// Both ranges are mapped and do not overlap; the one that is Rust's is borrowed for the call.
pub(crate) unsafe fn copy_bytes(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: by the contract. An assembly block is opaque to the compiler, so it assumes nothing about the other side.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}
