//! The disk against a device that minds the specification.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests' own")]

use std::vec::Vec;

use blkback_core::disk::SECTOR_BYTES;

use super::*;
use crate::drivers::bounce::Bounce;
use crate::drivers::fake::bus::{ADDRESS, FakeBus};
use crate::drivers::fake::device::{self, FakeMachine, PORT, Shared, VirtioDevice, Window};
use crate::drivers::fake::memory::{Memory, Page};
use crate::drivers::fake::queue::Chain;
use crate::drivers::hardware::Refused;
use crate::drivers::pci::ConfigError;

const SECTORS: u64 = 2048;
/// What we take of what is offered.
const TAKEN: u64 = (Common::INDIRECT_DESC.bits() | Common::EVENT_IDX.bits())
    | (Common::VERSION_1.bits() | Common::ACCESS_PLATFORM.bits())
    | Features::all().difference(Features::RO).difference(Features::SIZE_MAX).bits();
/// That, and what QEMU's device knows besides: many queues, discard, write zeroes, the reset of a queue.
const OFFERED: u64 = TAKEN | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 40;

struct Rig {
    memory: Memory,
    device: Shared,
    bus: FakeBus,
    machine: FakeMachine,
}

impl Rig {
    fn new() -> Self {
        Self::offering(OFFERED)
    }

    fn offering(offered: u64) -> Self {
        let memory = Memory::default();
        let device = VirtioDevice::new(&memory, offered, SECTORS);
        let machine = FakeMachine { memory: memory.clone(), device: device.clone(), no_ports: false };
        let rig = Self { bus: device::bus(&device), memory, device, machine };
        rig.configure(field::SEG_MAX, &254_u32.to_le_bytes());
        rig.configure(field::BLK_SIZE, &512_u32.to_le_bytes());
        rig.configure(field::WRITEBACK, &[1]);
        rig
    }

