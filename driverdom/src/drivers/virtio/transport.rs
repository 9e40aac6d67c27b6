//! The modern virtio-pci interface (4.1): finding the structures, reset, feature negotiation, queue set-up, notification.

use xen_proto::MachineAddr;

use super::queue::Areas;
use super::{Common, StartError};
use crate::drivers::hardware::{Bus, Machine, Pirq, Registers};
use crate::drivers::pci::config::{BARS, CAPABILITY_MSIX, CAPABILITY_VENDOR};
use crate::drivers::pci::{Capability, Function};

/// `VIRTIO_PCI_VENDOR_ID` (4.1.2).
pub const VENDOR: u16 = 0x1af4;
/// A modern device's number is this plus its kind (4.1.2).
pub const MODERN_DEVICE: u16 = 0x1040;

/// Reads of a register before we stop waiting for it: a register read takes about a microsecond, so about a second.
const PATIENCE: u32 = 1_000_000;
/// Readings of a configuration that changes under us (2.5.1).
const CONFIG_READINGS: u32 = 16;
/// No structure is mapped further than this, in bytes; only doorbells of queues that we do not use lie beyond.
const MAX_STRUCTURE: u64 = 64 << 10;
/// Our only MSI-X vector: entry 0 of the table.
const VECTOR: u16 = 0;
/// `VIRTIO_MSI_NO_VECTOR` (4.1.5.1.2).
const NO_VECTOR: u16 = 0xffff;

/// Structure types of a capability (4.1.4).
mod structure {
    pub(super) const COMMON: u8 = 1;
    pub(super) const NOTIFY: u8 = 2;
    pub(super) const DEVICE: u8 = 4;
}

/// Offsets in a capability (4.1.4, 4.1.4.4).
mod capability {
    pub(super) const BAR: u16 = 4;
    pub(super) const OFFSET: u16 = 8;
    pub(super) const LENGTH: u16 = 12;
    pub(super) const NOTIFY_MULTIPLIER: u16 = 16;
}

/// Offsets in the common configuration structure (4.1.4.3).
mod common {
    pub(super) const DEVICE_FEATURE_SELECT: usize = 0;
    pub(super) const DEVICE_FEATURE: usize = 4;
    pub(super) const DRIVER_FEATURE_SELECT: usize = 8;
    pub(super) const DRIVER_FEATURE: usize = 12;
    pub(super) const CONFIG_VECTOR: usize = 16;
    pub(super) const DEVICE_STATUS: usize = 20;
    pub(super) const CONFIG_GENERATION: usize = 21;
    pub(super) const QUEUE_SELECT: usize = 22;
    pub(super) const QUEUE_SIZE: usize = 24;
    pub(super) const QUEUE_VECTOR: usize = 26;
    pub(super) const QUEUE_ENABLE: usize = 28;
    pub(super) const QUEUE_NOTIFY_OFF: usize = 30;
    pub(super) const QUEUE_DESCRIPTORS: usize = 32;
    pub(super) const QUEUE_DRIVER: usize = 40;
    pub(super) const QUEUE_DEVICE: usize = 48;
    /// Bytes in all.
    pub(super) const LEN: u64 = 56;
}

/// Bits of the device's status (2.1).
mod status {
    pub(super) const RESET: u8 = 0;
    pub(super) const ACKNOWLEDGE: u8 = 1;
    pub(super) const DRIVER: u8 = 2;
    pub(super) const DRIVER_OK: u8 = 4;
    pub(super) const FEATURES_OK: u8 = 8;
    pub(super) const FAILED: u8 = 128;
}

/// Where a structure's registers are, checked against its base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: MachineAddr,
    len: usize,
}

/// A device's registers. Made reset; dropped without a word, so reset it first.
#[derive(Debug)]
pub struct Transport<R> {
    common: R,
    notify: R,
    notify_len: usize,
    notify_multiplier: u32,
    device: R,
    device_len: usize,
}

/// A queue's place for notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    queue: u16,
    offset: usize,
}

