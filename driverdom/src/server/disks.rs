//! The passed-through disks: found, scanned, served, flushed at the end.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use blkback_core::Backend;
use blkback_core::backend::Capacity;
use blkback_core::disk::{Command, DiskId, Tag};
use xen_proto::Nanos;
use xen_proto::platform::SharedRing;

use super::platform::{OwnedDisk, Platform};
use super::scan::{SCAN_PATIENCE, Scan};
use super::volumes::Volumes;
use crate::drivers::pci::Address;

/// What all vbds of a disk may have under way together: 8,192 pages are 32 MiB, more than the memory that driverdom has.
const CAPACITY: Capacity = Capacity { requests: 128, segments: 8192 };

/// Each disk that ever came keeps its share of the heap.
const TOO_MANY: &str = "not enough memory for another disk (raise memory= of driverdom)";

/// All disks.
#[derive(Debug)]
pub(super) struct Disks<D> {
    scanning: Vec<Scan<D>>,
    served: Vec<D>,
    /// Numbers of disks in [`Self::served`] that were stopped: they keep their place, and fail all commands.
    stopped: BTreeSet<usize>,
    /// Disks whose last flush has not completed.
    flushing: Vec<usize>,
}

impl<D> Default for Disks<D> {
    fn default() -> Self {
        Self { scanning: Vec::new(), served: Vec::new(), stopped: BTreeSet::new(), flushing: Vec::new() }
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
    pub(super) fn detach<P: Platform<Disk = D>>(&mut self, address: Address, volumes: &mut Volumes, platform: &mut P) {
        if let Some(at) = self.scanning.iter().position(|scan| scan.disk.address() == address) {
            stop_scan(self.scanning.remove(at), platform);
        }
        let Some((number, _)) = self.running().find(|(_, disk)| disk.address() == address) else { return };
        log::warn!("disk{number} ({address}) is taken away: what guests ask of its volumes fails from now on");
        self.reset(number, platform);
        volumes.withdraw_disk(number, "that disk was taken away");
    }

    fn reset<P: Platform<Disk = D>>(&mut self, number: usize, platform: &mut P) {
        if self.stopped.insert(number) {
            platform.stop_disk(&mut self.served[number]);
        }
    }

    /// Resets the disks that have something under way, be it a guest's or the last flush.
    pub(super) fn reset_busy<P: Platform<Disk = D>, R: SharedRing>(&mut self, backend: &Backend<R>, platform: &mut P) {
        for (number, id) in (0..self.served.len()).zip((0..).map(DiskId)) {
            if !backend.is_idle(id) || self.flushing.contains(&number) {
                log::error!("disk{number} does not answer: it is reset, and what is under way fails");
                self.reset(number, platform);
            }
        }
    }

    /// The disks in service that were not stopped, with their numbers.
    fn running(&mut self) -> impl Iterator<Item = (usize, &mut D)> {
        let stopped = &self.stopped;
        self.served.iter_mut().enumerate().filter(|(number, _)| !stopped.contains(number))
    }

    /// Whether partition tables are being read.
    #[must_use]
    pub(super) fn is_scanning(&self) -> bool {
        !self.scanning.is_empty()
    }

    /// The time of scans that began in the last turn runs from this one on: the start of a disk waits, also for those that
    /// are started after it.
    pub(super) fn time_scans(&mut self, now: Nanos) {
        self.scanning.iter_mut().for_each(|scan| {
            scan.until.get_or_insert(now + SCAN_PATIENCE);
        });
    }

    /// When a scan has taken too long.
    #[must_use]
    pub(super) fn scan_deadline(&self) -> Option<Nanos> {
        self.scanning.iter().filter(|scan| scan.result.is_none()).filter_map(|scan| scan.until).min()
    }

    /// Goes on with all scans. Serves the disks that are through, in the order in which they came; a disk that did not answer
    /// keeps its number, lest the next be taken for it.
    pub(super) fn poll_scans<P: Platform<Disk = D>, R: SharedRing>(
        &mut self,
        now: Nanos,
        volumes: &mut Volumes,
        backend: &mut Backend<R>,
        platform: &mut P,
    ) {
        self.scanning.iter_mut().for_each(|scan| scan.poll(now, platform));
        while let Some(partitions) = self.scanning.first_mut().and_then(|scan| scan.result.take()) {
            let scan = self.scanning.remove(0);
            let (number, geometry, limits) = (self.served.len(), scan.disk.geometry(), scan.disk.limits());
            if backend.add_disk(geometry, limits, CAPACITY).is_none() {
                log::error!("PCI device {}: {TOO_MANY}; it is not used", scan.disk.address());
                stop_scan(scan, platform);
                continue;
            }
            let Scan { disk, given_up, .. } = scan;
            volumes.add_disk(geometry, partitions);
            if given_up {
                self.stopped.insert(number);
                volumes.withdraw_disk(number, "that disk does not answer");
            }
            self.served.push(disk);
        }
    }

    /// The disks in service, in the order of their ids.
    pub(super) fn served(&mut self) -> &mut [D] {
        &mut self.served
    }

    /// Flushes all disks, which have nothing under way.
    pub(super) fn start_flush(&mut self) {
        let flush = |(number, disk): (usize, &mut D)| {
            disk.submit(Tag(0), Command::Flush, &[]);
            disk.kick();
            number
        };
        self.flushing = self.running().map(flush).collect();
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

    /// Resets all disks that run.
    pub(super) fn stop<P: Platform<Disk = D>>(&mut self, platform: &mut P) {
        (0..self.served.len()).for_each(|number| self.reset(number, platform));
        self.scanning.drain(..).for_each(|scan| stop_scan(scan, platform));
    }
}

/// Resets a disk whose table is being read, unless that was done.
fn stop_scan<P: Platform>(mut scan: Scan<P::Disk>, platform: &mut P) {
    if !scan.given_up {
        platform.stop_disk(&mut scan.disk);
    }
}
