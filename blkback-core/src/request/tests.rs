//! Every kind of malformed request, and that nothing whatever gets past the bounds.

use proptest::prelude::*;
use xen_proto::blkif::{Abi, Slot};

use super::*;

const BOUNDS: Bounds = Bounds { sectors: 1000, block: 1, mode: Mode::ReadWrite };
const READ_ONLY: Bounds = Bounds { mode: Mode::ReadOnly, ..BOUNDS };
const BIG_BLOCKS: Bounds = Bounds { block: 8, ..BOUNDS };
const PAGE: GrantRef = GrantRef(77);

fn direct(operation: u8, segments: usize) -> RawRequest {
    RawRequest::direct(operation, 1, 10, &vec![Segment::new(PAGE, 0, 7); segments])
}

fn indirect(operation: u8, segments: u16) -> RawRequest {
    RawRequest::indirect(operation, 1, 10, segments, &[PAGE])
}

#[test]
fn slots() {
    let good = |action, count| Ok((action, count));
    let cases = [
        ("read", direct(op::READ, 1), BOUNDS, good(Action::Read, 1)),
        ("write", direct(op::WRITE, 11), BOUNDS, good(Action::Write, 11)),
        ("flush", direct(op::FLUSH_DISKCACHE, 0), BOUNDS, good(Action::Flush, 0)),
        ("flush with data", direct(op::FLUSH_DISKCACHE, 3), BOUNDS, good(Action::Flush, 3)),
        ("indirect read", indirect(op::READ, 1), BOUNDS, good(Action::Read, 1)),
        ("indirect write", indirect(op::WRITE, 256), BOUNDS, good(Action::Write, 256)),
        ("read of nothing", direct(op::READ, 0), BOUNDS, Err(Status::Error)),
        ("write of nothing", direct(op::WRITE, 0), BOUNDS, Err(Status::Error)),
        ("12 direct segments", direct(op::READ, 12), BOUNDS, Err(Status::Error)),
        ("255 direct segments", direct(op::FLUSH_DISKCACHE, 255), BOUNDS, Err(Status::Error)),
        ("indirect of nothing", indirect(op::READ, 0), BOUNDS, Err(Status::Error)),
        ("257 indirect segments", indirect(op::READ, 257), BOUNDS, Err(Status::Error)),
        ("65535 indirect segments", indirect(op::WRITE, 65535), BOUNDS, Err(Status::Error)),
        ("indirect flush", indirect(op::FLUSH_DISKCACHE, 1), BOUNDS, Err(Status::Error)),
        ("indirect indirect", indirect(op::INDIRECT, 1), BOUNDS, Err(Status::Error)),
        ("indirect nonsense", indirect(200, 1), BOUNDS, Err(Status::Error)),
        ("barrier", direct(op::WRITE_BARRIER, 1), BOUNDS, Err(Status::NotSupported)),
        ("reserved", direct(4, 1), BOUNDS, Err(Status::NotSupported)),
        ("discard", direct(op::DISCARD, 0), BOUNDS, Err(Status::NotSupported)),
        ("nonsense", direct(255, 0), BOUNDS, Err(Status::NotSupported)),
        ("read-only: read", direct(op::READ, 1), READ_ONLY, good(Action::Read, 1)),
        ("read-only: flush", direct(op::FLUSH_DISKCACHE, 0), READ_ONLY, good(Action::Flush, 0)),
        ("read-only: write", direct(op::WRITE, 1), READ_ONLY, Err(Status::Error)),
        ("read-only: indirect write", indirect(op::WRITE, 1), READ_ONLY, Err(Status::Error)),
        ("read-only: flush with data", direct(op::FLUSH_DISKCACHE, 1), READ_ONLY, Err(Status::Error)),
    ];
    for (name, raw, bounds, expect) in cases {
        let parsed = Request::parse(&raw, &bounds);
        assert_eq!(parsed.map(|request| (request.action, request.count())), expect, "{name}");
    }
}

/// Name, first sector, sectors in the pages, bounds; sectors in all.
type SegmentsCase = (&'static str, u64, &'static [(u8, u8)], Bounds, Result<u64, Status>);

