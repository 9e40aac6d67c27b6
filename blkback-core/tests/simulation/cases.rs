//! One thing at a time: what a disk is given for a request, in which order, and what the guest is answered.

use blkback_core::Backend;
use blkback_core::backend::{Capacity, Connection, Platform, Progress, Report, VbdId};
use blkback_core::disk::{Command, DiskId, Geometry, Limits};
use blkback_core::volume::{Extent, Mode, Volume};
use xen_proto::blkif::{Abi, Request, Response, Segment, Slot, Status, op};
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::Access;
use xen_proto::ring::FrontRing;
use xen_proto::{DomId, GrantRef, Port};

use crate::disk::FakeDisk;
use crate::world::{Ring, World};

const ID: VbdId = VbdId { domain: DomId(5), device: 51712 };
const PORT: Port = Port(9);
/// A page that the guest granted, and one that it did not.
const GOOD: GrantRef = GrantRef(8);
const BAD: GrantRef = GrantRef(1000);
/// Where the volume starts on the disk, in sectors.
const START: u64 = 64;

/// One vbd on one disk.
struct Bench {
    world: World,
    backend: Backend<Ring>,
    disks: [FakeDisk; 1],
    front: FrontRing<Ring>,
}

#[derive(Clone, Copy)]
struct Setup {
    logical_block: u32,
    segments: usize,
    write_cache: bool,
    flushes: bool,
    mode: Mode,
}

const USUAL: Setup =
    Setup { logical_block: 512, segments: 16, write_cache: true, flushes: true, mode: Mode::ReadWrite };

impl Bench {
    fn new(setup: Setup) -> Self {
        let mut world = World::new(1);
        let mut backend = Backend::new(&mut world).unwrap();
        let Setup { logical_block, segments, write_cache, flushes, mode } = setup;
        let geometry = Geometry { sectors: 5000, logical_block, physical_block: 4096, writable: true, write_cache };
        let limits = Limits { segments, depth: 4 };
        backend.add_disk(geometry, limits, Capacity { requests: 8, segments: 512 });
        let mut disk = FakeDisk::new(&world, geometry, limits, 1);
        disk.flushes = flushes;
        world.grant(ID.domain, GOOD, [0; PAGE_SIZE], Access::ReadWrite);
        let front = FrontRing::create(Ring::new(&world, ID.domain, 1), Abi::X86_64.slot_bytes());
        let volume = Volume::Disk(Extent { disk: DiskId(0), start: START, sectors: 4000 });
        let ring = front.shared().clone();
        backend.connect(Connection { id: ID, ring, port: PORT, abi: Abi::X86_64, volume, mode });
        Self { world, backend, disks: [disk], front }
    }

    fn request(&mut self, request: Request) {
        self.front.request(&request.to_slot(Abi::X86_64));
        let _ = self.front.publish();
        self.backend.event(PORT);
    }

    fn turn(&mut self) -> Progress {
        self.backend.turn(&mut Platform {
            grants: &mut self.world.clone(),
            events: &mut self.world.clone(),
            memory: &self.world,
            disks: &mut self.disks,
        })
    }

    /// Turns until nothing moves any more.
    fn run(&mut self) {
        for _ in 0..100 {
            let _ = self.turn();
        }
    }

    /// What the disk did, by place.
    fn sorted_log(&self) -> Vec<Command> {
        let mut log = self.disks[0].log.clone();
        log.sort_by_key(|command| match command {
            Command::Read(sector) | Command::Write(sector) => *sector,
            Command::Flush => 0,
        });
        log
    }

    fn answers(&mut self) -> Vec<Status> {
        let mut answers = Vec::new();
        let mut slot: Slot = [0; 112];
        while self.front.take(&mut slot).unwrap() {
            answers.push(Response::from_slot(&slot).status().unwrap());
        }
        answers
    }
}

fn whole_pages(grefs: &[GrantRef]) -> Vec<Segment> {
    grefs.iter().map(|gref| Segment::new(*gref, 0, 7)).collect()
}

/// Checks what the disk does for a request and what is answered.
fn check(setup: Setup, request: Request, commands: &[Command], status: Status) {
    let mut bench = Bench::new(setup);
    bench.request(request);
    bench.run();
    assert_eq!(bench.answers(), [status], "{request:?}");
    assert_eq!(bench.disks[0].log, commands, "{request:?}");
    assert_eq!(bench.world.mappings(), 0);
}

#[test]
fn requests_become_commands_at_their_place_on_the_disk() {
    let read = |segments: &[Segment]| Request::direct(op::READ, 1, 10, segments);
    let page = whole_pages(&[GOOD]);
    check(USUAL, read(&page), &[Command::Read(START + 10)], Status::Okay);
    check(USUAL, Request::direct(op::WRITE, 1, 0, &page), &[Command::Write(START)], Status::Okay);
    check(USUAL, read(&whole_pages(&[GOOD, BAD, GOOD])), &[], Status::Error);
    check(Setup { mode: Mode::ReadOnly, ..USUAL }, Request::direct(op::WRITE, 1, 0, &page), &[], Status::Error);
}

#[test]
fn a_request_beyond_a_commands_limit_is_cut_at_whole_blocks() {
    let setup = Setup { segments: 4, ..USUAL };
    let commands = [0, 32, 64].map(|sector| Command::Write(START + sector));
    let mut bench = Bench::new(setup);
    bench.request(Request::direct(op::WRITE, 1, 0, &whole_pages(&[GOOD; 11])));
    bench.run();
    let log = bench.sorted_log();
    assert_eq!((log.as_slice(), bench.answers()), (commands.as_slice(), vec![Status::Okay]));
}

