//! The drivers' machine: device registers, DMA pages, interrupts and PCI's back, all by xen-pv.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use blkback_core::disk::{Command, Disk, DmaSegment, Geometry, Limits, Outcome, Tag};
use driverdom::drivers::bounce::Bounce;
use driverdom::drivers::hardware::{Bus, BusError, DmaMemory, Machine, Pirq, Refused, Registers, Width};
use driverdom::drivers::pci::Address;
use driverdom::drivers::virtio::StartError;
use driverdom::drivers::virtio::blk::VirtioBlk;
use driverdom::server::platform::OwnedDisk;
use xen_proto::platform::{EventError, Events};
use xen_proto::{DomId, GrantRef, MachineAddr, Port};
use xen_pv::abi::pciif::{
    MsixEntry, PciOp, XEN_PCI_OP_CONF_READ, XEN_PCI_OP_CONF_WRITE, XEN_PCI_OP_DISABLE_MSIX, XEN_PCI_OP_ENABLE_MSIX,
};
use xen_pv::memory::MmioError;
use xen_pv::pci::{CallError, Channel};
use xen_pv::{DmaPage, Errno, EventChannels, GrantTable, Memory, Mmio};

/// A device's registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRegisters(Mmio);

impl Registers for DeviceRegisters {
    fn read8(&self, offset: usize) -> u8 {
        self.0.read_u8(offset)
    }
    fn read16(&self, offset: usize) -> u16 {
        self.0.read_u16(offset)
    }
    fn read32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }
    fn write8(&self, offset: usize, value: u8) {
        self.0.write_u8(offset, value);
    }
    fn write16(&self, offset: usize, value: u16) {
        // Registers are uncached and so in order behind stores to memory; the compiler must keep that order, too.
        fence(Ordering::Release);
        self.0.write_u16(offset, value);
    }
    fn write32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }
    fn zero_on_panic(&self, offset: usize) {
        self.0.reset_on_panic(offset, 0);
    }
    fn leave_alone_on_panic(&self, offset: usize) {
        self.0.leave_alone_on_panic(offset);
    }
}

/// A page of ours that a device may reach.
#[derive(Debug)]
pub(crate) struct DevicePage(DmaPage);

impl DmaMemory for DevicePage {
    fn addr(&self) -> MachineAddr {
        self.0.machine_addr()
    }
    fn load8(&self, offset: usize) -> u8 {
        self.0.read_u8(offset)
    }
    fn load16(&self, offset: usize) -> u16 {
        let value = self.0.read_u16(offset);
        fence(Ordering::Acquire);
        value
    }
    fn load32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }
    fn store8(&mut self, offset: usize, value: u8) {
        self.0.write_u8(offset, value);
    }
    fn store16(&mut self, offset: usize, value: u16) {
        fence(Ordering::Release);
        self.0.write_u16(offset, value);
    }
    fn store64(&mut self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }
}

/// A passed-through disk, and the page through which we read it ourselves.
#[derive(Debug)]
pub(crate) struct PassedDisk {
    blk: VirtioBlk<DeviceRegisters, DevicePage>,
    bounce: Bounce<DevicePage>,
}

impl Disk for PassedDisk {
    fn geometry(&self) -> Geometry {
        self.blk.geometry()
    }
    fn limits(&self) -> Limits {
        self.blk.limits()
    }
    fn submit(&mut self, tag: Tag, command: Command, segments: &[DmaSegment]) {
        self.blk.submit(tag, command, segments);
    }
    fn kick(&mut self) {
        self.blk.kick();
    }
    fn complete(&mut self) -> Option<(Tag, Outcome)> {
        self.blk.complete()
    }
}

impl OwnedDisk for PassedDisk {
    fn address(&self) -> Address {
        self.blk.address()
    }
    fn start_reading(&mut self, sector: u64, bytes: usize) {
        self.bounce.read(&mut self.blk, Tag(0), sector, bytes);
    }
    fn bytes_read(&self, into: &mut [u8]) {
        self.bounce.copy_to(into);
    }
}

/// The passed-through devices, by the channel to PCI's back.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    channel: Option<Channel>,
    /// Channels whose page PCI's back had still mapped when we were done with them.
    closing: Vec<Channel>,
}

impl Passthrough {
    /// Grants a page to PCI's back and offers it an event channel.
    ///
    /// # Errors
    /// Why not, for a person.
    pub(crate) fn open_channel(
        &mut self,
        back: DomId,
        machine: &mut xen_pv::Machine,
    ) -> Result<(GrantRef, Port), String> {
        let xen_pv::Machine { memory, grants, events, clock, .. } = machine;
        self.close_channel(grants, events);
        let channel = Channel::new(back, memory, grants, events, *clock).map_err(|error| format!("{error:?}"))?;
        let named = (channel.gref(), channel.port());
        self.channel = Some(channel);
        Ok(named)
    }

