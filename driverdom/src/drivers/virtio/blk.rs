//! The virtio block device (5.2) as a [`Disk`]: commands go by tag into the slots of one queue, with data segments that the
//! device reads and writes by itself; completions come in any order.
//!
//! Memory: at most 67 pages a disk (two for the queue, one for headers and status bytes, half a page a command).

use alloc::vec::Vec;

use blkback_core::disk::{Command, Disk, DmaSegment, Geometry, Limits, Outcome, Tag};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::{MachineAddr, Port};

use super::queue::{Buffer, Direction, MAX_CHAIN, Notice, Suppression, Virtqueue};
use super::transport::{DeviceConfig, Doorbell, MODERN_DEVICE, Transport, VENDOR, enable_interrupt};
use super::{Common, StartError};
use crate::drivers::hardware::{Bus, BusError, DmaMemory, Machine, Registers};
use crate::drivers::pci::{Address, Capability, Function, Identity};

/// Kind of device (5), and the number under which one that also has the legacy interface hides (4.1.2.1).
const KIND: u16 = 2;
const TRANSITIONAL_DEVICE: u16 = 0x1001;

/// Most commands under way: their headers and status bytes fill a page.
const MAX_DEPTH: u16 = 128;
/// Bytes kept for a command's header and status.
const CELL: usize = PAGE_SIZE / MAX_DEPTH as usize;
/// Bytes of the header (5.2.6).
const HEADER: u32 = 16;
/// Where in a cell the status byte is; the header is at 0.
const STATUS: usize = 16;
/// Buffers of a chain that are not data: header and status.
const OVERHEAD: usize = 2;
/// What no device answers: found after a completion, the device wrote no status.
const NO_STATUS: u8 = 0xff;
/// The largest logical block: a command's segments never cross a page.
const MAX_BLOCK: u32 = 4096;
/// A larger capacity, in sectors, is a lie; in bytes it would not fit.
const MAX_SECTORS: u64 = 1 << 54;
/// The only queue that we use.
const QUEUE: u16 = 0;

bitflags::bitflags! {
    /// Features of a block device (5.2.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// It names the largest segment.
        const SIZE_MAX = 1 << 1;
        /// It names the most segments of a command.
        const SEG_MAX = 1 << 2;
        /// It may not be written.
        const RO = 1 << 5;
        /// It names its block.
        const BLK_SIZE = 1 << 6;
        /// It knows flush.
        const FLUSH = 1 << 9;
        /// It names its physical block.
        const TOPOLOGY = 1 << 10;
        /// It says whether it has a write cache.
        const CONFIG_WCE = 1 << 11;
    }
}

/// Offsets in the device's configuration (5.2.4).
mod field {
    pub(super) const CAPACITY: usize = 0;
    pub(super) const SIZE_MAX: usize = 8;
    pub(super) const SEG_MAX: usize = 12;
    pub(super) const BLK_SIZE: usize = 20;
    pub(super) const PHYSICAL_BLOCK_EXP: usize = 24;
    pub(super) const WRITEBACK: usize = 32;
}

/// Types of a command (5.2.6).
mod request {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
}

/// Status bytes of a command (5.2.6).
mod answer {
    pub(super) const OK: u8 = 0;
    pub(super) const UNSUPPORTED: u8 = 2;
}

/// What the device says of itself; for the features that were not agreed the fields mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    capacity: u64,
    size_max: u32,
    seg_max: u32,
    blk_size: u32,
    physical_block_exp: u8,
    writeback: u8,
}

/// The way to the device while it lives.
#[derive(Debug)]
struct Link<R> {
    transport: Transport<R>,
    doorbell: Doorbell,
}

/// A virtio disk. It is reset when it is stopped or dropped, when it breaks the queue's rules, and on panic.
#[derive(Debug)]
pub struct VirtioBlk<R: Registers, P> {
    address: Address,
    port: Port,
    /// `None` when it is stopped or broken: from then on every command fails, without touching the device.
    link: Option<Link<R>>,
    queue: Virtqueue<P>,
    cells: P,
    geometry: Geometry,
    limits: Limits,
    /// Flushes of a disk without a write cache: done as soon as they are asked for.
    idle_flushes: Vec<Tag>,
}

/// Whether a function is a virtio disk.
#[must_use]
pub fn is_virtio_blk(identity: Identity) -> bool {
    identity.vendor == VENDOR && [MODERN_DEVICE + KIND, TRANSITIONAL_DEVICE].contains(&identity.device)
}

