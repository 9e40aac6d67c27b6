//! Volumes that cannot be had, quotas that are used up, a store in which everybody writes, and the end of the domain.

use xen_proto::Nanos;

use super::world::{DRIVER_DOMAIN, Held, World, id};
use crate::fake::{Flavour, Force, Frontend, Outcome};
use crate::hotplug::{Action, DRAIN_GRACE, MAX_REASONS, REASON_LIFE, Shutdown};

const DISK: blkback_core::backend::VbdId = blkback_core::backend::VbdId { domain: xen_proto::DomId(5), device: 51712 };

#[test]
fn a_volume_that_cannot_be_had_is_refused_at_once_and_can_be_corrected() {
    let mut world = World::new([5]);
    world.glue.unknown.insert("disk9".into());
    world.attach_as(DISK, "disk9", "w");
    world.run();
    assert_eq!(world.outcome(DISK), Some(Outcome::AttachRefused), "without time passing");
    assert_eq!(world.reason(DISK).as_deref(), Some("no volume is named disk9"));
    assert_eq!((world.hotplug.statistics().devices, world.hotplug.statistics().refused), (0, 1));
    // A hot attach leaves libxl's other nodes; `xl block-detach`, then the right name.
    world.remove(DISK, Force::Off);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
    world.attach(DISK);
    Frontend(DISK).publish(&mut world.store);
    world.pass(600);
    assert_eq!(world.own(DISK), "4");
    assert_eq!(world.reason(DISK), None, "the note goes when it works");
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    for (params, mode, word) in [("", "w", "no target"), ("disk0", "x", "mode"), (&"x".repeat(300), "w", "300 bytes")] {
        let mut world = World::new([5]);
        world.attach_as(DISK, params, mode);
        world.run();
        assert_eq!(world.outcome(DISK), Some(Outcome::AttachRefused), "{params} {mode}");
        assert!(world.reason(DISK).expect("a reason").contains(word));
        assert!(world.glue.log.is_empty());
    }
}

#[test]
fn the_reasons_of_refusals_are_bounded_and_go_with_time() {
    let mut world = World::new([5]);
    world.glue.unknown.insert("disk9".into());
    for device in 0..100 {
        world.attach_as(id(5, device), "disk9", "w");
        world.pass(10);
    }
    let notes = |world: &World| {
        world.store.below("/local/domain/2/error").iter().filter(|path| path.ends_with("/error")).count()
    };
    assert_eq!(notes(&world), MAX_REASONS + 1, "and the directory above them");
    assert_eq!(world.reason(id(5, 35)), None);
    assert!(world.reason(id(5, 99)).is_some());
    world.pass(REASON_LIFE.as_millis());
    for device in 0..100 {
        world.remove(id(5, device), Force::Off);
    }
    world.run();
    world.assert_nothing_left();
}

#[test]
fn a_volume_that_is_being_drained_is_waited_for() {
    let mut world = World::new([5]);
    world.glue.draining.insert("disk0".into());
    world.attach(DISK);
    world.pass(3_000);
    assert_eq!(world.own(DISK), "1");
    assert_eq!(world.glue.log.len(), 1, "it is not asked for again and again");
    world.hotplug.volume_released(world.now, &mut world.client);
    world.run();
    assert_eq!((world.own(DISK).as_str(), world.glue.log.len()), ("1", 2), "another volume was meant");
    world.glue.draining.clear();
    world.hotplug.volume_released(world.now, &mut world.client);
    world.run();
    assert_eq!(world.outcome(DISK), Some(Outcome::Attached));
}

#[test]
fn a_volume_that_drains_too_long_is_refused_before_libxl_gives_up() {
    let mut world = World::new([5]);
    world.glue.draining.insert("disk0".into());
    world.attach(DISK);
    world.pass(8_100);
    assert_eq!(world.outcome(DISK), Some(Outcome::AttachRefused));
    assert!(world.reason(DISK).expect("a reason").contains("given back"));
    // Removed while it waits:
    world.attach(DISK);
    world.pass(1_000);
    world.remove(DISK, Force::On);
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
}

