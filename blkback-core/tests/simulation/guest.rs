//! An honest frontend: it knows what its volume holds, keeps overlapping requests apart as a file system does, sleeps until it is
//! notified, and checks everything about each answer.

use std::collections::BTreeMap;

use blkback_core::backend::{Backend, Connection, VbdId};
use blkback_core::volume::{Mode, Volume};
use xen_proto::blkif::{Abi, Request, Response, Segment, Slot, Status, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::Access;
use xen_proto::ring::{Check, FrontRing, Wake};
use xen_proto::{GrantRef, Port};

use crate::rng::Rng;
use crate::world::{Page, Ring, World};

/// What a page holds before a read: sectors that were not asked for keep it.
const UNTOUCHED: u8 = 0xee;

/// What it is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Character {
    pub(crate) id: VbdId,
    pub(crate) port: Port,
    pub(crate) abi: Abi,
    pub(crate) ring_pages: usize,
    pub(crate) mode: Mode,
    /// Sectors in a logical block.
    pub(crate) block: u64,
    pub(crate) sectors: u64,
    /// Requests that it keeps under way.
    pub(crate) depth: usize,
    /// Whether requests may fail.
    pub(crate) faults: bool,
}

/// The frontend.
pub(crate) struct Guest {
    pub(crate) character: Character,
    world: World,
    rng: Rng,
    front: FrontRing<Ring>,
    /// What each sector holds, as the number it is filled with; `None` after a write failed.
    content: Vec<Option<u64>>,
    under_way: BTreeMap<u64, Operation>,
    next_id: u64,
    next_gref: u32,
    pub(crate) answered: u64,
    /// It was told that it will be disconnected: requests may fail.
    pub(crate) leaving: bool,
}

/// A request under way.
#[derive(Debug)]
struct Operation {
    echo: u8,
    operation: u8,
    sector: u64,
    /// Page, first and last sector in it.
    pages: Vec<(GrantRef, u8, u8)>,
    descriptors: Option<GrantRef>,
    /// What is written to each sector.
    stamps: Vec<u64>,
}

impl Operation {
    fn sectors(&self) -> u64 {
        self.pages.iter().map(|(_, first, last)| u64::from(last - first) + 1).sum()
    }

    fn overlaps(&self, sector: u64, sectors: u64) -> bool {
        self.sector < sector + sectors && sector < self.sector + self.sectors()
    }
}

impl Guest {
    pub(crate) fn new(world: &World, character: Character, seed: u64) -> Self {
        let sectors = usize::try_from(character.sectors).unwrap();
        let mut rng = Rng::new(seed);
        Self {
            front: Self::ring(world, &character, &mut rng),
            character,
            world: world.clone(),
            rng,
            content: vec![Some(0); sectors],
            under_way: BTreeMap::new(),
            next_id: 1,
            next_gref: 8,
            answered: 0,
            leaving: false,
        }
    }

    /// A fresh ring, whose indices often are about to wrap.
    fn ring(world: &World, character: &Character, rng: &mut Rng) -> FrontRing<Ring> {
        let start = u32::try_from(rng.below(200)).unwrap().wrapping_sub(100);
        FrontRing::create_at(
            Ring::new(world, character.id.domain, character.ring_pages),
            character.abi.slot_bytes(),
            start,
        )
    }

    pub(crate) fn connection(&self, volume: Volume) -> Connection<Ring> {
        let Character { id, port, abi, mode, .. } = self.character;
        Connection { id, ring: self.front.shared().clone(), port, abi, volume, mode }
    }

