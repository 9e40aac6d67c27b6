//! A frontend that writes whatever it likes. It is owed one thing: an answer to each request that it got into the ring properly.

use std::collections::BTreeMap;

use blkback_core::backend::{Backend, Connection, VbdId};
use blkback_core::volume::{Mode, Volume};
use xen_proto::blkif::{Abi, Request, Response, Segment, Slot, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{Access, SharedRing};
use xen_proto::ring::{Check, FrontRing, REQ_EVENT, REQ_PROD, RSP_EVENT, Wake};
use xen_proto::{GrantRef, Port};

use crate::rng::Rng;
use crate::world::{Ring, World};

/// Pages that it really granted: grant references from 0 on.
const PAGES: u32 = 24;

pub(crate) struct Hostile {
    pub(crate) id: VbdId,
    pub(crate) port: Port,
    abi: Abi,
    rng: Rng,
    front: FrontRing<Ring>,
    /// The operation to be echoed for each request.
    owed: BTreeMap<u64, u8>,
    next_id: u64,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    /// It wrote impossible indices.
    pub(crate) broke_its_ring: bool,
}

impl Hostile {
    pub(crate) fn new(world: &World, id: VbdId, port: Port, abi: Abi, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        for gref in 0..PAGES {
            let mut page = [0; PAGE_SIZE];
            for descriptor in page.chunks_mut(8) {
                let segment = segment(&mut rng);
                descriptor[..4].copy_from_slice(&segment.gref().0.to_le_bytes());
                descriptor[4..6].copy_from_slice(&[segment.first_sect, segment.last_sect]);
            }
            let access = if gref % 3 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            world.grant(id.domain, GrantRef(gref), page, access);
        }
        let front = FrontRing::create(Ring::new(world, id.domain, 1), abi.slot_bytes());
        let (owed, next_id) = (BTreeMap::new(), 1);
        Self { id, port, abi, rng, front, owed, next_id, answered: 0, refused: 0, broke_its_ring: false }
    }

    pub(crate) fn connection(&self, volume: Volume) -> Connection<Ring> {
        let ring = self.front.shared().clone();
        Connection { id: self.id, ring, port: self.port, abi: self.abi, volume, mode: Mode::ReadWrite }
    }

    /// A few requests, and events whether they are wanted or not.
    pub(crate) fn issue(&mut self, backend: &mut Backend<Ring>) {
        if self.broke_its_ring {
            return;
        }
        for _ in 0..self.rng.below(8) {
            if self.front.free() > 0 {
                let request = self.request();
                self.front.request(&request.to_slot(self.abi)[..self.abi.slot_bytes()]);
            }
        }
        let wake = self.front.publish();
        if wake == Wake::Notify || self.rng.one_in(2) {
            backend.event(self.port);
        }
    }

    fn request(&mut self) -> Request {
        self.next_id += 1;
        let id = self.next_id;
        let rng = &mut self.rng;
        let operation = if rng.one_in(10) { rng.byte() } else { rng.byte() % 7 };
        let sector = match rng.below(4) {
            0 => rng.next(),
            1 => u64::MAX - rng.below(20),
            _ => rng.below(300),
        };
        let (request, echo) = if operation == op::INDIRECT {
            let nested = if rng.one_in(4) { rng.byte() } else { rng.byte() % 2 };
            let count = if rng.one_in(3) { rng.below(0x10000) } else { rng.below(40) };
            let page = gref(rng);
            (Request::indirect(nested, id, sector, u16::try_from(count).unwrap(), &[page; 8]), nested)
        } else {
            let segments: Vec<_> = (0..11).map(|_| segment(rng)).collect();
            let count = if rng.one_in(4) { rng.byte() } else { rng.byte() % 12 };
            (Request::direct(operation, id, sector, &segments).with_nr_segments(count), operation)
        };
        self.owed.insert(id, echo);
        request
    }

    /// Ruins the ring; the events too, which it may.
    pub(crate) fn break_ring(&mut self, backend: &mut Backend<Ring>) {
        self.broke_its_ring = true;
        let far = 40 + u32::try_from(self.rng.below(u64::from(u32::MAX) - 80)).unwrap();
        let ring = self.front.shared();
        ring.store(REQ_PROD, ring.load(REQ_PROD).wrapping_add(far));
        ring.store(RSP_EVENT, self.rng.byte().into());
        ring.store(REQ_EVENT, self.rng.byte().into());
        backend.event(self.port);
    }

    pub(crate) fn poll(&mut self) {
        if self.broke_its_ring {
            return;
        }
        loop {
            let mut slot: Slot = [0; 112];
            while self.front.take(&mut slot[..self.abi.slot_bytes()]).unwrap() {
                let response = Response::from_slot(&slot);
                let echo = self.owed.remove(&response.id()).expect("one answer for each request");
                assert_eq!(response.operation, echo);
                self.answered += 1;
                self.refused += u64::from(response.status() != Some(xen_proto::blkif::Status::Okay));
            }
            if self.front.final_check().unwrap() == Check::Sleep {
                return;
            }
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.broke_its_ring || self.owed.is_empty()
    }
}

fn gref(rng: &mut Rng) -> GrantRef {
    let known = u32::try_from(rng.below(u64::from(PAGES))).unwrap();
    GrantRef(if rng.one_in(5) { u32::from(rng.byte()) << 20 } else { known })
}

fn segment(rng: &mut Rng) -> Segment {
    let edge = |rng: &mut Rng| if rng.one_in(12) { rng.byte() } else { rng.byte() % 8 };
    let (a, b) = (edge(rng), edge(rng));
    if rng.one_in(8) { Segment::new(gref(rng), a, b) } else { Segment::new(gref(rng), a.min(b), a.max(b)) }
}
