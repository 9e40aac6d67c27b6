//! Reads the partition table of a disk before it is served.

use alloc::vec;
use alloc::vec::Vec;

use blkback_core::disk::Outcome;
use blkback_core::gpt::{GptError, Partition, Reader, Step, Want};

use super::platform::OwnedDisk;

/// A disk whose table is being read.
#[derive(Debug)]
pub(super) struct Scan<D> {
    /// The disk; nothing else uses it yet.
    pub(super) disk: D,
    reader: Reader,
    want: Option<Want>,
    result: Option<Result<Vec<Partition>, GptError>>,
}

impl<D: OwnedDisk> Scan<D> {
    /// Begins to read.
    #[must_use]
    pub(super) fn start(disk: D) -> Self {
        let (reader, step) = Reader::new(&disk.geometry());
        let mut scan = Self { disk, reader, want: None, result: None };
        scan.take(step);
        scan
    }

    /// Goes on with what the disk has read; the partitions, or why there are none, when it is through.
    pub(super) fn poll(&mut self) -> Option<Result<Vec<Partition>, GptError>> {
        while self.result.is_none() {
            let (_, outcome) = self.disk.complete()?;
            let bytes = self.want.take().filter(|_| outcome == Outcome::Done).map(|want| {
                let mut bytes = vec![0; want.bytes];
                self.disk.bytes_read(&mut bytes);
                bytes
            });
            let step = self.reader.feed(bytes.as_deref());
            self.take(step);
        }
        self.result.take()
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
