//! From the first turn to the last, and guests as they come and go when nothing is wrong.

use std::collections::BTreeMap;

use blkback_core::backend::VbdId;
use blkback_core::disk::Limits;
use xen_proto::Nanos;

use super::blkfront::Manner;
use super::disk::{Latency, Power};
use super::logged;
use super::world::{World, id};
use crate::drivers::pci::Address;
use crate::fake::{Force, Frontend, Outcome};
use crate::hotplug::Shutdown;
use crate::server::platform::OwnedDisk;

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512)];

#[test]
fn it_serves_without_a_disk() {
    let mut world = World::new([5], &[]);
    let disk = id(5, 1);
    world.connect(disk, "ram:64K", "w");
    world.work(disk, 200);
    world.run();
    assert!(world.front(disk).is_idle());
    assert_eq!(world.shut_down("poweroff", 6_000), Some(Shutdown::PowerOff));
}

#[test]
fn it_is_ready_when_the_partition_tables_are_read() {
    let mut world = World::asleep([5], &[PARTS, PARTS]);
    world.disks[1].set_latency(Latency::Fixed(Nanos::from_millis(100)));
    world.attach(id(5, 1), "disk0/gpt:home", "w", Manner::Linux);
    world.pass(50);
    assert_eq!(world.home("data/driverdom/ready"), None);
    assert_eq!(world.own(id(5, 1)), "1", "no guest is served before");
    world.pass(2_000);
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
    assert_eq!(world.own(id(5, 1)), "4");
}

#[test]
fn guests_with_1_8_and_100_disks_come_work_and_go() {
    for count in [1, 8, 100] {
        let names: Vec<String> = (0..count).map(|number| format!("v{number}")).collect();
        let parts: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 64)).collect();
        let mut world = World::new([5], &[&parts]);
        world.disks[0].set_latency(Latency::UpTo(Nanos(300_000)));
        let disks: Vec<_> = (0..count).map(|device| id(5, device)).collect();
        for (disk, name) in disks.iter().zip(&names) {
            world.attach(*disk, &format!("gpt:{name}"), "w", Manner::Linux);
        }
        world.pass(600);
        for disk in &disks {
            assert_eq!((world.outcome(*disk), world.own(*disk).as_str()), (Some(Outcome::Attached), "4"), "{disk:?}");
            world.work(*disk, 20);
        }
        world.pass(2_000);
        assert!(world.fronts.values().all(|front| front.is_idle() && front.failed == 0));
        world.destroy(5);
        world.pass(1_600);
        assert!(disks.iter().all(|disk| world.outcome(*disk) == Some(Outcome::Removed)));
        world.bury(5);
        world.assert_nothing_left();
        assert_eq!(world.shut_down("poweroff", 100), Some(Shutdown::PowerOff));
        assert!(world.assert_ended_well() >= 10 * usize::try_from(count).expect("it is small"));
    }
}

#[test]
fn libxl_sees_2_though_a_running_guest_goes_to_3_at_once() {
    // The toolstack looks only so often.
    for look_every in [0, 100, 400] {
        let mut world = World::new([5], &[PARTS]);
        world.toolstack.look_every = Nanos::from_millis(look_every);
        let disk = id(5, 51728);
        world.attach(disk, "gpt:home", "w", Manner::Hasty);
        world.pass(450);
        assert_eq!(world.outcome(disk), Some(Outcome::Attached), "looking every {look_every} ms");
        assert_eq!(world.own(disk), "2");
        world.pass(100);
        assert_eq!(world.own(disk), "4");
    }
}

#[test]
fn a_guest_that_closes_and_comes_back_keeps_its_volume() {
    let mut world = World::new([5, 6], &[PARTS]);
    let (disk, other) = (id(5, 1), id(6, 1));
    world.connect(disk, "gpt:home", "w");
    for states in [&[6][..], &[5, 6], &[]] {
        world.work(disk, 50);
        world.run();
        for state in states {
            world.close(disk, *state);
            world.run();
            refused_for_good(&mut world, other, disk);
        }
        world.reconnect(disk);
        world.run();
        assert_eq!(world.own(disk), "4", "after {states:?}");
        refused_for_good(&mut world, other, disk);
    }
    world.work(disk, 50);
    world.run();
    assert!(world.front(disk).is_idle());
    world.compare();
}

