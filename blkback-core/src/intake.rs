//! Takes a batch of requests from one vbd, as much as can be held, and finds their segments.

use alloc::vec::Vec;

use xen_proto::blkif::{Segment, Status};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{
    Access, CopyDirection, DeviceMap, GNTST_GENERAL_ERROR, GrantCopy, Grants, PageBytes, Pages, SharedRing,
};
use xen_proto::{DomId, Mfn};
use zerocopy::FromBytes;

use crate::lane::Room;
use crate::owed::Owed;
use crate::request::{Action, Bounds, MAX_SEGMENTS, Request, Run, Segments};
use crate::vbd::{Load, Next, Vbd};

/// Requests looked at in one visit of a vbd.
pub(crate) const BATCH_REQUESTS: usize = 32;
/// Segments taken in one visit, 2 MiB of data at most. The largest request must fit.
pub(crate) const BATCH_SEGMENTS: usize = 512;
/// Indirect requests taken in one visit.
const BATCH_INDIRECT: usize = 16;

/// Bytes of the descriptors of the largest indirect request, and how many times they fit into a page.
const DESCRIPTOR_BYTES: usize = MAX_SEGMENTS * size_of::<Segment>();
const DESCRIPTORS_PER_PAGE: usize = PAGE_SIZE / DESCRIPTOR_BYTES;
const _: () = assert!(BATCH_SEGMENTS >= MAX_SEGMENTS && DESCRIPTORS_PER_PAGE > 0);

/// Why a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The ring is empty and passed its final check.
    Dry,
    /// The visit is over; there may be more.
    Quantum,
    /// The next request would be over the vbd's share.
    OverShare,
    /// The next request does not fit.
    Full,
    /// The frontend's indices are impossible.
    Broken,
}

/// A request of a batch.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) owed: Owed,
    pub(crate) request: Request,
    /// Its sectors, and so many of the batch's segments, in the batch's order; or what to answer.
    pub(crate) checked: Result<Checked, Status>,
}

/// What a sound request amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) sectors: u64,
    pub(crate) segments: usize,
}

/// The batch, and the memory that every batch uses again.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) taken: Vec<Taken>,
    /// The pages of all sound requests, to be mapped or copied.
    pub(crate) maps: Vec<DeviceMap>,
    /// What of each page is meant.
    pub(crate) runs: Vec<Run>,
    /// Copies of descriptors, one an indirect request.
    copies: Vec<GrantCopy>,
    /// Where they are copied to.
    staging: Vec<Mfn>,
    descriptors: Vec<u8>,
}

impl Batch {
    /// An empty batch, `None` if there are no pages for it.
    pub(crate) fn new(pages: &mut impl Pages) -> Option<Self> {
        let mut staging = Vec::with_capacity(BATCH_INDIRECT.div_ceil(DESCRIPTORS_PER_PAGE));
        while staging.len() < staging.capacity() {
            let Some(page) = pages.take_page() else {
                staging.drain(..).for_each(|page| pages.give_page(page));
                return None;
            };
            staging.push(page);
        }
        Some(Self {
            taken: Vec::with_capacity(BATCH_REQUESTS),
            maps: Vec::with_capacity(BATCH_SEGMENTS),
            runs: Vec::with_capacity(BATCH_SEGMENTS),
            copies: Vec::with_capacity(BATCH_INDIRECT),
            staging,
            descriptors: alloc::vec![0; DESCRIPTOR_BYTES],
        })
    }

