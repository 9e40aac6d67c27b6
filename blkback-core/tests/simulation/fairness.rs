//! Who gets how much of a disk, in golden tables: guests that always want more, beside guests that want one request at a time.

use blkback_core::Backend;
use blkback_core::backend::{Capacity, Connection, Platform, VbdId};
use blkback_core::disk::{DiskId, Geometry, Limits};
use blkback_core::volume::{Extent, Mode, Volume};
use xen_proto::blkif::{Abi, Request, Segment, Slot, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::Access;
use xen_proto::ring::{FrontRing, Wake};
use xen_proto::{DomId, GrantRef, Port};

use crate::disk::FakeDisk;
use crate::world::{Ring, World};

/// Ticks of a run; the disk completes [`PER_TICK`] commands in each.
const TICKS: u64 = 600;
const PER_TICK: usize = 4;

/// What a guest wants.
#[derive(Clone, Copy)]
struct Wish {
    /// Requests under way at once.
    depth: usize,
    /// Pages of each.
    pages: usize,
}

const GREEDY: Wish = Wish { depth: 512, pages: 11 };
const MODEST: Wish = Wish { depth: 1, pages: 1 };

struct Reader {
    front: FrontRing<Ring>,
    port: Port,
    wish: Wish,
    /// Ticks at which the requests under way were made.
    since: Vec<u64>,
    served: u64,
    /// The longest that one took, in ticks.
    slowest: u64,
}

impl Reader {
    fn tick(&mut self, now: u64, backend: &mut Backend<Ring>) {
        let mut slot: Slot = [0; 112];
        while self.front.take(&mut slot).unwrap() {
            let id = u64::from_le_bytes(slot[..8].try_into().unwrap());
            self.slowest = self.slowest.max(now - id);
            self.served += 1;
            let at = self.since.iter().position(|since| *since == id).unwrap();
            self.since.swap_remove(at);
        }
        while self.since.len() < self.wish.depth && self.front.free() > 0 {
            let segments = vec![Segment::new(GrantRef(8), 0, 7); self.wish.pages];
            self.front.request(&Request::direct(op::READ, now, 0, &segments).to_slot(Abi::X86_64));
            self.since.push(now);
        }
        if self.front.publish() == Wake::Notify {
            backend.event(self.port);
        }
    }
}

/// Requests served to each guest, and the slowest of each in ticks.
fn run(wishes: &[Wish]) -> Vec<(u64, u64)> {
    let mut world = World::new(1);
    let mut backend = Backend::new(&mut world).unwrap();
    let geometry =
        Geometry { sectors: 1000, logical_block: 512, physical_block: 512, writable: true, write_cache: true };
    let limits = Limits { segments: 126, depth: 32 };
    backend.add_disk(geometry, limits, Capacity { requests: 32, segments: 1024 });
    let mut disks = [FakeDisk::new(&world, geometry, limits, 1)];
    let mut readers = Vec::new();
    for (n, wish) in (0..).zip(wishes) {
        let (id, port) = (VbdId { domain: DomId(n), device: 0 }, Port(n.into()));
        world.grant(id.domain, GrantRef(8), [0; PAGE_SIZE], Access::ReadWrite);
        let front = FrontRing::create(Ring::new(&world, id.domain, 16), Abi::X86_64.slot_bytes());
        let volume = Volume::Disk(Extent { disk: DiskId(0), start: 0, sectors: 1000 });
        let ring = front.shared().clone();
        backend.connect(Connection { id, ring, port, abi: Abi::X86_64, volume, mode: Mode::ReadOnly });
        readers.push(Reader { front, port, wish: *wish, since: Vec::new(), served: 0, slowest: 0 });
    }
    let mut turn = |backend: &mut Backend<Ring>, allowance| {
        disks[0].allowance = allowance;
        let (grants, events) = (&mut world.clone(), &mut world.clone());
        let _ = backend.turn(&mut Platform { grants, events, memory: &world, disks: &mut disks });
    };
    for now in 0..TICKS {
        readers.iter_mut().for_each(|reader| reader.tick(now, &mut backend));
        turn(&mut backend, PER_TICK);
    }
    for (n, _) in (0..).zip(wishes) {
        backend.disconnect(VbdId { domain: DomId(n), device: 0 });
    }
    turn(&mut backend, usize::MAX);
    readers.iter().map(|reader| (reader.served, reader.slowest)).collect()
}

/// Served to each, in per mille of what the disk did.
fn shares(wishes: &[Wish]) -> Vec<u64> {
    let served = run(wishes);
    let all: u64 = served.iter().map(|(served, _)| served).sum();
    served.iter().map(|(served, _)| served * 1000 / all).collect()
}

#[test]
fn the_disk_is_kept_busy_by_one_guest() {
    let [(served, _)] = run(&[GREEDY])[..] else { panic!("one guest") };
    assert!(served >= (TICKS - 2) * PER_TICK as u64, "{served}");
}

#[test]
fn greedy_guests_share_alike() {
    for count in [2, 3, 5, 40] {
        let shares = shares(&vec![GREEDY; count]);
        let fair = 1000 / count as u64;
        let near = fair * 8 / 10..=fair * 12 / 10 + 1;
        assert!(shares.iter().all(|share| near.contains(share)), "{count} guests: {shares:?}");
    }
}

#[test]
fn large_requests_do_not_crowd_out_small_ones() {
    let small = Wish { depth: 512, pages: 1 };
    let shares = shares(&[GREEDY, small]);
    assert!(shares[1] >= 400, "{shares:?}");
}

#[test]
fn a_modest_guest_does_not_wait_for_a_greedy_one() {
    // The disk completes at random: of 32 under way, 4 a tick. Alone a request takes 1 tick.
    for greedy in [1, 3, 8] {
        let mut wishes = vec![GREEDY; greedy];
        wishes.extend([MODEST; 3]);
        let served = run(&wishes);
        for (served, slowest) in &served[greedy..] {
            assert!(*served >= TICKS / 16 && *slowest < 80, "beside {greedy}: {served} served, slowest {slowest}");
        }
    }
}
