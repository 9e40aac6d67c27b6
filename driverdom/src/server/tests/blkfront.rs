//! An honest frontend with a real ring: it goes through xenbus as its manner says, keeps overlapping requests apart as a file
//! system does, sleeps until it is notified, and checks everything about each answer.

use std::collections::BTreeMap;

use blkback_core::backend::VbdId;
use blkback_core::volume::Mode;
use xen_proto::GrantRef;
use xen_proto::blkif::{Abi, Request, Response, Segment, Slot, Status, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::Access;
use xen_proto::ring::{Check, FrontRing, Wake};

use super::rng::Rng;
use super::truth::{Truth, fill, filled, sector_of};
use super::xen::{Page, RingMemory, Xen};
use crate::fake::{Frontend, Store};

/// What a page holds before a read: sectors that were not asked for keep it.
const UNTOUCHED: u8 = 0xee;
/// The most pages of a request in the ring's slot, and of an indirect one.
const DIRECT: usize = 11;
const INDIRECT: usize = 40;

/// How it answers what the backend and the toolstack do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Publishes its ring when the backend is at 2; asked to close, it goes to 6 and fails what it has under way.
    Linux,
    /// The same, but publishes its ring without looking.
    Hasty,
    /// Stays at 4 whatever the backend says.
    Stubborn,
    /// Goes to 5 when it is asked to, and uses the disk until it is told to let go.
    Holding,
    /// Never publishes a ring.
    Idle,
}

/// The frontend.
pub(super) struct Blkfront {
    pub(super) frontend: Frontend,
    pub(super) manner: Manner,
    pub(super) abi: Abi,
    pub(super) order: u32,
    /// Requests that it still wants to put into the ring.
    pub(super) todo: usize,
    /// Requests that it keeps under way.
    pub(super) depth: usize,
    /// Whether requests may fail, until it publishes a ring again.
    pub(super) may_fail: bool,
    /// Whether requests may always fail: its disk is a bad one.
    pub(super) bad_disk: bool,
    pub(super) answered: usize,
    pub(super) failed: usize,
    /// Its guest still runs.
    pub(super) alive: bool,
    xen: Xen,
    rng: Rng,
    truth: Truth,
    mode: Mode,
    /// What it last wrote to its `state`.
    state: u32,
    ring: Option<Ring>,
    under_way: BTreeMap<u64, Operation>,
    next_id: u64,
    next_gref: u32,
}

struct Ring {
    front: FrontRing<RingMemory>,
    grefs: Vec<GrantRef>,
}

/// A request under way.
#[derive(Debug)]
struct Operation {
    operation: u8,
    sector: u64,
    /// Page, first and last sector in it.
    pages: Vec<(GrantRef, u8, u8)>,
    descriptors: Option<GrantRef>,
    /// What is written to each sector.
    stamps: Vec<u64>,
}

impl Operation {
    fn overlaps(&self, sector: u64, sectors: u64) -> bool {
        self.sector < sector + sectors && sector < self.sector + self.stamps.len() as u64
    }
}

impl Blkfront {
    pub(super) fn new(id: VbdId, manner: Manner, truth: Truth, mode: Mode, xen: &Xen) -> Self {
        let seed = u64::from(id.domain.0) << 32 | u64::from(id.device);
        let mut rng = Rng::new(seed);
        // Grants and numbers of a guest are shared by its disks: each takes them from its own range.
        let range = (id.device & 0xfff) << 16 | 8;
        Self {
            frontend: Frontend(id),
            manner,
            abi: if rng.one_in(2) { Abi::X86_64 } else { Abi::X86_32 },
            order: u32::try_from(rng.below(5)).expect("it is small"),
            todo: 0,
            depth: 1 + rng.index(30),
            may_fail: false,
            bad_disk: false,
            answered: 0,
            failed: 0,
            alive: true,
            xen: xen.clone(),
            rng,
            truth,
            mode,
            state: 1,
            ring: None,
            under_way: BTreeMap::new(),
            next_id: 1,
            next_gref: range,
        }
    }

    pub(super) fn id(&self) -> VbdId {
        self.frontend.0
    }

    /// Whether all its requests were answered.
    pub(super) fn is_idle(&self) -> bool {
        self.todo == 0 && self.under_way.is_empty()
    }

    /// Whether it has a ring that the backend knows, or none.
    pub(super) fn is_settled(&self) -> bool {
        if self.ring.is_some() { self.state == 4 } else { self.state == 6 }
    }

