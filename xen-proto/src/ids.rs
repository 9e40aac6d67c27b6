//! Newtypes for the numbers that must never be confused: domains, grants, ports, frames, addresses and time.

use core::fmt;
use core::ops::Add;

/// A domain's number (`domid_t`, xen.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomId(pub u16);

/// A grant reference: an index in the granting domain's grant table (`grant_ref_t`, grant_table.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantRef(pub u32);

/// A local event-channel port (`evtchn_port_t`, event_channel.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub u32);

/// A guest's own frame number ("pseudo-physical"). Neighbouring `Pfn`s are *not* neighbours in the machine (XSA-229).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pfn(pub u64);

/// A machine frame number: what page tables and devices use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mfn(pub u64);

/// A machine address in bytes; under PV passthrough it is also the DMA address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineAddr(pub u64);

/// Xen system time, or a span of it, in nanoseconds. Monotonic; starts when Xen started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

/// The bytes of a page; the only page size of a PV guest.
pub const PAGE_SIZE: usize = 4096;

impl Mfn {
    /// The machine address of the frame's first byte.
    #[must_use]
    pub const fn start(self) -> MachineAddr {
        MachineAddr(self.0 << 12)
    }
}

impl Nanos {
    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// The span in whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for GrantRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
