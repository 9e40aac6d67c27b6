//! The split virtqueue (2.7), with one indirect table a slot (2.7.5.3).
//!
//! A *slot* is a place for one chain of buffers under way; the caller numbers it. Descriptor `n` of the queue belongs to slot
//! `n` for good and points at its own table, so there is no list of free descriptors to keep, and what the device reports is
//! checked against private state only. The rings and the descriptors are written and, but for the device's own part, never
//! read back.
//!
//! Memory: two pages, and half a page a slot, so that a table never crosses a page: neighbouring pages of ours are not
//! neighbours in the machine.

use alloc::vec::Vec;
use core::fmt;

use xen_proto::MachineAddr;

use super::Common;
use crate::drivers::hardware::DmaMemory;

/// Most buffers in a chain: a table's descriptors.
pub const MAX_CHAIN: usize = 128;
/// Most entries of a queue: its descriptors fill a page.
pub const MAX_SIZE: u16 = 256;

/// Bytes of a descriptor (2.7.5).
const DESCRIPTOR: usize = 16;
/// Bytes of a slot's table.
const TABLE: usize = MAX_CHAIN * DESCRIPTOR;
/// Tables in a page.
const TABLES_A_PAGE: usize = 2;
/// Where the device's area (2.7.8) starts in the page of the rings; the driver's area (2.7.6) starts at 0.
const DEVICE_AREA: usize = 1024;
/// The device's area: its flags.
const USED_FLAGS: usize = DEVICE_AREA;
/// The device's area: its index.
const USED_IDX: usize = DEVICE_AREA + 2;
/// The device's area: its entries of 8 bytes.
const USED_RING: usize = DEVICE_AREA + 4;
/// The driver's area: our flags.
const AVAIL_FLAGS: usize = 0;
/// The driver's area: our index.
const AVAIL_IDX: usize = 2;
/// The driver's area: our entries of 2 bytes.
const AVAIL_RING: usize = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`: each side asks the other not to tell it.
const DO_NOT_TELL: u16 = 1;

/// Bits of a descriptor's flags (2.7.5).
mod flag {
    pub(super) const NEXT: u16 = 1;
    pub(super) const WRITE: u16 = 2;
    pub(super) const INDIRECT: u16 = 4;
}

/// What a device does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It reads it.
    ToDevice,
    /// It writes it.
    FromDevice,
}

/// A buffer of a chain; never crosses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// First byte.
    pub addr: MachineAddr,
    /// Bytes.
    pub len: u32,
    /// What the device does with it.
    pub direction: Direction,
}

/// How the two sides keep each other from telling needlessly; agreed with the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// By flags (2.7.7, 2.7.10).
    Flags,
    /// By the index at which to tell (`EVENT_IDX`, 2.7.7.2, 2.7.10.1).
    EventIndex,
}

impl Suppression {
    /// The better way that both sides know.
    #[must_use]
    pub const fn agreed(features: Common) -> Self {
        if features.contains(Common::EVENT_IDX) { Self::EventIndex } else { Self::Flags }
    }
}

/// Where the device finds a queue's areas (2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The descriptors.
    pub descriptors: MachineAddr,
    /// What the driver writes.
    pub driver: MachineAddr,
    /// What the device writes.
    pub device: MachineAddr,
}

/// Whether the device must be told of new entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Ring its doorbell.
    Needed,
    /// It looks by itself.
    Unneeded,
}

/// The device broke the queue's rules; nothing it says of the queue can be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It claims to have completed more than is under way: its index and ours.
    Index(u16, u16),
    /// It completed this, which is not under way.
    Id(u32),
    /// It claims to have written this many bytes, more than the chain has room for.
    Length(u32),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(used, taken) => write!(f, "used index {used} after {taken}"),
            Self::Id(id) => write!(f, "completed {id:#x}, which is not under way"),
            Self::Length(len) => write!(f, "wrote {len} bytes, more than there is room for"),
        }
    }
}

/// Whether the device is to interrupt for the next completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupts {
    Wanted,
    Unwanted,
}

/// A queue.
#[derive(Debug)]
pub struct Virtqueue<P> {
    descriptors: P,
    rings: P,
    tables: Vec<P>,
    size: u16,
    suppression: Suppression,
    /// For each slot under way, how many bytes its chain lets the device write.
    slots: Vec<Option<u32>>,
    in_flight: u16,
    /// Entries written, and of those the ones that the device may see. Both wrap at 65536, like all that follow.
    next_avail: u16,
    published: u16,
    /// Entries taken.
    next_used: u16,
    interrupts: Interrupts,
}

impl<P: DmaMemory> Virtqueue<P> {
    /// A queue of `size` entries, a power of two up to [`MAX_SIZE`], with up to `slots` chains under way. Interrupts are
    /// unwanted until [`Virtqueue::pop`] found nothing. `None` when memory is used up.
    ///
    /// # Panics
    /// If the numbers break these rules.
    pub fn new(
        size: u16,
        slots: u16,
        suppression: Suppression,
        mut take_page: impl FnMut() -> Option<P>,
    ) -> Option<Self> {
        assert!(size.is_power_of_two() && size <= MAX_SIZE && slots <= size, "queue of {size} with {slots} slots");
        let pages = usize::from(slots).div_ceil(TABLES_A_PAGE);
        let mut queue = Self {
            descriptors: take_page()?,
            rings: take_page()?,
            tables: (0..pages).map(|_| take_page()).collect::<Option<_>>()?,
            size,
            suppression,
            slots: (0..slots).map(|_| None).collect(),
            in_flight: 0,
            next_avail: 0,
            published: 0,
            next_used: 0,
            interrupts: Interrupts::Unwanted,
        };
        if suppression == Suppression::Flags {
            queue.rings.store16(AVAIL_FLAGS, DO_NOT_TELL);
        } else {
            let event = queue.used_event();
            queue.rings.store16(event, queue.next_used.wrapping_sub(1));
        }
        Some(queue)
    }

    /// Where the device finds it.
    #[must_use]
    pub fn areas(&self) -> Areas {
        let rings = self.rings.addr();
        Areas { descriptors: self.descriptors.addr(), driver: rings, device: MachineAddr(rings.0 + DEVICE_AREA as u64) }
    }

    /// Puts a chain into a slot: what the device reads first, then what it writes. It sees it with [`Virtqueue::publish`].
    ///
    /// # Panics
    /// If the slot is in use or no slot, or the chain is empty or longer than [`MAX_CHAIN`] or the queue (2.7.5.3.1): the
    /// caller's mistake.
    pub fn push(&mut self, slot: u16, chain: impl IntoIterator<Item = Buffer>) {
        let index = usize::from(slot);
        assert!(self.slots[index].is_none(), "slot {slot} is in use");
        let table = &mut self.tables[index / TABLES_A_PAGE];
        let start = (index % TABLES_A_PAGE) * TABLE;
        let mut chain = chain.into_iter().peekable();
        let (mut count, mut writable) = (0, 0_u32);
        while let Some(buffer) = chain.next() {
            assert!(count < MAX_CHAIN.min(self.size.into()), "chain too long");
            let mut flags = 0;
            if buffer.direction == Direction::FromDevice {
                flags |= flag::WRITE;
                writable += buffer.len;
            } else {
                assert!(writable == 0, "buffer to read after one to write");
            }
            if chain.peek().is_some() {
                flags |= flag::NEXT;
            }
            let next = u16::try_from(count + 1).unwrap_or(0);
            store_descriptor(table, start + count * DESCRIPTOR, buffer.addr, buffer.len, flags, next);
            count += 1;
        }
        assert!(count > 0, "empty chain");
        let bytes = u32::try_from(count * DESCRIPTOR).unwrap_or(0);
        let table = MachineAddr(table.addr().0 + start as u64);
        store_descriptor(&mut self.descriptors, index * DESCRIPTOR, table, bytes, flag::INDIRECT, 0);
        let entry = AVAIL_RING + 2 * self.ring_index(self.next_avail);
        self.rings.store16(entry, slot);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.slots[index] = Some(writable);
        self.in_flight += 1;
    }

    /// Shows the device all that was pushed, and says whether it must be told.
    #[must_use]
    pub fn publish(&mut self) -> Notice {
        let old = core::mem::replace(&mut self.published, self.next_avail);
        if old == self.next_avail {
            return Notice::Unneeded;
        }
        self.rings.store16(AVAIL_IDX, self.next_avail);
        self.rings.fence();
        let needed = match self.suppression {
            Suppression::Flags => self.rings.load16(USED_FLAGS) & DO_NOT_TELL == 0,
            Suppression::EventIndex => passes(self.rings.load16(self.avail_event()), old, self.next_avail),
        };
        if needed { Notice::Needed } else { Notice::Unneeded }
    }

    /// The next slot that the device is done with. While there are any, it is kept from interrupting; `None` means that there
    /// was none after it was told to interrupt for the next: the caller may sleep.
    ///
    /// # Errors
    /// [`Broken`]: the queue must be given up.
    pub fn pop(&mut self) -> Result<Option<u16>, Broken> {
        if !self.has_used()? {
            if self.interrupts == Interrupts::Wanted {
                return Ok(None);
            }
            self.want_interrupts();
            if !self.has_used()? {
                return Ok(None);
            }
        }
        self.unwant_interrupts();
        let entry = USED_RING + 8 * self.ring_index(self.next_used);
        let (id, len) = (self.rings.load32(entry), self.rings.load32(entry + 4));
        let slot = u16::try_from(id).map_err(|_| Broken::Id(id))?;
        let state = self.slots.get_mut(usize::from(slot)).ok_or(Broken::Id(id))?;
        let writable = state.ok_or(Broken::Id(id))?;
        if len > writable {
            return Err(Broken::Length(len));
        }
        *state = None;
        self.in_flight -= 1;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some(slot))
    }

    /// Takes back a slot under way from a device that can reach it no more.
    pub fn reclaim(&mut self) -> Option<u16> {
        let index = self.slots.iter().position(Option::is_some)?;
        self.slots[index] = None;
        self.in_flight -= 1;
        u16::try_from(index).ok()
    }

    /// Whether the device has completed something; it cannot have completed more than the device was shown.
    fn has_used(&self) -> Result<bool, Broken> {
        let used = self.rings.load16(USED_IDX);
        let unpublished = self.next_avail.wrapping_sub(self.published);
        if used.wrapping_sub(self.next_used) > self.in_flight - unpublished {
            return Err(Broken::Index(used, self.next_used));
        }
        Ok(used != self.next_used)
    }

    fn want_interrupts(&mut self) {
        let event = self.used_event();
        self.interrupts = Interrupts::Wanted;
        match self.suppression {
            Suppression::Flags => self.rings.store16(AVAIL_FLAGS, 0),
            Suppression::EventIndex => self.rings.store16(event, self.next_used),
        }
        self.rings.fence();
    }

    fn unwant_interrupts(&mut self) {
        // With an event index there is nothing to write: the index is passed, and stays behind until it is set again.
        if self.interrupts == Interrupts::Wanted && self.suppression == Suppression::Flags {
            self.rings.store16(AVAIL_FLAGS, DO_NOT_TELL);
        }
        self.interrupts = Interrupts::Unwanted;
    }

    /// Offset of `used_event`: at which completion we want an interrupt.
    fn used_event(&self) -> usize {
        AVAIL_RING + 2 * usize::from(self.size)
    }

    /// Offset of `avail_event`: at which entry the device wants to be told.
    fn avail_event(&self) -> usize {
        USED_RING + 8 * usize::from(self.size)
    }

    fn ring_index(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }
}

/// Whether going from `old` to `new` passes the entry `event`, at which the other side wants to be told (2.7.10.1).
const fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

fn store_descriptor(page: &mut impl DmaMemory, offset: usize, addr: MachineAddr, len: u32, flags: u16, next: u16) {
    page.store64(offset, addr.0);
    page.store64(offset + 8, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48);
}

#[cfg(test)]
mod tests;
