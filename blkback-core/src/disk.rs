//! What the backend asks of a disk: a queue of scatter-gather commands that complete by tag, in any order.

use core::fmt;

use xen_proto::MachineAddr;

/// The unit of every sector number in the block ring's ABI and in [`Disk`], whatever a disk's logical block: 512 bytes (blkif.h).
pub const SECTOR_BYTES: u64 = 512;

/// A disk of this driver domain, counted from 0 in the order in which they were added: `disk0`, `disk1`...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub u16);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk{}", self.0)
    }
}

/// What a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// Logical block in bytes: power of two, at least 512. Commands must be multiples of it.
    pub logical_block: u32,
    /// Physical block in bytes: power of two, at least the logical block.
    pub physical_block: u32,
    /// Whether the disk may be written.
    pub writable: bool,
    /// Whether it has a volatile write cache, so that only a flush makes data durable.
    pub write_cache: bool,
}

/// How much one command may carry and how many fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Segments of one command; at least 1.
    pub segments: usize,
    /// Commands under way at once; at least 1.
    pub depth: usize,
}

/// Names a command until it completes; chosen by the caller, unique among those under way, below [`Limits::depth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Disk to memory, from this sector.
    Read(u64),
    /// Memory to disk, from this sector.
    Write(u64),
    /// Makes every write that completed before it durable.
    Flush,
}

/// One run of memory that a device reads or writes; never crosses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaSegment {
    /// First byte.
    pub addr: MachineAddr,
    /// Bytes; a multiple of 512, at most a page.
    pub len: u32,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// The device reports an error; nothing may be assumed about the data.
    Failed,
    /// The device does not know the command.
    Unsupported,
}

/// A disk with a queue. Nothing waits: a command is taken or refused, and shows up as complete later.
pub trait Disk {
    /// What it is; constant.
    fn geometry(&self) -> Geometry;
    /// What it takes; constant.
    fn limits(&self) -> Limits;
    /// Queues a command. The caller keeps within [`Limits`] and the geometry; the memory stays mapped until completion.
    /// The device may be told only by [`Disk::kick`].
    fn submit(&mut self, tag: Tag, command: Command, segments: &[DmaSegment]);
    /// Tells the device of what was queued, once for many.
    fn kick(&mut self);
    /// The next completed command, if any. Only after `None` does the disk announce the next one by its interrupt: who sleeps
    /// has asked until `None`, after whatever was given to it last: a disk that has failed completes that at once, and silently.
    fn complete(&mut self) -> Option<(Tag, Outcome)>;
}
