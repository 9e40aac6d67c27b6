//! The work of an attach does not depend on how many devices there are, and what a device costs is a constant.

use super::blkfront::Manner;
use super::world::{DRIVER_DOMAIN, World, id};
use crate::fake::{Force, Frontend, Outcome};

/// Guests to which devices belong in turn.
const GUESTS: u16 = 10;

/// So many connected devices, of ten guests.
fn connected_world(devices: u32) -> World {
    let mut world = World::new(3..=3 + GUESTS, &[&[("shared", 64)]]);
    for device in 0..devices {
        let guest = 4 + u16::try_from(device % u32::from(GUESTS)).expect("it is small");
        world.attach(id(guest, device), "disk0", "r", Manner::Linux);
    }
    world.pass(6_000);
    assert_eq!(world.xen.connected(), devices as usize);
    // What is random is so in the same way.
    world.reseed(7);
    world
}

/// xenstore requests, and turns, of what is done in `course`.
fn work(world: &mut World, course: impl FnOnce(&mut World)) -> (usize, usize) {
    let (served, turns) = (world.connection.served, world.turns);
    course(world);
    // The counters have been written.
    world.pass(4_000);
    (world.connection.served - served, world.turns - turns)
}

/// The work of an attach and connect, and of a detach, beside so many other devices that are connected.
fn work_beside(others: u32) -> [(usize, usize); 2] {
    let mut world = connected_world(others);
    let disk = id(3, 1);
    let attach = work(&mut world, |world| world.connect(disk, "disk0", "r"));
    let detach = work(&mut world, |world| {
        world.detach(disk, Force::Off);
        world.pass(1_000);
        assert_eq!(world.outcome(disk), Some(Outcome::Removed));
    });
    [attach, detach]
}

#[test]
fn the_work_of_an_attach_and_of_a_detach_is_the_same_beside_1_and_beside_1000() {
    let few = work_beside(1);
    assert_eq!(few, work_beside(1_000), "requests and turns");
    for (requests, turns) in few {
        assert!(requests <= 70 && turns <= 150, "{few:?}");
    }
}

/// Turns and requests from an attach until state 2, beside a guest that rewrites its nodes before each of our requests.
fn delay(attacked: bool) -> (usize, usize) {
    let mut world = connected_world(u32::from(GUESTS));
    let quiet = id(3, 1);
    world.attach(quiet, "disk0", "r", Manner::Idle);
    let (turns, served) = (world.turns, world.connection.served);
    for _ in 0..100_000 {
        if attacked {
            Frontend(id(4, 0)).state(&mut world.store, 4);
        }
        world.step();
        if world.own(quiet) == "2" {
            return (world.turns - turns, world.connection.served - served);
        }
    }
    panic!("it is never attached");
}

#[test]
fn a_guest_that_rewrites_its_nodes_delays_an_attach_by_a_few_turns() {
    let (alone, beside) = (delay(false), delay(true));
    // It has one device, which is looked at by three requests.
    assert!(beside.1 <= alone.1 + 4 * 3 + 3, "{beside:?} turns and requests, {alone:?} alone");
    assert!(beside.0 <= 2 * alone.0 + 10, "{beside:?} turns and requests, {alone:?} alone");
}

/// What there is of each thing that grows with the devices.
#[derive(Debug)]
struct Cost {
    devices: u32,
    nodes: usize,
    watches: usize,
}

fn cost(devices: u32) -> Cost {
    let world = connected_world(devices);
    assert!(world.server.client.is_idle(), "no request is left under way");
    Cost { devices, nodes: world.store.nodes_of(DRIVER_DOMAIN), watches: world.store.watches_of(DRIVER_DOMAIN) }
}

/// The constants of "What a device costs" in docs/ARCHITECTURE.md.
#[test]
fn what_a_device_costs() {
    /// As the toolstack makes them here, and our own.
    const NODES: usize = 14 + 8;
    let costs = [0, 1, 100, 1_000].map(cost);
    let [none, ..] = &costs;
    for cost in &costs {
        let count = cost.devices as usize;
        assert_eq!(cost.nodes - none.nodes, NODES * count, "{cost:?}");
        assert_eq!(cost.watches - none.watches, count.min(GUESTS.into()), "one a guest: {cost:?}");
    }
}
