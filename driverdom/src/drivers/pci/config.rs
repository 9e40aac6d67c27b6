//! Configuration space of one function: identity, base address registers, capabilities, the command register.
//!
//! PCI's back virtualises it: base addresses are the machine's own, writing them only asks for their size, and the command
//! register lets us turn memory decoding and bus mastering on. Offsets: PCI Local Bus 3.0, chapter 6.

use alloc::vec::Vec;
use core::fmt;

use xen_proto::MachineAddr;

use super::Address;
use crate::drivers::hardware::{Bus, BusError, Width};

/// Offsets of the standard header.
mod field {
    /// And the device's number, in the upper half.
    pub(super) const VENDOR: u16 = 0x00;
    pub(super) const COMMAND: u16 = 0x04;
    pub(super) const STATUS: u16 = 0x06;
    pub(super) const BARS: u16 = 0x10;
    pub(super) const CAPABILITIES: u16 = 0x34;
}

/// Command register: the function answers to memory accesses.
const COMMAND_MEMORY: u32 = 1 << 1;
/// Command register: the function may do DMA and send message-signalled interrupts.
const COMMAND_MASTER: u32 = 1 << 2;
/// Status register: there is a list of capabilities.
const STATUS_CAPABILITIES: u32 = 1 << 4;
/// Base address registers in a function's header.
pub const BARS: u8 = 6;
/// As many capabilities as fit: the list lies in 0x40..0x100 and an entry takes 4 bytes at least.
const MAX_CAPABILITIES: usize = 48;
/// Where the standard header ends and capabilities may lie.
const HEADER_BYTES: u8 = 0x40;

/// Capability of message-signalled interrupts with a table (PCI 3.0, 6.8.2).
pub const CAPABILITY_MSIX: u8 = 0x11;
/// Capability of the device's vendor; virtio describes its structures with it.
pub const CAPABILITY_VENDOR: u8 = 0x09;

/// What a function says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// Device, in the vendor's numbering.
    pub device: u16,
}

/// A region of memory that a base address register describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where it is; never zero.
    pub at: MachineAddr,
    /// Bytes; a power of two.
    pub len: u64,
}

/// An entry of the list of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its kind.
    pub id: u8,
    /// Where in configuration space it starts.
    pub offset: u8,
    /// Its bytes 2 and 3, behind its kind and the link to the next.
    pub head: [u8; 2],
}

/// A function's configuration space is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// PCI's back did not let us.
    Bus(BusError),
    /// The list of capabilities leaves its place or does not end.
    Capabilities,
    /// Base address register of this number describes no usable memory.
    NoMemory(u8),
}

impl From<BusError> for ConfigError {
    fn from(error: BusError) -> Self {
        Self::Bus(error)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bus(error) => error.fmt(f),
            Self::Capabilities => f.write_str("the list of PCI capabilities does not end where it must"),
            Self::NoMemory(bar) => write!(f, "base address register {bar} describes no usable memory"),
        }
    }
}

/// One function's configuration space, borrowed from the bus for as long as a driver sets its device up.
pub struct Function<'a, B> {
    bus: &'a mut B,
    address: Address,
    /// Base address registers already asked; each takes eight round trips to the back.
    bars: [Option<Bar>; BARS as usize],
}

impl<'a, B: Bus> Function<'a, B> {
    /// The function at this address.
    pub fn new(bus: &'a mut B, address: Address) -> Self {
        Self { bus, address, bars: [None; BARS as usize] }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The bus.
    pub fn bus(&mut self) -> &mut B {
        self.bus
    }

    /// Reads 8 bits.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn read8(&mut self, offset: u16) -> Result<u8, BusError> {
        self.bus.read(self.address, offset, Width::Byte).map(|value| (value & 0xff) as u8)
    }