#[test]
fn a_frontend_that_closes_with_requests_under_way_keeps_its_volume_until_it_is_detached() {
    let mut world = World::new([5, 6], &[PARTS]);
    let (disk, other) = (id(5, 1), id(6, 1));
    world.connect(disk, "gpt:home", "w");
    world.disks[0].set_latency(Latency::Fixed(Nanos::from_millis(2_000)));
    world.work(disk, 50);
    world.close(disk, 6);
    world.run();
    assert_eq!(world.own(disk), "4", "requests are under way");
    refused_for_good(&mut world, other, disk);
    world.pass(3_000);
    assert_eq!(world.own(disk), "6");
    refused_for_good(&mut world, other, disk);
    world.detach(disk, Force::Off);
    world.pass(600);
    world.connect(other, "gpt:home", "w");
}

/// Somebody else's attach is refused at once, and told who has the volume.
fn refused_for_good(world: &mut World, other: VbdId, holder: VbdId) {
    let now = world.now();
    world.attach(other, "disk0", "r", Manner::Linux);
    world.run();
    assert_eq!((world.outcome(other), world.now()), (Some(Outcome::AttachRefused), now));
    let reason = world.reason(other).expect("a reason");
    assert!(reason.contains(&format!("in use by domain {} device {}", holder.domain, holder.device)), "{reason}");
    world.detach(other, Force::Off);
    world.run();
}

#[test]
fn pygrub_has_the_disk_before_the_guest() {
    let mut world = World::new([5], &[PARTS]);
    world.disks[0].set_latency(Latency::Fixed(Nanos::from_millis(3)));
    let (dom0, guest) = (id(0, 51712), id(5, 51712));
    world.attach(dom0, "gpt:root", "w", Manner::Linux);
    world.pass(600);
    assert_eq!(world.own(dom0), "4", "pygrub waits for 4");
    world.work(dom0, 20);
    world.pass(10);
    world.detach(dom0, Force::Off);
    while world.outcome(dom0) != Some(Outcome::Removed) {
        world.pass(1);
    }
    world.connect(guest, "gpt:root", "w");
    world.work(guest, 100);
    world.pass(2_000);
    assert!(world.front(guest).is_idle());
    assert!(world.compare() > 0);
}

#[test]
fn a_shutdown_closes_all_flushes_and_resets() {
    let mut world = World::new([5, 6], &[PARTS, &[("data", 64)]]);
    let (linux, stubborn) = (id(5, 1), id(6, 1));
    world.connect(linux, "gpt:home", "w");
    world.connect(stubborn, "gpt:root", "w");
    world.front(stubborn).manner = Manner::Stubborn;
    world.disks[0].set_latency(Latency::Fixed(Nanos::from_millis(20)));
    for disk in [linux, stubborn] {
        world.front(disk).may_fail = true;
        world.work(disk, 40);
    }
    assert_eq!(world.shut_down("reboot", 4_900), None, "the stubborn one is served for five seconds");
    assert_eq!(world.own(linux), "6");
    assert_eq!(world.own(stubborn), "5");
    assert!(world.front(stubborn).is_idle());
    assert_eq!(world.front(stubborn).failed, 0);
    world.pass(300);
    assert!(world.assert_ended_well() > 0);
    assert_eq!((world.xen.connected(), world.xen.mappings()), (0, 0));
    assert_eq!(world.home("control/shutdown").as_deref(), Some(""));
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("0"));
}

