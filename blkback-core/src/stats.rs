//! What a vbd has done: counters that only grow, and what is under way.

use core::ops::AddAssign;

use xen_proto::blkif::Status;

use crate::request::Action;

/// Counters of one vbd since it was connected, or of all since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Read requests answered with success.
    pub reads: u64,
    /// Write requests answered with success.
    pub writes: u64,
    /// Flush requests answered with success, with or without data.
    pub flushes: u64,
    /// Sectors of 512 bytes read.
    pub sectors_read: u64,
    /// Sectors of 512 bytes written.
    pub sectors_written: u64,
    /// Requests answered with an error, or as not supported.
    pub errors: u64,
    /// Requests under way now.
    pub in_flight: u32,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        let Self { reads, writes, flushes, sectors_read, sectors_written, errors, in_flight } = other;
        self.reads += reads;
        self.writes += writes;
        self.flushes += flushes;
        self.sectors_read += sectors_read;
        self.sectors_written += sectors_written;
        self.errors += errors;
        self.in_flight += in_flight;
    }
}

impl Stats {
    /// Counts an answered request.
    pub(crate) fn count(&mut self, action: Action, sectors: u64, status: Status) {
        if status != Status::Okay {
            self.errors += 1;
            return;
        }
        match action {
            Action::Read => {
                self.reads += 1;
                self.sectors_read += sectors;
            }
            Action::Write => {
                self.writes += 1;
                self.sectors_written += sectors;
            }
            Action::Flush => {
                self.flushes += 1;
                self.sectors_written += sectors;
            }
        }
    }
}
