//! The small tasks of which all work on a device consists: each is a batch of requests, or a few after each other.

use xen_proto::xenstore::Transaction;

use super::Rings;
use super::batch::Batch;
use super::change::{Change, Outcome};

/// Where a task is.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) stage: Stage,
    /// The requests of this stage.
    pub(super) batch: Batch,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Reading what is to be known of the device: [`REFRESH`].
    Refresh,
    /// Reading what the frontend published.
    Rings,
    /// Reading the rest of it: a ring of so many pages.
    RingPages(Rings, usize),
    /// Starting the transaction of a change.
    Start(Change),
    /// Reading and writing in it.
    Body(Change, Transaction),
    /// Ending it.
    End(Change, Outcome),
}

/// What a refresh reads of our directory, in the order of the batch; the frontend's `state` follows, then [`CONFIG`].
pub(super) const REFRESH: [&str; 2] = ["state", "online"];
/// The slot of the frontend's `state`.
pub(super) const FRONTEND_SLOT: usize = REFRESH.len();
/// What a refresh also reads of a device of which nothing is held yet.
pub(super) const CONFIG: [&str; 3] = ["params", "mode", "device-type"];
/// The slot of the first of [`CONFIG`].
pub(super) const CONFIG_SLOT: usize = FRONTEND_SLOT + 1;

/// What a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// This slot of the batch of this device's task.
    Device(blkback_core::backend::VbdId, usize),
    /// The watch on all our devices.
    WatchBackend,
    /// The watch on a guest's directory.
    WatchGuest(xen_proto::DomId),
    /// Which kinds of device there are.
    ListKinds,
    /// Which guests have block devices.
    ListGuests,
    /// Which block devices a guest has.
    ListDevices(xen_proto::DomId),
    /// What the toolstack asks of the domain.
    Control(super::control::Control),
    /// Nothing depends on it; a failure is logged.
    Courtesy(&'static str),
}