#[test]
fn a_disk_that_never_answers_is_reset_in_the_end() {
    for (requests, name) in [(20, "with requests under way"), (0, "at its last flush")] {
        let mut world = World::new([5, 6], &[PARTS, &[("data", 64)]]);
        let (stuck, good) = (id(5, 1), id(6, 1));
        world.connect(stuck, "gpt:home", "w");
        world.connect(good, "gpt:data", "w");
        world.disks[0].set_latency(Latency::Stuck);
        for disk in [stuck, good] {
            world.front(disk).may_fail = true;
            world.work(disk, requests);
        }
        world.run();
        world.disks[1].inner().dirty = true;
        let patience = crate::server::DISK_PATIENCE.as_millis();
        assert_eq!(world.shut_down("poweroff", patience - 100), None, "{name}");
        assert_eq!(world.own(good), "6");
        assert_eq!(world.disks[1].inner().dirty, requests > 0, "it is not flushed yet, {name}");
        assert_eq!(world.shut_down("poweroff", 200), Some(Shutdown::PowerOff), "{name}");
        assert!(world.disks.iter().all(|disk| disk.inner().power == Power::Stopped));
        assert_eq!((world.xen.connected(), world.xen.mappings()), (0, 0));
        assert!(!world.disks[1].inner().dirty, "the other was flushed, {name}");
        world.compare();
    }
}

#[test]
fn an_attach_during_the_shutdown_is_refused_at_once() {
    let mut world = World::new([5, 6], &[PARTS]);
    world.connect(id(5, 1), "gpt:home", "w");
    world.front(id(5, 1)).manner = Manner::Stubborn;
    assert_eq!(world.shut_down("poweroff", 100), None);
    world.attach(id(6, 1), "gpt:root", "w", Manner::Linux);
    world.run();
    assert_eq!(world.outcome(id(6, 1)), Some(Outcome::AttachRefused));
    world.pass(6_000);
    world.assert_ended_well();
}

#[test]
fn disks_are_passed_in_and_taken_away_while_others_serve() {
    let mut world = World::new([5, 6], &[PARTS, &[("data", 512)]]);
    let (stays, loses) = (id(5, 1), id(6, 1));
    world.connect(stays, "gpt:home", "w");
    world.connect(loses, "gpt:data", "w");
    world.disks[1].set_latency(Latency::Fixed(Nanos::from_millis(50)));
    for disk in [stays, loses] {
        world.work(disk, 200);
    }
    world.front(loses).may_fail = true;
    world.pass(60);
    let address = Address { segment: 0, bus: 0, slot: 1, function: 0 };
    let now = world.now();
    world.pci.as_mut().expect("it is there").detach(&mut world.store, now, address);
    world.pass(10);
    assert!(world.pci.as_ref().expect("it is there").is_settled(), "dom0 has it at once");
    assert_eq!(world.disks[1].under_way(), 0, "the device reaches nothing any more");
    assert!(world.fronts.values().all(|front| front.is_idle()), "all is answered");
    assert!(world.front(loses).failed > 0);
    world.work(loses, 10);
    world.run();
    assert!(world.front(loses).is_idle(), "also what is asked later");
    let failed = world.front(loses).failed;
    assert!(failed >= 10);
    assert_eq!(world.front(stays).failed, 0);
    // Its guest can still be taken down, and its volume is not given to anybody.
    world.detach(loses, Force::Off);
    world.pass(600);
    assert_eq!(world.outcome(loses), Some(Outcome::Removed));
    world.attach(loses, "gpt:data", "w", Manner::Linux);
    world.run();
    assert_eq!(world.outcome(loses), Some(Outcome::AttachRefused));
    // Back again, it is the next disk.
    let now = world.now();
    world.pci.as_mut().expect("it is there").attach(&mut world.store, now, address);
    world.disks[1].set_latency(Latency::UpTo(Nanos(1000)));
    world.pass(100);
    world.detach(loses, Force::Off);
    for (name, word) in [("disk1", "taken away"), ("disk1/gpt:data", "taken away")] {
        world.attach(loses, name, "w", Manner::Linux);
        world.run();
        assert!(world.reason(loses).expect("a reason").contains(word), "{name}");
        world.detach(loses, Force::Off);
    }
    world.connect(loses, "gpt:data", "w");
    world.work(loses, 50);
    world.pass(100);
    assert!(world.front(loses).is_idle());
    assert_eq!(world.front(loses).failed, 0);
    world.compare();
    world.shut_down("poweroff", 6_000);
    world.assert_ended_well();
}

