//! A virtio disk behind its registers. It panics where a driver breaks the specification, and misbehaves when told to.

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use xen_proto::{MachineAddr, Port};

use super::bus::{FakeBus, PIRQ};
use super::memory::{Memory, Page};
use super::queue::{Chain, DeviceQueue};
use crate::drivers::hardware::{Machine, Pirq, Refused, Registers};
use crate::drivers::virtio::Common;
use crate::drivers::virtio::queue::{Areas, Suppression};

/// Where its registers are: a 64-bit base address register, number 4.
pub(crate) const BAR: u64 = 0x38_0000_4000;
const BAR_LEN: u64 = 0x4000;
/// The event channel that its interrupt gets.
pub(crate) const PORT: Port = Port(12);

/// The device, shared by its registers, its bus and the test.
pub(crate) type Shared = Rc<RefCell<VirtioDevice>>;

/// The device.
pub(crate) struct VirtioDevice {
    pub(crate) memory: Memory,
    pub(crate) offered: u64,
    pub(crate) agreed: u64,
    pub(crate) status: u8,
    pub(crate) config: [u8; 64],
    pub(crate) max_queue: u16,
    pub(crate) queue: Option<DeviceQueue>,
    /// Rings of the doorbell.
    pub(crate) rings: usize,
    pub(crate) resets: usize,
    /// What a panic would zero.
    pub(crate) panic_zero: Vec<usize>,
    pub(crate) disk: Vec<u8>,
    // what the bus and Xen have granted
    pub(crate) decodes: bool,
    pub(crate) may_dma: bool,
    pub(crate) msix: bool,
    pub(crate) bound: bool,
    // how it misbehaves
    pub(crate) reset_hangs: bool,
    pub(crate) refuses_features: bool,
    pub(crate) refuses_vector: bool,
    pub(crate) config_moves: bool,
    // registers
    generation: u8,
    select: u32,
    driver_select: u32,
    size: u16,
    vector: u16,
    areas: [u64; 3],
}

impl VirtioDevice {
    /// A disk of this many sectors.
    pub(crate) fn new(memory: &Memory, offered: u64, sectors: u64) -> Shared {
        let mut config = [0; 64];
        config[..8].copy_from_slice(&sectors.to_le_bytes());
        Rc::new(RefCell::new(Self {
            memory: memory.clone(),
            offered,
            agreed: 0,
            status: 7, // left running by whoever had it before
            config,
            max_queue: 256,
            queue: None,
            rings: 0,
            resets: 0,
            panic_zero: Vec::new(),
            disk: vec![0; sectors as usize * 512],
            decodes: false,
            may_dma: false,
            msix: false,
            bound: false,
            reset_hangs: false,
            refuses_features: false,
            refuses_vector: false,
            config_moves: false,
            generation: 0,
            select: 0,
            driver_select: 0,
            size: 256,
            vector: 0xffff,
            areas: [0; 3],
        }))
    }

    /// The next command, taken out of the queue.
    pub(crate) fn take(&mut self) -> Option<Chain> {
        assert!(self.may_dma, "no DMA allowed");
        self.queue.as_mut()?.take()
    }

    /// Does a command as a disk does: data, then status, then the completion.
    pub(crate) fn serve(&mut self, chain: &Chain) {
        let (&[header], data_out) = chain.readable.split_at(1) else { panic!("no header") };
        assert_eq!(header.1, 16, "header");
        let bytes = self.memory.peek(header.0, 16);
        let kind = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(bytes[4..8], [0; 4], "reserved");
        let mut at = u64::from_le_bytes(bytes[8..].try_into().unwrap()) as usize * 512;
        let (data_in, status) = chain.writable.split_at(chain.writable.len() - 1);
        assert_eq!(status[0].1, 1, "status byte");
        assert_eq!(self.memory.peek(status[0].0, 1), [0xff], "the status says nothing before the device does");
        for &(addr, len) in if kind == 0 { data_in } else { data_out } {
            let end = at + len as usize;
            match kind {
                0 => self.memory.poke(addr, &self.disk[at..end]),
                1 => self.disk[at..end].copy_from_slice(&self.memory.peek(addr, len as usize)),
                _ => panic!("data with command {kind}"),
            }
            at = end;
        }
        assert!(kind != 4 || self.agreed & 1 << 9 != 0, "flush was not agreed on");
        self.finish(chain, 0);
    }

