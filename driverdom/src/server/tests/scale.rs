//! The work of an attach does not depend on how many devices there are.

use super::blkfront::Manner;
use super::world::{World, id};

/// xenstore requests, and turns, of one attach and connect beside so many other devices that are connected.
fn work_of_an_attach(others: u32) -> (usize, usize) {
    let mut world = World::new([3, 4], &[&[("shared", 64)]]);
    for device in 0..others {
        world.attach(id(3, device), "disk0", "r", Manner::Linux);
    }
    world.pass(5_000);
    assert_eq!(world.xen.connected(), others as usize);
    // What is random is so in the same way.
    world.reseed(7);
    let (served, turns) = (world.connection.served, world.turns);
    world.connect(id(4, 1), "disk0", "r");
    world.pass(3_000);
    (world.connection.served - served, world.turns - turns)
}

#[test]
fn the_work_of_an_attach_is_the_same_beside_1_and_beside_1000() {
    let (few, many) = (work_of_an_attach(1), work_of_an_attach(1_000));
    assert_eq!(few, many, "requests and turns");
    assert!(few.0 <= 70 && few.1 <= 150, "{few:?}");
}