impl<R: Registers, P: DmaMemory> VirtioBlk<R, P> {
    /// Resets the device and sets it up (3.1.1); its completions are events of [`VirtioBlk::port`].
    ///
    /// # Errors
    /// It is no virtio disk, or cannot be driven; it is then left reset and without DMA.
    pub fn start<B, M>(address: Address, bus: &mut B, machine: &mut M) -> Result<Self, StartError>
    where
        B: Bus,
        M: Machine<Registers = R, Page = P>,
    {
        let mut function = Function::new(bus, address);
        if !is_virtio_blk(function.identity()?) {
            return Err(StartError::NotThisKind);
        }
        let capabilities = function.capabilities()?;
        let transport = Transport::open(&mut function, &capabilities, machine)?;
        match Self::set_up(&mut function, &capabilities, &transport, machine) {
            Ok((mut disk, doorbell)) => {
                transport.drive();
                disk.link = Some(Link { transport, doorbell });
                Ok(disk)
            }
            Err(error) => {
                silence(&transport, &mut function);
                Err(error)
            }
        }
    }

    /// All between the reset and the start of operation.
    fn set_up<B: Bus>(
        function: &mut Function<'_, B>,
        capabilities: &[Capability],
        transport: &Transport<R>,
        machine: &mut impl Machine<Registers = R, Page = P>,
    ) -> Result<(Self, Doorbell), StartError> {
        let agreed =
            transport.negotiate(Common::INDIRECT_DESC.bits(), Common::EVENT_IDX.bits() | Features::all().bits())?;
        let features = Features::from_bits_truncate(agreed);
        let size = transport.max_queue_size(QUEUE)?.min(MAX_DEPTH);
        let config = transport.config(Config::read)?;
        let (geometry, limits) = config.shape(features, size)?;
        let suppression = Suppression::agreed(Common::from_bits_truncate(agreed));
        let queue = Virtqueue::new(size, size, suppression, || machine.take_page()).ok_or(StartError::NoMemory)?;
        let cells = machine.take_page().ok_or(StartError::NoMemory)?;
        let port = machine.bind(enable_interrupt(function, capabilities)?)?;
        let doorbell = transport.set_queue(QUEUE, size, queue.areas()).inspect_err(|_| machine.unbind(port))?;
        let address = function.address();
        let idle_flushes = Vec::with_capacity(limits.depth);
        Ok((Self { address, port, link: None, queue, cells, geometry, limits, idle_flushes }, doorbell))
    }

    /// Where it is on the bus.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The event channel of its interrupt.
    #[must_use]
    pub fn port(&self) -> Port {
        self.port
    }

    /// Whether it still serves commands.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.link.is_some()
    }

    /// Takes the device out of service: reset, interrupt and DMA off. Commands under way come back as failed, as do all that
    /// follow.
    pub fn stop<B, M>(&mut self, bus: &mut B, machine: &mut M)
    where
        B: Bus,
        M: Machine,
    {
        machine.unbind(self.port);
        let mut function = Function::new(bus, self.address);
        match self.link.take() {
            Some(link) => silence(&link.transport, &mut function),
            None => detach(&mut function),
        }
    }

    /// Gives up a device that broke the rules.
    fn fail(&mut self) {
        if let Some(link) = self.link.take() {
            reset(&link.transport, self.address);
        }
    }

    /// How the command of a slot ended, by the status byte alone: what the device wrote is what counts, not how much.
    fn outcome(&self, slot: u16) -> Outcome {
        match self.cells.load8(cell(slot) + STATUS) {
            answer::OK => Outcome::Done,
            answer::UNSUPPORTED => Outcome::Unsupported,
            _ => Outcome::Failed,
        }
    }
}

impl<R: Registers, P: DmaMemory> Disk for VirtioBlk<R, P> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, tag: Tag, command: Command, segments: &[DmaSegment]) {
        let (kind, sector, direction) = match command {
            Command::Read(sector) => (request::IN, sector, Direction::FromDevice),
            Command::Write(sector) => (request::OUT, sector, Direction::ToDevice),
            Command::Flush if self.geometry.write_cache => (request::FLUSH, 0, Direction::ToDevice),
            Command::Flush => return self.idle_flushes.push(tag),
        };
        let at = cell(tag.0);
        self.cells.store64(at, u64::from(kind));
        self.cells.store64(at + 8, sector);
        self.cells.store8(at + STATUS, NO_STATUS);
        let cell = self.cells.addr().0 + at as u64;
        let header = Buffer { addr: MachineAddr(cell), len: HEADER, direction: Direction::ToDevice };
        let status = Buffer { addr: MachineAddr(cell + STATUS as u64), len: 1, direction: Direction::FromDevice };
        let data = segments.iter().map(|segment| Buffer { addr: segment.addr, len: segment.len, direction });
        self.queue.push(tag.0, core::iter::once(header).chain(data).chain(core::iter::once(status)));
    }

    fn kick(&mut self) {
        if let Some(link) = &self.link
            && self.queue.publish() == Notice::Needed
        {
            link.transport.ring(link.doorbell);
        }
    }

    /// The next completed command. `None` promises more than [`Disk`] asks: the device will interrupt for the next one.
    fn complete(&mut self) -> Option<(Tag, Outcome)> {
        if let Some(tag) = self.idle_flushes.pop() {
            return Some((tag, Outcome::Done));
        }
        if self.is_alive() {
            match self.queue.pop() {
                Ok(slot) => return slot.map(|slot| (Tag(slot), self.outcome(slot))),
                Err(broken) => {
                    log::error!("disk {}: broken: {broken}; all its commands fail from now on", self.address);
                    self.fail();
                }
            }
        }
        self.queue.reclaim().map(|slot| (Tag(slot), Outcome::Failed))
    }
}