impl<R: Registers> Transport<R> {
    /// Finds and maps the device's structures and resets it, before it may do any DMA; arranges its reset on panic.
    ///
    /// # Errors
    /// The structures are missing or lie wrong, Xen refuses them, or the reset does not end.
    pub fn open<B: Bus>(
        function: &mut Function<'_, B>,
        capabilities: &[Capability],
        machine: &mut impl Machine<Registers = R>,
    ) -> Result<Self, StartError> {
        let (common_place, _) = find(function, capabilities, structure::COMMON, common::LEN)?;
        let (notify_place, notify) = find(function, capabilities, structure::NOTIFY, 2)?;
        let (device_place, _) = find(function, capabilities, structure::DEVICE, 1)?;
        let notify_multiplier = function.read32(notify + capability::NOTIFY_MULTIPLIER)?;
        function.enable_memory()?;
        let transport = Self {
            common: machine.map(common_place.at, common_place.len)?,
            notify: machine.map(notify_place.at, notify_place.len)?,
            notify_len: notify_place.len,
            notify_multiplier,
            device: machine.map(device_place.at, device_place.len)?,
            device_len: device_place.len,
        };
        transport.reset()?;
        function.enable_master()?;
        // Last, when nothing can fail any more: it must not be written to when it is somebody else's.
        transport.common.zero_on_panic(common::DEVICE_STATUS);
        Ok(transport)
    }

    /// Resets the device for good: it may be somebody else's after this.
    ///
    /// # Errors
    /// [`StartError::ResetTimeout`].
    pub fn retire(&self) -> Result<(), StartError> {
        let done = self.reset();
        self.common.leave_alone_on_panic(common::DEVICE_STATUS);
        done
    }

