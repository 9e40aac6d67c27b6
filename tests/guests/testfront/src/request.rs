//! The block ring's requests and responses as bytes, in both x86 ABIs (io/blkif.h).
//!
//! testfront lays them out itself instead of using what the backend parses with: a mistake in one of the two then shows,
//! and requests that no type of the backend could express can be made.

/// Requests that the block ring knows, by their numbers (`BLKIF_OP_*`).
pub mod op {
    /// `BLKIF_OP_READ`
    pub const READ: u8 = 0;
    /// `BLKIF_OP_WRITE`
    pub const WRITE: u8 = 1;
    /// `BLKIF_OP_WRITE_BARRIER`
    pub const WRITE_BARRIER: u8 = 2;
    /// `BLKIF_OP_FLUSH_DISKCACHE`
    pub const FLUSH: u8 = 3;
    /// `BLKIF_OP_RESERVED_1`
    pub const RESERVED: u8 = 4;
    /// `BLKIF_OP_DISCARD`
    pub const DISCARD: u8 = 5;
    /// `BLKIF_OP_INDIRECT`
    pub const INDIRECT: u8 = 6;
}

/// Segments that fit in a direct request (`BLKIF_MAX_SEGMENTS_PER_REQUEST`).
pub const DIRECT_SEGMENTS: usize = 11;
/// Pages of segments that an indirect request can name (`BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST`).
pub const INDIRECT_PAGES: usize = 8;
/// The bytes of a segment, in a request and in an indirect page.
pub const SEGMENT_BYTES: usize = 8;
/// The bytes before the first slot of a ring (ring.h: four indices and padding).
pub const RING_HEADER_BYTES: usize = 64;

/// How a frontend's compiler lays structures out: 64-bit numbers are aligned to 8 bytes, or to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// `x86_32-abi`
    X86_32,
    /// `x86_64-abi`
    X86_64,
}

impl Abi {
    /// The value of the frontend's `protocol` node.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::X86_32 => "x86_32-abi",
            Self::X86_64 => "x86_64-abi",
        }
    }

    /// The bytes of a slot: those of the larger of request and response, i.e. of a direct request.
    #[must_use]
    pub const fn slot_bytes(self) -> usize {
        self.segments_at() + DIRECT_SEGMENTS * SEGMENT_BYTES
    }

    /// The slots of a ring of `1 << order` pages: the largest power of two that fits (`__RING_SIZE`).
    #[must_use]
    pub const fn slots(self, order: u32) -> u32 {
        let room = (4096 << order) - RING_HEADER_BYTES;
        // At most 584: it fits.
        #[expect(clippy::cast_possible_truncation)]
        let slots = (room / self.slot_bytes()) as u32;
        1 << slots.ilog2()
    }

    const fn id_at(self) -> usize {
        match self {
            Self::X86_32 => 4,
            Self::X86_64 => 8,
        }
    }

    const fn sector_at(self) -> usize {
        self.id_at() + 8
    }

    /// Where what follows the sector number starts: segments, a discard's length, an indirect request's handle.
    const fn segments_at(self) -> usize {
        self.id_at() + 16
    }
}

/// The largest slot of any ABI.
pub const MAX_SLOT_BYTES: usize = Abi::X86_64.slot_bytes();

/// A run of sectors in a granted page (`struct blkif_request_segment`). Any values go: making bad ones is the purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// The page.
    pub gref: u32,
    /// First sector of the page, 0..8.
    pub first: u8,
    /// Last sector of the page, inclusive.
    pub last: u8,
}

impl Segment {
    /// As it stands in a request or in an indirect page.
    #[must_use]
    pub fn to_bytes(self) -> [u8; SEGMENT_BYTES] {
        let [a, b, c, d] = self.gref.to_le_bytes();
        [a, b, c, d, self.first, self.last, 0, 0]
    }
}

/// What follows the sector number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Segments in the request itself; `count` is what the request claims, whatever the number given.
    Direct {
        /// `nr_segments`
        count: u8,
        /// At most [`DIRECT_SEGMENTS`] are laid out.
        segments: &'a [Segment],
    },
    /// Segments in granted pages of their own (`struct blkif_request_indirect`).
    Indirect {
        /// What is done: the `indirect_op`.
        operation: u8,
        /// `nr_segments`
        count: u16,
        /// At most [`INDIRECT_PAGES`] are laid out.
        pages: &'a [u32],
    },
    /// A number of sectors without data (`struct blkif_request_discard`).
    Discard {
        /// `nr_sectors`
        sectors: u64,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is asked for; for [`Body::Indirect`] this is [`op::INDIRECT`].
    pub operation: u8,
    /// Which vbd the guest calls this; backends ignore it.
    pub handle: u16,
    /// Comes back in the response.
    pub id: u64,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// The rest.
    pub body: Body<'a>,
}

