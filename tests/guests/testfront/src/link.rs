//! A connected vbd's ring: requests in flight, their pages, and what is found when they are answered.
//!
//! A page is granted for one request and taken back when it is answered: a backend that answers before it has let go of a page
//! is found out. What it may only read is granted read-only. A page that is to be read into is poisoned first, so that stale
//! data of ours cannot pass for the disk's, and what lies beside the segment must still be poison afterwards.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crc::{CRC_32_ISO_HDLC, Crc, Digest};
use xen_proto::platform::{Access, SharedRing};
use xen_proto::ring::{Check, FrontRing, REQ_PROD, Wake};
use xen_proto::{DomId, GrantRef, Port};

use crate::Fallible;
use crate::malformed::Forged;
use crate::pattern::{self, Mismatch, SECTOR_BYTES};
use crate::platform::{Platform, StillMapped};
use crate::request::{Body, MAX_SLOT_BYTES, RESPONSE_BYTES, Request, Response, SEGMENT_BYTES, Segment, Status, op};
use crate::script::{Form, Shape};

/// Sectors of a page.
const PAGE_SECTORS: usize = 8;
/// The bytes of a sector that nobody has written since its page was made ready for a read.
const POISON: [u8; SECTOR_BYTES] = [0x5a; SECTOR_BYTES];
/// CRC-32 as gzip and zlib have it, to compare with what the host finds on the disk.
static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Faults that are kept; the rest is like them.
const MOST_FAULTS: usize = 8;

/// A request to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Comes back in [`Done`].
    pub tag: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The operation of a request without data.
    Bare { operation: u8, sector: u64, sectors: u64 },
    /// Writes a pattern; the operation is a write or a barrier.
    Write { operation: u8, sector: u64, sectors: u64, seed: u64 },
    /// Reads, and checks for the seed's pattern if there is one.
    Read { sector: u64, sectors: u64, seed: Option<u64> },
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub tag: u64,
    pub status: Status,
    /// Whether a successful read found what it had to.
    pub found: Result<(), Mismatch>,
}

/// Why a request could not be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// No slot is free: an answer will free one.
    Slots,
    /// No page or grant reference is free: an answer, perhaps on another vbd, will free some.
    Pages,
}

struct Held<P: Platform> {
    page: P::Page,
    gref: GrantRef,
}

/// A segment's page and what was asked of it.
struct Piece<P: Platform> {
    held: Held<P>,
    sector: u64,
    first: u8,
    sectors: u8,
}

struct Flight<P: Platform> {
    tag: u64,
    id: u64,
    operation: u8,
    content: Content,
    pieces: Vec<Piece<P>>,
    tables: Vec<Held<P>>,
}

/// The ring of a vbd, from publication to release.
pub(crate) struct Link<P: Platform> {
    ring: FrontRing<P::Ring>,
    ring_grefs: Vec<GrantRef>,
    port: Port,
    domain: DomId,
    shape: Shape,
    /// A request's id is its index here, with a serial number above.
    flights: Vec<Option<Flight<P>>>,
    in_flight: usize,
    serial: u32,
    done: Vec<Done>,
    faults: Vec<String>,
    checksum: Digest<'static, u32>,
}

impl<P: Platform> Link<P> {
    /// Makes a ring and a port for a backend.
    pub(crate) fn new(platform: &mut P, domain: DomId, shape: Shape) -> Fallible<Self> {
        let taken = platform.take_ring(domain, 1 << shape.order);
        let (memory, ring_grefs) = taken.ok_or("no memory for the ring")?;
        let Some(port) = platform.offer_port(domain) else {
            // A ring that nobody knows of is not mapped.
            let _ = platform.give_ring(memory, ring_grefs);
            return Err("no event channel is free".into());
        };
        let ring = FrontRing::create_at(memory, shape.abi.slot_bytes(), shape.start);
        let (flights, done, faults) = (Vec::new(), Vec::new(), Vec::new());
        let checksum = CRC.digest();
        Ok(Self { ring, ring_grefs, port, domain, shape, flights, in_flight: 0, serial: 0, done, faults, checksum })
    }

    pub(crate) fn ring_grefs(&self) -> &[GrantRef] {
        &self.ring_grefs
    }

