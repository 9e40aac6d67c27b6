//! A frontend that connects properly and then writes whatever it likes into its ring. It is owed one thing: an answer to each
//! request that it got into the ring properly.

use std::collections::BTreeMap;

use blkback_core::backend::VbdId;
use xen_proto::GrantRef;
use xen_proto::blkif::{Abi, Request, Response, Segment, Slot, Status, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{Access, SharedRing};
use xen_proto::ring::{Check, FrontRing, REQ_EVENT, REQ_PROD, RSP_EVENT};

use super::rng::Rng;
use super::xen::{RingMemory, Xen};
use crate::fake::{Frontend, Store};

/// Pages that it really granted.
const PAGES: u32 = 24;
const ABI: Abi = Abi::X86_64;
const RING: GrantRef = GrantRef(100);

pub(super) struct Hostile {
    frontend: Frontend,
    xen: Xen,
    rng: Rng,
    front: FrontRing<RingMemory>,
    /// The operation to be echoed for each request.
    owed: BTreeMap<u64, u8>,
    next_id: u64,
    pub(super) answered: usize,
    pub(super) refused: usize,
    broke_its_ring: bool,
}

impl Hostile {
    /// Grants its pages and publishes its ring.
    pub(super) fn new(id: VbdId, xen: &Xen, store: &mut Store, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        for gref in 0..PAGES {
            let mut page = [0; PAGE_SIZE];
            for descriptor in page.chunks_mut(8) {
                let segment = segment(&mut rng);
                descriptor[..4].copy_from_slice(&segment.gref().0.to_le_bytes());
                descriptor[4..6].copy_from_slice(&[segment.first_sect, segment.last_sect]);
            }
            let access = if gref % 3 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            xen.grant(id, GrantRef(gref), page, access);
        }
        let memory = RingMemory::new(1);
        xen.grant_ring(id, &[RING], &memory);
        xen.offer(id, 1);
        let frontend = Frontend(id);
        for (key, value) in
            [("ring-ref", RING.to_string()), ("event-channel", "1".into()), ("protocol", ABI.protocol().into())]
        {
            frontend.write(store, key, &value);
        }
        frontend.state(store, 3);
        let front = FrontRing::create(memory, ABI.slot_bytes());
        let owed = BTreeMap::new();
        Self {
            frontend,
            xen: xen.clone(),
            rng,
            front,
            owed,
            next_id: 1,
            answered: 0,
            refused: 0,
            broke_its_ring: false,
        }
    }

    pub(super) fn id(&self) -> VbdId {
        self.frontend.0
    }

    /// A few requests, and an event whether it is wanted or not.
    pub(super) fn issue(&mut self) {
        for _ in 0..self.rng.below(8) {
            if self.front.free() > 0 && !self.broke_its_ring {
                let request = self.request();
                self.front.request(&request.to_slot(ABI)[..ABI.slot_bytes()]);
            }
        }
        let _ = self.front.publish();
        self.xen.send(self.id());
    }

    fn request(&mut self) -> Request {
        self.next_id += 1;
        let (id, rng) = (self.next_id, &mut self.rng);
        let operation = if rng.one_in(10) { rng.byte() } else { rng.byte() % 7 };
        let sector = match rng.below(4) {
            0 => rng.next(),
            1 => u64::MAX - rng.below(20),
            _ => rng.below(60),
        };
        let (request, echo) = if operation == op::INDIRECT {
            let nested = if rng.one_in(4) { rng.byte() } else { rng.byte() % 2 };
            let count = if rng.one_in(3) { rng.below(0x10000) } else { rng.below(12) };
            let page = gref(rng);
            (Request::indirect(nested, id, sector, u16::try_from(count).expect("it is small"), &[page; 8]), nested)
        } else {
            let segments: Vec<_> = (0..11).map(|_| segment(rng)).collect();
            let count = if rng.one_in(4) { rng.byte() } else { rng.byte() % 4 };
            (Request::direct(operation, id, sector, &segments).with_nr_segments(count), operation)
        };
        self.owed.insert(id, echo);
        request
    }

    /// Ruins the ring; the events too, which it may.
    pub(super) fn break_ring(&mut self) {
        self.broke_its_ring = true;
        let far = 40 + u32::try_from(self.rng.below(u64::from(u32::MAX) - 80)).expect("it is a u32");
        let ring = self.front.shared();
        ring.store(REQ_PROD, ring.load(REQ_PROD).wrapping_add(far));
        ring.store(RSP_EVENT, self.rng.byte().into());
        ring.store(REQ_EVENT, self.rng.byte().into());
        self.xen.send(self.id());
    }

    pub(super) fn poll(&mut self) {
        while !self.broke_its_ring {
            let mut slot: Slot = [0; 112];
            while self.front.take(&mut slot[..ABI.slot_bytes()]).expect("the backend keeps to the ring's rules") {
                let response = Response::from_slot(&slot);
                let echo = self.owed.remove(&response.id()).expect("one answer for each request");
                assert_eq!(response.operation, echo);
                self.answered += 1;
                self.refused += usize::from(response.status() != Some(Status::Okay));
            }
            if self.front.final_check() == Ok(Check::Sleep) {
                return;
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.broke_its_ring || self.owed.is_empty()
    }
}

fn gref(rng: &mut Rng) -> GrantRef {
    let known = u32::try_from(rng.below(u64::from(PAGES))).expect("it is small");
    match rng.below(6) {
        0 => GrantRef(u32::from(rng.byte()) << 20),
        // Its own ring is no data.
        1 => RING,
        _ => GrantRef(known),
    }
}

fn segment(rng: &mut Rng) -> Segment {
    let edge = |rng: &mut Rng| if rng.one_in(12) { rng.byte() } else { rng.byte() % 8 };
    let (a, b) = (edge(rng), edge(rng));
    if rng.one_in(8) { Segment::new(gref(rng), a, b) } else { Segment::new(gref(rng), a.min(b), a.max(b)) }
}
