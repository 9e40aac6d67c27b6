//! Disks that do not answer when their partition tables are read.

use blkback_core::disk::DiskId;
use xen_proto::Nanos;

use super::blkfront::Manner;
use super::disk::{Latency, Power};
use super::logged;
use super::world::{World, id};
use crate::fake::Outcome;

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512)];
const DATA: &[(&str, u64)] = &[("data", 512)];

#[test]
fn a_disk_that_never_answers_its_scan_is_gone_on_without() {
    logged::listen();
    let mut world = World::asleep([5], &[PARTS, DATA]);
    world.disks[0].set_latency(Latency::Stuck);
    world.attach(id(5, 1), "disk1/gpt:data", "w", Manner::Linux);
    world.pass(2_900);
    assert_eq!(world.home("data/driverdom/ready"), None);
    world.pass(900);
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
    assert_eq!((world.outcome(id(5, 1)), world.own(id(5, 1)).as_str()), (Some(Outcome::Attached), "4"));
    assert_eq!(world.disks[0].inner().power, Power::Stopped, "it reaches no memory any more");
    let address = world.disks[0].address;
    let line =
        format!("ERROR: PCI device {address} does not answer the reading of its partition table: it is not used");
    assert_eq!(logged::lines_with("ERROR"), [line]);
    // The other has not become disk0.
    for (device, name, word) in [
        (2, "disk0", "does not answer"),
        (3, "disk0/gpt:root", "does not answer"),
        (4, "gpt:root", "as to disk0"),
        (5, "disk2", "no disk2"),
    ] {
        world.attach(id(5, device), name, "w", Manner::Linux);
        world.run();
        assert_eq!(world.outcome(id(5, device)), Some(Outcome::AttachRefused), "{name}");
        assert!(world.reason(id(5, device)).expect("a reason").contains(word), "{name}");
    }
    world.work(id(5, 1), 50);
    world.pass(100);
    assert!(world.front(id(5, 1)).is_idle());
    // Passed through anew, it is tried anew.
    let now = world.now();
    world.pci.as_mut().expect("it is there").detach(&mut world.store, now, address);
    world.pass(10);
    world.disks[0].set_latency(Latency::UpTo(Nanos(1_000)));
    let now = world.now();
    world.pci.as_mut().expect("it is there").attach(&mut world.store, now, address);
    world.pass(100);
    world.connect(id(5, 6), "gpt:home", "w");
    world.shut_down("poweroff", 6_000);
    world.assert_ended_well();
}

#[test]
fn a_disk_that_comes_later_and_never_answers_holds_back_nobody() {
    let mut world = World::asleep([5], &[PARTS, DATA, DATA]);
    let silent = world.disks[1].address;
    world.pass(50);
    let now = world.now();
    world.pci.as_mut().expect("it is there").detach(&mut world.store, now, silent);
    world.pass(10);
    world.disks[1].set_latency(Latency::Stuck);
    let now = world.now();
    world.pci.as_mut().expect("it is there").attach(&mut world.store, now, silent);
    world.pass(10);
    world.connect(id(5, 1), "gpt:home", "w");
    // Nothing happens, but it is given up.
    world.pass(3_000);
    assert_eq!(world.disks[1].inner().power, Power::Stopped);
    world.shut_down("poweroff", 6_000);
    world.assert_ended_well();
}

#[test]
fn the_time_that_another_disk_takes_to_start_is_not_held_against_a_disk() {
    let mut world = World::asleep([5], &[PARTS, DATA, DATA]);
    // As when PCI's back is slow; our turn waits for it.
    world.disks.iter().for_each(|disk| disk.inner().start_takes = Nanos::from_millis(2_000));
    world.disks.iter().for_each(|disk| disk.set_latency(Latency::Fixed(Nanos::from_millis(10))));
    world.pass(10_000);
    assert_eq!(world.home("data/driverdom/ready").as_deref(), Some("1"));
    for (number, disk) in (0..).map(DiskId).zip(&world.disks) {
        assert_eq!(disk.inner().power, Power::Running, "{number}");
    }
}