#[test]
fn what_waits_for_a_disk_that_is_taken_away_fails_without_anybody_waking_us() {
    let mut world = World::asleep([5], &[PARTS]);
    world.disks[0].inner().limits = Limits { segments: 8, depth: 2 };
    world.pass(50);
    let disk = id(5, 1);
    world.connect(disk, "gpt:home", "w");
    world.disks[0].set_latency(Latency::Stuck);
    world.front(disk).depth = 30;
    world.work(disk, 400);
    world.run();
    assert_eq!((world.disks[0].under_way(), world.front(disk).under_way()), (2, 30));
    world.front(disk).may_fail = true;
    let (now, address) = (world.now(), world.disks[0].address());
    world.pci.as_mut().expect("it is there").detach(&mut world.store, now, address);
    world.run();
    assert!(world.front(disk).is_idle());
}

#[test]
fn who_connects_to_what_is_logged_once() {
    logged::listen();
    let mut world = World::new([4, 5], &[PARTS]);
    world.connect(id(4, 51712), "gpt:home", "w");
    world.connect(id(5, 1), "disk0/gpt:root", "r");
    world.work(id(4, 51712), 100);
    world.pass(1_000);
    let lines =
        ["INFO: vbd 4/51712: gpt:home, writable: connected", "INFO: vbd 5/1: disk0/gpt:root, read-only: connected"];
    assert_eq!(logged::lines_with("connected"), lines);
    assert_eq!(logged::lines_with("vbd ").len(), lines.len(), "nothing a request");
}

#[test]
fn how_attaches_went_is_published() {
    let mut world = World::new([5, 6], &[PARTS]);
    let quick = |done: u64, refused: u64| {
        format!(
            "attach_count={done} attach_p50_us=0 attach_p99_us=0 attach_p999_us=0 attach_max_us=0 \
             connect_count={done} connect_p50_us=0 connect_p99_us=0 connect_p999_us=0 connect_max_us=0 \
             refused={refused} failed=0"
        )
    };
    world.pass(1_100);
    assert_eq!(world.home("data/driverdom/attaches"), Some(quick(0, 0)));
    world.connect(id(5, 1), "gpt:home", "w");
    world.connect(id(5, 2), "ram:64K", "w");
    world.attach(id(6, 1), "gpt:home", "w", Manner::Linux);
    world.pass(2_100);
    assert_eq!(world.home("data/driverdom/attaches"), Some(quick(2, 1)));
    world.store_delay = Nanos::from_millis(1);
    world.connect(id(6, 2), "ram:64K", "w");
    world.pass(2_100);
    let attaches = world.home("data/driverdom/attaches").expect("it is there");
    let pairs = attaches.split(' ').filter_map(|pair| pair.split_once('='));
    let values: BTreeMap<&str, u64> = pairs.map(|(key, value)| (key, value.parse().expect("a number"))).collect();
    assert_eq!((values["attach_count"], values["attach_p50_us"]), (3, 66), "{attaches}");
    assert!(values["attach_max_us"] >= 10_000 && values["attach_p99_us"] == values["attach_max_us"], "{attaches}");
    // A guest that writes its nodes over and over does not make us write.
    world.pass(2_000);
    let published = world.published;
    for _ in 0..100 {
        Frontend(id(6, 2)).state(&mut world.store, 4);
        world.pass(50);
    }
    assert_eq!(world.published, published);
}

#[test]
fn nothing_runs_while_nothing_happens() {
    let mut world = World::new([5], &[PARTS]);
    world.connect(id(5, 1), "gpt:home", "w");
    world.work(id(5, 1), 100);
    world.pass(3_000);
    let (turns, served) = (world.turns, world.connection.served);
    world.pass(300_000);
    assert_eq!((world.turns - turns, world.connection.served - served), (0, 0), "turns and requests in 300 s");
}