#[test]
fn destroy_and_create_at_once_waits_for_the_old_rings() {
    let mut world = World::new([5, 6]);
    world.connected(DISK);
    world.glue.slow = true;
    let path = world.toolstack.path(DISK, "");
    world.store.clean_up(&path);
    world.glue.draining.insert("disk0".into());
    let next = id(6, 51712);
    world.attach(next);
    world.pass(1_000);
    assert_eq!(world.own(next), "1");
    world.glue.draining.clear();
    world.finish_disconnects();
    assert_eq!(world.outcome(next), Some(Outcome::Attached), "closing the old one released it");
}

#[test]
fn a_directory_made_anew_before_we_looked_is_a_new_device() {
    let mut world = World::new([5]);
    world.connected(DISK);
    // Forced removal by a dom0 that wiped it and attaches another volume, all before our next look.
    let path = world.toolstack.path(DISK, "");
    world.store.clean_up(&path);
    world.attach_as(DISK, "disk1", "r");
    world.run();
    assert_eq!(world.outcome(DISK), Some(Outcome::Attached));
    assert_eq!(world.glue.held[&DISK], Held::Volume("disk1".into()));
    let kinds: Vec<_> = world.glue.log.iter().skip(2).map(|action| format!("{action:?}")[..4].to_string()).collect();
    assert_eq!(kinds, ["Disc", "Clos", "Open"]);
}

#[test]
fn a_directory_made_anew_while_the_old_one_is_forgotten_is_a_new_device() {
    for steps in 0..60 {
        let mut world = World::new([5]);
        world.chunk = 4096;
        world.connected(DISK);
        let path = world.toolstack.path(DISK, "");
        world.store.clean_up(&path);
        for _ in 0..steps {
            world.step();
        }
        world.attach_as(DISK, "disk1", "w");
        world.run();
        assert_eq!(world.own(DISK), "2", "after {steps} steps");
        assert_eq!(world.glue.held[&DISK], Held::Volume("disk1".into()), "after {steps} steps");
    }
}

#[test]
fn a_directory_made_anew_between_open_and_init_wait_is_not_offered_the_old_volume() {
    for steps in 0..80 {
        let mut world = World::new([5]);
        world.attach_as(DISK, "disk0", "w");
        for _ in 0..steps {
            world.step();
        }
        let path = world.toolstack.path(DISK, "");
        world.store.clean_up(&path);
        world.attach_as(DISK, "disk1", "w");
        world.run();
        assert_eq!(world.own(DISK), "2", "after {steps} steps");
        assert_eq!(world.glue.held[&DISK], Held::Volume("disk1".into()), "after {steps} steps");
    }
}

#[test]
fn a_full_quota_of_nodes_refuses_the_device_and_says_what_to_raise() {
    let mut world = World::new([5]);
    world.attach_as(id(5, 1), "disk1", "w");
    world.run();
    world.attach_as(id(5, 2), "disk2", "w");
    world.store.limits.nodes = world.store.nodes_of(DRIVER_DOMAIN) + 1;
    world.run();
    assert_eq!(world.outcome(id(5, 2)), Some(Outcome::AttachRefused));
    assert_eq!(world.own(id(5, 1)), "2", "others are not affected");
    // Its own nodes are gone, so there is room for the note.
    assert!(world.reason(id(5, 2)).expect("a reason").contains("xenstored -E"));
    // With a quota that dom0's nodes fill by themselves, even the note cannot be written; it is refused all the same.
    world.store.limits.nodes = 0;
    world.attach_as(id(5, 3), "disk3", "w");
    world.run();
    assert_eq!(world.outcome(id(5, 3)), Some(Outcome::AttachRefused));
    assert_eq!(world.reason(id(5, 3)), None);
}

#[test]
fn a_full_quota_of_nodes_at_connecting_closes_the_device() {
    let mut world = World::new([5]);
    world.attach(DISK);
    world.run();
    world.store.limits.nodes = world.store.nodes_of(DRIVER_DOMAIN) + 2;
    Frontend(DISK).publish(&mut world.store);
    world.pass(600);
    assert_eq!(world.own(DISK), "5");
    assert_eq!(world.glue.held[&DISK], Held::Volume("disk0".into()));
    world.remove(DISK, Force::On);
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed), "existing nodes can be written in a full quota");
}

