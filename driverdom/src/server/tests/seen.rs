//! What is seen from outside: counters in xenstore, and reports on the console.

use std::collections::BTreeMap;

use blkback_core::disk::SECTOR_BYTES;

use super::blkfront::Manner;
use super::world::{World, id};
use crate::fake::Force;

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512)];

fn numbers(world: &mut World, node: &str) -> BTreeMap<String, u64> {
    let text = world.home(&format!("data/driverdom/{node}")).expect("it is there");
    let pairs = text.split(' ').map(|pair| pair.split_once('=').expect("a pair"));
    pairs.map(|(key, value)| (key.into(), value.parse().expect("a number"))).collect()
}

#[test]
fn io_is_counted_and_stays_counted() {
    let mut world = World::new([5], &[PARTS]);
    let disk = id(5, 1);
    world.connect(disk, "gpt:home", "w");
    world.work(disk, 200);
    world.pass(4_000);
    let io = numbers(&mut world, "io");
    let answered = world.front(disk).answered as u64;
    assert!(answered > 50);
    assert_eq!(io["reads"] + io["writes"] + io["flushes"], answered, "{io:?}");
    assert!(io["bytes_read"] >= io["reads"] * SECTOR_BYTES && io["bytes_written"] >= io["writes"] * SECTOR_BYTES);
    assert_eq!((io["errors"], io["in_flight"]), (0, 0));
    world.detach(disk, Force::Off);
    world.pass(5_000);
    assert_eq!(numbers(&mut world, "io"), io, "also when the vbd is gone");
}

#[test]
fn devices_are_counted_by_how_far_they_are() {
    let mut world = World::new([5, 6], &[PARTS]);
    let counted = |world: &mut World| {
        world.pass(3_000);
        let counters = numbers(world, "counters");
        ["devices", "vbds", "connected", "rings"].map(|key| counters[key])
    };
    world.connect(id(5, 1), "gpt:home", "w");
    assert_eq!(counted(&mut world), [1, 1, 1, 1]);
    world.attach(id(5, 2), "gpt:root", "w", Manner::Linux);
    world.front(id(5, 2)).alive = false;
    assert_eq!(counted(&mut world), [2, 2, 1, 1], "no frontend there");
    world.close(id(5, 1), 6);
    assert_eq!(counted(&mut world), [2, 2, 0, 0]);
    world.destroy(5);
    world.pass(10_000);
    assert_eq!(counted(&mut world), [0, 0, 0, 0]);
}

#[test]
fn one_write_a_second_at_most_and_none_without_news() {
    let mut world = World::new([5], &[PARTS]);
    let disk = id(5, 1);
    world.connect(disk, "gpt:home", "w");
    world.pass(5_000);
    for _ in 0..5 {
        let published = world.published;
        for _ in 0..10 {
            world.work(disk, 20);
            world.pass(100);
        }
        assert!((1..=2).contains(&(world.published - published)), "a second, give or take its ends");
    }
    world.pass(5_000);
    let published = world.published;
    world.pass(60_000);
    assert_eq!(world.published, published);
}

#[test]
fn keys_on_the_console_are_answered() {
    let mut world = World::new([5], &[PARTS]);
    world.connect(id(5, 51712), "gpt:home", "w");
    world.work(id(5, 51712), 50);
    world.pass(1_000);
    for (keys, first) in [
        ("s", Some("devices   1: 1 with a volume, 1 connected; 0 refused, 0 failed")),
        ("h", Some("keys: s  a summary")),
        ("?", Some("keys: s  a summary")),
        ("sd\r\n", Some("vbd              volume ")),
        ("", None),
        ("xyz\u{1b}[A\0\r\n", None),
    ] {
        let printed = world.type_keys(keys, 100);
        let found = printed.first().map(String::as_str);
        assert!(found.unwrap_or("").starts_with(first.unwrap_or("")), "{keys:?}: {printed:?}");
        assert_eq!(found.is_some(), first.is_some(), "{keys:?}");
    }
    let printed = world.type_keys("d", 100);
    assert!(printed[1].starts_with("5/51712          gpt:home "), "{printed:?}");
}

#[test]
fn a_report_on_many_devices_goes_on_when_it_is_asked_for_again() {
    let mut world = World::new([5], &[PARTS]);
    for device in 0..40 {
        world.attach(id(5, device), "disk0", "r", Manner::Linux);
    }
    world.pass(1_000);
    for (first, last) in [("5/0 ", "and 24 more"), ("5/16 ", "and 8 more"), ("5/32 ", "5/39 "), ("5/0 ", "and 24 more")]
    {
        let printed = world.type_keys("d", 100);
        let last_line = printed.last().expect("a report");
        assert!(printed[1].starts_with(first) && last_line.starts_with(last), "{printed:?}");
    }
    // What was shown last is gone, and all that came after it.
    world.type_keys("d", 100);
    for device in 31..40 {
        world.detach(id(5, device), Force::Off);
    }
    world.pass(5_000);
    assert!(world.type_keys("d", 100)[1].starts_with("5/0 "));
}

#[test]
fn a_flood_of_keys_is_one_report_at_a_time() {
    let mut world = World::new([5], &[PARTS]);
    let flood = "s".repeat(100_000);
    assert_eq!(world.type_keys(&flood, 3).len(), 3, "as much as there is room for");
    assert_eq!(world.type_keys(&flood, 0).len(), 0);
    let rest = world.type_keys("", 100);
    assert_eq!(rest.len(), 6, "the rest of that report, and no more");
    assert_eq!(world.type_keys(&flood, 1_000).len(), 9, "one report however many keys");
    world.pass(5_000);
    let turns = world.turns;
    world.pass(60_000);
    assert_eq!(world.turns, turns, "nothing runs afterwards");
}
