//! Volumes by name, and those that cannot be had.

use super::blkfront::Manner;
use super::machine::leave_pages;
use super::world::{World, id};
use crate::fake::{Force, Outcome};

const PARTS: &[(&str, u64)] = &[("root", 256), ("home", 512), ("größe", 64), ("twice", 64), ("twice", 64)];
const GUID_OF_HOME: &str = "02020202-0202-0202-0202-020202020202";

#[test]
fn volumes_are_found_by_name_and_guid() {
    let mut world = World::new([5], &[PARTS, &[("data", 64)]]);
    let home = world.truth("gpt:home");
    world.truths.insert(format!("gpt:{GUID_OF_HOME}"), home);
    let guid = format!("gpt:{GUID_OF_HOME}");
    for (number, name) in ["disk0", "gpt:root", "gpt:größe", "disk1/gpt:data", "gpt:data", &guid, "disk1", "ram:100K"]
        .into_iter()
        .enumerate()
    {
        let disk = id(5, u32::try_from(number).expect("few"));
        world.connect(disk, name, "w");
        world.work(disk, 40);
        world.run();
        assert!(world.front(disk).is_idle(), "{name}");
        world.detach(disk, Force::Off);
        world.pass(600);
    }
    world.assert_nothing_left();
    assert!(world.compare() > 100);
}

#[test]
fn what_cannot_be_had_is_refused_at_once_with_the_reason_and_the_others_do_not_mind() {
    for (name, mode, word) in [
        ("disk7", "w", "no disk7"),
        ("gpt:rot", "w", "no partition of that name"),
        ("gpt:twice", "w", "more than one partition"),
        ("disk1/gpt:root", "r", "no GUID partition table"),
        ("/dev/sda", "w", "not a volume name"),
        ("", "w", "no target"),
        ("ram:0K", "w", "RAM volume"),
        ("ram:64M", "w", "not enough memory"),
        ("gpt:home", "w", "in use by domain 6 device 1"),
        ("gpt:home", "r", "in use by domain 6 device 1"),
        ("disk0", "r", "in use by domain 6 device 1"),
        ("disk1", "w", "read-only"),
        ("gpt:root", "x", "mode"),
    ] {
        let mut world = World::asleep([5, 6], &[PARTS, &[]]);
        {
            let mut blank = world.disks[1].inner();
            blank.geometry.writable = false;
            blank.content.fill(0);
        }
        world.pass(50);
        let (refused, good, busy) = (id(5, 1), id(5, 2), id(6, 1));
        world.connect(busy, "gpt:home", "w");
        world.attach(refused, name, mode, Manner::Hasty);
        world.attach(good, "gpt:root", "w", Manner::Linux);
        let now = world.now();
        world.run();
        assert_eq!(world.outcome(refused), Some(Outcome::AttachRefused), "{name} {mode}");
        assert_eq!(world.now(), now, "no time passes");
        let reason = world.reason(refused).expect("a reason");
        assert!(reason.contains(word), "{name}: {reason}");
        world.pass(600);
        assert_eq!(world.own(good), "4", "{name}");
        // As the guide says: block-detach, and a corrected attach.
        world.detach(refused, Force::Off);
        assert_eq!(world.outcome(refused), Some(Outcome::Removed));
        world.connect(refused, "gpt:größe", "w");
        assert_eq!(world.reason(refused), None);
    }
}

#[test]
fn readers_share_a_writer_does_not() {
    let mut world = World::new([5, 6, 7], &[PARTS]);
    world.connect(id(5, 1), "gpt:home", "r");
    world.connect(id(6, 1), "disk0", "r");
    for reader in [id(5, 1), id(6, 1)] {
        world.work(reader, 100);
    }
    world.run();
    assert!(world.fronts.values().all(|front| front.is_idle() && front.failed == 0));
    world.attach(id(7, 1), "gpt:root", "w", Manner::Linux);
    world.run();
    assert_eq!(world.outcome(id(7, 1)), Some(Outcome::AttachRefused));
    world.detach(id(7, 1), Force::Off);
    world.detach(id(6, 1), Force::Off);
    world.pass(600);
    world.connect(id(7, 1), "gpt:root", "w");
}

#[test]
fn ram_volumes_use_what_memory_there_is_and_give_it_back() {
    let mut world = World::new([5, 6], &[]);
    leave_pages(&world.xen, 32);
    world.connect(id(5, 1), "ram:100K", "w");
    world.attach(id(6, 1), "ram:100K", "w", Manner::Linux);
    world.run();
    assert_eq!(world.outcome(id(6, 1)), Some(Outcome::AttachRefused));
    assert_eq!(world.xen.free_pages(), 32 - 25, "the pages of the half volume came back");
    world.detach(id(6, 1), Force::Off);
    world.work(id(5, 1), 50);
    world.run();
    world.detach(id(5, 1), Force::Off);
    world.pass(600);
    assert_eq!(world.xen.free_pages(), 32);
    world.connect(id(6, 1), "ram:100K", "w");
    world.work(id(6, 1), 50);
    world.run();
    assert!(world.front(id(6, 1)).is_idle(), "it found zeros, not another guest's data");
}
