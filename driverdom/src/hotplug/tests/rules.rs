//! The ten rules that decide whether xl works with a backend in its own domain, one test each.

use super::world::{DRIVER_DOMAIN, Held, World, id};
use crate::fake::{Force, Frontend, Outcome};
use xen_proto::Nanos;

const DISK: blkback_core::backend::VbdId = blkback_core::backend::VbdId { domain: xen_proto::DomId(5), device: 51712 };

#[test]
fn rule_1_a_new_directory_gets_its_features_and_init_wait() {
    let mut world = World::new([5]);
    world.attach(DISK);
    world.run();
    assert_eq!(world.outcome(DISK), Some(Outcome::Attached));
    for (key, value) in [
        ("state", "2"),
        ("feature-max-indirect-segments", "256"),
        ("max-ring-page-order", "4"),
        ("max-ring-pages", "16"),
    ] {
        assert_eq!(world.key(DISK, key), value, "{key}");
    }
    for absent in ["sectors", "feature-persistent", "multi-queue-max-queues", "feature-discard", "feature-barrier"] {
        assert_eq!(world.key(DISK, absent), "-", "{absent}");
    }
}

#[test]
fn rule_2_init_wait_stays_long_enough_for_a_slow_dom0_even_if_the_guest_is_quick() {
    let mut world = World::new([5]);
    world.toolstack.look_every = Nanos::from_millis(450);
    world.pass(100);
    world.attach(DISK);
    Frontend(DISK).publish(&mut world.store);
    world.pass(499);
    assert_eq!(world.own(DISK), "2");
    assert_eq!(world.outcome(DISK), Some(Outcome::Attached));
    world.pass(10);
    assert_eq!(world.own(DISK), "4");
}

#[test]
fn rule_3_and_4_the_toolstacks_5_is_answered_by_6_and_then_the_directory_goes() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.remove(DISK, Force::Off);
    world.run();
    world.frontend(DISK, 6);
    world.run();
    assert_eq!(world.own(DISK), "6");
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn rule_5_the_directory_stays_until_a_slow_dom0_has_seen_6() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.toolstack.look_every = Nanos::from_millis(450);
    world.pass(1_000);
    world.remove(DISK, Force::On);
    world.pass(499);
    assert_eq!(world.own(DISK), "6");
    world.pass(1_000);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
}

#[test]
fn rule_5_the_dwell_counts_from_the_toolstacks_last_5_to_that_guest() {
    let mut world = World::new([5, 6]);
    let disks = [id(5, 1), id(5, 2), id(5, 3), id(6, 1)];
    for disk in disks {
        world.attach_as(disk, &format!("disk{}-{}", disk.domain, disk.device), "w");
    }
    world.pass(1_000);
    for disk in &disks[..3] {
        world.remove(*disk, Force::On);
        world.pass(400);
    }
    world.remove(disks[3], Force::On);
    assert_eq!(disks.map(|disk| world.own(disk)), ["6", "6", "6", "5"], "800 ms after the first");
    world.pass(110);
    assert_eq!(
        disks.map(|disk| world.own(disk)),
        ["-", "-", "6", "6"],
        "in the order of asking; the other guest by itself"
    );
    world.pass(500);
    world.assert_nothing_left();
}

#[test]
fn rule_5_no_stream_of_removals_keeps_a_directory_beyond_dom0s_patience() {
    let mut world = World::new([5]);
    let disks: Vec<_> = (0..40).map(|device| id(5, device)).collect();
    for disk in &disks {
        world.attach_as(*disk, &format!("v{}", disk.device), "w");
    }
    world.pass(1_000);
    for disk in &disks {
        world.remove(*disk, Force::Off);
        world.pass(300);
    }
    world.pass(1_000);
    for disk in disks {
        assert_eq!(world.outcome(disk), Some(Outcome::Removed), "{disk:?}");
    }
}