    fn configure(&self, offset: usize, bytes: &[u8]) {
        self.device.borrow_mut().config[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn start(&mut self) -> Result<VirtioBlk<Window, Page>, StartError> {
        VirtioBlk::start(ADDRESS, &mut self.bus, &mut self.machine)
    }

    fn started(&mut self) -> VirtioBlk<Window, Page> {
        let disk = self.start().unwrap();
        self.device.borrow().queue.as_ref().unwrap().want_notice();
        disk
    }

    fn take_all(&self) -> Vec<Chain> {
        std::iter::from_fn(|| self.device.borrow_mut().take()).collect()
    }

    fn assert_quiet(&self, what: &str) {
        let device = self.device.borrow();
        assert_eq!((device.status, device.may_dma, device.bound, self.bus.msix), (0, false, false, false), "{what}");
        assert_eq!(device.panic_zero, [], "{what}: a panic leaves it alone");
    }
}

fn completions(disk: &mut VirtioBlk<Window, Page>) -> Vec<(u16, Outcome)> {
    std::iter::from_fn(|| disk.complete()).map(|(tag, outcome)| (tag.0, outcome)).collect()
}

fn segment(page: &Page, offset: u64, len: u32) -> DmaSegment {
    DmaSegment { addr: MachineAddr(page.addr().0 + offset), len }
}

#[test]
fn a_disk_starts_reset_and_within_its_memory() {
    let mut rig = Rig::new();
    let disk = rig.started();
    let device = rig.device.borrow();
    assert_eq!((device.status, device.resets, device.agreed), (15, 1, TAKEN));
    assert_eq!(device.panic_zero, [20], "a panic resets it");
    assert_eq!((disk.port(), disk.address(), disk.is_alive()), (PORT, ADDRESS, true));
    assert_eq!(disk.limits(), Limits { segments: 126, depth: 128 });
    assert_eq!(rig.memory.pages(), 67);
    assert!(rig.bus.calls <= 40, "{} round trips to PCI's back", rig.bus.calls);
}

#[test]
fn the_shape_follows_features_and_configuration() {
    const ALL: Features = Features::all().difference(Features::RO).difference(Features::SIZE_MAX);
    let config =
        Config { capacity: 4099, size_max: 0, seg_max: 254, blk_size: 4096, physical_block_exp: 1, writeback: 1 };
    let plain =
        Geometry { sectors: 4096, logical_block: 4096, physical_block: 8192, writable: true, write_cache: true };
    let limits = Limits { segments: 126, depth: 128 };
    let good = [
        ("all", ALL, config, plain, limits),
        ("read-only", ALL | Features::RO, config, Geometry { writable: false, ..plain }, limits),
        ("no flush", ALL - Features::FLUSH, config, Geometry { write_cache: false, ..plain }, limits),
        ("write-through", ALL, Config { writeback: 0, ..config }, Geometry { write_cache: false, ..plain }, limits),
        ("silent on its cache", ALL - Features::CONFIG_WCE, Config { writeback: 0, ..config }, plain, limits),
        (
            "silent on blocks",
            ALL - Features::BLK_SIZE - Features::TOPOLOGY,
            config,
            Geometry { sectors: 4099, logical_block: 512, physical_block: 512, ..plain },
            limits,
        ),
        (
            "absurd topology",
            ALL,
            Config { physical_block_exp: 200, ..config },
            Geometry { physical_block: 4096, ..plain },
            limits,
        ),
        (
            "vast topology",
            ALL,
            Config { physical_block_exp: 30, ..config },
            Geometry { physical_block: 4096, ..plain },
            limits,
        ),
        (
            "silent on segments",
            ALL - Features::SEG_MAX,
            Config { blk_size: 512, ..config },
            Geometry { sectors: 4099, logical_block: 512, physical_block: 1024, ..plain },
            Limits { segments: 1, ..limits },
        ),
        ("few segments", ALL, Config { seg_max: 8, ..config }, plain, Limits { segments: 8, ..limits }),
        ("whole pages fit", ALL | Features::SIZE_MAX, Config { size_max: 4096, ..config }, plain, limits),
    ];
    for (what, features, config, geometry, limits) in good {
        assert_eq!(config.shape(features, 128), Ok((geometry, limits)), "{what}");
    }
    assert_eq!(
        config.shape(ALL, 16).unwrap().1,
        Limits { segments: 14, depth: 16 },
        "chains are no longer than the queue"
    );
    let bad = [
        ("block of 0", ALL, Config { blk_size: 0, ..config }, 128),
        ("block of 256", ALL, Config { blk_size: 256, ..config }, 128),
        ("block of 513", ALL, Config { blk_size: 513, ..config }, 128),
        ("block over a page", ALL, Config { blk_size: 8192, ..config }, 128),
        ("no segments", ALL, Config { seg_max: 0, ..config }, 128),
        ("segments short of a block", ALL, Config { seg_max: 7, ..config }, 128),
        ("silent on segments, large block", ALL - Features::SEG_MAX, config, 128),
        ("queue short of a block", ALL, config, 8),
        ("queue too small", ALL, config, 2),
        ("pages do not fit", ALL | Features::SIZE_MAX, Config { size_max: 4095, ..config }, 128),
        ("size overflows", ALL, Config { capacity: u64::MAX, ..config }, 128),
    ];
    for (what, features, config, queue_size) in bad {
        assert_eq!(config.shape(features, queue_size), Err(StartError::BadGeometry), "{what}");
    }
}

#[test]
fn a_back_that_goes_while_a_disk_starts_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let _disk = rig.started();
    for lasts in 0..rig.bus.calls {
        let mut rig = Rig::new();
        rig.bus.lasts = lasts;
        rig.device.borrow_mut().status = 0;
        assert!(rig.start().is_err(), "after {lasts} calls");
        let device = rig.device.borrow();
        assert_eq!((device.status, device.bound, rig.memory.pages()), (0, false, 0), "after {lasts} calls");
        assert_eq!(device.panic_zero, [], "after {lasts} calls a panic leaves it alone");
    }
}

#[test]
fn what_cannot_be_driven_is_refused_and_left_quiet() {
    type Spoil = fn(&mut Rig);
    let cases: [(&str, Spoil, StartError); 17] = [
        ("another device", |r| r.bus.put(2, &[0x41, 0x10]), StartError::NotThisKind),
        ("another vendor", |r| r.bus.put(0, &[0x86, 0x80]), StartError::NotThisKind),
        ("legacy only", |r| r.bus.put(6, &[0]), StartError::NoStructure(1)),
        ("no doorbells", |r| r.bus.put_capabilities(&pick(&[0, 5, 3])), StartError::NoStructure(2)),
        ("no configuration", |r| r.bus.put_capabilities(&pick(&[0, 5, 2])), StartError::NoStructure(4)),
        ("no MSI-X", |r| r.bus.put_capabilities(&pick(&[5, 2, 3])), StartError::NoInterrupt),
        ("no vector left", |r| r.bus.vectors = 0, StartError::Config(ConfigError::Bus(BusError::NoVector(0)))),
        ("takes no vector", |r| r.device.borrow_mut().refuses_vector = true, StartError::NoInterrupt),
        ("no ports left", |r| r.machine.no_ports = true, StartError::Xen(Refused(-28))),
        ("not modern", |r| r.device.borrow_mut().offered &= !(1 << 32), StartError::MissingFeatures(1 << 32)),
        ("no indirect", |r| r.device.borrow_mut().offered &= !(1 << 28), StartError::MissingFeatures(1 << 28)),
        ("takes back", |r| r.device.borrow_mut().refuses_features = true, StartError::FeaturesRefused(TAKEN)),
        ("no queue", |r| r.device.borrow_mut().max_queue = 0, StartError::BadQueue(0)),
        ("odd queue", |r| r.device.borrow_mut().max_queue = 100, StartError::BadQueue(100)),
        ("restless", |r| r.device.borrow_mut().config_moves = true, StartError::UnstableConfig),
        ("bad block", |r| r.configure(field::BLK_SIZE, &[0; 4]), StartError::BadGeometry),
        ("no memory", |r| r.memory.limit(66), StartError::NoMemory),
    ];
    for (what, spoil, expected) in cases {
        let mut rig = Rig::new();
        rig.device.borrow_mut().status = 0;
        spoil(&mut rig);
        assert_eq!(rig.start().err(), Some(expected), "{what}");
        rig.assert_quiet(what);
        assert_eq!(rig.memory.pages(), 0, "{what}");
    }

    let mut rig = Rig::new();
    rig.device.borrow_mut().reset_hangs = true;
    assert_eq!(rig.start().err(), Some(StartError::ResetTimeout));
    assert!(!rig.bus.is_master(), "no DMA for a device that does not reset");
}

/// Some of the usual capabilities, by number.
fn pick(numbers: &[usize]) -> Vec<Vec<u8>> {
    let all = device::capabilities();
    numbers.iter().map(|n| all[*n].clone()).collect()
}

#[test]
fn a_cache_on_which_the_device_has_no_word_is_flushed() {
    use crate::drivers::fake::device::structure;
    for (len, writeback, cached) in [(60, 0, false), (60, 1, true), (33, 0, false), (32, 0, true)] {
        let mut rig = Rig::new();
        rig.configure(field::WRITEBACK, &[writeback]);
        let mut list = device::capabilities();
        list[3] = structure(4, 4, 0x2000, len);
        rig.bus.put_capabilities(&list);
        assert_eq!(rig.started().geometry().write_cache, cached, "{len} bytes of configuration, writeback {writeback}");
    }
}

#[test]
fn structures_are_found_by_the_book() {
    use crate::drivers::fake::device::structure;
    let bad = |kind| Some(StartError::BadStructure(kind));
    let cases = [
        ("as QEMU does", structure(1, 4, 0, 56), None),
        ("the first is taken", structure(1, 4, 0x4000, 56), bad(1)),
        ("reserved register numbers are passed over", structure(1, 6, 0, 56), None),
        ("too short", structure(1, 4, 0, 55), bad(1)),
        ("misaligned", structure(1, 4, 2, 56), bad(1)),
        ("sticks out", structure(1, 4, 0x3fd0, 56), bad(1)),
        ("far out", structure(1, 4, 0xffff_fffc, 0xffff_ffff), bad(1)),
        ("doorbells sticking out", structure(2, 4, 0x3004, 0x1000), bad(2)),
        ("a doorbell beyond the structure", structure(2, 4, 0x3000, 12), bad(2)),
    ];
    for (what, first, expected) in cases {
        let mut rig = Rig::new();
        let mut list = device::capabilities();
        list.insert(0, first);
        rig.bus.put_capabilities(&list);
        assert_eq!(rig.start().err(), expected, "{what}");
    }
    let mut rig = Rig::new();
    rig.bus.put(2, &TRANSITIONAL_DEVICE.to_le_bytes());
    assert!(rig.start().is_ok(), "a transitional device by its modern interface");
}

#[test]
fn data_goes_between_memory_and_disk_in_any_order_of_completion() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    let mut source = rig.memory.page();
    let target = rig.memory.page();
    for n in 0..512 {
        source.store64(8 * n, 0x0001_0001_0001_0001 * n as u64);
    }
    // eight pieces of the page, back to front, to scattered sectors
    for n in 0..8_u16 {
        let piece = segment(&source, 512 * u64::from(7 - n), 512);
        disk.submit(Tag(n * 16), Command::Write(u64::from(n) * 100), &[piece]);
    }
    assert!(rig.device.borrow_mut().take().is_none(), "nothing is shown before the kick");
    disk.kick();
    assert_eq!(rig.device.borrow().rings, 1, "one ring for many");
    let chains = rig.take_all();
    for chain in chains.iter().rev() {
        rig.device.borrow_mut().serve(chain);
    }
    let done: Vec<(u16, Outcome)> = (0..8).rev().map(|n| (n * 16, Outcome::Done)).collect();
    assert_eq!(completions(&mut disk), done);

