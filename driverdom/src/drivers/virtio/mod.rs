//! Virtio 1.2 over PCI, modern interface only: [`transport`] (registers and feature negotiation), [`queue`] (the split
//! virtqueue) and [`blk`] (a disk). Section numbers are those of the OASIS specification, version 1.2.

pub mod blk;
pub mod queue;
pub mod transport;

use core::fmt;

use super::hardware::{BusError, Refused};
use super::pci::ConfigError;

bitflags::bitflags! {
    /// Features that belong to no kind of device (2.2, 6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Common: u64 {
        /// A descriptor may point at a table of descriptors.
        const INDIRECT_DESC = 1 << 28;
        /// Each side names the index at which it wants to be told.
        const EVENT_IDX = 1 << 29;
        /// The modern interface.
        const VERSION_1 = 1 << 32;
        /// The device's accesses go through the platform's IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
        /// The device orders its accesses as a device on the bus does; our barriers are full ones, so nothing more is needed.
        const ORDER_PLATFORM = 1 << 36;
    }
}

/// A device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Its configuration space is of no use.
    Config(ConfigError),
    /// Xen refused registers or the interrupt.
    Xen(Refused),
    /// It is not the kind of device that the driver is for.
    NotThisKind,
    /// It lacks the capability of the modern interface of this type (4.1.4).
    NoStructure(u8),
    /// A structure lies outside its base address register, or is too short or misaligned.
    BadStructure(u8),
    /// It cannot interrupt by MSI-X, or took no vector.
    NoInterrupt,
    /// It did not finish its reset.
    ResetTimeout,
    /// It lacks features that we need (bits).
    MissingFeatures(u64),
    /// It took back features that it had offered (bits agreed upon).
    FeaturesRefused(u64),
    /// Its queue is absent, in use or of a size that is no power of two.
    BadQueue(u16),
    /// Its configuration changes faster than it can be read.
    UnstableConfig,
    /// What it says of its shape makes no sense.
    BadGeometry,
    /// Out of memory for its queue.
    NoMemory,
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<BusError> for StartError {
    fn from(error: BusError) -> Self {
        Self::Config(ConfigError::Bus(error))
    }
}

impl From<Refused> for StartError {
    fn from(error: Refused) -> Self {
        Self::Xen(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Xen(error) => error.fmt(f),
            Self::NotThisKind => f.write_str("no driver for this kind of device"),
            Self::NoStructure(kind) => write!(f, "no modern virtio structure {kind} (disable-modern=on?)"),
            Self::BadStructure(kind) => write!(f, "virtio structure {kind} lies outside its registers"),
            Self::NoInterrupt => f.write_str("no MSI-X interrupt"),
            Self::ResetTimeout => f.write_str("the device does not finish its reset"),
            Self::MissingFeatures(bits) => write!(f, "the device lacks features {bits:#x}"),
            Self::FeaturesRefused(bits) => write!(f, "the device refuses features {bits:#x}"),
            Self::BadQueue(size) => write!(f, "the device's queue is of no use (size {size})"),
            Self::UnstableConfig => f.write_str("the device's configuration does not hold still"),
            Self::BadGeometry => f.write_str("the device reports an impossible geometry"),
            Self::NoMemory => f.write_str("out of memory for the device's queue (raise memory= of driverdom)"),
        }
    }
}
