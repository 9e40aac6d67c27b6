//! Bad guests, bad disks and a slow xenstored: each harms itself alone.

use blkback_core::backend::VbdId;
use xen_proto::Nanos;

use super::blkfront::Manner;
use super::disk::Latency;
use super::hostile::Hostile;
use super::logged;
use super::world::{World, id};
use crate::fake::{Flavour, Force, Frontend, Outcome};

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512), ("prey", 64)];

fn hostile_world(seed: u64) -> World {
    let mut world = World::new([5, 6], &[PARTS]);
    world.reseed(seed);
    let bad = id(6, 1);
    world.toolstack.attach(&mut world.store, world.clock.get(), bad, "gpt:prey", "w");
    world.truth("gpt:prey").forget();
    let hostile = Hostile::new(bad, &world.xen, &mut world.store, seed);
    world.hostile.insert(bad, hostile);
    world.connect(id(5, 1), "gpt:home", "w");
    assert_eq!(world.own(bad), "4");
    world
}

#[test]
fn a_hostile_guest_is_answered_and_another_makes_full_progress() {
    for seed in 0..10 {
        let mut world = hostile_world(seed);
        let (good, bad) = (id(5, 1), id(6, 1));
        world.disks[0].set_latency(Latency::UpTo(Nanos(200_000)));
        for _ in 0..30 {
            world.work(good, 20);
            world.hostile.get_mut(&bad).expect("it is there").issue();
            world.pass(2);
            assert!(world.front(good).is_idle(), "it gets its share of the disk");
        }
        let hostile = &world.hostile[&bad];
        assert!(
            hostile.is_idle() && hostile.refused > 10 && hostile.answered > hostile.refused,
            "{}",
            hostile.answered
        );
        world.destroy(6);
        world.pass(600);
        assert_eq!(world.outcome(bad), Some(Outcome::Removed));
        world.bury(6);
        world.compare();
    }
}

#[test]
fn a_guest_that_connects_and_lets_go_without_pause_does_not_keep_us_busy() {
    for state in [1, 6] {
        let mut world = hostile_world(1);
        logged::listen();
        for _ in 0..2_500 {
            for state in [state, 3] {
                Frontend(id(6, 1)).state(&mut world.store, state);
                world.pass(1);
            }
        }
        let lines = logged::lines_with("vbd 6/1").len();
        assert!((20..=5 * 48).contains(&lines), "{lines} lines in 5 s");
        world.work(id(5, 1), 100);
        world.run();
        assert!(world.front(id(5, 1)).is_idle());
    }
}

#[test]
fn a_ring_broken_by_its_guest_is_closed_and_the_guest_told() {
    for seed in 0..10 {
        let mut world = hostile_world(seed);
        let (good, bad) = (id(5, 1), id(6, 1));
        world.work(good, 100);
        world.hostile.get_mut(&bad).expect("it is there").issue();
        world.hostile.get_mut(&bad).expect("it is there").break_ring();
        world.run();
        assert_eq!(world.own(bad), "5");
        assert_eq!(world.reason(bad).as_deref(), Some("impossible indices in its ring"));
        assert_eq!(world.xen.held_of(bad), (0, 0, 0));
        assert!(world.front(good).is_idle());
        Frontend(bad).state(&mut world.store, 6);
        world.run();
        assert_eq!(world.own(bad), "6");
        world.destroy(6);
        world.pass(600);
        assert_eq!(world.outcome(bad), Some(Outcome::Removed));
    }
}

#[test]
fn what_a_frontend_publishes_wrongly_fails_that_device_alone() {
    for (key, value, word) in [
        ("ring-ref", "999", "ring cannot be mapped"),
        ("ring-ref", "x", "ring-ref"),
        ("event-channel", "999", "event channel cannot be bound"),
        ("protocol", "sparc", "protocol"),
    ] {
        let mut world = World::new([5, 6], &[PARTS]);
        let (bad, good) = (id(5, 1), id(6, 1));
        world.connect(good, "gpt:root", "w");
        world.attach(bad, "gpt:home", "w", Manner::Hasty);
        world.front(bad).order = 0;
        world.pass(100);
        Frontend(bad).write(&mut world.store, key, value);
        world.pass(500);
        assert_eq!(world.own(good), "4");
        let reason = world.reason(bad).expect("a reason");
        assert!(reason.contains(word), "{key}={value}: {reason}");
        // Its frontend closes at the backend's 5 and may come back.
        assert_eq!(world.own(bad), "6");
        world.reconnect(bad);
        world.run();
        assert_eq!(world.own(bad), "4");
        world.work(bad, 20);
        world.run();
        assert!(world.front(bad).is_idle());
        assert_eq!(world.reason(bad), None);
    }
}

#[test]
fn a_faulty_disk_fails_requests_and_nothing_else() {
    let mut world = World::new([5], &[PARTS]);
    let disk = id(5, 1);
    world.connect(disk, "gpt:home", "w");
    world.disks[0].inner().fault = Some(4);
    world.front(disk).may_fail = true;
    world.work(disk, 400);
    world.run();
    let front = world.front(disk);
    assert!(
        front.is_idle() && front.failed > 20 && front.failed * 2 < front.answered,
        "{} of {}",
        front.failed,
        front.answered
    );
    world.compare();
    world.detach(disk, Force::Off);
    world.pass(600);
    world.assert_nothing_left();
}

