//! The block ring's ABI (io/blkif.h) as x86 frontends speak it: 64-bit (`x86_64-abi`) and 32-bit (`x86_32-abi`, protocols.h).
//!
//! The two differ in one thing: a 32-bit compiler aligns `uint64_t` to 4, so the 64-bit ABI's request has four bytes of padding
//! after its first four, and its response four at the end, which the 32-bit ABI does not have. So there is one form of each
//! here, the 32-bit layout, and [`Request::from_slot`] and [`Request::to_slot`] take out or put in the padding.
//! Every sector here is 512 bytes, whatever the disk's blocks are. `tests/blkif_abi.rs` checks each offset against the header.
//!
//! Nothing is validated here: any bytes are a [`Request`].

use zerocopy::byteorder::little_endian::{I16, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::GrantRef;

/// Operation codes (`BLKIF_OP_*`, blkif.h).
pub mod op {
    /// Disk to guest.
    pub const READ: u8 = 0;
    /// Guest to disk.
    pub const WRITE: u8 = 1;
    /// A write with all others ordered around it.
    pub const WRITE_BARRIER: u8 = 2;
    /// Makes completed writes durable.
    pub const FLUSH_DISKCACHE: u8 = 3;
    /// Trim.
    pub const DISCARD: u8 = 5;
    /// A read or write whose segments lie in pages of their own.
    pub const INDIRECT: u8 = 6;
}

/// `BLKIF_MAX_SEGMENTS_PER_REQUEST`: segments in the ring's slot itself.
pub const MAX_SEGMENTS: usize = 11;
/// `BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST`.
pub const MAX_INDIRECT_PAGES: usize = 8;
/// Segment descriptors in one indirect page.
pub const SEGMENTS_PER_INDIRECT_PAGE: usize = crate::ids::PAGE_SIZE / size_of::<Segment>();
/// Sectors of 512 bytes in a page, so `first_sect` and `last_sect` are below it.
pub const SECTORS_PER_PAGE: u8 = 8;

/// `VDISK_CDROM` in the key `info`.
pub const VDISK_CDROM: u32 = 1;
/// `VDISK_REMOVABLE` in the key `info`.
pub const VDISK_REMOVABLE: u32 = 2;
/// `VDISK_READONLY` in the key `info`.
pub const VDISK_READONLY: u32 = 4;

/// How a request ended (`BLKIF_RSP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Status {
    /// `BLKIF_RSP_OKAY`.
    Okay = 0,
    /// `BLKIF_RSP_ERROR`.
    Error = -1,
    /// `BLKIF_RSP_EOPNOTSUPP`.
    NotSupported = -2,
}

/// Which layout a frontend uses: its key `protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// `x86_64-abi`: requests of 112 bytes, responses of 16.
    X86_64,
    /// `x86_32-abi`: requests of 108 bytes, responses of 12. Also what a missing `protocol` means on x86.
    X86_32,
}

impl Abi {
    /// The ABI named by the key `protocol`, `None` for another machine's.
    #[must_use]
    pub fn from_protocol(protocol: &str) -> Option<Self> {
        match protocol {
            "x86_64-abi" => Some(Self::X86_64),
            "x86_32-abi" => Some(Self::X86_32),
            _ => None,
        }
    }

    /// The value of the key `protocol`.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-abi",
            Self::X86_32 => "x86_32-abi",
        }
    }

    /// Bytes of a ring slot: a request, the larger of the two.
    #[must_use]
    pub const fn slot_bytes(self) -> usize {
        match self {
            Self::X86_64 => 112,
            Self::X86_32 => 108,
        }
    }

    /// Where a slot goes on after its first [`HEAD_BYTES`].
    const fn body(self) -> usize {
        self.slot_bytes() - size_of::<Request>() + HEAD_BYTES
    }

    /// Bytes of a response.
    #[must_use]
    pub const fn response_bytes(self) -> usize {
        match self {
            Self::X86_64 => 16,
            Self::X86_32 => 12,
        }
    }
}

/// Bytes before the padding that only the 64-bit ABI has.
const HEAD_BYTES: usize = 4;

/// Room for a slot of either ABI; only the first [`Abi::slot_bytes`] bytes are used.
pub type Slot = [u8; 112];

/// `struct blkif_request_segment`: a run of sectors in one granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Segment {
    gref: U32,
    /// First sector in the page.
    pub first_sect: u8,
    /// Last sector in the page, inclusive.
    pub last_sect: u8,
    padding: [u8; 2],
}

impl Segment {
    /// The sectors `first..=last` of a page.
    #[must_use]
    pub const fn new(gref: GrantRef, first_sect: u8, last_sect: u8) -> Self {
        Self { gref: U32::new(gref.0), first_sect, last_sect, padding: [0; 2] }
    }

    /// The page.
    #[must_use]
    pub const fn gref(&self) -> GrantRef {
        GrantRef(self.gref.get())
    }
}

/// `struct blkif_request` and the structs that share its slot, in the layout of the 32-bit ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    /// What is asked for; see [`op`].
    pub operation: u8,
    /// `nr_segments` of a direct request, `indirect_op` of an indirect one, `flag` of a discard.
    byte: u8,
    /// `nr_segments` of an indirect request, `handle` of the others.
    half: U16,
    id: U64,
    sector: U64,
    tail: [u8; MAX_SEGMENTS * size_of::<Segment>()],
}

