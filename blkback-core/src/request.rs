//! Parses what a guest put into its ring: a private copy goes in, a request that can be trusted or the status to answer comes out.
//!
//! It takes two steps, because the segments of an indirect request lie in a page of the guest's that must be copied first:
//! [`Request::parse`] looks at the slot, [`Request::check_segments`] at the segments.

use xen_proto::GrantRef;
use xen_proto::blkif::{
    self, Request as RawRequest, SECTORS_PER_PAGE, SEGMENTS_PER_INDIRECT_PAGE, Segment, Status, op,
};

use crate::volume::Mode;

/// Segments of one request: what we advertise as `feature-max-indirect-segments`.
pub const MAX_SEGMENTS: usize = 256;

/// All segments of an indirect request lie in its first page.
const _: () = assert!(MAX_SEGMENTS <= SEGMENTS_PER_INDIRECT_PAGE);

/// What is to be done with the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Disk to guest.
    Read,
    /// Guest to disk.
    Write,
    /// Make completed writes durable, then write the segments if there are any.
    Flush,
}

/// Where the segments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// In the slot: the first `count` of these.
    Direct {
        /// At most 11.
        count: usize,
        /// As copied from the slot.
        all: [Segment; blkif::MAX_SEGMENTS],
    },
    /// In a page of the guest's: the first `count` descriptors of it.
    Indirect {
        /// 1 to [`MAX_SEGMENTS`].
        count: usize,
        /// The page.
        page: GrantRef,
    },
}

/// A request whose slot is sound; its segments are not yet looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub action: Action,
    /// First sector on the volume, in units of 512 bytes; 0 without segments, when the guest's number means nothing.
    pub sector: u64,
    /// Where the segments are.
    pub segments: Segments,
}

/// What a vbd may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Size of the volume in sectors of 512 bytes.
    pub sectors: u64,
    /// Sectors of 512 bytes in a logical block: a power of two.
    pub block: u64,
    /// Whether it may write.
    pub mode: Mode,
}

/// A sound segment: a run of sectors inside one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First sector in the page; below 8.
    pub first: u8,
    /// Number of sectors; at least 1, `first` and it together at most 8.
    pub sectors: u8,
}

impl Request {
    /// Checks a slot.
    ///
    /// # Errors
    /// The status to answer: an unknown operation is not supported, anything else wrong an error.
    pub fn parse(raw: &RawRequest, bounds: &Bounds) -> Result<Self, Status> {
        let action = match raw.operation {
            op::INDIRECT => return Self::parse_indirect(raw, bounds),
            op::READ => Action::Read,
            op::WRITE => Action::Write,
            op::FLUSH_DISKCACHE => Action::Flush,
            _ => return Err(Status::NotSupported),
        };
        let count = usize::from(raw.nr_segments());
        if count > blkif::MAX_SEGMENTS || (count == 0 && action != Action::Flush) {
            return Err(Status::Error);
        }
        let segments = Segments::Direct { count, all: raw.segments() };
        let sector = if count > 0 { raw.sector() } else { 0 };
        Self { action, sector, segments }.permitted(bounds)
    }

    fn parse_indirect(raw: &RawRequest, bounds: &Bounds) -> Result<Self, Status> {
        let action = match raw.indirect_op() {
            op::READ => Action::Read,
            op::WRITE => Action::Write,
            _ => return Err(Status::Error),
        };
        let count = usize::from(raw.indirect_segments());
        if count == 0 || count > MAX_SEGMENTS {
            return Err(Status::Error);
        }
        let [page, ..] = raw.indirect_pages();
        let segments = Segments::Indirect { count, page };
        Self { action, sector: raw.sector(), segments }.permitted(bounds)
    }

    fn permitted(self, bounds: &Bounds) -> Result<Self, Status> {
        let writes = match self.action {
            Action::Read => false,
            Action::Write => true,
            Action::Flush => self.count() > 0,
        };
        if writes && bounds.mode == Mode::ReadOnly { Err(Status::Error) } else { Ok(self) }
    }

    /// The number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        match self.segments {
            Segments::Direct { count, .. } | Segments::Indirect { count, .. } => count,
        }
    }

    /// Checks the segments, all of them, and gives `accept` each in turn; what it was given counts only if the result is good.
    /// Returns the number of sectors, which are on the volume and whole blocks.
    ///
    /// # Errors
    /// The status to answer.
    pub fn check_segments(
        &self,
        segments: &[Segment],
        bounds: &Bounds,
        mut accept: impl FnMut(GrantRef, Run),
    ) -> Result<u64, Status> {
        let mut total: u64 = 0;
        for segment in segments {
            let run = Run::check(segment)?;
            total = total.checked_add(u64::from(run.sectors)).ok_or(Status::Error)?;
            accept(segment.gref(), run);
        }
        let end = self.sector.checked_add(total).ok_or(Status::Error)?;
        let unaligned = |sectors: u64| sectors.checked_rem(bounds.block) != Some(0);
        let moves = total > 0;
        if moves && (end > bounds.sectors || unaligned(self.sector) || unaligned(total)) {
            return Err(Status::Error);
        }
        Ok(total)
    }
}

impl Run {
    fn check(segment: &Segment) -> Result<Self, Status> {
        let Segment { first_sect: first, last_sect: last, .. } = *segment;
        if last >= SECTORS_PER_PAGE {
            return Err(Status::Error);
        }
        let sectors = last.checked_sub(first).and_then(|n| n.checked_add(1)).ok_or(Status::Error)?;
        Ok(Self { first, sectors })
    }
}

/// The operation to echo in the response: an indirect request's is the one inside, which Linux's blkfront insists on.
#[must_use]
pub fn echoed_operation(raw: &RawRequest) -> u8 {
    if raw.operation == op::INDIRECT { raw.indirect_op() } else { raw.operation }
}

#[cfg(test)]
mod tests;
