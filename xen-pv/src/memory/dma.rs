//! Pages that devices and other domains read and write.

use core::fmt;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::{MachineAddr, Mfn, Pfn};

use super::SharedPool;

/// A page of the pool, zeroed when taken, given back when dropped: whoever else can write to it (a device, a grantee) must
/// have been stopped by then. Accesses are volatile and checked against the page's bounds.
pub struct DmaPage {
    frame: Pfn,
    mfn: Mfn,
    address: usize,
    pool: SharedPool,
}

macro_rules! access {
    ($($kind:ty: $read:ident $write:ident;)*) => {$(
        #[doc = concat!("Reads a `", stringify!($kind), "` at a byte offset, once.\n\n# Panics\nUnaligned, or outside the page.")]
        #[must_use]
        pub fn $read(&self, offset: usize) -> $kind {
            // SAFETY: `pointer` gives an aligned address in our page, in which Rust keeps no object.
            unsafe { self.pointer::<$kind>(offset).read_volatile() }
        }

        #[doc = concat!("Writes a `", stringify!($kind), "` at a byte offset, once.\n\n# Panics\nUnaligned, or outside the page.")]
        pub fn $write(&mut self, offset: usize, value: $kind) {
            // SAFETY: as for reading.
            unsafe { self.pointer::<$kind>(offset).write_volatile(value) }
        }
    )*};
}

impl DmaPage {
    pub(super) fn take(shared: &SharedPool) -> Option<Self> {
        let mut pool = shared.borrow_mut();
        let frame = pool.lend()?;
        Some(Self { frame, mfn: pool.direct().mfn(frame), address: pool.direct().address(frame), pool: shared.clone() })
    }

    /// The machine frame: what a grant names.
    #[must_use]
    pub const fn mfn(&self) -> Mfn {
        self.mfn
    }

    /// The machine address of the first byte: where a device finds it. The next page lies elsewhere.
    #[must_use]
    pub const fn machine_addr(&self) -> MachineAddr {
        self.mfn.start()
    }

    access! {
        u8: read_u8 write_u8;
        u16: read_u16 write_u16;
        u32: read_u32 write_u32;
        u64: read_u64 write_u64;
    }

    /// Copies bytes out, each read once.
    ///
    /// # Panics
    /// Outside the page.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        read(self.address, offset, into);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Outside the page.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        check(offset, from.len());
        let to: *mut u8 = core::ptr::with_exposed_provenance_mut(self.address + offset);
        // SAFETY: the bytes lie in our page, as just checked, and Rust keeps no object there.
        unsafe { crate::memory::copy_bytes(to, from.as_ptr(), from.len()) };
    }

    fn pointer<T>(&self, offset: usize) -> *mut T {
        check(offset, size_of::<T>());
        assert!(offset.is_multiple_of(align_of::<T>()), "unaligned offset {offset:#x}");
        core::ptr::with_exposed_provenance_mut(self.address + offset)
    }
}

impl Drop for DmaPage {
    fn drop(&mut self) {
        self.pool.borrow_mut().give_back(self.frame);
    }
}

impl fmt::Debug for DmaPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DmaPage").field(&self.mfn).finish()
    }
}

/// Copies bytes out of the page of the pool that is mapped at `address`.
pub(super) fn read(address: usize, offset: usize, into: &mut [u8]) {
    check(offset, into.len());
    let from: *const u8 = core::ptr::with_exposed_provenance(address + offset);
    // SAFETY: the bytes lie in a page of the pool, as just checked, and Rust keeps no object there.
    unsafe { crate::memory::copy_bytes(into.as_mut_ptr(), from, into.len()) };
}

fn check(offset: usize, bytes: usize) {
    assert!(offset <= PAGE_SIZE && bytes <= PAGE_SIZE - offset, "{bytes} bytes at {offset:#x} leave the page");
}