    let pieces = |n: u64| segment(&target, 512 * (7 - n), 512);
    for n in 0..8_u16 {
        disk.submit(Tag(n), Command::Read(u64::from(n) * 100), &[pieces(n.into())]);
    }
    disk.kick();
    for chain in rig.take_all() {
        rig.device.borrow_mut().serve(&chain);
    }
    assert_eq!(completions(&mut disk).len(), 8);
    assert_eq!(rig.memory.peek(target.addr().0, PAGE_SIZE), rig.memory.peek(source.addr().0, PAGE_SIZE));
}

#[test]
fn a_full_queue_of_the_longest_commands_fits() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    let page = rig.memory.page();
    let Limits { segments, depth } = disk.limits();
    for tag in 0..depth {
        let list: Vec<DmaSegment> = (0..segments).map(|n| segment(&page, 512 * (n as u64 % 8), 512)).collect();
        disk.submit(Tag(tag as u16), Command::Write(0), &list);
    }
    disk.kick();
    let chains = rig.take_all();
    assert_eq!(chains.len(), depth);
    assert!(chains.iter().all(|chain| chain.readable.len() == segments + 1));
    for chain in &chains {
        rig.device.borrow_mut().serve(chain);
    }
    let mut tags: Vec<u16> = completions(&mut disk).into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..depth as u16));
}