    /// Resets the device and waits until it has: after it, no more DMA (2.4.1, 4.1.4.3.1).
    fn reset(&self) -> Result<(), StartError> {
        self.common.write8(common::DEVICE_STATUS, status::RESET);
        for _ in 0..PATIENCE {
            if self.common.read8(common::DEVICE_STATUS) == status::RESET {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err(StartError::ResetTimeout)
    }

    /// Agrees on features (3.1.1, steps 2 to 6): all of `required`, and of `wanted` what is offered. `ACCESS_PLATFORM` and
    /// `ORDER_PLATFORM` are always taken when offered. Returns what was agreed.
    ///
    /// # Errors
    /// A required feature is not offered, or the device takes back what it offered.
    pub fn negotiate(&self, required: u64, wanted: u64) -> Result<u64, StartError> {
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        let offered = self.offered();
        let required = required | Common::VERSION_1.bits();
        let wanted = wanted | (Common::ACCESS_PLATFORM | Common::ORDER_PLATFORM).bits();
        let missing = required & !offered;
        if missing != 0 {
            self.add_status(status::FAILED);
            return Err(StartError::MissingFeatures(missing));
        }
        let agreed = offered & (required | wanted);
        self.common.write32(common::DRIVER_FEATURE_SELECT, 0);
        self.common.write32(common::DRIVER_FEATURE, low(agreed));
        self.common.write32(common::DRIVER_FEATURE_SELECT, 1);
        self.common.write32(common::DRIVER_FEATURE, high(agreed));
        self.add_status(status::FEATURES_OK);
        if self.common.read8(common::DEVICE_STATUS) & status::FEATURES_OK == 0 {
            self.add_status(status::FAILED);
            return Err(StartError::FeaturesRefused(agreed));
        }
        Ok(agreed)
    }

    fn offered(&self) -> u64 {
        let half = |select| {
            self.common.write32(common::DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(common::DEVICE_FEATURE))
        };
        half(0) | (half(1) << 32)
    }

    fn add_status(&self, bit: u8) {
        let old = self.common.read8(common::DEVICE_STATUS);
        self.common.write8(common::DEVICE_STATUS, old | bit);
    }

    /// The most entries that this queue of the device takes: a power of two.
    ///
    /// # Errors
    /// [`StartError::BadQueue`].
    pub fn max_queue_size(&self, queue: u16) -> Result<u16, StartError> {
        self.common.write16(common::QUEUE_SELECT, queue);
        let size = self.common.read16(common::QUEUE_SIZE);
        if !size.is_power_of_two() || self.common.read16(common::QUEUE_ENABLE) != 0 {
            return Err(StartError::BadQueue(size));
        }
        Ok(size)
    }

    /// Gives the device a queue of `size` entries, interrupting by our vector (4.1.5.1.3). MSI-X is on already.
    ///
    /// # Errors
    /// The device takes no vector, or its doorbell lies outside the notification structure.
    pub fn set_queue(&self, queue: u16, size: u16, areas: Areas) -> Result<Doorbell, StartError> {
        self.common.write16(common::CONFIG_VECTOR, NO_VECTOR);
        self.common.write16(common::QUEUE_SELECT, queue);
        self.common.write16(common::QUEUE_SIZE, size);
        self.common.write16(common::QUEUE_VECTOR, VECTOR);
        if self.common.read16(common::QUEUE_VECTOR) != VECTOR {
            return Err(StartError::NoInterrupt);
        }
        self.write_addr(common::QUEUE_DESCRIPTORS, areas.descriptors);
        self.write_addr(common::QUEUE_DRIVER, areas.driver);
        self.write_addr(common::QUEUE_DEVICE, areas.device);
        let units = u64::from(self.common.read16(common::QUEUE_NOTIFY_OFF));
        let offset = usize::try_from(units * u64::from(self.notify_multiplier)).unwrap_or(usize::MAX);
        if !offset.is_multiple_of(2) || offset.saturating_add(2) > self.notify_len {
            return Err(StartError::BadStructure(structure::NOTIFY));
        }
        self.common.write16(common::QUEUE_ENABLE, 1);
        Ok(Doorbell { queue, offset })
    }

    fn write_addr(&self, offset: usize, addr: MachineAddr) {
        self.common.write32(offset, low(addr.0));
        self.common.write32(offset + 4, high(addr.0));
    }

    /// Lets the device begin (3.1.1, step 8).
    pub fn drive(&self) {
        self.add_status(status::DRIVER_OK);
    }

    /// Tells the device that a queue has new entries (4.1.5.2).
    pub fn ring(&self, doorbell: Doorbell) {
        self.notify.write16(doorbell.offset, doorbell.queue);
    }

    /// Reads the device's own configuration with `read` until it held still meanwhile (2.5.1).
    ///
    /// # Errors
    /// [`StartError::UnstableConfig`].
    pub fn config<T>(&self, read: impl Fn(DeviceConfig<'_, R>) -> T) -> Result<T, StartError> {
        for _ in 0..CONFIG_READINGS {
            let before = self.common.read8(common::CONFIG_GENERATION);
            let value = read(DeviceConfig { registers: &self.device, len: self.device_len });
            if self.common.read8(common::CONFIG_GENERATION) == before {
                return Ok(value);
            }
        }
        Err(StartError::UnstableConfig)
    }
}

/// A device's own configuration structure. Fields beyond its length read as zero.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig<'a, R> {
    registers: &'a R,
    len: usize,
}

impl<R: Registers> DeviceConfig<'_, R> {
    /// Whether there is a byte at this offset.
    #[must_use]
    pub fn has(&self, offset: usize) -> bool {
        offset < self.len
    }

    /// An 8-bit field.
    #[must_use]
    pub fn field8(&self, offset: usize) -> u8 {
        if self.has(offset) { self.registers.read8(offset) } else { 0 }
    }

    /// A 32-bit field.
    #[must_use]
    pub fn field32(&self, offset: usize) -> u32 {
        if offset + 4 <= self.len { self.registers.read32(offset) } else { 0 }
    }

    /// A 64-bit field, read in halves (4.1.3.1).
    #[must_use]
    pub fn field64(&self, offset: usize) -> u64 {
        u64::from(self.field32(offset)) | (u64::from(self.field32(offset + 4)) << 32)
    }
}

/// Turns on the device's only interrupt.
///
/// # Errors
/// It has no MSI-X, or PCI's back gives no vector.
pub fn enable_interrupt<B: Bus>(
    function: &mut Function<'_, B>,
    capabilities: &[Capability],
) -> Result<Pirq, StartError> {
    if !capabilities.iter().any(|capability| capability.id == CAPABILITY_MSIX) {
        return Err(StartError::NoInterrupt);
    }
    let address = function.address();
    Ok(function.bus().enable_msix(address)?)
}

/// The first structure of this type, which the specification has us prefer (4.1.4), and its capability's offset.
fn find<B: Bus>(
    function: &mut Function<'_, B>,
    capabilities: &[Capability],
    kind: u8,
    min_len: u64,
) -> Result<(Place, u16), StartError> {
    for entry in capabilities.iter().filter(|entry| entry.id == CAPABILITY_VENDOR) {
        // Behind the length of the capability there is its type.
        let [_, entry_kind] = entry.head;
        if entry_kind != kind {
            continue;
        }
        let offset = u16::from(entry.offset);
        let bar = function.read8(offset + capability::BAR)?;
        if bar >= BARS {
            continue; // reserved values, to be ignored
        }
        let start = u64::from(function.read32(offset + capability::OFFSET)?);
        let len = u64::from(function.read32(offset + capability::LENGTH)?);
        let bar = function.bar(bar)?;
        if !start.is_multiple_of(4) || len < min_len || start + len > bar.len {
            return Err(StartError::BadStructure(kind));
        }
        let len = usize::try_from(len.min(MAX_STRUCTURE)).unwrap_or(usize::MAX);
        return Ok((Place { at: MachineAddr(bar.at.0 + start), len }, offset));
    }
    Err(StartError::NoStructure(kind))
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}