    pub(crate) fn port(&self) -> Port {
        self.port
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn free_slots(&self) -> u32 {
        self.ring.free()
    }

    pub(crate) fn take_done(&mut self) -> Vec<Done> {
        core::mem::take(&mut self.done)
    }

    pub(crate) fn take_faults(&mut self) -> Vec<String> {
        core::mem::take(&mut self.faults)
    }

    /// The CRC-32 of all that was read, in the order of the answers, since this was last asked.
    pub(crate) fn take_checksum(&mut self) -> u32 {
        core::mem::replace(&mut self.checksum, CRC.digest()).finalize()
    }

    /// Pages that a request for so many sectors takes.
    pub(crate) fn pages_of(&self, sectors: u64) -> usize {
        let tables = usize::from(self.shape.form == Form::Indirect);
        usize::try_from(sectors.div_ceil(u64::from(self.shape.segment))).unwrap_or(usize::MAX).saturating_add(tables)
    }

    /// Puts a request into the ring, which [`Link::publish`] then shows to the backend.
    pub(crate) fn submit(&mut self, platform: &mut P, order: Order) -> Result<(), Shortage> {
        if self.ring.free() == 0 {
            return Err(Shortage::Slots);
        }
        let (operation, sector, sectors, content) = match order.what {
            What::Bare { operation, sector, sectors } => (operation, sector, sectors, Content::None),
            What::Write { operation, sector, sectors, seed } => (operation, sector, sectors, Content::Pattern(seed)),
            What::Read { sector, sectors, seed } => (op::READ, sector, sectors, Content::Poison(seed)),
        };
        let pieces = self.pieces(platform, sector, sectors, content)?;
        let segments: Vec<Segment> = pieces.iter().map(Piece::segment).collect();
        let tables = match (content, form_of(self.shape, operation)) {
            (Content::None, _) | (_, Form::Direct) => Vec::new(),
            (_, Form::Indirect) => match self.table(platform, &segments) {
                Some(table) => Vec::from([table]),
                None => return Err(self.return_pieces(platform, pieces)),
            },
        };
        let id = self.keep(Flight { tag: order.tag, id: 0, operation, content, pieces, tables });
        let grefs = self.table_grefs(id);
        let request = draft(operation, sector, sectors, &segments, &grefs);
        self.push(&Request { id, ..request });
        Ok(())
    }

    /// Puts a forged request into the ring; its pages are the forger's.
    pub(crate) fn submit_forged(&mut self, tag: u64, forged: &Forged) -> Result<(), Shortage> {
        if self.ring.free() == 0 {
            return Err(Shortage::Slots);
        }
        let operation = match forged.request(0).body {
            Body::Indirect { operation, .. } => operation,
            Body::Direct { .. } | Body::Discard { .. } => forged.operation,
        };
        let (pieces, tables) = (Vec::new(), Vec::new());
        let id = self.keep(Flight { tag, id: 0, operation, content: Content::None, pieces, tables });
        self.push(&forged.request(id));
        Ok(())
    }

    /// Claims more requests than the ring has slots, and tells the backend.
    pub(crate) fn break_request_producer(&self, platform: &mut P) {
        let shared = self.ring.shared();
        let impossible = shared.load(REQ_PROD).wrapping_add(self.ring.layout().slots() + 1);
        shared.store(REQ_PROD, impossible);
        platform.notify(self.port);
    }

    /// Shows the backend all requests that were put into the ring.
    pub(crate) fn publish(&mut self, platform: &mut P) {
        if self.ring.publish() == Wake::Notify {
            platform.notify(self.port);
        }
    }

    /// Takes all answers that are there, and has the backend send an event for the next one.
    pub(crate) fn absorb(&mut self, platform: &mut P) {
        while self.in_flight > 0 {
            let mut bytes = [0; RESPONSE_BYTES];
            match self.ring.take(&mut bytes) {
                Ok(true) => self.answered(platform, Response::from_bytes(bytes)),
                Ok(false) => match self.ring.final_check() {
                    Ok(Check::More) => (),
                    Ok(Check::Sleep) => return,
                    Err(_) => return self.fault("rsp_prod is impossible".into()),
                },
                Err(_) => return self.fault("rsp_prod is impossible".into()),
            }
        }
    }

    /// Ends everything: nothing in flight is waited for. The backend has let go of all that it had mapped, or it is at fault.
    pub(crate) fn release(mut self, platform: &mut P) -> Vec<String> {
        let flights = core::mem::take(&mut self.flights);
        for flight in flights.into_iter().flatten() {
            self.take_back(platform, flight.pieces.into_iter().map(|piece| piece.held));
            self.take_back(platform, flight.tables);
        }
        platform.close_port(self.port);
        let pages = self.ring_grefs.len();
        if platform.give_ring(self.ring.into_shared(), self.ring_grefs).is_err() {
            self.faults.push(format!("the backend still maps pages of the ring ({pages} pages)"));
        }
        self.faults
    }

    /// Takes a page, grants it, and gives both back after use, for a forger.
    pub(crate) fn lend(&self, platform: &mut P, access: Access) -> Option<(P::Page, GrantRef)> {
        let page = platform.take_page()?;
        let gref = platform.grant(self.domain, &page, access)?;
        Some((page, gref))
    }

    /// Takes back what [`Link::lend`] lent.
    pub(crate) fn unlend(&mut self, platform: &mut P, page: P::Page, gref: GrantRef) {
        self.take_back(platform, [Held { page, gref }]);
    }

    fn answered(&mut self, platform: &mut P, response: Response) {
        // The lower half is the index.
        let at = usize::try_from(response.id & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let known = self.flights.get_mut(at).and_then(|slot| slot.take_if(|flight| flight.id == response.id));
        let Some(flight) = known else {
            return self.fault(format!("an answer to no request: id {:#x}", response.id));
        };
        self.in_flight -= 1;
        if response.operation != flight.operation {
            self.fault(format!("operation {} answered as {}", flight.operation, response.operation));
        }
        let (held, asked): (Vec<_>, Vec<_>) =
            flight.pieces.into_iter().map(|piece| (piece.held, (piece.sector, piece.first, piece.sectors))).unzip();
        // The grants end first: from here on nobody can change what is looked at.
        let pages = self.end_grants(platform, held);
        self.take_back(platform, flight.tables);
        let mut found = Ok(());
        if let (Content::Poison(seed), Status::Okay) = (flight.content, response.status) {
            for (page, piece) in pages.iter().zip(asked) {
                let Some(page) = page else { continue };
                found = found.and_then(|()| self.look(platform, page, piece, seed));
            }
        }
        self.done.push(Done { tag: flight.tag, status: response.status, found });
    }

    /// Looks at a page that was read into.
    fn look(
        &mut self,
        platform: &P,
        page: &P::Page,
        (sector, first, sectors): (u64, u8, u8),
        seed: Option<u64>,
    ) -> Result<(), Mismatch> {
        let mut data = [0; PAGE_SECTORS * SECTOR_BYTES];
        platform.read_page(page, 0, &mut data);
        let start = usize::from(first) * SECTOR_BYTES;
        let end = start + usize::from(sectors) * SECTOR_BYTES;
        let outside = [&data[..start], &data[end..]];
        if outside.iter().any(|bytes| bytes.as_chunks::<SECTOR_BYTES>().0.iter().any(|bytes| *bytes != POISON)) {
            self.fault(format!("the backend wrote outside of a segment at sector {sector}"));
        }
        let inside = &data[start..end];
        self.checksum.update(inside);
        seed.map_or(Ok(()), |seed| pattern::verify(seed, sector, inside))
    }

    /// Ends grants; a page that is still mapped is lost, and is no page to look at.
    fn end_grants(&mut self, platform: &mut P, held: Vec<Held<P>>) -> Vec<Option<P::Page>> {
        let mut end = |held: Held<P>| match platform.end_grant(held.gref) {
            Ok(()) => Some(held.page),
            Err(StillMapped) => {
                self.fault("the backend answered, but still maps a page of the request".into());
                core::mem::forget(held.page);
                None
            }
        };
        held.into_iter().map(&mut end).collect()
    }

    fn take_back(&mut self, platform: &mut P, held: impl IntoIterator<Item = Held<P>>) {
        self.end_grants(platform, held.into_iter().collect());
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(what);
        }
    }

    /// Cuts a run of sectors into pages, ready and granted.
    fn pieces(
        &mut self,
        platform: &mut P,
        sector: u64,
        sectors: u64,
        content: Content,
    ) -> Result<Vec<Piece<P>>, Shortage> {
        let mut pieces = Vec::new();
        let access = match content {
            Content::None => return Ok(pieces),
            Content::Pattern(_) => Access::ReadOnly,
            Content::Poison(_) => Access::ReadWrite,
        };
        let (mut at, end) = (sector, sector + sectors);
        while at < end {
            let Some((mut page, gref)) = self.lend(platform, access) else {
                return Err(self.return_pieces(platform, pieces));
            };
            // At most a segment.
            let count = u8::try_from(end - at).unwrap_or(u8::MAX).min(self.shape.segment);
            let mut data = [0; PAGE_SECTORS * SECTOR_BYTES];
            data.as_chunks_mut::<SECTOR_BYTES>().0.fill(POISON);
            if let Content::Pattern(seed) = content {
                let start = usize::from(self.shape.skew) * SECTOR_BYTES;
                pattern::fill(seed, at, &mut data[start..start + usize::from(count) * SECTOR_BYTES]);
            }
            platform.write_page(&mut page, 0, &data);
            pieces.push(Piece { held: Held { page, gref }, sector: at, first: self.shape.skew, sectors: count });
            at += u64::from(count);
        }
        Ok(pieces)
    }

    fn return_pieces(&mut self, platform: &mut P, pieces: Vec<Piece<P>>) -> Shortage {
        self.take_back(platform, pieces.into_iter().map(|piece| piece.held));
        Shortage::Pages
    }

    /// A page of segments, granted.
    fn table(&self, platform: &mut P, segments: &[Segment]) -> Option<Held<P>> {
        let (mut page, gref) = self.lend(platform, Access::ReadOnly)?;
        write_table(platform, &mut page, segments);
        Some(Held { page, gref })
    }

    /// Gives a flight its id and remembers it.
    fn keep(&mut self, mut flight: Flight<P>) -> u64 {
        let at = self.flights.iter().position(Option::is_none).unwrap_or(self.flights.len());
        self.serial = self.serial.wrapping_add(1);
        let id = u64::from(self.serial) << 32 | at as u64;
        flight.id = id;
        match self.flights.get_mut(at) {
            Some(slot) => *slot = Some(flight),
            None => self.flights.push(Some(flight)),
        }
        self.in_flight += 1;
        id
    }

    fn table_grefs(&self, id: u64) -> Vec<u32> {
        let flights = self.flights.iter().flatten();
        flights
            .filter(|flight| flight.id == id)
            .flat_map(|flight| flight.tables.iter().map(|held| held.gref.0))
            .collect()
    }

    fn push(&mut self, request: &Request<'_>) {
        let bytes: [u8; MAX_SLOT_BYTES] = request.to_bytes(self.shape.abi);
        self.ring.request(&bytes[..self.shape.abi.slot_bytes()]);
    }
}

/// What a request's pages hold when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// There are no pages.
    None,
    /// The pattern of this seed.
    Pattern(u64),
    /// Poison, to be replaced by what is on the disk: the pattern of this seed, or anything.
    Poison(Option<u64>),
}