#[test]
fn a_faulty_disk_has_no_partitions_but_serves_whole() {
    let mut world = World::asleep([5], &[PARTS]);
    world.disks[0].inner().fault = Some(1);
    world.pass(100);
    world.attach(id(5, 1), "gpt:home", "w", Manner::Linux);
    world.run();
    assert!(world.reason(id(5, 1)).expect("a reason").contains("cannot be read"));
    world.disks[0].inner().fault = None;
    world.connect(id(5, 2), "disk0", "w");
    world.work(id(5, 2), 30);
    world.run();
    assert!(world.front(id(5, 2)).is_idle());
}

#[test]
fn a_disk_without_a_write_cache_answers_flushes_without_an_interrupt() {
    let mut world = World::asleep([5], &[PARTS]);
    world.disks[0].inner().geometry.write_cache = false;
    world.disks[0].set_latency(Latency::Fixed(Nanos(10_000)));
    world.pass(100);
    world.connect(id(5, 1), "gpt:home", "w");
    for _ in 0..100 {
        world.work(id(5, 1), 1);
        world.pass(1);
        assert!(world.front(id(5, 1)).is_idle(), "nothing else wakes us");
    }
}

#[test]
fn a_disk_that_does_not_know_flushes_after_all_is_no_longer_said_to() {
    let mut world = World::new([5, 6], &[PARTS]);
    let (disk, other) = (id(5, 1), id(6, 1));
    world.disks[0].inner().flushes = false;
    for disk in [disk, other] {
        world.connect(disk, "gpt:home", "r");
        world.front(disk).bad_disk = true;
    }
    let offers = |world: &mut World, disk: VbdId| {
        world.home(&format!("backend/vbd/{}/{}/feature-flush-cache", disk.domain, disk.device))
    };
    assert_eq!(offers(&mut world, disk).as_deref(), Some("1"), "nobody has asked it");
    world.work(disk, 100);
    world.run();
    assert_eq!(offers(&mut world, disk).as_deref(), Some("0"));
    assert_eq!(world.own(disk), "4");
    assert_eq!(offers(&mut world, other).as_deref(), Some("1"), "it has not asked");
    let served = world.connection.served;
    world.work(disk, 100);
    world.run();
    assert!(world.front(disk).is_idle() && world.front(disk).failed > 10, "each flush is answered so");
    assert_eq!(world.connection.served, served, "it is said once");
    // It stays so when it connects again.
    world.close(disk, 6);
    world.run();
    world.reconnect(disk);
    world.run();
    assert_eq!((world.own(disk).as_str(), offers(&mut world, disk).as_deref()), ("4", Some("0")));
}

#[test]
fn all_of_a_full_disks_commands_may_complete_at_once() {
    let parts: Vec<(String, u64)> = (0..16).map(|number| (format!("v{number}"), 512)).collect();
    let parts: Vec<(&str, u64)> = parts.iter().map(|(name, sectors)| (name.as_str(), *sectors)).collect();
    let mut world = World::new([5], &[&parts]);
    for device in 0..16 {
        world.connect(id(5, device), &format!("gpt:v{device}"), "w");
        let front = world.front(id(5, device));
        (front.order, front.depth) = (0, 30);
    }
    for _ in 0..20 {
        world.disks[0].set_latency(Latency::Stuck);
        (0..16).for_each(|device| world.work(id(5, device), 200));
        world.pass(1);
        assert_eq!(world.disks[0].under_way(), 128, "as many as it takes");
        world.disks[0].set_latency(Latency::UpTo(Nanos(0)));
        world.pass(1);
        assert!(world.fronts.values().all(super::blkfront::Blkfront::is_idle), "nothing else wakes us");
    }
}

#[test]
fn a_slow_xenstored_changes_nothing_but_times() {
    for (flavour, delay) in [(Flavour::C, 2), (Flavour::Oxenstored, 2), (Flavour::C, 10)] {
        let mut world = World::new([5], &[PARTS]);
        world.store.flavour = flavour;
        world.store_delay = Nanos::from_millis(delay);
        let disks = [id(5, 1), id(5, 2)];
        world.attach(disks[0], "gpt:home", "w", Manner::Hasty);
        world.attach(disks[1], "gpt:root", "w", Manner::Linux);
        world.pass(3_000);
        for disk in disks {
            assert_eq!((world.outcome(disk), world.own(disk).as_str()), (Some(Outcome::Attached), "4"), "{disk:?}");
            world.work(disk, 100);
        }
        world.run();
        assert!(world.fronts.values().all(super::blkfront::Blkfront::is_idle), "requests need no xenstored");
        disks.iter().for_each(|disk| world.detach(*disk, Force::Off));
        world.pass(3_000);
        assert!(disks.iter().all(|disk| world.outcome(*disk) == Some(Outcome::Removed)));
        world.assert_nothing_left();
    }
}
