//! The pool of single pages, as two bitmaps over a range of frames: which are free, and which of the others are lent.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::{Mfn, Pfn};

use super::DirectMap;

/// Pages that hold no object of Rust's.
#[derive(Debug)]
pub(crate) struct Pool {
    direct: DirectMap,
    bits: Bits,
}

impl Pool {
    /// # Safety
    /// The frames are mapped and writable, and used by nobody else from now on.
    pub(crate) unsafe fn new(direct: DirectMap, frames: Range<Pfn>) -> Self {
        Self { direct, bits: Bits::new(frames.start.0..frames.end.0) }
    }

    pub(crate) const fn direct(&self) -> &DirectMap {
        &self.direct
    }

    /// Pages that nobody has.
    pub(crate) const fn free(&self) -> usize {
        self.bits.free_count
    }

    /// Pages in all.
    pub(crate) fn size(&self) -> usize {
        self.bits.frames.clone().count()
    }

    /// Takes a zeroed page that will be given back.
    pub(crate) fn lend(&mut self) -> Option<Pfn> {
        let frame = self.lend_as_is()?;
        self.zero(frame);
        Some(frame)
    }

    /// Takes a page that will be given back, with what its last owner left in it.
    pub(crate) fn lend_as_is(&mut self) -> Option<Pfn> {
        let frame = self.bits.take()?;
        self.bits.mark_lent(frame);
        Some(Pfn(frame))
    }

    /// Takes a zeroed page that will never be given back, e.g. for a page table.
    pub(crate) fn take_for_ever(&mut self) -> Option<Pfn> {
        let frame = Pfn(self.bits.take()?);
        self.zero(frame);
        Some(frame)
    }

    /// Makes all bytes of a page that was taken zero.
    ///
    /// # Panics
    /// The page is free, or not of the pool.
    pub(crate) fn zero(&self, frame: Pfn) {
        assert!(self.bits.is_taken(frame.0), "frame {:#x} is not taken", frame.0);
        let page: *mut u8 = core::ptr::with_exposed_provenance_mut(self.direct.address(frame));
        // SAFETY: a whole page of the pool (`new`), which holds no object of Rust's; as just checked somebody took it, and only
        // who has it names it.
        unsafe { page.write_bytes(0, PAGE_SIZE) };
    }

    /// The frame of a machine frame that is lent now.
    pub(crate) fn lent(&self, mfn: Mfn) -> Option<Pfn> {
        self.direct.frame_of(mfn).filter(|frame| self.bits.is_lent(frame.0))
    }

    /// Gives back a page.
    pub(crate) fn give_back(&mut self, frame: Pfn) {
        self.bits.give_back(frame.0);
    }
}

/// The bookkeeping, without the pages.
#[derive(Debug)]
struct Bits {
    frames: Range<u64>,
    free: Vec<u64>,
    lent: Vec<u64>,
    free_count: usize,
    /// The word to look at first.
    hint: usize,
}

impl Bits {
    fn new(frames: Range<u64>) -> Self {
        let count = frames.clone().count();
        let mut free = vec![u64::MAX; count.div_ceil(64)];
        if let Some(last) = free.last_mut().filter(|_| !count.is_multiple_of(64)) {
            *last = (1 << (count % 64)) - 1;
        }
        Self { frames, lent: vec![0; free.len()], free, free_count: count, hint: 0 }
    }

    fn take(&mut self) -> Option<u64> {
        let words = self.free.len();
        let word = (0..words).map(|i| (self.hint + i) % words).find(|word| self.free[*word] != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.free_count -= 1;
        self.hint = word;
        Some(self.frames.start + word as u64 * 64 + u64::from(bit))
    }

    fn mark_lent(&mut self, frame: u64) {
        let (word, bit) = self.place(frame).expect("taken from here");
        self.lent[word] |= bit;
    }

    fn is_taken(&self, frame: u64) -> bool {
        self.place(frame).is_some_and(|(word, bit)| self.free[word] & bit == 0)
    }

    fn is_lent(&self, frame: u64) -> bool {
        self.place(frame).is_some_and(|(word, bit)| self.lent[word] & bit != 0)
    }

    fn give_back(&mut self, frame: u64) {
        assert!(self.is_lent(frame), "frame {frame:#x} is not lent");
        let (word, bit) = self.place(frame).expect("lent, so in range");
        self.lent[word] &= !bit;
        self.free[word] |= bit;
        self.free_count += 1;
    }

    fn place(&self, frame: u64) -> Option<(usize, u64)> {
        let index = self.frames.contains(&frame).then(|| frame - self.frames.start)?;
        Some((usize::try_from(index / 64).ok()?, 1 << (index % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_given_once_and_comes_back() {
        for count in [0, 1, 63, 64, 65, 200] {
            let mut bits = Bits::new(10..10 + count);
            let mut taken: Vec<u64> = core::iter::from_fn(|| bits.take()).collect();
            taken.iter().for_each(|frame| bits.mark_lent(*frame));
            assert_eq!(bits.free_count, 0);
            taken.sort_unstable();
            assert_eq!(taken, (10..10 + count).collect::<Vec<_>>());
            taken.iter().for_each(|frame| bits.give_back(*frame));
            assert_eq!(core::iter::from_fn(|| bits.take()).count() as u64, count);
        }
    }

    #[test]
    fn only_lent_pages_can_come_back() {
        let mut bits = Bits::new(10..20);
        let kept = bits.take().unwrap();
        let lent = bits.take().unwrap();
        bits.mark_lent(lent);
        for (frame, expect) in [(kept, false), (lent, true), (lent + 1, false), (9, false), (20, false)] {
            assert_eq!(bits.is_lent(frame), expect, "{frame}");
        }
    }

    #[test]
    #[should_panic(expected = "is not lent")]
    fn a_page_comes_back_only_once() {
        let mut bits = Bits::new(10..20);
        let frame = bits.take().unwrap();
        bits.mark_lent(frame);
        bits.give_back(frame);
        bits.give_back(frame);
    }
}