impl Request<'_> {
    /// Lays the request out; only the first [`Abi::slot_bytes`] bytes count.
    #[must_use]
    pub fn to_bytes(&self, abi: Abi) -> [u8; MAX_SLOT_BYTES] {
        let mut slot = [0; MAX_SLOT_BYTES];
        let after = abi.segments_at();
        put(&mut slot, 0, &[self.operation]);
        put(&mut slot, abi.id_at(), &self.id.to_le_bytes());
        put(&mut slot, abi.sector_at(), &self.sector.to_le_bytes());
        match self.body {
            Body::Direct { count, segments } => {
                put(&mut slot, 1, &[count]);
                put(&mut slot, 2, &self.handle.to_le_bytes());
                for (at, segment) in (after..).step_by(SEGMENT_BYTES).zip(segments.iter().take(DIRECT_SEGMENTS)) {
                    put(&mut slot, at, &segment.to_bytes());
                }
            }
            Body::Indirect { operation, count, pages } => {
                put(&mut slot, 1, &[operation]);
                put(&mut slot, 2, &count.to_le_bytes());
                put(&mut slot, after, &self.handle.to_le_bytes());
                for (at, gref) in (after + 4..).step_by(4).zip(pages.iter().take(INDIRECT_PAGES)) {
                    put(&mut slot, at, &gref.to_le_bytes());
                }
            }
            Body::Discard { sectors } => {
                put(&mut slot, 2, &self.handle.to_le_bytes());
                put(&mut slot, after, &sectors.to_le_bytes());
            }
        }
        slot
    }
}

fn put(slot: &mut [u8; MAX_SLOT_BYTES], at: usize, bytes: &[u8]) {
    slot[at..at + bytes.len()].copy_from_slice(bytes);
}

/// How a request was answered (`BLKIF_RSP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `BLKIF_RSP_OKAY`
    Okay,
    /// `BLKIF_RSP_ERROR`
    Error,
    /// `BLKIF_RSP_EOPNOTSUPP`
    Unsupported,
    /// No status that blkif.h knows.
    Unknown(i16),
}

/// The bytes of a response that mean something, the same in both ABIs.
pub const RESPONSE_BYTES: usize = 12;

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request's.
    pub id: u64,
    /// The request's.
    pub operation: u8,
    /// How it went.
    pub status: Status,
}

impl Response {
    /// Reads one: id, operation, a byte of padding, status.
    #[must_use]
    pub fn from_bytes(bytes: [u8; RESPONSE_BYTES]) -> Self {
        let [id @ .., operation, _, low, high] = bytes;
        let status = match i16::from_le_bytes([low, high]) {
            0 => Status::Okay,
            -1 => Status::Error,
            -2 => Status::Unsupported,
            other => Status::Unknown(other),
        };
        Self { id: u64::from_le_bytes(id), operation, status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(operation: u8, body: Body<'a>) -> Request<'a> {
        Request { operation, handle: 0xca00, id: 0x1122_3344_5566_7788, sector: 0x99aa_bbcc, body }
    }

    /// The bytes of both ABIs in hexadecimal, without the zeros at the end.
    fn check(request: Request<'_>, x86_32: &str, x86_64: &str) {
        for (abi, expected) in [(Abi::X86_32, x86_32), (Abi::X86_64, x86_64)] {
            let hex: std::string::String =
                request.to_bytes(abi).iter().map(|byte| std::format!("{byte:02x}")).collect();
            let expected: std::string::String = expected.split_whitespace().collect();
            assert_eq!(hex.trim_end_matches('0'), expected.trim_end_matches('0'), "{abi:?}");
        }
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        let segments = [Segment { gref: 0x0102_0304, first: 1, last: 6 }, Segment { gref: 5, first: 0, last: 7 }];
        check(
            request(op::WRITE, Body::Direct { count: 2, segments: &segments }),
            "01 02 00ca          8877665544332211 ccbbaa9900000000 0403020101060000 0500000000070000",
            "01 02 00ca 00000000 8877665544332211 ccbbaa9900000000 0403020101060000 0500000000070000",
        );
        check(
            request(op::INDIRECT, Body::Indirect { operation: op::READ, count: 0x0100, pages: &[0x0102_0304, 5] }),
            "06 00 0001          8877665544332211 ccbbaa9900000000 00ca 0000 04030201 05000000",
            "06 00 0001 00000000 8877665544332211 ccbbaa9900000000 00ca 0000 04030201 05000000",
        );
        check(
            request(op::DISCARD, Body::Discard { sectors: 0x1234 }),
            "05 00 00ca          8877665544332211 ccbbaa9900000000 3412000000000000",
            "05 00 00ca 00000000 8877665544332211 ccbbaa9900000000 3412000000000000",
        );
    }

    #[test]
    fn sizes_are_those_of_the_header() {
        assert_eq!([Abi::X86_32, Abi::X86_64].map(Abi::slot_bytes), [108, 112]);
        for (order, slots) in [32, 64, 128, 256, 512].into_iter().enumerate() {
            let order = u32::try_from(order).unwrap();
            assert_eq!([Abi::X86_32, Abi::X86_64].map(|abi| abi.slots(order)), [slots; 2]);
        }
    }

    #[test]
    fn more_segments_than_fit_do_not_spill() {
        let segments = [Segment { gref: u32::MAX, first: 255, last: 255 }; 40];
        let bytes = request(op::READ, Body::Direct { count: 255, segments: &segments }).to_bytes(Abi::X86_32);
        assert_eq!(bytes[1], 255);
        assert_eq!(bytes[108..], [0; 4]);
    }

    #[test]
    fn responses_are_read() {
        for (low, high, status) in [
            (0, 0, Status::Okay),
            (0xff, 0xff, Status::Error),
            (0xfe, 0xff, Status::Unsupported),
            (7, 0, Status::Unknown(7)),
        ] {
            let bytes = [1, 0, 0, 0, 0, 0, 0, 0x80, op::FLUSH, 0xee, low, high];
            let expected = Response { id: 0x8000_0000_0000_0001, operation: op::FLUSH, status };
            assert_eq!(Response::from_bytes(bytes), expected);
        }
    }
}