#[test]
fn a_full_quota_of_watches_refuses_that_guests_devices() {
    let mut world = World::new([5, 6]);
    world.store.limits.watches = 4;
    world.attach_as(id(5, 1), "disk1", "w");
    world.run();
    world.attach_as(id(6, 1), "disk2", "w");
    world.run();
    assert_eq!(world.own(id(5, 1)), "2");
    assert_eq!(world.own(id(6, 1)), "-", "it could not be served, so it must not look as if it were");
    assert!(world.reason(id(6, 1)).expect("a reason").contains("xenstored"));
    assert!(!world.glue.held.contains_key(&id(6, 1)));
    world.store.limits.watches = 5;
    world.attach_as(id(6, 1), "disk2", "w");
    world.run();
    assert_eq!(world.outcome(id(6, 1)), Some(Outcome::Attached));
}

#[test]
fn a_storm_of_conflicts_passes() {
    for conflicts in [1, 7, 8, 30] {
        let mut world = World::new([5]);
        world.store.conflicts_to_come = conflicts;
        world.attach(DISK);
        world.pass(200);
        assert_eq!(world.outcome(DISK), Some(Outcome::Attached), "{conflicts} conflicts");
        world.store.conflicts_to_come = conflicts;
        Frontend(DISK).publish(&mut world.store);
        world.pass(3_000);
        assert_eq!(world.own(DISK), "4");
        world.store.conflicts_to_come = conflicts;
        world.remove(DISK, Force::On);
        world.pass(2_000);
        assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
        assert_eq!(world.hotplug.statistics().conflicts, 3 * conflicts as u64);
        world.assert_nothing_left();
    }
}

#[test]
fn a_conflict_does_not_make_a_failure_forgotten() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.store.conflicts_to_come = 3;
    world.hotplug.frontend_failed(world.now, DISK, "impossible ring indices".into(), &mut world.client);
    world.run();
    assert_eq!(world.own(DISK), "5");
    assert_eq!(world.glue.count(|action| matches!(action, Action::Connect { .. })), 1);
}

#[test]
fn under_oxenstored_removed_directories_are_noticed_by_their_parents_events() {
    let mut world = World::new([5]);
    world.store.flavour = Flavour::Oxenstored;
    let disks = [id(5, 1), id(5, 2)];
    for disk in disks {
        world.attach_as(disk, &format!("v{}", disk.device), "w");
        Frontend(disk).publish(&mut world.store);
    }
    world.pass(600);
    assert_eq!(world.glue.held.len(), 2);
    world.store.clean_up("/local/domain/2/backend/vbd/5");
    world.run();
    world.assert_nothing_left();
    // And the frontends' by theirs.
    let disk = id(5, 3);
    world.connected(disk);
    world.store.rm(xen_proto::DomId(0), 0, "/local/domain/5/device/vbd/3").expect("dom0 may");
    world.run();
    assert_eq!(world.own(disk), "6");
}

#[test]
fn other_kinds_of_device_are_left_alone() {
    let mut world = World::asleep([5]);
    let mut node = |path: &str| world.store.write(xen_proto::DomId(0), 0, path, b"1").expect("dom0 may");
    node("/local/domain/2/backend/vif/5/0/state");
    node("/local/domain/2/backend/vbd/5/x/state");
    node("/local/domain/2/backend/vbd/self/1/state");
    world.run();
    world.attach(DISK);
    world.run();
    assert_eq!(world.outcome(DISK), Some(Outcome::Attached));
    assert_eq!(world.hotplug.statistics().devices, 1);
}

#[test]
fn the_toolstack_asks_the_domain_to_end() {
    for (value, shutdown, left) in [
        ("poweroff", Some(Shutdown::PowerOff), ""),
        ("reboot", Some(Shutdown::Reboot), ""),
        ("halt", Some(Shutdown::Halt), ""),
        ("suspend", None, "suspend"),
        ("", None, ""),
    ] {
        let mut world = World::new([]);
        world
            .store
            .write(xen_proto::DomId(0), 0, "/local/domain/2/control/shutdown", value.as_bytes())
            .expect("dom0 may");
        world.run();
        assert_eq!(world.glue.shutdown, shutdown, "{value}");
        assert_eq!(world.home("control/shutdown").as_deref(), Some(left));
    }
}