    /// Completes a command with this status and no data.
    pub(crate) fn finish(&mut self, chain: &Chain, status: u8) {
        let (addr, _) = chain.writable[chain.writable.len() - 1];
        self.memory.poke(addr, &[status]);
        self.queue.as_mut().unwrap().complete(chain.head, chain.writable_bytes());
    }

    fn read(&mut self, offset: usize, len: usize) -> u64 {
        match (offset, len) {
            (4, 4) => (self.offered >> (32 * self.select)) & 0xffff_ffff,
            (20, 1) => self.status.into(),
            (21, 1) => {
                self.generation = self.generation.wrapping_add(u8::from(self.config_moves));
                self.generation.into()
            }
            (24, 2) => self.size.into(),
            (26, 2) => self.vector.into(),
            (28, 2) => u64::from(self.queue.is_some()),
            (30, 2) => 3, // of its doorbell
            _ => panic!("read of {len} bytes at {offset} of the common structure"),
        }
    }

    fn write(&mut self, offset: usize, len: usize, value: u32) {
        match (offset, len) {
            (0, 4) => self.select = value,
            (8, 4) => self.driver_select = value,
            (12, 4) => {
                assert_eq!(self.status, 3, "features are agreed after DRIVER and before FEATURES_OK");
                let half = u64::from(value) << (32 * self.driver_select);
                assert_eq!(half & !self.offered, 0, "not offered");
                self.agreed |= half;
            }
            (16, 2) => assert_eq!(value, 0xffff, "vector for changes of the configuration"),
            (20, 1) => self.set_status(value as u8),
            (22, 2) => assert_eq!(value, 0, "there is one queue"),
            (24, 2) => {
                assert!(value.is_power_of_two() && value <= u32::from(self.max_queue), "size {value}");
                self.size = value as u16;
            }
            (26, 2) => {
                assert!(self.msix, "a vector without MSI-X");
                self.vector = if self.refuses_vector { 0xffff } else { value as u16 };
            }
            (28, 2) => self.enable(value),
            (32..56, 4) => {
                let (area, half) = ((offset - 32) / 8, (offset - 32) % 8 * 8);
                self.areas[area] |= u64::from(value) << half;
            }
            _ => panic!("write of {len} bytes at {offset} of the common structure"),
        }
    }

    fn enable(&mut self, value: u32) {
        assert_eq!(value, 1);
        assert_eq!(self.status, 11, "queues are enabled after FEATURES_OK and before DRIVER_OK");
        let [descriptors, driver, device] = self.areas.map(MachineAddr);
        let suppression = Suppression::agreed(Common::from_bits_truncate(self.agreed));
        let areas = Areas { descriptors, driver, device };
        self.queue = Some(DeviceQueue::new(self.memory.clone(), areas, self.size, suppression));
    }

    fn set_status(&mut self, value: u8) {
        match value {
            0 if self.reset_hangs => self.status = 0x40,
            0 => {
                self.resets += 1;
                (self.status, self.agreed, self.select, self.driver_select) = (0, 0, 0, 0);
                (self.queue, self.areas, self.size, self.vector) = (None, [0; 3], self.max_queue, 0xffff);
            }
            _ => {
                assert_eq!(value & self.status, self.status, "bits of the status are never cleared");
                assert!(matches!(value, 1 | 3 | 11 | 15) || value & 128 != 0, "status {value} after {}", self.status);
                self.status = if value == 11 && self.refuses_features { 3 } else { value };
            }
        }
    }
}

/// One of the device's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Structure {
    Common,
    Notify,
    Device,
}

/// A mapping of a structure.
pub(crate) struct Window {
    structure: Structure,
    len: usize,
    device: Shared,
}

