//! Who may use which part of a disk: one writer excludes every overlapping claim under whatever name, readers share.

use core::fmt;

use crate::backend::VbdId;
use crate::disk::Geometry;
use crate::volume::{Extent, Mode};

/// Why a claim is refused; its text is the reason told to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// `w` on a disk that cannot be written.
    ReadOnlyDisk,
    /// A live vbd holds some of it in a way that excludes this claim.
    Busy(VbdId),
    /// Only vbds that are draining do; it will go away by itself.
    Draining(VbdId),
}

/// All claims.
#[derive(Debug, Default)]
pub struct Claims {}

impl Claims {
    /// Claims an extent for a vbd, which must hold none.
    ///
    /// # Errors
    /// Why not; nothing is changed.
    ///
    /// # Panics
    /// If the vbd holds a claim.
    pub fn claim(
        &mut self,
        holder: VbdId,
        extent: Extent,
        mode: Mode,
        geometry: &Geometry,
    ) -> Result<(), ClaimError> {
        todo!("{holder:?} {extent:?} {mode:?} {geometry:?}")
    }

    /// The vbd is told to disconnect: from now on its claim is one that will go away. Nothing if it holds none.
    pub fn drain(&mut self, holder: VbdId) {
        todo!("{holder:?}")
    }

    /// The vbd is done with its volume. Nothing if it holds none.
    pub fn release(&mut self, holder: VbdId) {
        todo!("{holder:?}")
    }
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
