//! Reads the partition table of a disk before it is served.

use alloc::vec;
use alloc::vec::Vec;

use blkback_core::disk::Outcome;
use blkback_core::gpt::{GptError, Partition, Reader, Step, Want};
use xen_proto::Nanos;

use super::platform::{OwnedDisk, Platform};

/// How long a scan may take. Guests wait for it when we start, and libxl waits 10 s for an attach.
pub(super) const SCAN_PATIENCE: Nanos = Nanos::from_millis(3_000);

/// A disk whose table is being read.
#[derive(Debug)]
pub(super) struct Scan<D> {
    /// The disk; nothing else uses it yet.
    pub(super) disk: D,
    reader: Reader,
    want: Option<Want>,
    /// The partitions, or why there are none, when it is through.
    pub(super) result: Option<Result<Vec<Partition>, GptError>>,
    /// When it is given up; none until the first turn after it began.
    pub(super) until: Option<Nanos>,
    /// It was given up: the disk was stopped and fails all commands.
    pub(super) given_up: bool,
}

impl<D: OwnedDisk> Scan<D> {
    /// Begins to read.
    #[must_use]
    pub(super) fn start(disk: D) -> Self {
        let (reader, step) = Reader::new(&disk.geometry());
        let mut scan = Self { disk, reader, want: None, result: None, until: None, given_up: false };
        scan.take(step);
        scan
    }

    /// Goes on with what the disk has read.
    fn go_on(&mut self) {
        while self.result.is_none()
            && let Some((_, outcome)) = self.disk.complete()
        {
            let bytes = self.want.take().filter(|_| outcome == Outcome::Done).map(|want| {
                let mut bytes = vec![0; want.bytes];
                self.disk.bytes_read(&mut bytes);
                bytes
            });
            let step = self.reader.feed(bytes.as_deref());
            self.take(step);
        }
    }

    /// Goes on, or stops the disk if it has not answered in time.
    pub(super) fn poll<P: Platform<Disk = D>>(&mut self, now: Nanos, platform: &mut P) {
        self.go_on();
        if self.result.is_none() && !self.given_up && self.until.is_some_and(|until| until <= now) {
            let address = self.disk.address();
            log::error!("PCI device {address} does not answer the reading of its partition table: it is not used");
            platform.stop_disk(&mut self.disk);
            self.given_up = true;
            // All reads fail now, this one first.
            self.go_on();
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Read(want) => {
                self.disk.start_reading(want.sector, want.bytes);
                self.want = Some(want);
            }
            Step::Done(partitions) => self.result = Some(Ok(partitions)),
            Step::Failed(error) => self.result = Some(Err(error)),
        }
    }
}
