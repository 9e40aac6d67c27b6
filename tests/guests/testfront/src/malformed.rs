//! Requests that no well-behaved frontend sends, each with the answer that a backend owes it: those of Linux's blkback, which
//! blkif.h leaves open.

use alloc::vec;
use alloc::vec::Vec;

use crate::request::{Body, DIRECT_SEGMENTS, Request, Segment, Status, op};

/// One malformed request.
#[derive(Debug)]
pub struct Case {
    /// Its name in scripts.
    pub name: &'static str,
    /// What the vbd must be like for it to be malformed.
    pub needs: Needs,
    /// What the backend owes it.
    pub answer: Answer,
    /// The fault.
    pub fault: Fault,
}

/// Names are unique.
impl PartialEq for Case {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// What a vbd must be like for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any vbd.
    Nothing,
    /// The backend takes indirect requests.
    Indirect,
    /// The vbd is read-only.
    ReadOnly,
    /// The backend does not offer discard.
    NoDiscard,
    /// The logical block is larger than 512 bytes.
    LargeBlocks,
}

/// What a backend owes to a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A response with this status.
    Status(Status),
    /// `BLKIF_RSP_ERROR` or `BLKIF_RSP_EOPNOTSUPP`: Linux's blkback finds out first that the disk is read-only, if it is.
    Refusal,
    /// No response any more: the ring is beyond repair. The vbd can be closed and connected again.
    Silence,
}

/// What is wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The request itself.
    Request(fn(&Scene) -> Forged),
    /// `req_prod` is more than a ring ahead.
    RequestProducer,
}

/// What a forger has at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Sectors of the vbd.
    pub sectors: u64,
    /// Segments that the backend takes in an indirect request.
    pub indirect_segments: u16,
    /// A page granted for reading and writing.
    pub page: u32,
    /// A page granted for reading only.
    pub read_only_page: u32,
    /// A page that holds [`Forged::table`].
    pub table_page: u32,
    /// A reference that grants nothing.
    pub no_page: u32,
}

/// A forged request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forged {
    /// The `operation`.
    pub operation: u8,
    /// The `sector_number`.
    pub sector: u64,
    /// What follows.
    pub body: ForgedBody,
    /// What stands in [`Scene::table_page`].
    pub table: Vec<Segment>,
}

/// An owned [`Body`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgedBody {
    /// [`Body::Direct`]
    Direct {
        /// `nr_segments`
        count: u8,
        /// The segments.
        segments: Vec<Segment>,
    },
    /// [`Body::Indirect`]
    Indirect {
        /// The `indirect_op`.
        operation: u8,
        /// `nr_segments`
        count: u16,
        /// The pages of segments.
        pages: Vec<u32>,
    },
    /// [`Body::Discard`]
    Discard {
        /// `nr_sectors`
        sectors: u64,
    },
}

impl Forged {
    /// The request with this id.
    #[must_use]
    pub fn request(&self, id: u64) -> Request<'_> {
        let body = match &self.body {
            ForgedBody::Direct { count, segments } => Body::Direct { count: *count, segments },
            ForgedBody::Indirect { operation, count, pages } => {
                Body::Indirect { operation: *operation, count: *count, pages }
            }
            ForgedBody::Discard { sectors } => Body::Discard { sectors: *sectors },
        };
        Request { operation: self.operation, handle: 0, id, sector: self.sector, body }
    }
}

impl Answer {
    /// Whether a response with this status is what was owed.
    #[must_use]
    pub fn allows(self, status: Status) -> bool {
        match self {
            Self::Status(owed) => status == owed,
            Self::Refusal => matches!(status, Status::Error | Status::Unsupported),
            Self::Silence => false,
        }
    }
}

const ERROR: Answer = Answer::Status(Status::Error);
const UNSUPPORTED: Answer = Answer::Status(Status::Unsupported);

const fn case(name: &'static str, needs: Needs, answer: Answer, forge: fn(&Scene) -> Forged) -> Case {
    Case { name, needs, answer, fault: Fault::Request(forge) }
}