#[test]
fn a_device_that_looks_by_itself_is_not_rung() {
    for offered in [OFFERED, OFFERED & !(1 << 29)] {
        let mut rig = Rig::offering(offered);
        let mut disk = rig.started();
        rig.device.borrow().queue.as_ref().unwrap().refuse_notice();
        disk.submit(Tag(0), Command::Flush, &[]);
        disk.kick();
        disk.kick();
        assert_eq!(rig.device.borrow().rings, 0);
        assert_eq!(rig.take_all().len(), 1);
    }
}

#[test]
fn the_status_byte_says_how_a_command_ended() {
    let cases = [
        (0, Outcome::Done),
        (1, Outcome::Failed),
        (2, Outcome::Unsupported),
        (3, Outcome::Failed),
        (0xff, Outcome::Failed),
    ];
    let mut rig = Rig::new();
    let mut disk = rig.started();
    for (status, expected) in cases {
        disk.submit(Tag(9), Command::Flush, &[]);
        disk.kick();
        let chain = rig.device.borrow_mut().take().unwrap();
        rig.device.borrow_mut().finish(&chain, status);
        assert_eq!(completions(&mut disk), [(9, expected)], "status {status}");
    }
}

#[test]
fn a_flush_without_a_write_cache_is_done_at_once() {
    let mut rig = Rig::offering(OFFERED & !Features::FLUSH.bits());
    let mut disk = rig.started();
    assert!(!disk.geometry().write_cache);
    disk.submit(Tag(4), Command::Flush, &[]);
    disk.kick();
    assert_eq!(rig.take_all(), []);
    assert_eq!(completions(&mut disk), [(4, Outcome::Done)]);
}

