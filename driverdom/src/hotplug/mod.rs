//! Hotplug inside the process: what a toolstack, scripts and a daemon do elsewhere, as one state machine per device driven by
//! xenstore. There is no script, no lock and no thread; all devices go side by side, and the work of an attach does not depend
//! on how many devices there are.
//!
//! [`Hotplug`] reconciles. A watch event only marks a device as changed. A changed device reads its nodes in one batch (unless its
//! volume was just opened: the transaction that offers it reads them), the
//! table in [`xen_proto::xenbus`] says what to do, and that is done as one small task: a batch of reads, a transaction, or an
//! [`Action`] for the block backend. Then the table is asked again, until nothing is to be done. Few tasks run at once; devices
//! wait for their turn in a queue that is fair between *guests*, so one that writes its nodes in a loop delays no other.
//!
//! **Invariant**: nothing is written into a device's directory but in a transaction that has read its `state`.
//! **Invariant**: at most one task or action of a device is under way.
//! **Invariant**: nothing a guest writes makes us grow: events are merged into one mark per device, and devices are made by dom0.
//!
//! Neighbours: the loop moves bytes between [`Client`](xen_proto::xenstore::Client) and the xenstore ring and carries out actions.

mod batch;
mod change;
mod control;
mod decide;
mod device;
mod engine;
mod frontend;
mod guest;
mod listing;
mod paths;
mod reasons;
mod stages;
mod statistics;
mod task;
#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use blkback_core::backend::VbdId;
use blkback_core::volume::Mode;
use xen_proto::GrantRef;
use xen_proto::blkif::Abi;

pub use engine::{DRAIN_GRACE, DRAINING_VOLUME_PATIENCE, Hotplug, MAX_TASKS};
pub use reasons::{MAX_REASONS, REASON_LIFE};
pub use statistics::{Histogram, Statistics};

/// What is to be done outside of xenstore. All but [`Action::Close`] and the last three are answered by [`Hotplug::done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find the volume and claim it: [`Answer::Opened`], [`Answer::Draining`] or [`Answer::Refused`].
    Open {
        /// For which vbd.
        device: VbdId,
        /// `target=` of the disk's configuration, as it was written.
        target: String,
        /// Whether the guest may write.
        mode: Mode,
    },
    /// Map the rings and bind the event channel: [`Answer::Connected`] or [`Answer::ConnectFailed`].
    Connect {
        /// Which vbd; it holds a volume.
        device: VbdId,
        /// Where the frontend is to be found.
        rings: Rings,
    },
    /// Finish what is under way, unmap the rings, close the event channel: [`Answer::Disconnected`] when all that is done. The
    /// volume stays claimed.
    Disconnect {
        /// Which vbd; it holds a volume and rings.
        device: VbdId,
        /// Whether it will hold the volume for long.
        claim: Claim,
    },
    /// Give up the claim on the volume, at once.
    Close {
        /// Which vbd; it holds a volume and no rings.
        device: VbdId,
    },
    /// The toolstack wants the domain to end. Nothing has been done about it yet: see [`Hotplug::drain`].
    Shutdown(Shutdown),
    /// A person wants the domain to crash (`xl sysrq driverdom c`), to see how the host gets over it.
    Crash,
    /// xenstore refuses what nothing goes without; the reason is for a person.
    Unusable(String),
}

/// What is to be expected of the claim of a vbd that is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The device goes for good, and its claim with it: who wants the volume may wait for it.
    Draining,
    /// Only the frontend has closed, and may come back: nobody else can have the volume.
    Kept,
}

/// How an [`Action`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The volume is claimed.
    Opened(Properties),
    /// The volume will be free soon, without anybody's doing: nothing is claimed; ask again after [`Hotplug::volume_released`].
    Draining,
    /// The volume cannot be had, for this reason; nothing is claimed.
    Refused(String),
    /// Rings and event channel are there.
    Connected,
    /// They are not, by the frontend's fault; nothing is held but the volume.
    ConnectFailed(String),
    /// Rings and event channel are gone.
    Disconnected,
}

/// What a frontend is told of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// Logical block in bytes.
    pub sector_size: u32,
    /// Physical block in bytes.
    pub physical_sector_size: u32,
    /// Whether there is a volatile write cache, so that a flush means something.
    pub flush_cache: FlushCache,
}

/// The key `feature-flush-cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushCache {
    /// Flushes are taken.
    Offered,
    /// They are not: no write cache, or the device does not know how.
    Absent,
}

/// What a frontend published to be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rings {
    /// The pages of its one ring, in order: 1, 2, 4, 8 or 16.
    pub pages: Vec<GrantRef>,
    /// The event channel it offers, by *its* number.
    pub event_channel: u32,
    /// The layout of its requests.
    pub abi: Abi,
}

/// What `control/shutdown` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// `poweroff`.
    PowerOff,
    /// `reboot`.
    Reboot,
    /// `halt`.
    Halt,
}
