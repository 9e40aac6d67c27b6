//! What is to be found on a volume: the number that each sector is filled with.

use std::cell::RefCell;
use std::rc::Rc;

use blkback_core::disk::SECTOR_BYTES;

use super::xen::Page;

/// A run of sectors; a clone is another handle on the same ones.
#[derive(Clone)]
pub(super) struct Truth {
    /// `None`: not known, because a write has not been answered well.
    stamps: Rc<RefCell<Vec<Option<u64>>>>,
    start: usize,
    sectors: usize,
}

impl Truth {
    /// Sectors of zeros.
    pub(super) fn zeros(sectors: u64) -> Self {
        let sectors = usize::try_from(sectors).expect("it is small");
        Self { stamps: Rc::new(RefCell::new(vec![Some(0); sectors])), start: 0, sectors }
    }

    /// Some of these sectors.
    pub(super) fn part(&self, start: u64, sectors: u64) -> Self {
        let [start, sectors] = [start, sectors].map(|count| usize::try_from(count).expect("it is small"));
        Self { stamps: self.stamps.clone(), start: self.start + start, sectors }
    }

    pub(super) fn sectors(&self) -> u64 {
        self.sectors as u64
    }

    pub(super) fn set(&self, sector: u64, stamp: Option<u64>) {
        let sector = usize::try_from(sector).expect("it is small");
        assert!(sector < self.sectors);
        self.stamps.borrow_mut()[self.start + sector] = stamp;
    }

    pub(super) fn get(&self, sector: u64) -> Option<u64> {
        self.stamps.borrow()[self.start + usize::try_from(sector).expect("it is small")]
    }

    /// Nobody knows what is there.
    pub(super) fn forget(&self) {
        self.stamps.borrow_mut()[self.start..self.start + self.sectors].fill(None);
    }

    /// Compares with what is really there; returns how many sectors were written.
    pub(super) fn compare(&self, content: &[u8]) -> usize {
        let stamps = self.stamps.borrow();
        for (sector, (stamp, found)) in stamps.iter().zip(content.chunks(512)).enumerate() {
            assert!(stamp.is_none_or(|stamp| *found == filled(stamp)), "sector {sector} on the disk");
        }
        stamps.iter().filter(|stamp| stamp.is_some_and(|stamp| stamp > 0)).count()
    }
}

pub(super) fn filled(stamp: u64) -> [u8; 512] {
    zerocopy::transmute!([stamp; 64])
}

pub(super) fn fill(page: &mut Page, sector: u8, stamp: u64) {
    sector_of(page, sector).copy_from_slice(&filled(stamp));
}

pub(super) fn sector_of(page: &mut Page, sector: u8) -> &mut [u8] {
    let bytes = usize::try_from(SECTOR_BYTES).expect("it is small");
    &mut page[usize::from(sector) * bytes..][..bytes]
}