#[test]
fn segments() {
    let cases: &[SegmentsCase] = &[
        ("a page", 10, &[(0, 7)], BOUNDS, Ok(8)),
        ("a sector", 10, &[(7, 7)], BOUNDS, Ok(1)),
        ("parts of pages", 10, &[(3, 7), (0, 2)], BOUNDS, Ok(8)),
        ("the last sector", 999, &[(0, 0)], BOUNDS, Ok(1)),
        ("the last page", 992, &[(0, 7)], BOUNDS, Ok(8)),
        ("one beyond the end", 993, &[(0, 7)], BOUNDS, Err(Status::Error)),
        ("from the end", 1000, &[(0, 0)], BOUNDS, Err(Status::Error)),
        ("far beyond the end", 1 << 40, &[(0, 0)], BOUNDS, Err(Status::Error)),
        ("round the number space", u64::MAX, &[(0, 0)], BOUNDS, Err(Status::Error)),
        ("round the number space and on", u64::MAX - 3, &[(0, 7)], BOUNDS, Err(Status::Error)),
        ("last before first", 10, &[(3, 2)], BOUNDS, Err(Status::Error)),
        ("last beyond the page", 10, &[(0, 8)], BOUNDS, Err(Status::Error)),
        ("both beyond the page", 10, &[(8, 8)], BOUNDS, Err(Status::Error)),
        ("all beyond the page", 10, &[(255, 255)], BOUNDS, Err(Status::Error)),
        ("only one of them bad", 10, &[(0, 7), (0, 7), (5, 4)], BOUNDS, Err(Status::Error)),
        ("whole blocks", 16, &[(0, 7)], BIG_BLOCKS, Ok(8)),
        ("whole blocks in parts of pages", 16, &[(4, 7), (0, 3)], BIG_BLOCKS, Ok(8)),
        ("not from a block", 17, &[(0, 7)], BIG_BLOCKS, Err(Status::Error)),
        ("not whole blocks", 16, &[(0, 6)], BIG_BLOCKS, Err(Status::Error)),
    ];
    for (name, sector, pages, bounds, expect) in cases {
        let segments: Vec<_> = pages.iter().map(|(first, last)| Segment::new(PAGE, *first, *last)).collect();
        let raw = RawRequest::direct(op::READ, 1, *sector, &segments);
        let request = Request::parse(&raw, bounds).unwrap();
        assert_eq!(request.check_segments(&segments, bounds, |_, _| {}), *expect, "{name}");
    }
}

#[test]
fn a_flush_alone_has_no_sector() {
    let raw = RawRequest::direct(op::FLUSH_DISKCACHE, 1, u64::MAX, &[]);
    let request = Request::parse(&raw, &BIG_BLOCKS).unwrap();
    assert_eq!((request.sector, request.check_segments(&[], &BIG_BLOCKS, |_, _| {})), (0, Ok(0)));
}

#[test]
fn the_operation_inside_an_indirect_request_is_echoed() {
    let cases = [(direct(op::WRITE, 1), op::WRITE), (direct(99, 1), 99), (indirect(op::READ, 1), op::READ)];
    for (raw, expect) in cases {
        assert_eq!(echoed_operation(&raw), expect);
    }
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    (1..1_u64 << 40, 0..4, mode).prop_map(|(sectors, block, mode)| Bounds {
        sectors: sectors << block,
        block: 1_u64 << block,
        mode,
    })
}

/// Any bytes, or bytes that are likely to be a request.
fn slot() -> impl Strategy<Value = Slot> {
    let any_slot = prop::collection::vec(any::<u8>(), 112).prop_map(|bytes| Slot::try_from(bytes).unwrap());
    let likely = (any_slot.clone(), 0..8_u8, 0..13_u8, 0..2000_u64).prop_map(|(mut slot, operation, count, sector)| {
        slot[..4].copy_from_slice(&[operation, count, count, 0]);
        slot[16..24].copy_from_slice(&sector.to_le_bytes());
        slot[24..].chunks_mut(8).for_each(|segment| segment[4..6].iter_mut().for_each(|sector| *sector %= 9));
        slot
    });
    prop_oneof![any_slot, likely]
}

proptest! {
    #[test]
    fn what_is_accepted_is_in_bounds(slot in slot(), described in prop::collection::vec(any::<[u8; 2]>(), 256), bounds in bounds()) {
        for abi in [Abi::X86_64, Abi::X86_32] {
            let raw = RawRequest::from_slot(abi, &slot);
            let Ok(request) = Request::parse(&raw, &bounds) else { continue };
            let segments: Vec<Segment> = match request.segments {
                Segments::Direct { count, all } => all[..count].to_vec(),
                Segments::Indirect { count, .. } => {
                    described[..count].iter().map(|[first, last]| Segment::new(PAGE, first % 9, last % 9)).collect()
                }
            };
            let mut runs = Vec::new();
            let Ok(sectors) = request.check_segments(&segments, &bounds, |_, run| runs.push(run)) else { continue };
            prop_assert_eq!(runs.len(), request.count());
            prop_assert_eq!(runs.iter().map(|run| u64::from(run.sectors)).sum::<u64>(), sectors);
            prop_assert!(runs.iter().all(|run| run.sectors > 0 && run.first + run.sectors <= 8));
            prop_assert!(u128::from(request.sector) + u128::from(sectors) <= u128::from(bounds.sectors));
            prop_assert!(request.sector % bounds.block == 0 && sectors % bounds.block == 0);
            prop_assert!(bounds.mode == Mode::ReadWrite || request.action == Action::Read || sectors == 0);
        }
    }
}
