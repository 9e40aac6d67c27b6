//! What the server asks of the machine it runs on: the real one is `glue`, tests have one of values.

use alloc::string::String;

use blkback_core::disk::Disk;
use xen_proto::platform::{Events, Grants, PageBytes, Pages};
use xen_proto::{DomId, GrantRef, Port};

use crate::drivers::pci::Address;

/// A disk that the server owns.
pub trait OwnedDisk: Disk {
    /// Where it is on PCI.
    fn address(&self) -> Address;
    /// Reads whole logical blocks, at most a page, into a page of our own, as the only command under way. It shows up as
    /// complete under tag 0.
    fn start_reading(&mut self, sector: u64, bytes: usize);
    /// What [`OwnedDisk::start_reading`] read; asked once, after it completed well.
    fn bytes_read(&self, into: &mut [u8]);
}

/// The machine.
pub trait Platform {
    /// Grants to us and by us.
    type Grants: Grants;
    /// Event channels.
    type Events: Events;
    /// Our own memory.
    type Memory: Pages + PageBytes;
    /// A passed-through disk.
    type Disk: OwnedDisk;

    /// The parts that the block backend works with, side by side.
    fn parts(&mut self) -> Parts<'_, Self>;

    /// Takes bytes that xenstored sent; returns how many, zero if there are none.
    fn store_read(&mut self, into: &mut [u8]) -> usize;
    /// Gives bytes to xenstored; returns how many it takes now.
    fn store_write(&mut self, from: &[u8]) -> usize;

    /// Grants a page to PCI's back and offers it an event channel.
    ///
    /// # Errors
    /// Why not, for a person.
    fn open_pci_channel(&mut self, back: DomId) -> Result<(GrantRef, Port), String>;
    /// Ends what [`Platform::open_pci_channel`] began.
    fn close_pci_channel(&mut self);
    /// Resets a PCI device and starts its driver. Waits for PCI's back, at most a few seconds.
    ///
    /// # Errors
    /// Why it is of no use, for a person.
    fn start_disk(&mut self, address: Address) -> Result<Self::Disk, String>;
    /// Resets the disk, once: it reaches no memory any more, and all its commands come back as failed, also later ones.
    fn stop_disk(&mut self, disk: &mut Self::Disk);

    /// What is in use, for the counters.
    fn usage(&self) -> Usage;
}

/// Parts of a [`Platform`] that are used at the same time.
#[derive(Debug)]
pub struct Parts<'a, P: Platform + ?Sized> {
    /// Grants.
    pub grants: &'a mut P::Grants,
    /// Event channels.
    pub events: &'a mut P::Events,
    /// Memory.
    pub memory: &'a mut P::Memory,
}

/// What of Xen's and our own resources is in use: a leak shows here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Guests' rings that are mapped, each with an event channel.
    pub rings: usize,
    /// Guests' pages that a device may reach.
    pub mapped_pages: usize,
    /// Pages of ours that others may reach.
    pub granted_pages: usize,
    /// Free pages.
    pub free_pages: usize,
    /// Heap bytes in use.
    pub heap_bytes: usize,
    /// The most grant operations that were given to Xen at once, since the start.
    pub longest_batch: usize,
}
