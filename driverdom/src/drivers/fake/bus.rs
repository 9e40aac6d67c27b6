//! A function's configuration space as PCI's back shows it, minding the order of things.

use std::vec::Vec;

use super::device::Shared;
use crate::drivers::hardware::{Bus, BusError, Pirq, Width};
use crate::drivers::pci::Address;

/// Where the function is.
pub(crate) const ADDRESS: Address = Address { segment: 0, bus: 0, slot: 3, function: 0 };
/// The interrupt that it gets.
pub(crate) const PIRQ: Pirq = Pirq(55);

const MEMORY: u8 = 1 << 1;
const MASTER: u8 = 1 << 2;

/// Configuration space of one function; asking for another is an error.
pub(crate) struct FakeBus {
    pub(crate) config: [u8; 256],
    /// For each base address register the bits that can change.
    pub(crate) masks: [u32; 6],
    sizing: [bool; 6],
    pub(crate) vectors: u32,
    pub(crate) msix: bool,
    /// PCI's back has gone.
    pub(crate) gone: bool,
    /// Calls made, and after how many it goes.
    pub(crate) calls: usize,
    pub(crate) lasts: usize,
    device: Option<Shared>,
}

impl FakeBus {
    /// A function of this vendor and number that has no device behind it.
    pub(crate) fn new(vendor: u16, device: u16) -> Self {
        let mut bus = Self {
            config: [0; 256],
            masks: [0; 6],
            sizing: [false; 6],
            vectors: 4,
            msix: false,
            gone: false,
            calls: 0,
            lasts: usize::MAX,
            device: None,
        };
        bus.put(0, &vendor.to_le_bytes());
        bus.put(2, &device.to_le_bytes());
        bus
    }

    /// The device behind it.
    pub(crate) fn with_device(mut self, device: &Shared) -> Self {
        self.device = Some(device.clone());
        self
    }

    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.config[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// A base address register's value and the bits of it that can change.
    pub(crate) fn put_bar(&mut self, number: usize, value: u32, mask: u32) {
        self.put(0x10 + 4 * number, &value.to_le_bytes());
        self.masks[number] = mask;
    }

    /// A list of capabilities, one after the other from 0x40 on, each 20 bytes at most.
    pub(crate) fn put_capabilities(&mut self, list: &[Vec<u8>]) {
        self.put(6, &[1 << 4, 0]);
        self.put(0x34, &[0x40]);
        for (n, capability) in list.iter().enumerate() {
            let offset = 0x40 + 20 * n;
            self.put(offset, capability);
            let next = if n + 1 < list.len() { (offset + 20) as u8 } else { 0 };
            self.put(offset + 1, &[next]);
        }
    }

    pub(crate) fn is_master(&self) -> bool {
        self.config[4] & MASTER != 0
    }

    fn call(&mut self, device: Address) -> Result<(), BusError> {
        self.calls += 1;
        if self.gone || self.calls > self.lasts {
            return Err(BusError::Silent);
        }
        if device == ADDRESS { Ok(()) } else { Err(BusError::Refused(-1)) }
    }

    fn set_command(&mut self, value: u32) {
        let command = (value & 0xff) as u8;
        assert_eq!(value & !u32::from(MEMORY | MASTER), 0, "command {value:#x}");
        if let Some(device) = &self.device {
            let mut device = device.borrow_mut();
            device.decodes = command & MEMORY != 0;
            if command & MASTER != 0 && !self.is_master() {
                assert!(device.resets > 0 && device.status == 0, "DMA before a reset");
            }
            device.may_dma = command & MASTER != 0;
        }
        self.config[4] = command;
    }
}

impl Bus for FakeBus {
    fn read(&mut self, device: Address, offset: u16, width: Width) -> Result<u32, BusError> {
        self.call(device)?;
        let (offset, len) = span(offset, width);
        let bar = (0x10..0x28).contains(&offset).then(|| (offset - 0x10) / 4);
        match bar {
            Some(bar) if self.sizing[bar] => {
                let low = u32::from(self.config[offset]) & 0xf;
                Ok(self.masks[bar] | low)
            }
            _ => Ok(self.config[offset..offset + len].iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte))),
        }
    }

    fn write(&mut self, device: Address, offset: u16, width: Width, value: u32) -> Result<(), BusError> {
        self.call(device)?;
        match (span(offset, width), value) {
            ((4, 2), _) => self.set_command(value),
            ((0x10..0x28, 4), _) => {
                let bar = (usize::from(offset) - 0x10) / 4;
                let own = self.config[usize::from(offset)..][..4] == value.to_le_bytes();
                assert!(value == u32::MAX || own, "a base address register is not moved: {value:#x}");
                self.sizing[bar] = value == u32::MAX && !own;
            }
            _ => panic!("write of {value:#x} to {offset:#x}"),
        }
        Ok(())
    }

    fn enable_msix(&mut self, device: Address) -> Result<Pirq, BusError> {
        self.call(device)?;
        if self.config[4] & MEMORY == 0 {
            return Err(BusError::Refused(-6));
        }
        if self.vectors == 0 {
            return Err(BusError::NoVector(0));
        }
        assert!(!self.msix, "MSI-X is on already");
        self.msix = true;
        if let Some(device) = &self.device {
            device.borrow_mut().msix = true;
        }
        Ok(PIRQ)
    }

    fn disable_msix(&mut self, device: Address) -> Result<(), BusError> {
        self.call(device)?;
        self.msix = false;
        if let Some(device) = &self.device {
            assert!(!device.borrow().bound, "the event channel is still bound");
        }
        Ok(())
    }
}

fn span(offset: u16, width: Width) -> (usize, usize) {
    let len = match width {
        Width::Byte => 1,
        Width::Word => 2,
        Width::Dword => 4,
    };
    let offset = usize::from(offset);
    assert!(offset.is_multiple_of(len) && offset + len <= 256, "access to {offset:#x}+{len}");
    (offset, len)
}