    /// The backend is gone from the ring: what it did not take never happened. A new ring follows.
    pub(crate) fn detached(&mut self) {
        self.poll();
        for operation in std::mem::take(&mut self.under_way).into_values() {
            self.revoke(&operation);
        }
        self.front = Self::ring(&self.world, &self.character, &mut self.rng);
        self.leaving = false;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Puts requests into the ring until it has as many under way as it wants, then shows them.
    pub(crate) fn issue(&mut self, backend: &mut Backend<Ring>) {
        while self.under_way.len() < self.character.depth && self.front.free() > 0 && !self.leaving {
            if !self.issue_one() {
                break;
            }
        }
        if self.front.publish() == Wake::Notify {
            assert!(backend.event(self.character.port));
        }
    }

    fn issue_one(&mut self) -> bool {
        let operation = match (self.rng.below(12), self.character.mode) {
            (0, _) => return self.issue_flush(),
            (1, Mode::ReadWrite) => op::FLUSH_DISKCACHE,
            (2..6, Mode::ReadWrite) => op::WRITE,
            _ => op::READ,
        };
        let indirect = operation != op::FLUSH_DISKCACHE && self.rng.one_in(3);
        let runs = self.runs(if indirect { 256 } else { 11 });
        let sectors: u64 = runs.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        let Some(sector) = self.place(sectors) else { return false };
        let id = self.id();
        let stamps: Vec<u64> = (0..sectors).map(|n| id << 16 | n).collect();
        let mut next_stamp = stamps.iter();
        let pages = runs.iter().map(|(first, last)| {
            let mut page = [UNTOUCHED; PAGE_SIZE];
            for sector in *first..=*last {
                let stamp = next_stamp.next().unwrap();
                if operation != op::READ {
                    fill(&mut page, sector, *stamp);
                }
            }
            (page, *first, *last)
        });
        let access = if operation == op::READ { Access::ReadWrite } else { Access::ReadOnly };
        let pages: Vec<_> = pages.collect();
        let pages = pages.into_iter().map(|(page, first, last)| (self.grant(page, access), first, last)).collect();
        let operation = Operation { echo: operation, operation, sector, pages, descriptors: None, stamps };
        self.submit(id, operation, indirect);
        true
    }

    fn issue_flush(&mut self) -> bool {
        let id = self.id();
        let operation = op::FLUSH_DISKCACHE;
        let empty =
            Operation { echo: operation, operation, sector: 0, pages: vec![], descriptors: None, stamps: vec![] };
        self.submit(id, empty, false);
        true
    }

    fn submit(&mut self, id: u64, mut operation: Operation, indirect: bool) {
        let segments: Vec<_> =
            operation.pages.iter().map(|(gref, first, last)| Segment::new(*gref, *first, *last)).collect();
        let request = if indirect {
            let mut page = [0; PAGE_SIZE];
            for (at, (gref, first, last)) in page.chunks_mut(8).zip(&operation.pages) {
                at[..4].copy_from_slice(&gref.0.to_le_bytes());
                at[4..6].copy_from_slice(&[*first, *last]);
            }
            let gref = self.grant(page, Access::ReadOnly);
            operation.descriptors = Some(gref);
            let count = u16::try_from(segments.len()).unwrap();
            Request::indirect(operation.operation, id, operation.sector, count, &[gref])
        } else {
            Request::direct(operation.operation, id, operation.sector, &segments)
        };
        self.front.request(&request.to_slot(self.character.abi)[..self.character.abi.slot_bytes()]);
        self.under_way.insert(id, operation);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn grant(&mut self, page: Page, access: Access) -> GrantRef {
        let gref = GrantRef(self.next_gref);
        self.next_gref += 1;
        self.world.grant(self.character.id.domain, gref, page, access);
        gref
    }

    /// Sectors in up to `most` pages; whole blocks in all, though not always in each page.
    fn runs(&mut self, most: usize) -> Vec<(u8, u8)> {
        let count = if self.rng.one_in(8) { most } else { 1 + self.rng.index(most.min(24)) };
        let fits = usize::try_from(self.character.sectors / 16).unwrap();
        let mut runs = Vec::new();
        while runs.len() < count.min(fits) {
            let cut = u8::try_from(self.rng.below(8)).unwrap();
            match self.character.block {
                1 => runs.push((cut, cut + u8::try_from(self.rng.below(8 - u64::from(cut))).unwrap())),
                _ if cut == 0 || runs.len() + 2 > count => runs.push((0, 7)),
                _ => runs.extend([(cut, 7), (0, cut - 1)]),
            }
        }
        runs
    }

    /// A place on the volume that no request under way touches.
    fn place(&mut self, sectors: u64) -> Option<u64> {
        let Character { block, sectors: size, .. } = self.character;
        let sector = self.rng.below((size - sectors) / block + 1) * block;
        let free = !self.under_way.values().any(|other| other.overlaps(sector, sectors));
        free.then_some(sector)
    }

    /// Woken: takes all answers, then sleeps again.
    pub(crate) fn poll(&mut self) {
        loop {
            let mut slot: Slot = [0; 112];
            let bytes = self.character.abi.slot_bytes();
            while self.front.take(&mut slot[..bytes]).unwrap() {
                let end = self.character.abi.response_bytes();
                assert!(slot[12..bytes].iter().all(|byte| *byte == 0), "stale bytes after a response of {end}");
                self.answered(&Response::from_slot(&slot));
            }
            if self.front.final_check().unwrap() == Check::Sleep {
                return;
            }
        }
    }

    fn answered(&mut self, response: &Response) {
        let operation = self.under_way.remove(&response.id()).expect("an answer to a request under way");
        assert_eq!(response.operation, operation.echo);
        let pages = self.revoke(&operation);
        self.answered += 1;
        match response.status() {
            Some(Status::Okay) => self.succeeded(&operation, &pages),
            Some(Status::Error) if self.character.faults || self.leaving => self.failed(&operation),
            status => panic!("{status:?} for {operation:?}"),
        }
    }

    /// Takes all pages back, which checks that none is mapped.
    fn revoke(&self, operation: &Operation) -> Vec<Page> {
        let domain = self.character.id.domain;
        if let Some(gref) = operation.descriptors {
            self.world.revoke(domain, gref);
        }
        operation.pages.iter().map(|(gref, ..)| self.world.revoke(domain, *gref)).collect()
    }

    fn succeeded(&mut self, operation: &Operation, pages: &[Page]) {
        let mut at = usize::try_from(operation.sector).unwrap();
        let mut stamps = operation.stamps.iter();
        for (page, (_, first, last)) in pages.iter().zip(&operation.pages) {
            for sector in 0..8 {
                let asked = (*first..=*last).contains(&sector);
                if operation.operation != op::READ {
                    if asked {
                        self.content[at] = stamps.next().copied();
                    }
                } else if !asked {
                    check(page, sector, &[UNTOUCHED; 512], "was not asked for");
                } else if let Some(stamp) = self.content[at] {
                    check(page, sector, &filled(stamp), "is not what was written");
                }
                at += usize::from(asked);
            }
        }
    }

    fn failed(&mut self, operation: &Operation) {
        let at = usize::try_from(operation.sector).unwrap();
        if operation.operation != op::READ {
            self.content[at..at + operation.stamps.len()].fill(None);
        }
    }

    /// Compares the volume as it lies on the disk with what the guest knows; returns how many sectors were written by it.
    pub(crate) fn compare(&self, volume: &[u8]) -> usize {
        for (sector, (expect, found)) in self.content.iter().zip(volume.chunks(512)).enumerate() {
            assert!(expect.is_none_or(|stamp| *found == filled(stamp)), "sector {sector} on the disk");
        }
        self.content.iter().filter(|stamp| stamp.is_some_and(|stamp| stamp > 0)).count()
    }
}

fn filled(stamp: u64) -> [u8; 512] {
    zerocopy::transmute!([stamp; 64])
}

fn fill(page: &mut Page, sector: u8, stamp: u64) {
    page[usize::from(sector) * 512..][..512].copy_from_slice(&filled(stamp));
}

fn check(page: &Page, sector: u8, expect: &[u8; 512], what: &str) {
    let found = &page[usize::from(sector) * 512..][..512];
    assert!(found == expect, "sector {sector} of a page {what}");
}
