//! Memory for DMA: pages at scattered machine addresses. A page is gone when its owner drops it, so late DMA panics.

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec::Vec;

use xen_proto::MachineAddr;
use xen_proto::ids::PAGE_SIZE;

use crate::drivers::hardware::DmaMemory;

/// Called before a 16-bit store of the driver takes effect, with its address.
type Hook = Box<dyn FnMut(u64)>;

/// All memory that a device may reach.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    pages: Rc<RefCell<BTreeMap<u64, Box<[u8; PAGE_SIZE]>>>>,
    taken: Rc<Cell<u64>>,
    budget: Rc<Cell<Option<usize>>>,
    before_store: Rc<RefCell<Option<Hook>>>,
}

impl Memory {
    /// A zeroed page; no two are neighbours.
    pub(crate) fn page(&self) -> Page {
        self.taken.set(self.taken.get() + 1);
        let addr = 0x1_0000_0000 + self.taken.get() * 0x3000;
        self.pages.borrow_mut().insert(addr, Box::new([0; PAGE_SIZE]));
        Page { addr, memory: self.clone() }
    }

    /// As [`Memory::page`], within the budget.
    pub(crate) fn try_page(&self) -> Option<Page> {
        if let Some(left) = self.budget.get() {
            self.budget.set(Some(left.checked_sub(1)?));
        }
        Some(self.page())
    }

    /// From now on so many pages are left.
    pub(crate) fn limit(&self, pages: usize) {
        self.budget.set(Some(pages));
    }

    /// Pages that have an owner.
    pub(crate) fn pages(&self) -> usize {
        self.pages.borrow().len()
    }

    /// What a device reads; it strays if this is no memory or crosses a page.
    pub(crate) fn peek(&self, addr: u64, len: usize) -> Vec<u8> {
        self.within(addr, len, |bytes| bytes.to_vec())
    }

    /// What a device writes.
    pub(crate) fn poke(&self, addr: u64, bytes: &[u8]) {
        self.within(addr, bytes.len(), |memory| memory.copy_from_slice(bytes));
    }

    pub(crate) fn peek16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.peek(addr, 2).try_into().unwrap())
    }

    /// Interferes before a store of the driver.
    pub(crate) fn before_store(&self, hook: impl FnMut(u64) + 'static) {
        *self.before_store.borrow_mut() = Some(Box::new(hook));
    }

    fn within<T>(&self, addr: u64, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let (start, offset) = (addr & !0xfff, (addr & 0xfff) as usize);
        assert!(offset + len <= PAGE_SIZE, "{addr:#x}+{len:#x} crosses a page");
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(&start).unwrap_or_else(|| panic!("{addr:#x} is no memory"));
        act(&mut page[offset..offset + len])
    }
}

/// A page of the driver's.
pub(crate) struct Page {
    addr: u64,
    memory: Memory,
}

impl Page {
    fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset.is_multiple_of(N), "unaligned load at {offset:#x}");
        self.memory.peek(self.addr + offset as u64, N).try_into().unwrap()
    }

    fn store<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) {
        assert!(offset.is_multiple_of(N), "unaligned store at {offset:#x}");
        self.memory.poke(self.addr + offset as u64, &bytes);
    }
}

impl DmaMemory for Page {
    fn addr(&self) -> MachineAddr {
        MachineAddr(self.addr)
    }
    fn load8(&self, offset: usize) -> u8 {
        u8::from_le_bytes(self.load(offset))
    }
    fn load16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.load(offset))
    }
    fn load32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.load(offset))
    }
    fn store8(&mut self, offset: usize, value: u8) {
        self.store(offset, value.to_le_bytes());
    }
    fn store16(&mut self, offset: usize, value: u16) {
        let hook = self.memory.before_store.borrow_mut().take();
        if let Some(mut hook) = hook {
            hook(self.addr + offset as u64);
            self.memory.before_store.borrow_mut().get_or_insert(hook);
        }
        self.store(offset, value.to_le_bytes());
    }
    fn store64(&mut self, offset: usize, value: u64) {
        self.store(offset, value.to_le_bytes());
    }
    fn fence(&self) {}
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.memory.peek(self.addr + offset as u64, into.len()));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.memory.pages.borrow_mut().remove(&self.addr);
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {:#x}", self.addr)
    }
}