    /// Reads 16 bits.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn read16(&mut self, offset: u16) -> Result<u16, BusError> {
        self.bus.read(self.address, offset, Width::Word).map(|value| (value & 0xffff) as u16)
    }

    /// Reads 32 bits.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn read32(&mut self, offset: u16) -> Result<u32, BusError> {
        self.bus.read(self.address, offset, Width::Dword)
    }

    /// What it is.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn identity(&mut self) -> Result<Identity, BusError> {
        let [vendor_low, vendor_high, device_low, device_high] = self.read32(field::VENDOR)?.to_le_bytes();
        Ok(Identity {
            vendor: u16::from_le_bytes([vendor_low, vendor_high]),
            device: u16::from_le_bytes([device_low, device_high]),
        })
    }

    /// Lets the function answer to memory accesses.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn enable_memory(&mut self) -> Result<(), BusError> {
        self.command(|command| command | COMMAND_MEMORY)
    }

    /// Lets the function do DMA.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn enable_master(&mut self) -> Result<(), BusError> {
        self.command(|command| command | COMMAND_MASTER)
    }

    /// Ends the function's DMA.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn disable_master(&mut self) -> Result<(), BusError> {
        self.command(|command| command & !COMMAND_MASTER)
    }

    fn command(&mut self, change: impl FnOnce(u32) -> u32) -> Result<(), BusError> {
        let command = u32::from(self.read16(field::COMMAND)?);
        self.bus.write(self.address, field::COMMAND, Width::Word, change(command))
    }

    /// The memory that a base address register describes, with a 64-bit one's upper half.
    ///
    /// # Errors
    /// [`ConfigError::NoMemory`] for a register of another kind, unused, or absurd.
    pub fn bar(&mut self, number: u8) -> Result<Bar, ConfigError> {
        let absurd = ConfigError::NoMemory(number);
        match self.bars.get(usize::from(number)) {
            None => return Err(absurd),
            Some(Some(bar)) => return Ok(*bar),
            Some(None) => {}
        }
        let offset = field::BARS + 4 * u16::from(number);
        let (low, low_mask) = self.bar_half(offset)?;
        let is_64_bit = match low & 0b111 {
            0b000 => false,
            0b100 if number + 1 < BARS => true,
            _ => return Err(absurd),
        };
        let (high, high_mask) = if is_64_bit { self.bar_half(offset + 4)? } else { (0, u32::MAX) };
        let at = (u64::from(high) << 32) | u64::from(low & !0xf);
        let mask = (u64::from(high_mask) << 32) | u64::from(low_mask & !0xf);
        let len = (!mask).wrapping_add(1);
        if at == 0 || !len.is_power_of_two() || at.checked_add(len).is_none() {
            return Err(absurd);
        }
        let bar = Bar { at: MachineAddr(at), len };
        self.bars[usize::from(number)] = Some(bar);
        Ok(bar)
    }

    /// A base address register's value and the bits of it that can change.
    fn bar_half(&mut self, offset: u16) -> Result<(u32, u32), BusError> {
        let value = self.read32(offset)?;
        self.bus.write(self.address, offset, Width::Dword, u32::MAX)?;
        let mask = self.read32(offset);
        self.bus.write(self.address, offset, Width::Dword, value)?;
        Ok((value, mask?))
    }

    /// The list of capabilities, in its order.
    ///
    /// # Errors
    /// [`ConfigError::Capabilities`] when it leaves its place or loops.
    pub fn capabilities(&mut self) -> Result<Vec<Capability>, ConfigError> {
        let mut list = Vec::new();
        if u32::from(self.read16(field::STATUS)?) & STATUS_CAPABILITIES == 0 {
            return Ok(list);
        }
        let mut offset = self.read8(field::CAPABILITIES)? & !0b11;
        while offset != 0 {
            if offset < HEADER_BYTES || list.len() == MAX_CAPABILITIES {
                return Err(ConfigError::Capabilities);
            }
            // All in one reading: each is a round trip to the back.
            let [id, next, head @ ..] = self.read32(offset.into())?.to_le_bytes();
            list.push(Capability { id, offset, head });
            offset = next & !0b11;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests;