#[test]
fn a_lying_device_is_reset_and_all_its_commands_fail_once() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    let page = rig.memory.page();
    for tag in [3, 1, 2] {
        disk.submit(Tag(tag), Command::Read(0), &[segment(&page, 0, 512)]);
    }
    disk.kick();
    let chains = rig.take_all();
    rig.device.borrow_mut().serve(&chains[1]);
    {
        let mut device = rig.device.borrow_mut();
        let queue = device.queue.as_mut().unwrap();
        queue.report(77, 0);
        queue.show(1);
    }
    let failed = |tag| (tag, Outcome::Failed);
    assert_eq!(completions(&mut disk), [(1, Outcome::Done), failed(2), failed(3)]);
    assert_eq!((rig.device.borrow().status, rig.device.borrow().resets, disk.is_alive()), (0, 2, false));
    disk.submit(Tag(1), Command::Write(0), &[segment(&page, 0, 512)]);
    disk.kick();
    assert_eq!(completions(&mut disk), [failed(1)], "nor does it take more");
    assert_eq!(rig.device.borrow().rings, 1);
    disk.stop(&mut rig.bus, &mut rig.machine);
    rig.assert_quiet("a broken disk that is stopped");
}

#[test]
fn a_stopped_disk_is_quiet_and_fails_what_was_under_way() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    let page = rig.memory.page();
    disk.submit(Tag(5), Command::Read(0), &[segment(&page, 0, 512)]);
    disk.kick();
    disk.submit(Tag(6), Command::Flush, &[]);
    disk.stop(&mut rig.bus, &mut rig.machine);
    rig.assert_quiet("a stopped disk");
    assert_eq!(completions(&mut disk), [(5, Outcome::Failed), (6, Outcome::Failed)]);
    drop((disk, page));
    assert_eq!(rig.memory.pages(), 0);
    assert!(rig.start().is_ok(), "and can be started again");
}

#[test]
fn a_disk_is_stopped_also_when_the_back_has_gone() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    rig.bus.gone = true;
    let before = rig.bus.calls;
    disk.stop(&mut rig.bus, &mut rig.machine);
    assert_eq!(rig.bus.calls - before, 1, "it is asked once: every call waits for seconds");
    assert_eq!(rig.device.borrow().status, 0);
}

#[test]
fn a_disk_that_is_dropped_is_reset_before_its_memory_goes() {
    let mut rig = Rig::new();
    let disk = rig.started();
    drop(disk);
    assert_eq!(rig.device.borrow().status, 0);
}

#[test]
fn we_read_a_disk_through_a_page_of_our_own() {
    let mut rig = Rig::new();
    let mut disk = rig.started();
    for (n, byte) in rig.device.borrow_mut().disk.iter_mut().enumerate() {
        *byte = (n / 512) as u8;
    }
    let mut bounce = Bounce::new(rig.memory.page());
    for (sector, bytes) in [(1, 512), (2, 4096), (100, 1024)] {
        bounce.read(&mut disk, Tag(0), sector, bytes);
        for chain in rig.take_all() {
            rig.device.borrow_mut().serve(&chain);
        }
        assert_eq!(completions(&mut disk), [(0, Outcome::Done)]);
        let start = (sector * SECTOR_BYTES) as usize;
        let mut read = vec![0; bytes];
        bounce.copy_to(&mut read);
        assert_eq!(read, rig.device.borrow().disk[start..start + bytes]);
    }
}
