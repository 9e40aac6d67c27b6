//! Sharing by extent, against a naive model that compares every pair.

use proptest::prelude::*;
use xen_proto::DomId;

use super::*;
use Mode::{ReadOnly, ReadWrite};

const WRITABLE: Geometry =
    Geometry { sectors: 100, logical_block: 512, physical_block: 512, writable: true, write_cache: true };

fn vbd(device: u32) -> VbdId {
    VbdId { domain: DomId(1), device }
}

fn extent(disk: u16, start: u64, end: u64) -> Extent {
    Extent { disk: DiskId(disk), start, sectors: end - start }
}

#[test]
fn a_writer_excludes_and_readers_share() {
    // (what vbd 1 holds, what vbd 2 wants, whether it gets it)
    let (whole, part) = (extent(0, 0, 100), extent(0, 10, 20));
    let cases = [
        ((whole, ReadWrite), (whole, ReadWrite), false),
        ((whole, ReadWrite), (part, ReadOnly), false),
        ((part, ReadWrite), (whole, ReadOnly), false),
        ((part, ReadOnly), (whole, ReadWrite), false),
        ((whole, ReadOnly), (part, ReadWrite), false),
        ((whole, ReadOnly), (part, ReadOnly), true),
        ((part, ReadOnly), (part, ReadOnly), true),
        ((part, ReadWrite), (extent(0, 20, 30), ReadWrite), true),
        ((part, ReadWrite), (extent(0, 0, 10), ReadWrite), true),
        ((part, ReadWrite), (extent(0, 19, 30), ReadWrite), false),
        ((part, ReadWrite), (extent(0, 0, 11), ReadOnly), false),
        ((whole, ReadWrite), (extent(1, 0, 100), ReadWrite), true),
    ];
    for ((held, held_mode), (wanted, mode), granted) in cases {
        let mut claims = Claims::default();
        claims.claim(vbd(1), held, held_mode, &WRITABLE).unwrap();
        let name = format!("{held:?} {held_mode:?}, then {wanted:?} {mode:?}");
        let expect = |error| if granted { Ok(()) } else { Err(error) };
        assert_eq!(claims.claim(vbd(2), wanted, mode, &WRITABLE), expect(ClaimError::Busy(vbd(1))), "{name}");
        claims.release(vbd(2));
        claims.drain(vbd(1));
        assert_eq!(claims.claim(vbd(3), wanted, mode, &WRITABLE), expect(ClaimError::Draining(vbd(1))), "{name}");
        claims.release(vbd(3));
        claims.release(vbd(1));
        assert_eq!(claims.claim(vbd(4), wanted, mode, &WRITABLE), Ok(()), "{name}");
    }
}

#[test]
fn a_read_only_disk_is_not_written() {
    let mut claims = Claims::default();
    let geometry = Geometry { writable: false, ..WRITABLE };
    let all = extent(0, 0, 100);
    assert_eq!(claims.claim(vbd(1), all, ReadWrite, &geometry), Err(ClaimError::ReadOnlyDisk));
    assert_eq!(claims.claim(vbd(1), all, ReadOnly, &geometry), Ok(()));
}

#[test]
fn a_live_holder_is_named_before_one_that_drains() {
    let mut claims = Claims::default();
    claims.claim(vbd(1), extent(0, 0, 10), ReadWrite, &WRITABLE).unwrap();
    claims.claim(vbd(2), extent(0, 10, 20), ReadWrite, &WRITABLE).unwrap();
    claims.drain(vbd(1));
    assert_eq!(claims.claim(vbd(3), extent(0, 5, 15), ReadOnly, &WRITABLE), Err(ClaimError::Busy(vbd(2))));
    claims.drain(vbd(2));
    assert_eq!(claims.claim(vbd(3), extent(0, 5, 15), ReadOnly, &WRITABLE), Err(ClaimError::Draining(vbd(1))));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Claim(u32, Extent, Mode),
    Drain(u32),
    Keep(u32),
    Release(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![3 => Just(ReadOnly), 1 => Just(ReadWrite)];
    let claim = (0..8_u32, 0..2_u16, 0..20_u64, 1..8_u64, mode)
        .prop_map(|(who, disk, start, sectors, mode)| Step::Claim(who, extent(disk, start, start + sectors), mode));
    prop_oneof![3 => claim, 2 => (0..8_u32).prop_map(Step::Drain), 1 => (0..8_u32).prop_map(Step::Keep), 2 => (0..8_u32).prop_map(Step::Release)]
}

/// Who holds what, and whether they drain.
#[derive(Default)]
struct Model(BTreeMap<u32, (Extent, Mode, bool)>);

impl Model {
    /// `None` if the claim is granted, else whether all that stand against it drain.
    fn against(&self, wanted: Extent, mode: Mode) -> Option<bool> {
        let conflicts = self.0.values().filter(|(held, held_mode, _)| {
            let overlap = held.disk == wanted.disk
                && held.start < wanted.start + wanted.sectors
                && wanted.start < held.start + held.sectors;
            overlap && !(mode == ReadOnly && *held_mode == ReadOnly)
        });
        conflicts.map(|(_, _, draining)| *draining).reduce(|all, draining| all && draining)
    }
}

proptest! {
    #[test]
    fn claims_are_what_comparing_every_pair_says(steps in prop::collection::vec(step(), 0..60)) {
        let (mut claims, mut model) = (Claims::default(), Model::default());
        for step in steps {
            match step {
                Step::Claim(who, _, _) if model.0.contains_key(&who) => {}
                Step::Claim(who, wanted, mode) => {
                    let got = claims.claim(vbd(who), wanted, mode, &WRITABLE);
                    let refused = got.err().map(|error| matches!(error, ClaimError::Draining(_)));
                    prop_assert_eq!(refused, model.against(wanted, mode), "{:?}", step);
                    if refused.is_none() {
                        model.0.insert(who, (wanted, mode, false));
                    }
                }
                Step::Drain(who) => {
                    claims.drain(vbd(who));
                    if let Some(claim) = model.0.get_mut(&who) {
                        claim.2 = true;
                    }
                }
                Step::Keep(who) => {
                    claims.keep(vbd(who));
                    if let Some(claim) = model.0.get_mut(&who) {
                        claim.2 = false;
                    }
                }
                Step::Release(who) => {
                    claims.release(vbd(who));
                    model.0.remove(&who);
                }
            }
        }
        for who in 0..8 {
            claims.release(vbd(who));
        }
        prop_assert!(claims.pieces.is_empty() && claims.held.is_empty());
    }
}