#[test]
fn rule_5_a_guest_that_takes_its_directories_away_does_not_make_detaches_look_like_its_destroy() {
    let mut world = World::new([5]);
    let disks: Vec<_> = (0..4).map(|device| id(5, device)).collect();
    for disk in &disks {
        world.connected(*disk);
    }
    for disk in &disks {
        let path = format!("/local/domain/{}/device/vbd/{}", disk.domain, disk.device);
        world.store.rm(xen_proto::DomId(0), 0, &path).expect("it is there");
    }
    world.pass(1_000);
    for disk in &disks[..3] {
        world.remove(*disk, Force::Off);
        world.pass(4_000);
    }
    assert!(disks[..3].iter().all(|disk| world.outcome(*disk) == Some(Outcome::Removed)));
}

#[test]
fn rule_5_dom0_may_pause_in_the_middle_of_a_destroy() {
    let mut world = World::new([5]);
    let disks: Vec<_> = (0..40).map(|device| id(5, device)).collect();
    for disk in &disks {
        world.attach_as(*disk, &format!("v{}", disk.device), "w");
    }
    world.pass(1_000);
    let (last, others) = disks.split_last().unwrap();
    for disk in others {
        world.remove(*disk, Force::On);
        world.pass(50);
    }
    world.pass(4_000);
    assert!(others.iter().all(|disk| world.own(*disk) == "6"), "none goes while there is one to come");
    world.remove(*last, Force::On);
    world.pass(1_900);
    assert!(disks.iter().all(|disk| world.own(*disk) == "6"), "it asked for 6 s, so it may look for 2 s");
    world.pass(200);
    assert!(others.iter().all(|disk| world.outcome(*disk) == Some(Outcome::Removed)));
    assert_eq!(world.own(*last), "6", "it was asked for 6 s after the first");
    world.pass(4_500);
    assert_eq!(world.outcome(*last), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn rule_6_a_device_that_the_guest_closed_goes_when_online_becomes_0() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.frontend(DISK, 6);
    world.pass(20_000);
    assert_eq!(world.own(DISK), "6", "while online it stays");
    world.remove(DISK, Force::Off);
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn rule_7_a_closed_frontend_may_come_back_and_finds_its_volume_kept() {
    let mut world = World::new([5]);
    world.connected(DISK);
    for _ in 0..3 {
        world.frontend(DISK, 5);
        world.run();
        assert_eq!(world.own(DISK), "5");
        world.frontend(DISK, 6);
        world.run();
        assert_eq!(world.own(DISK), "6");
        assert_eq!(world.glue.held[&DISK], Held::Volume("disk0".into()));
        world.frontend(DISK, 1);
        world.run();
        assert_eq!(world.own(DISK), "2");
        Frontend(DISK).publish(&mut world.store);
        world.run();
        assert_eq!(world.own(DISK), "4", "without a dwell: nobody waits for 2");
    }
    assert_eq!(world.hotplug.statistics().connect.count(), 4);
}

#[test]
fn rule_8_a_forced_removal_is_a_close_whatever_the_frontend_did() {
    // Its directory goes in the same transaction; xenstored says EACCES for it from then on.
    for connected in [false, true] {
        let mut world = World::new([5]);
        if connected {
            world.connected(DISK);
        } else {
            world.attach(DISK);
            world.pass(1_000);
        }
        world.remove(DISK, Force::On);
        world.run();
        assert_eq!(world.own(DISK), "6");
        world.pass(600);
        assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
        world.assert_nothing_left();
    }
}

#[test]
fn rule_8_a_forced_removal_in_the_middle_of_anything() {
    // The fake connection itself enforces rule 9: nothing is written into a directory that is gone.
    for steps in 0..260 {
        let mut world = World::new([5]);
        world.attach(DISK);
        Frontend(DISK).publish_order(&mut world.store, 4);
        for step in 0..steps {
            world.step();
            if step == 100 {
                world.now = world.now + Nanos::from_millis(600);
                world.hotplug.tick(world.now, &mut world.client);
            }
        }
        world.remove(DISK, Force::On);
        world.pass(2_000);
        assert_eq!(world.outcome(DISK), Some(Outcome::Removed), "after {steps} steps");
        world.assert_nothing_left();
    }
}

#[test]
fn rule_9_a_directory_wiped_in_the_middle_of_anything_is_not_made_again() {
    for steps in 0..260 {
        let mut world = World::new([5]);
        world.attach(DISK);
        Frontend(DISK).publish(&mut world.store);
        for step in 0..steps {
            world.step();
            if step == 100 {
                world.now = world.now + Nanos::from_millis(600);
                world.hotplug.tick(world.now, &mut world.client);
            }
        }
        let path = world.toolstack.path(DISK, "");
        world.store.clean_up(&path);
        world.pass(11_000);
        world.assert_nothing_left();
    }
}

#[test]
fn rule_10_rings_and_claim_go_before_6() {
    // The world checks what is held whenever 6 is written; here the disconnect takes long.
    let mut world = World::new([5]);
    world.connected(DISK);
    world.glue.slow = true;
    world.remove(DISK, Force::On);
    world.pass(2_000);
    assert_eq!(world.own(DISK), "5");
    world.finish_disconnects();
    assert_eq!(world.own(DISK), "6");
    assert!(world.glue.held.is_empty());
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn rule_10_holds_when_the_toolstacks_5_meets_a_5_that_stands_already() {
    for steps in 0..60 {
        let mut world = World::new([5]);
        world.connected(DISK);
        world.frontend(DISK, 5);
        world.run();
        world.frontend(DISK, 6);
        for _ in 0..steps {
            world.step();
        }
        world.remove(DISK, Force::Off);
        world.pass(1_200);
        assert_eq!(world.outcome(DISK), Some(Outcome::Removed), "after {steps} steps");
    }
}

#[test]
fn dom0_is_a_guest_like_any_other_as_pygrub_uses_it() {
    let mut world = World::new([0, 5]);
    for mode in ["r", "w"] {
        let boot = id(0, 51712);
        world.attach_as(boot, "disk0", mode);
        world.run();
        Frontend(boot).publish(&mut world.store);
        world.pass(600);
        assert_eq!(world.own(boot), "4");
        assert_eq!(world.key(boot, "info"), if mode == "r" { "4" } else { "0" });
        world.remove(boot, Force::Off);
        world.run();
        world.frontend(boot, 6);
        world.pass(600);
        assert_eq!(world.outcome(boot), Some(Outcome::Removed));
        world.assert_nothing_left();
    }
}

#[test]
fn properties_are_there_before_connected() {
    let mut world = World::new([5]);
    world.connected(DISK);
    for (key, value) in [
        ("sectors", "2048"),
        ("sector-size", "512"),
        ("physical-sector-size", "4096"),
        ("info", "0"),
        ("feature-flush-cache", "1"),
        ("state", "4"),
    ] {
        assert_eq!(world.key(DISK, key), value, "{key}");
    }
    world.hotplug.flush_unsupported(world.now, DISK, &mut world.client);
    world.run();
    assert_eq!(world.key(DISK, "feature-flush-cache"), "0");
    assert_eq!(world.own(DISK), "4");
}

#[test]
fn devices_that_were_there_first_are_served_and_ready_is_said_after_the_listing() {
    let mut world = World::asleep([5, 6]);
    let disks = [id(5, 1), id(5, 2), id(6, 1)];
    for disk in disks {
        world.attach_as(disk, &format!("v{}-{}", disk.domain, disk.device), "w");
    }
    assert_eq!(world.home("data/driverdom/ready"), None);
    world.run();
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
    for disk in disks {
        assert_eq!(world.outcome(disk), Some(Outcome::Attached), "{disk:?}");
    }
    assert_eq!(world.store.watches_of(DRIVER_DOMAIN), 5, "three of ours and one a guest");
}
