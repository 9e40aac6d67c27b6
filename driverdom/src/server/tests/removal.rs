//! Disks that go: in crowds, in mid-I/O, against the guest's will, and their volumes that others wait for.

use xen_proto::Nanos;

use super::blkfront::Manner;
use super::disk::Latency;
use super::world::{World, id};
use crate::fake::{Force, Frontend, Outcome};

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512)];

#[test]
fn a_hundred_disks_are_destroyed_by_a_toolstack_that_looks_only_after_its_last_5() {
    for pause in [0, 5, 70] {
        let mut world = World::new([5], &[&[("shared", 64)]]);
        let disks: Vec<_> = (0..100).map(|device| id(5, device)).collect();
        for disk in &disks {
            world.attach(*disk, "gpt:shared", "r", Manner::Linux);
        }
        world.pass(600);
        world.toolstack_busy = true;
        world.fronts.values_mut().for_each(|front| front.alive = false);
        for disk in &disks {
            world.detach(*disk, Force::On);
            world.pass(pause);
        }
        // As slow in looking at the answers as it was in asking: a fifth of the time, while nothing may go.
        world.pass(pause * 20);
        world.toolstack_busy = false;
        world.pass(6_500);
        for disk in &disks {
            assert_eq!(world.outcome(*disk), Some(Outcome::Removed), "{disk:?}, {pause} ms between two");
        }
        world.bury(5);
        world.assert_nothing_left();
    }
}

/// Destroys a guest with I/O under way on a disk that takes so long, and creates another with the same volume at once.
fn destroyed_and_created(latency: Latency) -> World {
    let mut world = World::new([5, 6], &[PARTS]);
    let (old, new) = (id(5, 1), id(6, 1));
    world.connect(old, "gpt:home", "w");
    world.disks[0].set_latency(latency);
    world.work(old, 60);
    world.pass(10);
    assert!(world.front(old).under_way() > 0);
    world.fronts.get_mut(&old).expect("it is there").alive = false;
    // By force, and dom0 does not wait: the directories are wiped.
    world.detach(old, Force::On);
    let directory = world.toolstack.path(old, "");
    world.store.clean_up(&directory);
    world.attach(new, "gpt:home", "w", Manner::Linux);
    world.pass(100);
    world
}

#[test]
fn a_volume_that_is_being_drained_is_waited_for() {
    let mut world = destroyed_and_created(Latency::Fixed(Nanos::from_millis(4_000)));
    let new = id(6, 1);
    assert_eq!(world.own(new), "1");
    assert!(world.xen.mappings() > 0, "the old guest's pages are still in use");
    world.pass(5_000);
    assert_eq!((world.outcome(new), world.own(new).as_str()), (Some(Outcome::Attached), "4"));
    world.disks[0].set_latency(Latency::UpTo(Nanos(1_000)));
    world.work(new, 300);
    world.pass(1_000);
    assert!(world.front(new).is_idle());
    assert!(world.compare() > 0, "nothing of the old guest's came after");
    world.bury(5);
}

#[test]
fn a_volume_that_is_never_given_back_is_refused_before_libxl_gives_up() {
    let mut world = destroyed_and_created(Latency::Stuck);
    let new = id(6, 1);
    world.pass(7_800);
    assert_eq!(world.own(new), "1");
    world.pass(200);
    assert_eq!(world.outcome(new), Some(Outcome::AttachRefused));
    assert!(world.reason(new).expect("a reason").contains("still being given back"));
    // The disk comes to itself: the volume is free, a corrected attach works.
    world.disks[0].set_latency(Latency::UpTo(Nanos(1_000)));
    world.pass(10);
    world.detach(new, Force::Off);
    world.run();
    world.connect(new, "gpt:home", "w");
    world.bury(5);
    world.destroy(6);
    world.pass(600);
    world.bury(6);
    world.assert_nothing_left();
}