impl Window {
    fn read(&self, offset: usize, len: usize) -> u64 {
        self.check(offset, len);
        let mut device = self.device.borrow_mut();
        match self.structure {
            Structure::Common => device.read(offset, len),
            Structure::Notify => panic!("the doorbell is not read"),
            Structure::Device => {
                device.config[offset..offset + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
            }
        }
    }

    fn write(&self, offset: usize, len: usize, value: u32) {
        self.check(offset, len);
        let mut device = self.device.borrow_mut();
        match self.structure {
            Structure::Common => device.write(offset, len, value),
            Structure::Notify => {
                assert_eq!((offset, len, value), (12, 2, 0), "doorbell");
                assert_eq!(device.status, 15, "a ring before DRIVER_OK");
                device.rings += 1;
            }
            Structure::Device => panic!("the configuration is not written"),
        }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(self.device.borrow().decodes, "the device does not decode memory");
        assert!(offset.is_multiple_of(len) && offset + len <= self.len, "access to {offset}+{len}");
    }
}

impl Registers for Window {
    fn read8(&self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }
    fn read16(&self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }
    fn read32(&self, offset: usize) -> u32 {
        self.read(offset, 4) as u32
    }
    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, 1, value.into());
    }
    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, 2, value.into());
    }
    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, 4, value);
    }
    fn zero_on_panic(&self, offset: usize) {
        assert_eq!(self.structure, Structure::Common);
        self.device.borrow_mut().panic_zero.push(offset);
    }
    fn leave_alone_on_panic(&self, offset: usize) {
        let mut device = self.device.borrow_mut();
        assert!(device.status == 0 || device.reset_hangs, "a running device is left alone");
        device.panic_zero.retain(|zeroed| *zeroed != offset);
    }
}

/// The machine that the device is in.
pub(crate) struct FakeMachine {
    pub(crate) memory: Memory,
    pub(crate) device: Shared,
    pub(crate) no_ports: bool,
}

impl Machine for FakeMachine {
    type Registers = Window;
    type Page = Page;

    fn map(&mut self, at: MachineAddr, len: usize) -> Result<Window, Refused> {
        let (structure, most) = match at.0.wrapping_sub(BAR) {
            0 => (Structure::Common, 56),
            0x2000 => (Structure::Device, 60),
            0x3000 => (Structure::Notify, 0x1000),
            _ => return Err(Refused(-22)),
        };
        assert!(len <= most, "{structure:?} of {len} bytes");
        Ok(Window { structure, len, device: self.device.clone() })
    }

    fn take_page(&mut self) -> Option<Page> {
        self.memory.try_page()
    }

    fn bind(&mut self, interrupt: Pirq) -> Result<Port, Refused> {
        assert_eq!(interrupt, PIRQ);
        if self.no_ports {
            return Err(Refused(-28));
        }
        self.device.borrow_mut().bound = true;
        Ok(PORT)
    }

    fn unbind(&mut self, port: Port) {
        assert_eq!(port, PORT);
        assert!(std::mem::take(&mut self.device.borrow_mut().bound), "unbound twice");
    }
}

/// A capability of virtio: type, base address register, offset and length; the doorbells' multiplier is 4.
pub(crate) fn structure(kind: u8, bar: u8, offset: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![9, 0, 20, kind, bar, 0, 0, 0];
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(4_u32.to_le_bytes());
    bytes
}

/// The device's capabilities: MSI-X, then the structures in QEMU's order.
pub(crate) fn capabilities() -> Vec<Vec<u8>> {
    vec![
        vec![0x11, 0, 1, 0],
        structure(5, 0, 0, 0),
        structure(2, 4, 0x3000, 0x1000),
        structure(4, 4, 0x2000, 60),
        structure(3, 4, 0x1000, 4),
        structure(1, 4, 0, 56),
    ]
}

/// The bus with the device on it.
pub(crate) fn bus(device: &Shared) -> FakeBus {
    let mut bus = FakeBus::new(0x1af4, 0x1042).with_device(device);
    bus.put_bar(4, BAR as u32 | 0b1100, !(BAR_LEN as u32 - 1));
    bus.put_bar(5, (BAR >> 32) as u32, u32::MAX);
    bus.put_capabilities(&capabilities());
    bus
}
