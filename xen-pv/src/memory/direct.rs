//! The direct map: own frame numbers to addresses and to machine frames, and back.

use core::sync::atomic::{AtomicU64, Ordering};

use xen_proto::ids::PAGE_SIZE;
use xen_proto::{Mfn, Pfn};

use crate::hypercall::register;

/// How frames, addresses and machine frames belong together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectMap {
    /// The address of frame 0.
    base: usize,
    /// Own frame to machine frame, made by the domain builder.
    p2m: &'static [u64],
    /// Machine frame to own frame, kept by Xen. Other domains' entries change all the time.
    m2p: &'static [AtomicU64],
}

impl DirectMap {
    pub(crate) const fn new(base: usize, p2m: &'static [u64], m2p: &'static [AtomicU64]) -> Self {
        Self { base, p2m, m2p }
    }

    /// Frames of the domain.
    pub(crate) const fn frames(&self) -> usize {
        self.p2m.len()
    }

    /// Where a frame is mapped, or will be.
    pub(crate) fn address(&self, frame: Pfn) -> usize {
        let index = register(frame.0);
        assert!(index < self.frames(), "{frame:?} of {}", self.frames());
        self.base + index * PAGE_SIZE
    }

    /// The frame that an address lies in.
    pub(crate) fn frame(&self, address: usize) -> Pfn {
        let index =
            address.checked_sub(self.base).map(|offset| offset / PAGE_SIZE).filter(|index| *index < self.frames());
        let Some(index) = index else { panic!("{address:#x} is not in the direct map") };
        Pfn(index as u64)
    }

    /// The machine frame behind a frame.
    pub(crate) fn mfn(&self, frame: Pfn) -> Mfn {
        Mfn(self.p2m[register(frame.0)])
    }

    /// Our frame that has this machine frame behind it, if it is ours.
    pub(crate) fn frame_of(&self, mfn: Mfn) -> Option<Pfn> {
        let frame = self.m2p.get(register(mfn.0))?.load(Ordering::Relaxed);
        (self.p2m.get(register(frame)) == Some(&mfn.0)).then_some(Pfn(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_machine_frames_have_a_frame() {
        static P2M: [u64; 3] = [2, 0, 5];
        static M2P: [AtomicU64; 6] = [const { AtomicU64::new(1) }; 6];
        for (frame, mfn) in P2M.iter().enumerate() {
            M2P[register(*mfn)].store(frame as u64, Ordering::Relaxed);
        }
        let direct = DirectMap::new(0x40_0000, &P2M, &M2P);
        for (mfn, expect) in
            [(2, Some(0)), (0, Some(1)), (5, Some(2)), (1, None), (4, None), (6, None), (u64::MAX, None)]
        {
            assert_eq!(direct.frame_of(Mfn(mfn)), expect.map(Pfn), "{mfn}");
        }
        assert_eq!(direct.address(Pfn(2)), 0x40_2000);
        assert_eq!(direct.frame(0x40_2fff), Pfn(2));
    }
}