/// The end of `struct blkif_request_indirect`, after `sector_number`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndirectTail {
    handle: U16,
    padding: [u8; 2],
    grefs: [U32; MAX_INDIRECT_PAGES],
    rest: [u8; 52],
}

impl Request {
    /// A direct request; segments beyond [`MAX_SEGMENTS`] are left out, though counted in `nr_segments`.
    #[must_use]
    pub fn direct(operation: u8, id: u64, sector: u64, segments: &[Segment]) -> Self {
        let mut tail = [0; MAX_SEGMENTS * size_of::<Segment>()];
        for (slot, segment) in tail.chunks_exact_mut(size_of::<Segment>()).zip(segments) {
            slot.copy_from_slice(segment.as_bytes());
        }
        let byte = u8::try_from(segments.len()).unwrap_or(u8::MAX);
        Self { operation, byte, half: U16::ZERO, id: id.into(), sector: sector.into(), tail }
    }

    /// An indirect request for `segments` segments described in `pages`.
    #[must_use]
    pub fn indirect(indirect_op: u8, id: u64, sector: u64, segments: u16, pages: &[GrantRef]) -> Self {
        let mut grefs = [U32::ZERO; MAX_INDIRECT_PAGES];
        for (slot, gref) in grefs.iter_mut().zip(pages) {
            *slot = gref.0.into();
        }
        let tail = IndirectTail { handle: U16::ZERO, padding: [0; 2], grefs, rest: [0; 52] };
        Self {
            operation: op::INDIRECT,
            byte: indirect_op,
            half: segments.into(),
            id: id.into(),
            sector: sector.into(),
            tail: zerocopy::transmute!(tail),
        }
    }

    /// This request with another count of segments in its slot.
    #[must_use]
    pub const fn with_nr_segments(mut self, count: u8) -> Self {
        self.byte = count;
        self
    }

    /// Reads a request out of a private copy of a slot.
    #[must_use]
    pub fn from_slot(abi: Abi, slot: &Slot) -> Self {
        let mut request = Self::new_zeroed();
        let (head, body) = request.as_mut_bytes().split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&slot[..HEAD_BYTES]);
        body.copy_from_slice(&slot[abi.body()..][..body.len()]);
        request
    }

    /// Writes the request as it lies in a slot; padding is 0. Only [`Abi::slot_bytes`] of it count.
    #[must_use]
    pub fn to_slot(&self, abi: Abi) -> Slot {
        let mut slot = [0; 112];
        let (head, body) = self.as_bytes().split_at(HEAD_BYTES);
        slot[..HEAD_BYTES].copy_from_slice(head);
        slot[abi.body()..][..body.len()].copy_from_slice(body);
        slot
    }

    /// The guest's own name for the request, echoed in the response.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id.get()
    }

    /// First sector on the disk.
    #[must_use]
    pub const fn sector(&self) -> u64 {
        self.sector.get()
    }

    /// `nr_segments` of a direct request.
    #[must_use]
    pub const fn nr_segments(&self) -> u8 {
        self.byte
    }

    /// The segments in the slot, all 11 whatever `nr_segments` says.
    #[must_use]
    pub fn segments(&self) -> [Segment; MAX_SEGMENTS] {
        zerocopy::transmute!(self.tail)
    }

    /// `indirect_op` of an indirect request.
    #[must_use]
    pub const fn indirect_op(&self) -> u8 {
        self.byte
    }

    /// `nr_segments` of an indirect request.
    #[must_use]
    pub const fn indirect_segments(&self) -> u16 {
        self.half.get()
    }

    /// `indirect_grefs`: the pages with an indirect request's segments, all 8 whatever `nr_segments` says.
    #[must_use]
    pub fn indirect_pages(&self) -> [GrantRef; MAX_INDIRECT_PAGES] {
        let tail: IndirectTail = zerocopy::transmute!(self.tail);
        tail.grefs.map(|gref| GrantRef(gref.get()))
    }
}

/// `struct blkif_response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Response {
    id: U64,
    /// Copied from the request.
    pub operation: u8,
    padding: u8,
    status: I16,
}

impl Response {
    /// The answer to the request with this id and operation.
    #[must_use]
    pub fn new(id: u64, operation: u8, status: Status) -> Self {
        Self { id: id.into(), operation, padding: 0, status: (status as i16).into() }
    }

    /// Copied from the request.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id.get()
    }

    /// How it ended, `None` if the code is unknown.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self.status.get() {
            0 => Some(Status::Okay),
            -1 => Some(Status::Error),
            -2 => Some(Status::NotSupported),
            _ => None,
        }
    }

    /// Reads a response out of a private copy of a slot; both ABIs agree on these bytes.
    #[must_use]
    pub fn from_slot(slot: &Slot) -> Self {
        let mut response = Self::new_zeroed();
        let bytes = response.as_mut_bytes();
        bytes.copy_from_slice(&slot[..bytes.len()]);
        response
    }

    /// Writes the response as it lies in a slot; every other byte is 0 (XSA-216).
    #[must_use]
    pub fn to_slot(&self) -> Slot {
        let mut slot = [0; 112];
        let bytes = self.as_bytes();
        slot[..bytes.len()].copy_from_slice(bytes);
        slot
    }
}