/// All of them. The one that costs the ring stands last.
pub const CASES: &[Case] = &[
    case("unknown-op", Needs::Nothing, UNSUPPORTED, |at| direct(200, 0, &[whole(at.page)])),
    case("reserved-op", Needs::Nothing, UNSUPPORTED, |at| direct(op::RESERVED, 0, &[whole(at.page)])),
    case("nseg-0", Needs::Nothing, ERROR, |_| direct(op::READ, 0, &[])),
    case("nseg-0-write", Needs::Nothing, ERROR, |_| direct(op::WRITE, 0, &[])),
    case("nseg-12", Needs::Nothing, ERROR, |at| claiming(12, at)),
    case("nseg-255", Needs::Nothing, ERROR, |at| claiming(255, at)),
    case("first-after-last", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[part(at.page, 3, 2)])),
    case("last-8", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[part(at.page, 0, 8)])),
    case("last-255", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[part(at.page, 0, 255)])),
    case("second-last-8", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[whole(at.page), part(at.page, 7, 8)])),
    case("beyond-end", Needs::Nothing, ERROR, |at| direct(op::READ, at.sectors, &[whole(at.page)])),
    case("beyond-end-write", Needs::Nothing, ERROR, |at| direct(op::WRITE, at.sectors, &[whole(at.page)])),
    case("across-end", Needs::Nothing, ERROR, |at| {
        direct(op::READ, at.sectors.saturating_sub(8), &[whole(at.page), whole(at.page)])
    }),
    case("sector-overflow", Needs::Nothing, ERROR, |at| direct(op::READ, u64::MAX - 7, &[whole(at.page)])),
    case("byte-overflow", Needs::Nothing, ERROR, |at| direct(op::READ, 1 << 55, &[whole(at.page)])),
    case("bad-gref", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[whole(at.no_page)])),
    case("wild-gref", Needs::Nothing, ERROR, |_| direct(op::READ, 0, &[whole(u32::MAX)])),
    case("last-gref-bad", Needs::Nothing, ERROR, |at| {
        direct(op::READ, 0, &[whole(at.page), whole(at.page), whole(at.no_page)])
    }),
    case("read-only-gref", Needs::Nothing, ERROR, |at| direct(op::READ, 0, &[whole(at.read_only_page)])),
    case("write-read-only", Needs::ReadOnly, ERROR, |at| direct(op::WRITE, 0, &[whole(at.page)])),
    case("discard", Needs::NoDiscard, Answer::Refusal, |_| discard(0, 8)),
    case("unaligned", Needs::LargeBlocks, ERROR, |at| direct(op::READ, 1, &[whole(at.page)])),
    case("unaligned-length", Needs::LargeBlocks, ERROR, |at| direct(op::READ, 0, &[part(at.page, 0, 0)])),
    case("indirect-0", Needs::Indirect, ERROR, |at| indirect(op::READ, 0, &[at.table_page], vec![])),
    case("indirect-too-many", Needs::Indirect, ERROR, |at| {
        indirect(op::READ, at.indirect_segments.saturating_add(1), &[at.table_page], vec![whole(at.page); 512])
    }),
    case("indirect-65535", Needs::Indirect, ERROR, |at| {
        indirect(op::READ, u16::MAX, &[at.table_page; 8], vec![whole(at.page); 512])
    }),
    case("indirect-in-indirect", Needs::Indirect, ERROR, |at| {
        indirect(op::INDIRECT, 1, &[at.table_page], vec![whole(at.page)])
    }),
    case("indirect-flush", Needs::Indirect, ERROR, |at| indirect(op::FLUSH, 1, &[at.table_page], vec![whole(at.page)])),
    case("indirect-bad-gref", Needs::Indirect, ERROR, |at| indirect(op::READ, 1, &[at.no_page], vec![])),
    case("indirect-bad-segment", Needs::Indirect, ERROR, |at| {
        indirect(op::READ, 2, &[at.table_page], vec![whole(at.page), part(at.page, 0, 8)])
    }),
    case("indirect-segment-bad-gref", Needs::Indirect, ERROR, |at| {
        indirect(op::READ, 2, &[at.table_page], vec![whole(at.page), whole(at.no_page)])
    }),
    case("indirect-beyond-end", Needs::Indirect, ERROR, |at| Forged {
        sector: at.sectors.saturating_sub(8),
        ..indirect(op::READ, 2, &[at.table_page], vec![whole(at.page); 2])
    }),
    Case { name: "req-prod", needs: Needs::Nothing, answer: Answer::Silence, fault: Fault::RequestProducer },
];