impl<R: Registers, P> Drop for VirtioBlk<R, P> {
    fn drop(&mut self) {
        // Its pages go next.
        if let Some(link) = self.link.take() {
            reset(&link.transport, self.address);
        }
    }
}

impl Config {
    fn read<R: Registers>(config: DeviceConfig<'_, R>) -> Self {
        Self {
            capacity: config.field64(field::CAPACITY),
            size_max: config.field32(field::SIZE_MAX),
            seg_max: config.field32(field::SEG_MAX),
            blk_size: config.field32(field::BLK_SIZE),
            physical_block_exp: config.field8(field::PHYSICAL_BLOCK_EXP),
            // Without a word of the device there may be a cache, and a flush must not end here.
            writeback: if config.has(field::WRITEBACK) { config.field8(field::WRITEBACK) } else { 1 },
        }
    }

    /// What the disk is and takes, with a queue of this size.
    fn shape(&self, features: Features, queue_size: u16) -> Result<(Geometry, Limits), StartError> {
        let logical_block = if features.contains(Features::BLK_SIZE) { self.blk_size } else { 512 };
        if !logical_block.is_power_of_two()
            || !(512..=MAX_BLOCK).contains(&logical_block)
            || self.capacity > MAX_SECTORS
        {
            return Err(StartError::BadGeometry);
        }
        if features.contains(Features::SIZE_MAX) && (self.size_max as usize) < PAGE_SIZE {
            return Err(StartError::BadGeometry);
        }
        let exponent = if features.contains(Features::TOPOLOGY) { self.physical_block_exp } else { 0 };
        // An absurd exponent is no reason to refuse a disk: the physical block is advice.
        let physical_block =
            u64::from(logical_block).checked_shl(exponent.into()).and_then(|size| u32::try_from(size).ok());
        // Without a word of the device, one segment is all that is sure to be taken. A chain is no longer than the queue (2.7.5.3.1).
        let seg_max = if features.contains(Features::SEG_MAX) { self.seg_max as usize } else { 1 };
        let segments = seg_max.min(MAX_CHAIN.min(queue_size.into()).saturating_sub(OVERHEAD));
        // A guest may scatter a block over as many segments as it has sectors, and a command carries whole blocks.
        if segments < logical_block as usize / 512 {
            return Err(StartError::BadGeometry);
        }
        let writeback = !features.contains(Features::CONFIG_WCE) || self.writeback != 0;
        let geometry = Geometry {
            sectors: self.capacity - self.capacity % u64::from(logical_block / 512),
            logical_block,
            physical_block: physical_block.filter(|size| *size >= logical_block).unwrap_or(logical_block),
            writable: !features.contains(Features::RO),
            write_cache: features.contains(Features::FLUSH) && writeback,
        };
        Ok((geometry, Limits { segments, depth: queue_size.into() }))
    }
}

/// Resets a device; one that cannot is reported, there is no more to do to it.
fn reset<R: Registers>(transport: &Transport<R>, address: Address) {
    if let Err(error) = transport.retire() {
        log::error!("disk {address}: {error}");
    }
}

/// Resets a device, then takes its interrupt and its DMA.
fn silence<R: Registers, B: Bus>(transport: &Transport<R>, function: &mut Function<'_, B>) {
    reset(transport, function.address());
    detach(function);
}

/// Takes a device's interrupt and DMA. A back that does not answer has gone, and the device with it.
fn detach<B: Bus>(function: &mut Function<'_, B>) {
    let address = function.address();
    let done: Result<(), BusError> = function.bus().disable_msix(address).and_then(|()| function.disable_master());
    if let Err(error) = done {
        log::warn!("disk {address}: {error}");
    }
}

/// Where a slot's cell starts in its page.
fn cell(slot: u16) -> usize {
    usize::from(slot) * CELL
}

#[cfg(test)]
mod tests;
