//! Device registers, and how devices are stopped when we die.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// A mapped range of device registers. Mappings are never removed, so copies of this handle stay good.
#[derive(Clone, Copy, Debug)]
pub struct Mmio {
    base: usize,
    bytes: usize,
}

macro_rules! access {
    ($($kind:ty: $read:ident $write:ident;)*) => {$(
        #[doc = concat!("Reads a `", stringify!($kind), "` at a byte offset, once.\n\n# Panics\nUnaligned, or outside the range.")]
        #[must_use]
        pub fn $read(&self, offset: usize) -> $kind {
            // SAFETY: `pointer` gives an aligned address inside the mapping, which is device memory that Rust knows nothing of.
            unsafe { self.pointer::<$kind>(offset).read_volatile() }
        }

        #[doc = concat!("Writes a `", stringify!($kind), "` at a byte offset, once.\n\n# Panics\nUnaligned, or outside the range.")]
        pub fn $write(&self, offset: usize, value: $kind) {
            // SAFETY: as for reading.
            unsafe { self.pointer::<$kind>(offset).write_volatile(value) }
        }
    )*};
}

impl Mmio {
    /// # Safety
    /// The `bytes` from `base` on are mapped device memory, for ever.
    pub(crate) const unsafe fn new(base: usize, bytes: usize) -> Self {
        Self { base, bytes }
    }

    /// Bytes in the range.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A part of the range, e.g. one that a device's capability names; `None` if it does not lie inside.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes)? <= self.bytes;
        inside.then_some(Self { base: self.base + offset, bytes })
    }

    access! {
        u8: read_u8 write_u8;
        u16: read_u16 write_u16;
        u32: read_u32 write_u32;
        u64: read_u64 write_u64;
    }

    /// From now on, when this domain panics, traps or shuts down, `value` is written to the byte at `offset` first, so that
    /// the device does no more DMA into pages that are about to be somebody else's.
    ///
    /// # Panics
    /// Outside the range, or more registers than the table holds.
    pub fn reset_on_panic(&self, offset: usize, value: u8) {
        let address = self.pointer::<u8>(offset).addr();
        // A device that comes again has its old place.
        let place = |wanted| STOPS.iter().find(|stop| stop.address.load(Ordering::Relaxed) == wanted);
        let free = place(address).or_else(|| place(0));
        let Some(stop) = free else { panic!("more than {} devices to be stopped at the end", STOPS.len()) };
        stop.value.store(value, Ordering::Relaxed);
        stop.address.store(address, Ordering::Release);
    }

    /// Takes [`Mmio::reset_on_panic`] back: the device is somebody else's now.
    ///
    /// # Panics
    /// Outside the range.
    pub fn leave_alone_on_panic(&self, offset: usize) {
        let address = self.pointer::<u8>(offset).addr();
        for stop in STOPS.iter().filter(|stop| stop.address.load(Ordering::Relaxed) == address) {
            stop.address.store(0, Ordering::Release);
        }
    }

    fn pointer<T>(&self, offset: usize) -> *mut T {
        let inside = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        assert!(inside, "register {offset:#x} of a range of {:#x} bytes", self.bytes);
        let address = self.base + offset;
        assert!(address.is_multiple_of(align_of::<T>()), "unaligned register {offset:#x}");
        core::ptr::with_exposed_provenance_mut(address)
    }
}

/// A register to be written at the end; free if its address is 0.
struct Stop {
    address: AtomicUsize,
    value: AtomicU8,
}

/// As many as PCI's back shows devices on its bus.
const MAX_STOPS: usize = 32;

static STOPS: [Stop; MAX_STOPS] = [const { Stop { address: AtomicUsize::new(0), value: AtomicU8::new(0) } }; MAX_STOPS];

/// Stops all devices that asked for it. May be called at any moment, more than once.
pub(crate) fn stop_devices() {
    for stop in &STOPS {
        let address = stop.address.load(Ordering::Acquire);
        if address != 0 {
            let register: *mut u8 = core::ptr::with_exposed_provenance_mut(address);
            let value = stop.value.load(Ordering::Relaxed);
            // SAFETY: `reset_on_panic` checked that the address lies in a mapping of device memory, which is never removed.
            unsafe { register.write_volatile(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside() {
        let mmio = Mmio { base: 0x1000, bytes: 0x100 };
        for (offset, bytes, inside) in
            [(0, 0x100, true), (0x10, 0xf0, true), (0x10, 0xf1, false), (0x101, 0, false), (usize::MAX, 2, false)]
        {
            assert_eq!(mmio.part(offset, bytes).is_some(), inside, "{offset:#x}+{bytes:#x}");
        }
    }

    #[test]
    fn registers_are_read_written_and_stopped() {
        let memory = Box::leak(Box::new([0u64; 4]));
        // SAFETY: leaked, so there for ever; no reference is used after this line.
        let mmio = unsafe { Mmio::new(memory.as_mut_ptr().expose_provenance(), 32) };
        mmio.write_u32(8, 0x1122_3344);
        mmio.write_u8(9, 0xff);
        mmio.write_u64(24, 7);
        assert_eq!((mmio.read_u16(8), mmio.read_u32(8), mmio.read_u64(24)), (0xff44, 0x1122_ff44, 7));
        mmio.reset_on_panic(9, 0);
        stop_devices();
        assert_eq!(mmio.read_u32(8), 0x1122_0044);
        mmio.leave_alone_on_panic(9);
        mmio.write_u8(9, 0xff);
        stop_devices();
        assert_eq!(mmio.read_u32(8), 0x1122_ff44);
    }

    #[test]
    #[should_panic(expected = "register 0x7 of a range of 0x8 bytes")]
    fn a_register_that_sticks_out_is_refused() {
        let _ = Mmio { base: 0x1000, bytes: 8 }.read_u16(7);
    }
}