#[test]
fn blocks_that_cross_pages_are_kept_whole() {
    // 4 KiB blocks in pieces of 5 and 3 sectors; 9 segments a command hold 4 blocks and a half.
    let setup = Setup { logical_block: 4096, segments: 9, ..USUAL };
    let mut bench = Bench::new(setup);
    let segments: Vec<_> = [(0, 4), (5, 7)].iter().cycle().take(10).map(|(a, b)| Segment::new(GOOD, *a, *b)).collect();
    bench.request(Request::direct(op::READ, 1, 8, &segments));
    bench.run();
    let log = bench.sorted_log();
    assert_eq!((log, bench.answers()), (vec![Command::Read(START + 8), Command::Read(START + 40)], vec![Status::Okay]));
}

#[test]
fn flushes() {
    let flush = Request::direct(op::FLUSH_DISKCACHE, 1, u64::MAX, &[]);
    let with_data = Request::direct(op::FLUSH_DISKCACHE, 1, 8, &whole_pages(&[GOOD]));
    let no_flush = Setup { flushes: false, ..USUAL };
    let no_cache = Setup { write_cache: false, ..no_flush };
    let (flushed, written) = (Command::Flush, Command::Write(START + 8));
    let cases: [(Setup, Request, &[Command], Status); 6] = [
        (USUAL, flush, &[flushed], Status::Okay),
        (USUAL, with_data, &[flushed, written], Status::Okay),
        (Setup { write_cache: false, ..USUAL }, flush, &[flushed], Status::Okay),
        (no_cache, flush, &[], Status::Okay),
        (no_flush, flush, &[], Status::NotSupported),
        (no_flush, with_data, &[], Status::NotSupported),
    ];
    for (setup, request, commands, status) in cases {
        check(setup, request, commands, status);
    }
    check(no_cache, with_data, &[written], Status::Okay);
    for (setup, reports) in [(USUAL, 0), (no_cache, 0), (no_flush, 1)] {
        let mut bench = Bench::new(setup);
        for request in [flush, with_data, flush] {
            bench.request(request);
            bench.run();
        }
        let told = core::iter::from_fn(|| bench.backend.next_report());
        let told = told.inspect(|report| assert!(matches!(report, Report::FlushUnsupported(ID))));
        assert_eq!(told.count(), reports, "it is said once");
    }
}

#[test]
fn a_disk_that_never_completes_keeps_its_memory_mapped() {
    let mut bench = Bench::new(USUAL);
    bench.disks[0].allowance = 0;
    bench.request(Request::direct(op::READ, 1, 0, &whole_pages(&[GOOD; 3])));
    bench.run();
    bench.backend.disconnect(ID);
    bench.request(Request::direct(op::READ, 2, 0, &whole_pages(&[GOOD])));
    bench.run();
    assert!(bench.backend.next_report().is_none(), "it is not drained while the disk may reach the guest's memory");
    assert_eq!((bench.world.mappings(), bench.backend.stats(ID).unwrap().in_flight), (3, 1));
    bench.disks[0].allowance = 10;
    bench.run();
    let Some(Report::Drained(drained)) = bench.backend.next_report() else { panic!("it is drained") };
    assert_eq!((drained.id, drained.port, drained.stats.reads), (ID, PORT, 1));
    assert_eq!(bench.backend.totals(), drained.stats, "what it did stays counted");
    assert_eq!((bench.world.mappings(), bench.answers()), (0, vec![Status::Okay]));
    assert!(!bench.backend.is_known(ID) && !bench.backend.event(PORT));
}

#[test]
fn what_cannot_be_mapped_does_not_stall_the_vbd() {
    // More than the lane holds at once, all of it bad: nothing is ever under way that could revive the vbd.
    let mut bench = Bench::new(USUAL);
    for _ in 0..32 {
        bench.front.request(&Request::direct(op::READ, 1, 0, &whole_pages(&[BAD])).to_slot(Abi::X86_64));
    }
    let _ = bench.front.publish();
    bench.run();
    assert_eq!(bench.answers(), [Status::Error; 32]);
}

#[test]
fn many_small_answers_are_one_event() {
    let mut bench = Bench::new(USUAL);
    for _ in 0..4 {
        bench.front.request(&Request::direct(op::READ, 1, 0, &whole_pages(&[GOOD])).to_slot(Abi::X86_64));
    }
    let _ = bench.front.publish();
    bench.run();
    assert!(bench.world.take_event(PORT));
    // The frontend has not asked again: it is awake.
    bench.request(Request::direct(op::READ, 1, 0, &whole_pages(&[GOOD])));
    bench.run();
    assert!(!bench.world.take_event(PORT));
    assert_eq!(bench.answers(), [Status::Okay; 5]);
}

#[test]
fn a_disk_for_which_there_is_no_memory_is_not_added() {
    let mut world = World::new(1);
    let mut backend = Backend::<Ring>::new(&mut world).unwrap();
    let geometry =
        Geometry { sectors: 100, logical_block: 512, physical_block: 512, writable: true, write_cache: false };
    let limits = Limits { segments: 16, depth: 4 };
    for (segments, added) in [(usize::MAX / 1024, None), (512, Some(DiskId(0))), (512, Some(DiskId(1)))] {
        assert_eq!(backend.add_disk(geometry, limits, Capacity { requests: 8, segments }), added, "{segments}");
    }
}