    /// Whether it uses its disk.
    pub(super) fn is_connected(&self) -> bool {
        self.alive && self.state == 4
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The backend's `state` changed, or something else did: answers it. Whether it is to look again.
    pub(super) fn look(&mut self, store: &mut Store, directory: &str) -> bool {
        let text = |store: &mut Store, key: &str| store.text(&format!("{directory}/{key}"));
        let backend = text(store, "state").and_then(|state| state.parse().ok()).unwrap_or(0);
        match (self.state, backend, self.manner) {
            (_, _, Manner::Idle) => return false,
            // It began anew without closing, and the backend has let go of the old ring.
            (1, 2, _) if self.ring.is_some() => self.detached(),
            (1, 2, _) => self.publish(store),
            (1, 1, Manner::Hasty) => self.publish(store),
            (3, 4, _) => {
                assert_eq!(text(store, "sectors"), Some(self.truth.sectors().to_string()));
                let info = if self.mode == Mode::ReadOnly { "4" } else { "0" };
                assert_eq!(text(store, "info").as_deref(), Some(info));
                self.to(store, 4);
                self.issue();
            }
            (3 | 4, 5, Manner::Linux | Manner::Hasty) => self.close(store, 6),
            (4, 5, Manner::Holding) => self.to(store, 5),
            (3..=5, 6, _) => self.close(store, 6),
            (6, 6, _) if self.ring.is_some() => self.detached(),
            _ => return false,
        }
        true
    }

    fn to(&mut self, store: &mut Store, state: u32) {
        self.state = state;
        self.frontend.state(store, state);
    }

    /// Gives up the disk, in whatever order of states.
    pub(super) fn close(&mut self, store: &mut Store, state: u32) {
        self.may_fail = true;
        self.todo = 0;
        self.to(store, state);
    }

    /// Begins anew: after it has closed, or without having closed, as after a kexec.
    pub(super) fn reconnect(&mut self, store: &mut Store) {
        self.may_fail = true;
        self.todo = 0;
        self.to(store, 1);
    }

    fn publish(&mut self, store: &mut Store) {
        let pages = 1 << self.order;
        let memory = RingMemory::new(pages);
        let grefs: Vec<GrantRef> = (0..pages).map(|_| self.gref()).collect();
        self.xen.grant_ring(self.id(), &grefs, &memory);
        let start = u32::try_from(self.rng.below(200)).expect("it is small").wrapping_sub(100);
        let front = FrontRing::create_at(memory, self.abi.slot_bytes(), start);
        let channel = 1 + self.id().device;
        self.xen.offer(self.id(), channel);
        let frontend = self.frontend;
        for (page, gref) in grefs.iter().enumerate() {
            let key = if self.order == 0 { "ring-ref".into() } else { format!("ring-ref{page}") };
            frontend.write(store, &key, &gref.to_string());
        }
        if self.order > 0 {
            frontend.write(store, "ring-page-order", &self.order.to_string());
        }
        frontend.write(store, "event-channel", &channel.to_string());
        frontend.write(store, "protocol", self.abi.protocol());
        self.ring = Some(Ring { front, grefs });
        self.may_fail = false;
        self.to(store, 3);
    }

    /// The backend is gone from the ring: what it did not take never happened.
    fn detached(&mut self) {
        self.poll();
        for operation in std::mem::take(&mut self.under_way).into_values() {
            self.revoke(&operation);
        }
        if let Some(Ring { grefs, .. }) = self.ring.take() {
            for gref in grefs {
                self.xen.revoke(self.id(), gref);
            }
        }
    }

    /// Puts requests into the ring until it has as many under way as it wants, then shows them.
    pub(super) fn issue(&mut self) {
        if !self.alive || !matches!(self.state, 4 | 5) {
            return;
        }
        while self.todo > 0
            && self.under_way.len() < self.depth
            && self.ring.as_ref().is_some_and(|ring| ring.front.free() > 0)
        {
            self.todo -= 1;
            self.issue_one();
        }
        let wake = self.ring.as_mut().map(|ring| ring.front.publish());
        if wake == Some(Wake::Notify) {
            self.xen.send(self.id());
        }
    }

    fn issue_one(&mut self) {
        let operation = match (self.rng.below(10), self.mode) {
            (0, _) => return self.put(op::FLUSH_DISKCACHE, 0, &[]),
            (1..5, Mode::ReadWrite) => op::WRITE,
            _ => op::READ,
        };
        let most = if self.rng.one_in(4) { INDIRECT } else { 4 };
        let fits = usize::try_from(self.truth.sectors() / 8).expect("it is small");
        let runs: Vec<(u8, u8)> = (0..1 + self.rng.index(most.min(fits))).map(|_| self.run()).collect();
        let sectors: u64 = runs.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        let sector = self.rng.below(self.truth.sectors() - sectors + 1);
        if !self.under_way.values().any(|other| other.overlaps(sector, sectors)) {
            self.put(operation, sector, &runs);
        }
    }

    /// Some sectors of a page, often all.
    fn run(&mut self) -> (u8, u8) {
        let first = if self.rng.one_in(3) { self.rng.byte() % 8 } else { 0 };
        let last = if self.rng.one_in(3) { first + self.rng.byte() % (8 - first) } else { 7 };
        (first, last)
    }

    fn put(&mut self, operation: u8, sector: u64, runs: &[(u8, u8)]) {
        let mut stamps = Vec::new();
        let mut pages = Vec::new();
        for (first, last) in runs {
            let mut page = [UNTOUCHED; PAGE_SIZE];
            for at in *first..=*last {
                let stamp = self.rng.next() | 1;
                if operation == op::WRITE {
                    fill(&mut page, at, stamp);
                    self.truth.set(sector + stamps.len() as u64, None);
                }
                stamps.push(stamp);
            }
            let access = if operation == op::READ { Access::ReadWrite } else { Access::ReadOnly };
            pages.push((self.grant(page, access), *first, *last));
        }
        let segments: Vec<Segment> =
            pages.iter().map(|(gref, first, last)| Segment::new(*gref, *first, *last)).collect();
        let id = self.next_id;
        self.next_id += 1;
        let mut descriptors = None;
        let request = if segments.len() > DIRECT {
            let mut page = [0; PAGE_SIZE];
            for (at, (gref, first, last)) in page.chunks_mut(8).zip(&pages) {
                at[..4].copy_from_slice(&gref.0.to_le_bytes());
                at[4..6].copy_from_slice(&[*first, *last]);
            }
            let gref = self.grant(page, Access::ReadOnly);
            descriptors = Some(gref);
            let count = u16::try_from(segments.len()).expect("few");
            Request::indirect(operation, id, sector, count, &[gref])
        } else {
            Request::direct(operation, id, sector, &segments)
        };
        let ring = self.ring.as_mut().expect("it has a ring");
        ring.front.request(&request.to_slot(self.abi)[..self.abi.slot_bytes()]);
        self.under_way.insert(id, Operation { operation, sector, pages, descriptors, stamps });
    }

    fn gref(&mut self) -> GrantRef {
        self.next_gref += 1;
        GrantRef(self.next_gref)
    }

    fn grant(&mut self, page: Page, access: Access) -> GrantRef {
        let gref = self.gref();
        self.xen.grant(self.id(), gref, page, access);
        gref
    }

    /// Woken: takes all answers, sleeps again, and goes on with its work.
    pub(super) fn poll(&mut self) {
        while let Some(ring) = &mut self.ring
            && self.alive
        {
            let mut slot: Slot = [0; 112];
            if ring.front.take(&mut slot[..self.abi.slot_bytes()]).expect("the backend keeps to the ring's rules") {
                self.answered(&Response::from_slot(&slot));
            } else if ring.front.final_check() == Ok(Check::Sleep) {
                break;
            }
        }
        self.issue();
    }

    fn answered(&mut self, response: &Response) {
        let operation = self.under_way.remove(&response.id()).expect("one answer for each request");
        assert_eq!(response.operation, operation.operation);
        let pages = self.revoke(&operation);
        self.answered += 1;
        match response.status() {
            Some(Status::Okay) => self.check(&operation, pages),
            Some(Status::NotSupported) if self.bad_disk && response.operation == op::FLUSH_DISKCACHE => {
                self.failed += 1;
            }
            Some(Status::Error) if self.may_fail || self.bad_disk => self.failed += 1,
            status => panic!("{:?}: {status:?} for {operation:?}", self.id()),
        }
    }

    /// Takes all pages back, which checks that none is mapped.
    fn revoke(&self, operation: &Operation) -> Vec<Page> {
        if let Some(gref) = operation.descriptors {
            self.xen.revoke(self.id(), gref);
        }
        operation.pages.iter().map(|(gref, ..)| self.xen.revoke(self.id(), *gref)).collect()
    }

    fn check(&self, operation: &Operation, mut pages: Vec<Page>) {
        let mut at = operation.sector;
        let mut stamps = operation.stamps.iter();
        for (page, (_, first, last)) in pages.iter_mut().zip(&operation.pages) {
            for sector in 0..8 {
                let asked = (*first..=*last).contains(&sector);
                let found = sector_of(page, sector);
                match (operation.operation, self.truth_at(at, asked)) {
                    (op::WRITE, _) if asked => self.truth.set(at, stamps.next().copied()),
                    (op::READ, _) if !asked => assert!(*found == [UNTOUCHED; 512], "sector {sector} was not asked for"),
                    (op::READ, Some(stamp)) => assert!(*found == filled(stamp), "sector {at} is not what was written"),
                    _ => {}
                }
                at += u64::from(asked);
            }
        }
    }

    fn truth_at(&self, sector: u64, asked: bool) -> Option<u64> {
        if asked { self.truth.get(sector) } else { None }
    }
}