#[test]
fn destroyed_in_mid_io_a_guest_is_gone_when_its_last_request_is() {
    let mut world = World::new([5], &[PARTS]);
    let disks = [id(5, 1), id(5, 2)];
    world.connect(disks[0], "gpt:home", "w");
    world.connect(disks[1], "gpt:root", "w");
    world.disks[0].set_latency(Latency::Fixed(Nanos::from_millis(2_000)));
    disks.iter().for_each(|disk| world.work(*disk, 100));
    world.pass(100);
    world.destroy(5);
    world.pass(1_800);
    assert!(disks.iter().all(|disk| world.own(*disk) == "5"), "what the device may reach is not given up");
    world.pass(1_000);
    assert!(disks.iter().all(|disk| world.outcome(*disk) == Some(Outcome::Removed)));
    world.bury(5);
    world.assert_nothing_left();
    world.compare();
}

#[test]
fn a_frontend_that_stays_at_4_is_served_on_and_can_close_later() {
    for manner in [Manner::Stubborn, Manner::Holding] {
        let mut world = World::new([5], &[PARTS]);
        let disk = id(5, 1);
        world.connect(disk, "gpt:home", "w");
        world.front(disk).manner = manner;
        world.detach(disk, Force::Off);
        world.front(disk).may_fail = false;
        for _ in 0..11 {
            world.work(disk, 20);
            world.pass(1_000);
            assert!(world.front(disk).is_idle(), "{manner:?}: I/O goes on");
        }
        assert_eq!(world.outcome(disk), Some(Outcome::CloseTimedOut));
        assert_eq!(world.own(disk), "5");
        world.close(disk, 6);
        world.pass(600);
        assert_eq!(world.own(disk), "-", "{manner:?}");
        // A second block-detach cleans up.
        world.detach(disk, Force::Off);
        assert_eq!(world.outcome(disk), Some(Outcome::Removed));
        world.assert_nothing_left();
        world.compare();
    }
}

#[test]
fn frontends_of_all_manners_and_moments_are_removed() {
    for manner in [Manner::Linux, Manner::Hasty, Manner::Idle] {
        for force in [Force::Off, Force::On] {
            for wait in [0, 1, 100, 600] {
                let mut world = World::new([5], &[PARTS]);
                let disk = id(5, 1);
                world.attach(disk, "gpt:home", "w", manner);
                if wait > 0 {
                    world.pass(wait);
                }
                world.work(disk, 30);
                world.front(disk).alive = force == Force::Off;
                world.detach(disk, force);
                world.pass(600);
                assert_eq!(world.outcome(disk), Some(Outcome::Removed), "{manner:?} {force:?} after {wait} ms");
                world.bury(5);
                world.assert_nothing_left();
            }
        }
    }
}

#[test]
fn a_frontend_that_vanishes_is_closed_and_its_device_stays() {
    let mut world = World::new([5], &[PARTS]);
    let disk = id(5, 1);
    world.connect(disk, "gpt:home", "w");
    world.disks[0].set_latency(Latency::Fixed(Nanos::from_millis(50)));
    world.work(disk, 100);
    world.pass(10);
    Frontend(disk).vanish(&mut world.store);
    world.pass(30);
    assert_eq!(world.own(disk), "4", "what is under way must end first");
    world.pass(100);
    assert_eq!(world.own(disk), "6");
    world.pass(20_000);
    assert_eq!(world.own(disk), "6", "online is 1: it may come back");
    world.detach(disk, Force::Off);
    world.pass(600);
    assert_eq!(world.outcome(disk), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn twenty_rounds_leave_nothing() {
    let mut world = World::new([5], &[PARTS]);
    let disk = id(5, 51728);
    // The counters are there now.
    world.pass(3_000);
    let nodes = world.store.nodes_of(super::world::DRIVER_DOMAIN);
    for round in 0..20 {
        world.connect(disk, if round % 2 == 0 { "gpt:home" } else { "ram:64K" }, "w");
        world.work(disk, 30);
        world.pass(5);
        world.detach(disk, Force::Off);
        world.pass(600);
        assert_eq!(world.outcome(disk), Some(Outcome::Removed), "round {round}");
    }
    world.assert_nothing_left();
    assert_eq!(world.store.nodes_of(super::world::DRIVER_DOMAIN), nodes);
    world.compare();
}