fn part(gref: u32, first: u8, last: u8) -> Segment {
    Segment { gref, first, last }
}

fn whole(gref: u32) -> Segment {
    part(gref, 0, 7)
}

fn direct(operation: u8, sector: u64, segments: &[Segment]) -> Forged {
    let count = u8::try_from(segments.len()).unwrap_or(u8::MAX);
    let body = ForgedBody::Direct { count, segments: segments.to_vec() };
    Forged { operation, sector, body, table: Vec::new() }
}

/// A direct request that claims more segments than it can hold; those it holds are sound.
fn claiming(count: u8, at: &Scene) -> Forged {
    let segments = vec![whole(at.page); DIRECT_SEGMENTS];
    Forged { operation: op::READ, sector: 0, body: ForgedBody::Direct { count, segments }, table: Vec::new() }
}

fn discard(sector: u64, sectors: u64) -> Forged {
    Forged { operation: op::DISCARD, sector, body: ForgedBody::Discard { sectors }, table: Vec::new() }
}

fn indirect(operation: u8, count: u16, pages: &[u32], table: Vec<Segment>) -> Forged {
    let body = ForgedBody::Indirect { operation, count, pages: pages.to_vec() };
    Forged { operation: op::INDIRECT, sector: 0, body, table }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENE: Scene =
        Scene { sectors: 1 << 20, indirect_segments: 256, page: 8, read_only_page: 9, table_page: 10, no_page: 11 };

    /// What an honest check finds wrong with a request, in the words of the case's name; written apart from the table.
    fn faults(forged: &Forged) -> Vec<&'static str> {
        let mut found = vec![];
        let (operation, count, room, segments) = match &forged.body {
            ForgedBody::Direct { count, segments } => (forged.operation, usize::from(*count), 11, segments),
            ForgedBody::Indirect { operation, count, pages } => {
                if pages.iter().any(|&gref| gref != SCENE.table_page) {
                    found.push("gref");
                }
                (*operation, usize::from(*count), 256, &forged.table)
            }
            ForgedBody::Discard { .. } => return vec!["discard"],
        };
        if ![op::READ, op::WRITE].contains(&operation) {
            found.push("op");
        }
        if count == 0 || count > room {
            found.push("count");
        }
        if segments.iter().any(|segment| segment.first > segment.last || segment.last > 7) {
            found.push("segment");
        }
        let good = |gref: u32| gref == SCENE.page || (gref == SCENE.read_only_page && operation == op::WRITE);
        if segments.iter().any(|segment| !good(segment.gref)) {
            found.push("gref");
        }
        let sectors: u64 =
            segments.iter().map(|segment| u64::from(segment.last.saturating_sub(segment.first)) + 1).sum();
        if forged.sector.checked_add(sectors).is_none_or(|end| end > SCENE.sectors) {
            found.push("range");
        }
        if !forged.sector.is_multiple_of(8) || !sectors.is_multiple_of(8) {
            found.push("alignment");
        }
        found
    }

    /// A request with two faults would hide that one of them is not found.
    #[test]
    fn each_case_has_one_fault() {
        for case in CASES {
            let Fault::Request(forge) = case.fault else { continue };
            let mut found = faults(&forge(&SCENE));
            if case.needs != Needs::LargeBlocks && found != ["alignment"] {
                found.retain(|fault| *fault != "alignment");
            }
            match case.needs {
                Needs::ReadOnly => assert_eq!(found, [""; 0], "{}: only the disk's mode is against it", case.name),
                _ => assert_eq!(found.len(), 1, "{}: {found:?}", case.name),
            }
        }
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
