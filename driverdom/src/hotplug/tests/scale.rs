//! Many devices: the work of each does not depend on how many there are, and all of xl's waits end well.

use super::world::{DRIVER_DOMAIN, World, id};
use crate::fake::{Flavour, Force, Frontend, Limits, Outcome};
use crate::hotplug::MAX_TASKS;

fn big_world(guests: u16) -> World {
    let mut world = World::new(3..3 + guests);
    world.store.limits = Limits { nodes: 1_000_000, watches: 10_000, ..Limits::default() };
    world
}

/// A world with so many connected devices of one guest.
fn connected_world(guests: u16, devices: u32) -> World {
    let mut world = big_world(guests);
    let disks: Vec<_> = (0..devices).map(|device| id(3, device)).collect();
    disks.iter().for_each(|disk| world.attach_as(*disk, &format!("v{}", disk.device), "w"));
    world.run();
    disks.iter().for_each(|disk| Frontend(*disk).publish(&mut world.store));
    world.pass(1_000);
    disks.iter().for_each(|disk| world.frontend(*disk, 4));
    world.run();
    assert_eq!(world.hotplug.statistics().connected, u64::from(devices));
    world
}

/// What is done so far.
#[derive(Debug, PartialEq)]
struct Work {
    requests: usize,
    bytes_sent: usize,
    bytes_received: usize,
    events: usize,
    steps: u64,
    refreshes: u64,
}

impl Work {
    fn so_far(world: &World) -> Self {
        let (connection, statistics) = (&world.connection, world.hotplug.statistics());
        Self {
            requests: connection.served,
            bytes_sent: connection.bytes_received,
            bytes_received: connection.bytes_sent,
            events: connection.events,
            steps: statistics.steps,
            refreshes: statistics.refreshes,
        }
    }

    /// What is done in `course`, which touches no timer of other devices and leaves none of its own.
    fn of(world: &mut World, course: impl FnOnce(&mut World)) -> Self {
        let (before, timers) = (Self::so_far(world), world.hotplug.timers.clone());
        course(world);
        let after = Self::so_far(world);
        assert_eq!(world.hotplug.timers, timers);
        Self {
            requests: after.requests - before.requests,
            bytes_sent: after.bytes_sent - before.bytes_sent,
            bytes_received: after.bytes_received - before.bytes_received,
            events: after.events - before.events,
            steps: after.steps - before.steps,
            refreshes: after.refreshes - before.refreshes,
        }
    }
}

/// The work of an attach until the device is connected, and that of its detach, beside so many connected devices.
fn work_beside(others: u32) -> (Work, Work) {
    let mut world = connected_world(2, others);
    let disk = id(4, 1);
    let attach = Work::of(&mut world, |world| world.connected(disk));
    let detach = Work::of(&mut world, |world| {
        world.remove(disk, Force::Off);
        world.run();
        world.frontend(disk, 6);
        world.pass(1_000);
        assert_eq!(world.outcome(disk), Some(Outcome::Removed));
    });
    (attach, detach)
}

#[test]
fn the_work_of_an_attach_and_of_a_detach_is_the_same_beside_1_and_beside_1000() {
    let few = work_beside(1);
    assert_eq!(few, work_beside(1_000));
    let (attach, detach) = few;
    for work in [attach, detach] {
        assert!(work.requests <= 45 && work.steps <= 25 && work.refreshes <= 8, "{work:?}");
    }
}

/// Steps of the world and requests from an attach until state 2, beside guests of which each rewrites nodes of its ten devices
/// in turn before every request of ours. xenstored's ring carries all those events, so they are ours to handle.
fn delay_beside(attackers: u16) -> (usize, usize) {
    let mut world = big_world(1 + attackers);
    world.chunk = 1024;
    let hostile: Vec<_> = (0..attackers).flat_map(|guest| (0..10).map(move |device| id(4 + guest, device))).collect();
    hostile.iter().for_each(|disk| world.attach_as(*disk, &format!("v{}-{}", disk.domain, disk.device), "w"));
    world.run();
    let rewrite = |world: &mut World, at: usize| {
        for guest in hostile.chunks(10) {
            world.frontend(guest[at % 10], 1);
        }
    };
    for at in 0..1_000 {
        rewrite(&mut world, at);
        world.step();
    }
    let quiet = id(3, 1);
    world.attach_as(quiet, "quiet", "w");
    let before = world.connection.served;
    for at in 0..2_000 {
        rewrite(&mut world, at);
        world.step();
        if world.own(quiet) == "2" {
            return (at, world.connection.served - before);
        }
    }
    panic!("it is never attached");
}

#[test]
fn guests_that_rewrite_their_nodes_delay_an_attach_by_a_few_turns_each() {
    // An attach has four stages, each behind what the tasks of others have sent, and waits at most three times for its guest's
    // turn, which comes once a round. To look at a changed device is three requests.
    const LOOK: usize = 3;
    let alone = delay_beside(0);
    for attackers in [1, 4, 12] {
        let beside = delay_beside(attackers);
        let more = 4 * MAX_TASKS * LOOK + 3 * usize::from(attackers) * LOOK;
        assert!(beside.1 <= alone.1 + more, "{attackers}: {beside:?} steps and requests, {alone:?} alone");
        assert!(beside.0 <= alone.0 + more, "{attackers}: {beside:?} steps and requests, {alone:?} alone");
    }
}

#[test]
fn what_a_guest_writes_while_we_read_is_read_once_more_and_no_more() {
    let mut world = connected_world(1, 1);
    // It sends every event; the C one merges those that it has not sent yet.
    world.store.flavour = Flavour::Oxenstored;
    let before = Work::so_far(&world);
    for _ in 0..10_000 {
        world.frontend(id(3, 0), 4);
    }
    world.run();
    let after = Work::so_far(&world);
    assert_eq!(after.events - before.events, 10_000);
    let refreshes = after.refreshes - before.refreshes;
    assert!(refreshes <= 10_000 / 3, "{refreshes}");
    assert!(world.hotplug.queue.is_empty() && world.client.is_idle());
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
        world.pass(5_500);
        for disk in &disks {
            assert_eq!(world.outcome(*disk), Some(Outcome::Removed), "{disk:?} of {count}");
        }
        assert_eq!(world.hotplug.statistics().conflicts, 0, "removals change the directory above all");
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
