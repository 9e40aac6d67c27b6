//! The device's side of a split virtqueue: takes chains and checks them by the book, completes them, and lies when told to.

use std::vec::Vec;

use super::memory::Memory;
use crate::drivers::virtio::queue::{Areas, Suppression};

/// What a device found in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) head: u16,
    pub(crate) readable: Vec<(u64, u32)>,
    pub(crate) writable: Vec<(u64, u32)>,
}

impl Chain {
    pub(crate) fn writable_bytes(&self) -> u32 {
        self.writable.iter().map(|(_, len)| len).sum()
    }
}

/// The device's side.
pub(crate) struct DeviceQueue {
    pub(crate) memory: Memory,
    areas: Areas,
    size: u16,
    suppression: Suppression,
    taken: u16,
    completed: u16,
    /// Interrupts sent.
    pub(crate) interrupts: usize,
}

impl DeviceQueue {
    pub(crate) fn new(memory: Memory, areas: Areas, size: u16, suppression: Suppression) -> Self {
        let whole = |addr: u64, align: u64, len: usize| {
            assert!(addr != 0 && addr.is_multiple_of(align), "area at {addr:#x}");
            memory.peek(addr, len); // lies in one page
        };
        let entries = usize::from(size);
        whole(areas.descriptors.0, 16, 16 * entries);
        whole(areas.driver.0, 2, 6 + 2 * entries);
        whole(areas.device.0, 4, 6 + 8 * entries);
        Self { memory, areas, size, suppression, taken: 0, completed: 0, interrupts: 0 }
    }

    /// The next chain, taken out of the queue.
    pub(crate) fn take(&mut self) -> Option<Chain> {
        let waiting = self.memory.peek16(self.areas.driver.0 + 2).wrapping_sub(self.taken);
        assert!(waiting <= self.size, "the driver's index jumped by {waiting}");
        if waiting == 0 {
            return None;
        }
        let head = self.memory.peek16(self.areas.driver.0 + 4 + 2 * u64::from(self.taken % self.size));
        assert!(head < self.size, "descriptor {head} of {}", self.size);
        self.taken = self.taken.wrapping_add(1);
        Some(self.chain(head))
    }

    /// Asks to be told of the next entry, as a device does before it looks away.
    pub(crate) fn want_notice(&self) {
        match self.suppression {
            Suppression::Flags => self.memory.poke(self.areas.device.0, &[0, 0]),
            Suppression::EventIndex => self.memory.poke(self.avail_event(), &self.taken.to_le_bytes()),
        }
    }

    /// Asks not to be told.
    pub(crate) fn refuse_notice(&self) {
        match self.suppression {
            Suppression::Flags => self.memory.poke(self.areas.device.0, &[1, 0]),
            Suppression::EventIndex => {
                self.memory.poke(self.avail_event(), &self.taken.wrapping_sub(1).to_le_bytes());
            }
        }
    }

    /// Reports a chain as done and interrupts if the driver wants it.
    pub(crate) fn complete(&mut self, head: u16, written: u32) {
        self.report(head.into(), written);
        let old = self.completed;
        self.show(1);
        let interrupt = match self.suppression {
            Suppression::Flags => self.memory.peek16(self.areas.driver.0) & 1 == 0,
            Suppression::EventIndex => {
                let event = self.memory.peek16(self.areas.driver.0 + 4 + 2 * u64::from(self.size));
                event == old // the completion at this very index
            }
        };
        self.interrupts += usize::from(interrupt);
    }

    /// Writes an entry that is not shown yet.
    pub(crate) fn report(&self, id: u32, written: u32) {
        let entry = self.areas.device.0 + 4 + 8 * u64::from(self.completed % self.size);
        self.memory.poke(entry, &[id.to_le_bytes(), written.to_le_bytes()].concat());
    }

    /// Moves the device's index.
    pub(crate) fn show(&mut self, entries: u16) {
        self.completed = self.completed.wrapping_add(entries);
        self.memory.poke(self.areas.device.0 + 2, &self.completed.to_le_bytes());
    }

    fn avail_event(&self) -> u64 {
        self.areas.device.0 + 4 + 8 * u64::from(self.size)
    }

    fn chain(&self, head: u16) -> Chain {
        let descriptor = |at: u64| {
            let bytes = self.memory.peek(at, 16);
            let word =
                |range: std::ops::Range<usize>| bytes[range].iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b));
            (word(0..8), word(8..12) as u32, word(12..14) as u16, word(14..16) as u16)
        };
        let (table, bytes, flags, _) = descriptor(self.areas.descriptors.0 + 16 * u64::from(head));
        assert_eq!(flags, 4, "a descriptor is indirect and nothing else");
        assert!(bytes > 0 && bytes.is_multiple_of(16), "table of {bytes} bytes");
        self.memory.peek(table, bytes as usize); // lies in one page
        let count = bytes / 16;
        assert!(count <= u32::from(self.size), "chain of {count} in a queue of {}", self.size);
        let mut chain = Chain { head, ..Chain::default() };
        for n in 0..count {
            let (addr, len, flags, next) = descriptor(table + 16 * u64::from(n));
            assert!(len > 0, "empty buffer");
            self.memory.peek(addr, len as usize); // memory, and in one page
            assert_eq!(flags & 1 != 0, n + 1 < count, "the chain is as long as its table");
            assert!(flags & 1 == 0 || u32::from(next) == n + 1, "in the table's order");
            assert_eq!(flags & !3, 0, "flags {flags:#x}");
            if flags & 2 != 0 {
                chain.writable.push((addr, len));
            } else {
                assert!(chain.writable.is_empty(), "buffer to read after one to write");
                chain.readable.push((addr, len));
            }
        }
        chain
    }
}
