//! What drivers ask of the machine: registers, memory for DMA, configuration space and interrupts.

use core::fmt;

use xen_proto::{MachineAddr, Port};

use super::pci::Address;

/// Mapped registers of a device, little-endian. Offsets are in bytes and naturally aligned; implementations panic outside
/// the mapping, which callers rule out by checking the region's length once when they map it.
pub trait Registers {
    /// Reads 8 bits.
    fn read8(&self, offset: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, offset: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes 8 bits.
    fn write8(&self, offset: usize, value: u8);
    /// Writes 16 bits, after all stores to memory before it are visible to the device.
    fn write16(&self, offset: usize, value: u16);
    /// Writes 32 bits.
    fn write32(&self, offset: usize, value: u32);
    /// Arranges that a panic writes an 8-bit zero here: a device that outlives us must not write to memory that Xen gives away.
    fn zero_on_panic(&self, offset: usize);
    /// Takes [`Registers::zero_on_panic`] back: the device may be somebody else's from now on.
    fn leave_alone_on_panic(&self, offset: usize);
}

/// A page of ours that a device reads and writes, zero at first. The device may change it at any moment, so nothing is ever
/// borrowed from it. Offsets are in bytes and naturally aligned; implementations panic outside the page.
pub trait DmaMemory {
    /// The page's first byte, as the device addresses it.
    fn addr(&self) -> MachineAddr;
    /// Reads 8 bits once.
    fn load8(&self, offset: usize) -> u8;
    /// Reads 16 bits once, with acquire ordering: what the device wrote before the word is visible after.
    fn load16(&self, offset: usize) -> u16;
    /// Reads 32 bits once.
    fn load32(&self, offset: usize) -> u32;
    /// Writes 8 bits.
    fn store8(&mut self, offset: usize, value: u8);
    /// Writes 16 bits, with release ordering: stores before it are visible to the device before it is.
    fn store16(&mut self, offset: usize, value: u16);
    /// Writes 64 bits.
    fn store64(&mut self, offset: usize, value: u64);
    /// A full barrier: stores before it are visible to the device before loads after it are done.
    fn fence(&self);
    /// Copies bytes out, each read once.
    fn read(&self, offset: usize, into: &mut [u8]);
}

/// Where drivers get what they drive devices with.
pub trait Machine {
    /// Mapped registers.
    type Registers: Registers;
    /// A page for DMA.
    type Page: DmaMemory;

    /// Maps registers at a machine address, uncached. The address need not be aligned to a page.
    ///
    /// # Errors
    /// Xen does not let us: the region is not ours.
    fn map(&mut self, at: MachineAddr, len: usize) -> Result<Self::Registers, Refused>;

    /// Takes a zeroed page for DMA, or `None` when memory is used up.
    fn take_page(&mut self) -> Option<Self::Page>;

    /// Binds a fresh event channel to an interrupt, unmasked.
    ///
    /// # Errors
    /// Xen refuses the interrupt, or no port is free.
    fn bind(&mut self, interrupt: Pirq) -> Result<Port, Refused>;

    /// Closes an interrupt's event channel.
    fn unbind(&mut self, port: Port);
}

/// A physical interrupt's number, as Xen counts them for us (`pirq`, physdev.h). Not a vector and not a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pirq(pub u32);

/// Xen refused; the number is its errno (negative).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

/// How wide an access to configuration space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
}

/// The PCI devices passed to us, reached through PCI's back. Each call waits for the back, at most two seconds; so they are
/// used when a device comes or goes, never on a request's way.
pub trait Bus {
    /// Reads configuration space. `offset` is a multiple of the width.
    ///
    /// # Errors
    /// See [`BusError`].
    fn read(&mut self, device: Address, offset: u16, width: Width) -> Result<u32, BusError>;

    /// Writes configuration space. `offset` is a multiple of the width; bits of `value` above it are ignored.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write(&mut self, device: Address, offset: u16, width: Width, value: u32) -> Result<(), BusError>;

    /// Turns MSI-X on with one vector, entry 0 of the device's table. The device must decode memory already.
    ///
    /// # Errors
    /// See [`BusError`].
    fn enable_msix(&mut self, device: Address) -> Result<Pirq, BusError>;

    /// Turns MSI-X off. The interrupt's event channel must be closed before.
    ///
    /// # Errors
    /// See [`BusError`].
    fn disable_msix(&mut self, device: Address) -> Result<(), BusError>;
}

/// PCI's back did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusError {
    /// It answered with this error (`XEN_PCI_ERR_*` or an errno, negative; pciif.h).
    Refused(i32),
    /// It has so many vectors left and not the one asked for.
    NoVector(u32),
    /// It did not answer in time.
    Silent,
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(number) => write!(f, "PCI's back refuses (error {number})"),
            Self::NoVector(left) => write!(f, "no interrupt vector to be had ({left} left)"),
            Self::Silent => f.write_str("PCI's back does not answer"),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xen refuses (errno {})", -self.0)
    }
}
