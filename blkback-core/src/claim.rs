//! Who may use which part of a disk: one writer excludes every overlapping claim under whatever name, readers share.
//!
//! The claimed part of all disks is kept as pieces that do not overlap, in order; each counts who uses it. A claim cuts pieces
//! at its ends and adds itself to those between, so attaching one more vbd costs the pieces it covers, not all vbds there are.

use alloc::collections::{BTreeMap, BTreeSet};
use core::fmt;

use crate::backend::VbdId;
use crate::disk::{DiskId, Geometry};
use crate::volume::{Extent, Mode};

/// Why a claim is refused; its text is the reason told to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// `w` on a disk that cannot be written.
    ReadOnlyDisk,
    /// A live vbd, perhaps among others, holds some of it in a way that excludes this claim.
    Busy(VbdId),
    /// Only vbds that are draining do, this one among them; it will go away by itself.
    Draining(VbdId),
}

/// All claims.
#[derive(Debug, Default)]
pub struct Claims {
    held: BTreeMap<VbdId, Extent>,
    /// Pieces by disk and first sector.
    pieces: BTreeMap<(DiskId, u64), Piece>,
}

#[derive(Clone, Copy)]
enum Phase {
    Live,
    Draining,
}

/// A part of a disk and who holds it: one that writes, or any number that read.
#[derive(Clone, Debug)]
struct Piece {
    /// The sector after its last.
    end: u64,
    mode: Mode,
    live: BTreeSet<VbdId>,
    draining: BTreeSet<VbdId>,
}

impl Claims {
    /// Claims an extent for a vbd, which must hold none.
    ///
    /// # Errors
    /// Why not; nothing is changed.
    ///
    /// # Panics
    /// If the vbd holds a claim.
    pub fn claim(&mut self, holder: VbdId, extent: Extent, mode: Mode, geometry: &Geometry) -> Result<(), ClaimError> {
        assert!(!self.held.contains_key(&holder), "a vbd holds one claim");
        if mode == Mode::ReadWrite && !geometry.writable {
            return Err(ClaimError::ReadOnlyDisk);
        }
        self.check(extent, mode)?;
        self.cut(extent.disk, extent.start);
        self.cut(extent.disk, end(extent));
        self.fill(extent, mode);
        for piece in self.pieces_in(extent) {
            piece.live.insert(holder);
        }
        self.held.insert(holder, extent);
        Ok(())
    }

    /// The vbd is told to disconnect: from now on its claim is one that will go away. Nothing if it holds none.
    pub fn drain(&mut self, holder: VbdId) {
        self.enter(holder, Phase::Draining);
    }

    /// The vbd has connected again: its claim stays after all. Nothing if it holds none.
    pub fn keep(&mut self, holder: VbdId) {
        self.enter(holder, Phase::Live);
    }

    /// The vbd is done with its volume. Nothing if it holds none.
    pub fn release(&mut self, holder: VbdId) {
        let Some(extent) = self.held.remove(&holder) else {
            return;
        };
        for piece in self.pieces_in(extent) {
            piece.live.remove(&holder);
            piece.draining.remove(&holder);
        }
        let range = (extent.disk, extent.start)..(extent.disk, end(extent));
        self.pieces.extract_if(range, |_, piece| piece.is_free()).for_each(drop);
    }

    fn enter(&mut self, holder: VbdId, phase: Phase) {
        let Some(extent) = self.held.get(&holder).copied() else {
            return;
        };
        for piece in self.pieces_in(extent) {
            let (from, to) = match phase {
                Phase::Live => (&mut piece.draining, &mut piece.live),
                Phase::Draining => (&mut piece.live, &mut piece.draining),
            };
            from.remove(&holder);
            to.insert(holder);
        }
    }

    /// Looks at every piece that overlaps: a live holder matters more than one that goes away.
    fn check(&self, extent: Extent, mode: Mode) -> Result<(), ClaimError> {
        let inside = self.pieces.range((extent.disk, extent.start)..(extent.disk, end(extent)));
        let mut draining = None;
        for piece in self.straddling(extent.disk, extent.start).into_iter().chain(inside).map(|(_, piece)| piece) {
            if mode == Mode::ReadOnly && piece.mode == Mode::ReadOnly {
                continue;
            }
            if let Some(holder) = piece.live.first() {
                return Err(ClaimError::Busy(*holder));
            }
            draining = draining.or(piece.draining.first().copied());
        }
        draining.map_or(Ok(()), |holder| Err(ClaimError::Draining(holder)))
    }

    /// The piece that starts before a sector and goes beyond it.
    fn straddling(&self, disk: DiskId, sector: u64) -> Option<(&(DiskId, u64), &Piece)> {
        self.pieces.range((disk, 0)..(disk, sector)).next_back().filter(|(_, piece)| piece.end > sector)
    }

    /// Makes a piece end at this sector if one goes across it.
    fn cut(&mut self, disk: DiskId, sector: u64) {
        let Some((&start, piece)) = self.straddling(disk, sector) else {
            return;
        };
        let rest = piece.clone();
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.end = sector;
        }
        self.pieces.insert((disk, sector), rest);
    }

    /// Puts pieces without holders where an extent, at whose ends pieces are cut, has none.
    fn fill(&mut self, extent: Extent, mode: Mode) {
        let mut from = extent.start;
        while from < end(extent) {
            let next = self.pieces.range((extent.disk, from)..(extent.disk, end(extent))).next();
            let (start, after) = next.map_or((end(extent), end(extent)), |((_, start), piece)| (*start, piece.end));
            if from < start {
                self.pieces.insert((extent.disk, from), Piece::free(start, mode));
            }
            from = after;
        }
    }

    fn pieces_in(&mut self, extent: Extent) -> impl Iterator<Item = &mut Piece> {
        self.pieces.range_mut((extent.disk, extent.start)..(extent.disk, end(extent))).map(|(_, piece)| piece)
    }
}

impl Piece {
    const fn free(end: u64, mode: Mode) -> Self {
        Self { end, mode, live: BTreeSet::new(), draining: BTreeSet::new() }
    }

    fn is_free(&self) -> bool {
        self.live.is_empty() && self.draining.is_empty()
    }
}

fn end(extent: Extent) -> u64 {
    extent.start.saturating_add(extent.sectors)
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnlyDisk => f.write_str("the disk is read-only"),
            Self::Busy(VbdId { domain, device }) => {
                write!(f, "in use by domain {domain} device {device}")
            }
            Self::Draining(VbdId { domain, device }) => {
                write!(f, "still being drained for domain {domain} device {device}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