impl<P: Platform> Piece<P> {
    fn segment(&self) -> Segment {
        Segment { gref: self.held.gref.0, first: self.first, last: self.first + self.sectors - 1 }
    }
}

/// Writes segments into a page, as many as fit.
pub(crate) fn write_table<P: Platform>(platform: &mut P, page: &mut P::Page, segments: &[Segment]) {
    let mut bytes = [0; PAGE_SECTORS * SECTOR_BYTES];
    for (slot, segment) in bytes.as_chunks_mut::<SEGMENT_BYTES>().0.iter_mut().zip(segments) {
        *slot = segment.to_bytes();
    }
    platform.write_page(page, 0, &bytes);
}

/// Where the segments of such a request stand: barriers are never indirect (blkif.h, `BLKIF_OP_INDIRECT`).
pub(crate) fn form_of(shape: Shape, operation: u8) -> Form {
    if matches!(operation, op::READ | op::WRITE) { shape.form } else { Form::Direct }
}

/// A well-formed request, without its id.
fn draft<'a>(operation: u8, sector: u64, sectors: u64, segments: &'a [Segment], tables: &'a [u32]) -> Request<'a> {
    // Callers keep within what fits.
    #[expect(clippy::cast_possible_truncation)]
    let count = segments.len() as u16;
    let (operation, body) = match (operation, tables) {
        (op::DISCARD, _) => (operation, Body::Discard { sectors }),
        (_, []) => (operation, Body::Direct { count: count.to_le_bytes()[0], segments }),
        (_, pages) => (op::INDIRECT, Body::Indirect { operation, count, pages }),
    };
    Request { operation, handle: 0, id: 0, sector, body }
}