    /// Ends the channel, or leaves it until PCI's back has let go of it. Calls fail from now on.
    pub(crate) fn close_channel(&mut self, grants: &mut GrantTable, events: &mut EventChannels) {
        self.closing.extend(self.channel.take());
        let channels = core::mem::take(&mut self.closing);
        self.closing = channels.into_iter().filter_map(|channel| channel.close(grants, events).err()).collect();
    }

    /// Resets a device and starts its driver.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) fn start_disk(
        &mut self,
        address: Address,
        machine: &mut xen_pv::Machine,
    ) -> Result<PassedDisk, StartError> {
        let (mut bus, mut hardware) = self.parts(machine);
        let bounce = hardware.take_page().ok_or(StartError::NoMemory)?;
        let blk = VirtioBlk::start(address, &mut bus, &mut hardware)?;
        Ok(PassedDisk { blk, bounce: Bounce::new(bounce) })
    }

    /// Resets a disk and takes its interrupt and its DMA.
    pub(crate) fn stop_disk(&mut self, disk: &mut PassedDisk, machine: &mut xen_pv::Machine) {
        let (mut bus, mut hardware) = self.parts(machine);
        disk.blk.stop(&mut bus, &mut hardware);
    }

    fn parts<'a>(&'a mut self, machine: &'a mut xen_pv::Machine) -> (PciBus<'a>, Hardware<'a>) {
        let xen_pv::Machine { memory, events, .. } = machine;
        (PciBus { channel: self.channel.as_mut() }, Hardware { memory, events })
    }
}

/// What drivers get from Xen.
struct Hardware<'a> {
    memory: &'a mut Memory,
    events: &'a mut EventChannels,
}

impl Machine for Hardware<'_> {
    type Registers = DeviceRegisters;
    type Page = DevicePage;

    fn map(&mut self, at: MachineAddr, len: usize) -> Result<DeviceRegisters, Refused> {
        self.memory.map_mmio(at, len).map(DeviceRegisters).map_err(|error| match error {
            MmioError::Refused(Errno(errno)) => Refused(errno),
            MmioError::NoSpace => Refused(ENOMEM),
        })
    }

    fn take_page(&mut self) -> Option<DevicePage> {
        self.memory.dma_page().map(DevicePage)
    }

    fn bind(&mut self, Pirq(pirq): Pirq) -> Result<Port, Refused> {
        self.events.bind_pirq(pirq).map_err(|EventError(errno)| Refused(errno))
    }

    fn unbind(&mut self, port: Port) {
        self.events.close(port);
    }
}

/// `-ENOMEM` (errno.h).
const ENOMEM: i32 = -12;

/// The bus, as far as the channel to PCI's back reaches.
struct PciBus<'a> {
    channel: Option<&'a mut Channel>,
}

impl PciBus<'_> {
    fn call(&mut self, device: Address, cmd: u32, fill: impl FnOnce(&mut PciOp)) -> Result<PciOp, BusError> {
        let channel = self.channel.as_mut().ok_or(BusError::Silent)?;
        let mut op = PciOp::new(cmd, device.segment.into(), device.bus.into(), device.devfn().into());
        fill(&mut op);
        match channel.call(&mut op) {
            Ok(()) => Ok(op),
            Err(CallError::Refused(error)) => Err(BusError::Refused(error)),
            Err(CallError::TimedOut | CallError::Busy) => Err(BusError::Silent),
        }
    }
}

impl Bus for PciBus<'_> {
    fn read(&mut self, device: Address, offset: u16, width: Width) -> Result<u32, BusError> {
        let access = |op: &mut PciOp| (op.offset, op.size) = (offset.into(), bytes(width));
        Ok(self.call(device, XEN_PCI_OP_CONF_READ, access)?.value)
    }

    fn write(&mut self, device: Address, offset: u16, width: Width, value: u32) -> Result<(), BusError> {
        let access = |op: &mut PciOp| (op.offset, op.size, op.value) = (offset.into(), bytes(width), value);
        self.call(device, XEN_PCI_OP_CONF_WRITE, access).map(drop)
    }

    fn enable_msix(&mut self, device: Address) -> Result<Pirq, BusError> {
        let one_vector = |op: &mut PciOp| op.value = 1;
        let op = self.call(device, XEN_PCI_OP_ENABLE_MSIX, one_vector)?;
        // 0: done; else so many vectors are left.
        let [MsixEntry { vector, .. }, ..] = op.msix_entries;
        if op.value == 0 { Ok(Pirq(vector.into())) } else { Err(BusError::NoVector(op.value)) }
    }

    fn disable_msix(&mut self, device: Address) -> Result<(), BusError> {
        self.call(device, XEN_PCI_OP_DISABLE_MSIX, |_| ()).map(drop)
    }
}

const fn bytes(width: Width) -> i32 {
    match width {
        Width::Byte => 1,
        Width::Word => 2,
        Width::Dword => 4,
    }
}
