//! Many devices: the work of each does not depend on how many there are, and all of xl's waits end well.

use super::world::{DRIVER_DOMAIN, World, id};
use crate::fake::{Force, Frontend, Limits, Outcome};

fn big_world(guests: u16) -> World {
    let mut world = World::new(3..3 + guests);
    world.store.limits = Limits { nodes: 1_000_000, watches: 10_000, ..Limits::default() };
    world
}

/// Requests that one attach and connect of a device costs in a world that has so many already.
fn requests_of_an_attach(others: u32) -> usize {
    let mut world = big_world(2);
    for device in 0..others {
        world.attach_as(id(3, device), &format!("v{device}"), "w");
    }
    world.run();
    let disk = id(4, 1);
    let before = world.connection.served;
    world.connected(disk);
    world.connection.served - before
}

#[test]
fn the_work_of_an_attach_is_the_same_beside_1_and_beside_1000() {
    let (few, many) = (requests_of_an_attach(1), requests_of_an_attach(1_000));
    assert_eq!(few, many);
    assert!(few <= 60, "{few} requests");
}

#[test]
fn a_guest_with_20_to_100_disks_comes_and_goes() {
    for count in [20, 100] {
        let mut world = big_world(1);
        let disks: Vec<_> = (0..count).map(|device| id(3, device)).collect();
        for disk in &disks {
            world.attach_as(*disk, &format!("v{}", disk.device), "w");
        }
        world.run();
        for disk in &disks {
            assert_eq!(world.outcome(*disk), Some(Outcome::Attached));
            Frontend(*disk).publish(&mut world.store);
        }
        world.pass(600);
        assert_eq!(world.hotplug.statistics().connect.count(), u64::from(count));
        assert_eq!(world.store.watches_of(DRIVER_DOMAIN), 4, "one watch a guest");
        // As `xl destroy` does it: some 50 ms a device.
        for disk in &disks {
            world.remove(*disk, Force::On);
            world.pass(50);
        }
        world.pass(1_700);
        for disk in &disks {
            assert_eq!(world.outcome(*disk), Some(Outcome::Removed), "{disk:?} of {count}");
        }
        world.assert_nothing_left();
    }
}

#[test]
fn a_thousand_devices_of_a_hundred_guests_at_once() {
    let mut world = big_world(100);
    let disks: Vec<_> = (0..1_000).map(|number| id(3 + number % 100, u32::from(number / 100))).collect();
    for disk in &disks {
        world.attach_as(*disk, &format!("v{}-{}", disk.domain, disk.device), "w");
    }
    world.run();
    assert_eq!(world.hotplug.statistics().held, 1_000);
    for disk in &disks {
        assert_eq!(world.outcome(*disk), Some(Outcome::Attached));
        world.remove(*disk, Force::On);
    }
    world.pass(700);
    for disk in &disks {
        assert_eq!(world.outcome(*disk), Some(Outcome::Removed));
    }
    world.assert_nothing_left();
}

#[test]
fn a_thousand_devices_that_were_there_first_are_listed_in_parts() {
    let mut world = World::asleep([3]);
    world.store.limits = Limits { nodes: 1_000_000, ..Limits::default() };
    let disks: Vec<_> = (0..1_000).map(|device| id(3, 51_712 + device)).collect();
    for disk in &disks {
        world.attach_as(*disk, &format!("v{}", disk.device), "w");
    }
    world.run();
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
    assert_eq!(world.toolstack.outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Attached).count(), 1_000);
}

#[test]
fn three_hundred_creations_and_destructions_leave_nothing() {
    let mut world = big_world(0);
    for domain in 3..303 {
        world.store.make_domain(xen_proto::DomId(domain));
        let disk = id(domain, 51712);
        world.connected(disk);
        world.remove(disk, Force::On);
        world.store.rm(xen_proto::DomId(0), 0, &format!("/local/domain/{domain}")).expect("dom0 may");
        world.pass(600);
        assert_eq!(world.outcome(disk), Some(Outcome::Removed));
    }
    world.assert_nothing_left();
}
