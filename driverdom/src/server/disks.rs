//! The passed-through disks: found, scanned, served, flushed at the end.

use alloc::vec::Vec;

use blkback_core::Backend;
use blkback_core::backend::Capacity;
use blkback_core::disk::{Command, Tag};
use xen_proto::platform::SharedRing;

use super::platform::{OwnedDisk, Platform};
use super::scan::Scan;
use super::volumes::Volumes;
use crate::drivers::pci::Address;

/// What all vbds of a disk may have under way together: 8,192 pages are 32 MiB, more than the memory that driverdom has.
const CAPACITY: Capacity = Capacity { requests: 128, segments: 8192 };

/// All disks.
#[derive(Debug)]
pub(super) struct Disks<D> {
    scanning: Vec<Scan<D>>,
    served: Vec<D>,
    /// Disks whose last flush has not completed.
    flushing: Vec<usize>,
}

impl<D> Default for Disks<D> {
    fn default() -> Self {
        Self { scanning: Vec::new(), served: Vec::new(), flushing: Vec::new() }
    }
}

impl<D: OwnedDisk> Disks<D> {
    /// Takes a device into service.
    pub(super) fn attach<P: Platform<Disk = D>>(&mut self, address: Address, platform: &mut P) {
        match platform.start_disk(address) {
            Ok(disk) => self.scanning.push(Scan::start(disk)),
            Err(reason) => log::error!("PCI device {address}: {reason}; it is not used"),
        }
    }

    /// Takes a device out of service.
    pub(super) fn detach<P: Platform<Disk = D>>(&mut self, address: Address, platform: &mut P) {
        for disk in self.all().filter(|disk| disk.address() == address) {
            log::warn!("PCI device {address} is taken away: what guests ask of its volumes fails from now on");
            platform.stop_disk(disk);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut D> {
        self.scanning.iter_mut().map(|scan| &mut scan.disk).chain(&mut self.served)
    }

    /// Whether partition tables are being read.
    #[must_use]
    pub(super) fn is_scanning(&self) -> bool {
        !self.scanning.is_empty()
    }

    /// Serves the disks whose tables are read, in the order in which they came.
    pub(super) fn poll_scans<R: SharedRing>(&mut self, volumes: &mut Volumes, backend: &mut Backend<R>) {
        while let Some(partitions) = self.scanning.first_mut().and_then(Scan::poll) {
            let disk = self.scanning.remove(0).disk;
            let (geometry, limits) = (disk.geometry(), disk.limits());
            volumes.add_disk(geometry, partitions);
            backend.add_disk(geometry, limits, CAPACITY);
            self.served.push(disk);
        }
    }

    /// The disks in service, in the order of their ids.
    pub(super) fn served(&mut self) -> &mut [D] {
        &mut self.served
    }

    /// Flushes all disks, which have nothing under way.
    pub(super) fn start_flush(&mut self) {
        self.flushing = (0..self.served.len()).collect();
        for disk in &mut self.served {
            disk.submit(Tag(0), Command::Flush, &[]);
            disk.kick();
        }
    }

    /// Whether all flushes have completed, well or not.
    pub(super) fn poll_flush(&mut self) -> bool {
        let served = &mut self.served;
        self.flushing.retain(|number| match served[*number].complete() {
            None => true,
            Some((_, outcome)) => {
                log::info!("disk{number}: flushed ({outcome:?})");
                false
            }
        });
        self.flushing.is_empty()
    }

    /// Resets all disks.
    pub(super) fn stop<P: Platform<Disk = D>>(&mut self, platform: &mut P) {
        self.all().for_each(|disk| platform.stop_disk(disk));
    }
}
