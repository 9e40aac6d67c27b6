//! Reading a disk for ourselves, through a page of our own: partition tables, before a disk is served.

use blkback_core::disk::{Command, Disk, DmaSegment, Tag};
use xen_proto::ids::PAGE_SIZE;

use super::hardware::DmaMemory;

/// A page to read into, one reading at a time.
#[derive(Debug)]
pub struct Bounce<P> {
    page: P,
    bytes: usize,
}

impl<P: DmaMemory> Bounce<P> {
    /// Reads into this page.
    #[must_use]
    pub const fn new(page: P) -> Self {
        Self { page, bytes: 0 }
    }

    /// Queues a reading of whole logical blocks, at most a page of them, from a sector of 512 bytes on, and kicks. The bytes
    /// are there when the disk has completed `tag`, which must be free; until then the page must be kept.
    ///
    /// # Panics
    /// If it asks for nothing or for more than a page.
    pub fn read(&mut self, disk: &mut impl Disk, tag: Tag, sector: u64, bytes: usize) {
        assert!((1..=PAGE_SIZE).contains(&bytes), "reading {bytes} bytes into a page");
        self.bytes = bytes;
        let len = u32::try_from(bytes).unwrap_or(0);
        disk.submit(tag, Command::Read(sector), &[DmaSegment { addr: self.page.addr(), len }]);
        disk.kick();
    }

    /// Copies out what was read, from its start.
    ///
    /// # Panics
    /// If it asks for more.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert!(into.len() <= self.bytes, "{} bytes of {} read", into.len(), self.bytes);
        self.page.read(0, into);
    }
}