    /// Takes requests from the ring while there is room for them; the first one without room is held in the vbd. `room` is
    /// asked whether a request fits beside those of the batch.
    pub(crate) fn take<R: SharedRing>(&mut self, vbd: &mut Vbd<R>, room: impl Fn(Load, Load) -> Room) -> End {
        let mut load = Load::default();
        let mut indirect = 0_usize;
        for _ in 0..BATCH_REQUESTS {
            let (owed, request) = match vbd.next() {
                Ok(Next::Request(owed, request)) => (owed, request),
                Ok(Next::Refused) => continue,
                Ok(Next::Dry) => return End::Dry,
                Err(_) => return End::Broken,
            };
            let new = Load { requests: 1, segments: request.count() };
            let is_indirect = usize::from(matches!(request.segments, Segments::Indirect { .. }));
            let end = match room(load, new) {
                Room::Full => End::Full,
                Room::OverShare => End::OverShare,
                Room::Fits if load.segments + new.segments > BATCH_SEGMENTS => End::Quantum,
                Room::Fits if indirect + is_indirect > BATCH_INDIRECT => End::Quantum,
                Room::Fits => {
                    load = load + new;
                    indirect += is_indirect;
                    self.taken.push(Taken { owed, request, checked: Err(Status::Error) });
                    continue;
                }
            };
            vbd.hold(owed, request);
            return end;
        }
        End::Quantum
    }

    /// Finds and checks the segments of all taken requests: descriptors come by one batch of copies.
    pub(crate) fn resolve(
        &mut self,
        domain: DomId,
        bounds: &Bounds,
        grants: &mut impl Grants,
        memory: &impl PageBytes,
    ) {
        self.maps.clear();
        self.runs.clear();
        self.copy_descriptors(domain, grants);
        let Self { taken, maps, runs, copies, descriptors, .. } = self;
        let mut copies = copies.iter();
        for Taken { request, checked, .. } in taken {
            let segments = match &request.segments {
                Segments::Direct { count, all } => all.get(..*count),
                Segments::Indirect { count, .. } => {
                    copies.next().and_then(|copy| read_descriptors(copy, *count, memory, descriptors))
                }
            };
            let start = maps.len();
            let access = access(request.action);
            *checked = segments.ok_or(Status::Error).and_then(|segments| {
                let sectors = request.check_segments(segments, bounds, |gref, run| {
                    maps.push(DeviceMap::new(gref, access));
                    runs.push(run);
                })?;
                Ok(Checked { sectors, segments: segments.len() })
            });
            if checked.is_err() {
                maps.truncate(start);
                runs.truncate(start);
            }
        }
    }

    fn copy_descriptors(&mut self, domain: DomId, grants: &mut impl Grants) {
        self.copies.clear();
        let places = self
            .staging
            .iter()
            .flat_map(|frame| (0..DESCRIPTORS_PER_PAGE).map(move |n| (*frame, n * DESCRIPTOR_BYTES)));
        let wanted = self.taken.iter().filter_map(|taken| match taken.request.segments {
            Segments::Indirect { count, page } => Some((page, count * size_of::<Segment>())),
            Segments::Direct { .. } => None,
        });
        self.copies.extend(wanted.zip(places).map(|((gref, bytes), (frame, offset))| GrantCopy {
            domain,
            gref,
            guest_offset: 0,
            frame,
            offset: in_page(offset),
            len: in_page(bytes),
            direction: CopyDirection::FromGuest,
            result: Err(GNTST_GENERAL_ERROR),
        }));
        if !self.copies.is_empty() {
            grants.copy(&mut self.copies);
        }
    }
}

/// The descriptors that were copied, `None` if the guest's page could not be read.
fn read_descriptors<'a>(
    copy: &GrantCopy,
    count: usize,
    memory: &impl PageBytes,
    buffer: &'a mut [u8],
) -> Option<&'a [Segment]> {
    copy.result.ok()?;
    let bytes = buffer.get_mut(..count * size_of::<Segment>())?;
    memory.read_page(copy.frame, usize::from(copy.offset), bytes);
    <[Segment]>::ref_from_bytes(bytes).ok()
}

/// What the device does to the guest's pages: it writes them only when the guest reads.
fn access(action: Action) -> Access {
    match action {
        Action::Read => Access::ReadWrite,
        Action::Write | Action::Flush => Access::ReadOnly,
    }
}

/// An offset or a length inside a page.
pub(crate) fn in_page(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("at most a page")
}