#[test]
fn a_person_asks_the_domain_to_crash() {
    for (key, crashed, left) in [("c", true, ""), ("h", false, "h"), ("cc", false, "cc"), ("", false, "")] {
        let mut world = World::new([]);
        world.store.write(xen_proto::DomId(0), 0, "/local/domain/2/control/sysrq", key.as_bytes()).expect("dom0 may");
        world.run();
        assert_eq!(world.glue.crashed, crashed, "{key}");
        assert_eq!(world.home("control/sysrq").as_deref(), Some(left));
    }
}

#[test]
fn draining_asks_guests_to_close_and_ends_with_nothing_held() {
    let mut world = World::new([5, 6, 7]);
    let (polite, deaf, idle) = (id(5, 1), id(6, 1), id(7, 1));
    for disk in [polite, deaf, idle] {
        world.attach_as(disk, &format!("v{}", disk.domain), "w");
    }
    for disk in [polite, deaf] {
        Frontend(disk).publish(&mut world.store);
    }
    world.pass(600);
    world.frontend(polite, 4);
    world.frontend(deaf, 4);
    world.run();
    world.hotplug.drain(world.now, &mut world.client);
    world.run();
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("0"));
    assert_eq!([polite, deaf, idle].map(|disk| world.own(disk)), ["5", "5", "6"]);
    world.frontend(polite, 6);
    world.run();
    assert_eq!(world.own(polite), "6");
    assert!(!world.hotplug.is_drained());
    assert_eq!(world.glue.held.keys().copied().collect::<Vec<_>>(), [deaf], "it is served on for a while");
    // What comes now is refused.
    world.attach_as(id(5, 2), "v9", "w");
    world.run();
    assert_eq!(world.outcome(id(5, 2)), Some(Outcome::AttachRefused));
    world.glue.slow = true;
    world.pass(DRAIN_GRACE.as_millis());
    assert!(!world.hotplug.is_drained(), "its requests are still under way");
    world.finish_disconnects();
    assert!(world.hotplug.is_drained());
    assert_eq!(world.own(deaf), "6");
    // A removal meanwhile is answered as ever.
    world.remove(polite, Force::On);
    world.pass(600);
    assert_eq!(world.outcome(polite), Some(Outcome::Removed));
}

#[test]
fn a_domain_with_no_device_is_drained_at_once() {
    let mut world = World::new([]);
    assert!(!world.hotplug.is_drained());
    world.hotplug.drain(world.now, &mut world.client);
    assert!(world.hotplug.is_drained());
}

#[test]
fn nothing_is_due_when_nothing_happens() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.pass(2_000);
    assert_eq!(world.hotplug.next_deadline(), None, "an idle domain sleeps");
    let served = world.connection.served;
    world.now = world.now + Nanos::from_millis(3_600_000);
    world.hotplug.tick(world.now, &mut world.client);
    world.run();
    assert_eq!(world.connection.served, served);
}

#[test]
fn where_looks_take_long_a_directory_stays_longer() {
    for (look_millis, gone_after_600, gone_after_2000) in [(0, true, true), (50, false, true), (500, false, false)] {
        let mut world = World::new([5, 6]);
        let other = id(6, 1);
        world.connected(DISK);
        world.attach_as(other, "disk1", "w");
        world.run();
        for _ in 0..10 {
            // Another guest's event is looked at, and the answers take their time.
            world.frontend(other, 1);
            (0..3).for_each(|_| _ = world.step());
            world.now = world.now + Nanos::from_millis(look_millis);
            world.run();
        }
        world.remove(DISK, Force::Off);
        world.run();
        world.frontend(DISK, 6);
        world.pass(600);
        assert_eq!(world.own(DISK) == "-", gone_after_600, "looks of {look_millis} ms");
        world.pass(1_400);
        assert_eq!(world.own(DISK) == "-", gone_after_2000, "looks of {look_millis} ms");
        world.pass(1_500);
        assert_eq!(world.own(DISK), "-", "three seconds at most");
    }
}
