//! Frontends that close, come back, make mistakes or mean harm.

use xen_proto::GrantRef;
use xen_proto::blkif::Abi;

use super::world::{Held, World, id};
use crate::fake::{Force, Frontend, Outcome};
use crate::hotplug::{Action, Rings};

const DISK: blkback_core::backend::VbdId = blkback_core::backend::VbdId { domain: xen_proto::DomId(5), device: 51712 };

/// Connects, lets the frontend go through these states, and says which states we answered with.
fn answers(states: &[u32]) -> Vec<String> {
    let mut world = World::new([5]);
    world.connected(DISK);
    let answer = |state: &u32| {
        world.frontend(DISK, *state);
        world.pass(1_000);
        world.own(DISK)
    };
    states.iter().map(answer).collect()
}

#[test]
fn frontends_close_in_many_orders() {
    for (states, expected) in [
        (&[5, 6][..], &["5", "6"][..]),
        (&[6], &["6"]),
        (&[6, 1], &["6", "2"]),
        (&[5, 6, 1], &["5", "6", "2"]),
        (&[5, 1], &["5", "2"]),
        (&[1], &["2"]),
        (&[6, 3], &["6", "4"]),
        (&[6, 5], &["6", "6"]),
        (&[3], &["4"]),
        (&[99], &["5"]),
        (&[99, 4], &["5", "5"]),
        (&[99, 6, 1, 3], &["5", "6", "2", "4"]),
        (&[2, 5, 6], &["5", "5", "6"]),
        (&[0], &["5"]),
        (&[7], &["5"]),
        (&[8], &["5"]),
    ] {
        assert_eq!(answers(states), expected, "{states:?}");
    }
}

#[test]
fn a_frontend_that_begins_anew_gets_its_new_rings_mapped() {
    let mut world = World::new([5]);
    world.connected(DISK);
    Frontend(DISK).publish_order(&mut world.store, 1);
    world.run();
    assert_eq!(world.own(DISK), "4");
    let rings = Rings { pages: vec![GrantRef(100), GrantRef(101)], event_channel: 5, abi: Abi::X86_64 };
    assert_eq!(world.glue.log.last(), Some(&Action::Connect { device: DISK, rings }));
    assert_eq!(world.glue.count(|action| matches!(action, Action::Disconnect { .. })), 1);
}

#[test]
fn a_frontend_whose_directory_vanished_is_closed_and_may_come_back() {
    let mut world = World::new([5]);
    world.connected(DISK);
    Frontend(DISK).vanish(&mut world.store);
    world.run();
    assert_eq!(world.own(DISK), "6");
    assert_eq!(world.glue.held[&DISK], Held::Volume("disk0".into()));
    world.remove(DISK, Force::Off);
    world.pass(600);
    assert_eq!(world.outcome(DISK), Some(Outcome::Removed));
    world.assert_nothing_left();
}

#[test]
fn a_frontend_that_ignores_the_toolstack_is_served_until_it_closes() {
    for middle in [4, 5] {
        let mut world = World::new([5]);
        world.connected(DISK);
        world.remove(DISK, Force::Off);
        world.frontend(DISK, middle);
        world.pass(11_000);
        assert_eq!(world.outcome(DISK), Some(Outcome::CloseTimedOut));
        assert_eq!(world.own(DISK), "5");
        assert_eq!(world.glue.held[&DISK], Held::Rings("disk0".into()), "it still uses the disk");
        world.frontend(DISK, 6);
        world.pass(600);
        assert_eq!(world.own(DISK), "-");
        assert!(world.glue.held.is_empty());
    }
}

#[test]
fn a_frontend_without_a_driver_does_not_delay_a_removal() {
    for state in [1, 2, 3, 6, 99] {
        let mut world = World::new([5]);
        world.attach(DISK);
        world.run();
        world.frontend(DISK, state);
        world.run();
        world.remove(DISK, Force::Off);
        world.pass(600);
        assert_eq!(world.outcome(DISK), Some(Outcome::Removed), "frontend at {state}");
        world.assert_nothing_left();
    }
}

#[test]
fn a_frontend_is_noticed_whenever_it_gets_ready() {
    for steps in 0..120 {
        let mut world = World::new([5]);
        world.attach(DISK);
        for _ in 0..steps {
            world.step();
        }
        Frontend(DISK).publish(&mut world.store);
        world.pass(600);
        assert_eq!(world.own(DISK), "4", "ready after {steps} steps");
    }
}

/// xenstored in C sends no event that it still has to send: one that is sent before a reply may be about what came after it.
#[test]
fn a_change_that_has_no_event_of_its_own_is_noticed() {
    let detach: fn(&mut World) = |world| world.remove(DISK, Force::Off);
    let close: fn(&mut World) = |world| {
        world.frontend(DISK, 5);
        world.run();
        world.frontend(DISK, 6);
    };
    for (prepare, own, [before, first, second], answer) in [(detach, "5", [4, 5, 6], "6"), (close, "6", [6, 6, 1], "2")]
    {
        let mut world = World::new([5]);
        world.connected(DISK);
        prepare(&mut world);
        world.run();
        assert_eq!(world.own(DISK), own);
        let chunk = world.chunk;
        // A look at the device is on its way, and xenstored gets rid of nothing meanwhile.
        world.frontend(DISK, before);
        world.step();
        world.chunk = 0;
        world.frontend(DISK, first);
        (0..5).for_each(|_| _ = world.step());
        let events = world.connection.events;
        world.frontend(DISK, second);
        world.step();
        assert_eq!(world.connection.events, events, "one event for both changes");
        world.chunk = chunk;
        world.run();
        assert_eq!(world.own(DISK), answer, "after {first} and {second}");
    }
}

#[test]
fn rings_of_every_order_and_layout() {
    for order in 0..=4 {
        let mut world = World::new([5]);
        world.attach(DISK);
        Frontend(DISK).publish_order(&mut world.store, order);
        world.pass(600);
        assert_eq!(world.own(DISK), "4");
        let pages = (0..1 << order).map(|page| GrantRef(100 + page)).collect();
        let rings = Rings { pages, event_channel: 5, abi: Abi::X86_32 };
        assert!(
            world.glue.log.contains(&Action::Connect { device: DISK, rings }),
            "order {order}: {:?}",
            world.glue.log
        );
    }
}

#[test]
fn nonsense_in_its_keys_fails_that_device_alone_and_with_a_reason() {
    for (key, value, word) in [
        ("ring-page-order", "5", "ring-page-order"),
        ("ring-page-order", "2", "ring-ref"),
        ("ring-ref", "x", "ring-ref"),
        ("event-channel", "", "event-channel"),
        ("event-channel", "-1", "event-channel"),
        ("protocol", "sparc", "protocol"),
        ("multi-queue-num-queues", "4", "multi-queue-num-queues"),
        ("ring-ref", &"9".repeat(2000), "ring-ref"),
    ] {
        let mut world = World::new([5, 6]);
        let other = id(6, 1);
        world.attach(DISK);
        world.attach_as(other, "disk1", "w");
        world.run();
        Frontend(DISK).publish(&mut world.store);
        Frontend(other).publish(&mut world.store);
        Frontend(DISK).write(&mut world.store, key, value);
        world.pass(600);
        assert_eq!((world.own(DISK).as_str(), world.own(other).as_str()), ("5", "4"), "{key}={value}");
        let reason = world.reason(DISK).expect("a reason");
        assert!(reason.contains(word), "{key}: {reason}");
        // Corrected, it connects, and the note goes.
        world.frontend(DISK, 6);
        world.run();
        for stray in ["ring-page-order", "multi-queue-num-queues"] {
            let path = Frontend(DISK).path(stray);
            world.store.rm(DISK.domain, 0, &path).expect("its own node");
        }
        world.frontend(DISK, 1);
        world.run();
        Frontend(DISK).publish(&mut world.store);
        world.run();
        assert_eq!(world.own(DISK), "4", "{key}");
        assert_eq!(world.reason(DISK), None);
        assert_eq!(world.home("error/backend"), None, "nor its directories");
    }
}

#[test]
fn a_ring_that_cannot_be_mapped_fails_the_device_until_the_frontend_closes() {
    let mut world = World::new([5]);
    world.glue.unmappable = true;
    world.attach(DISK);
    Frontend(DISK).publish(&mut world.store);
    world.pass(5_000);
    assert_eq!(world.own(DISK), "5");
    assert!(world.reason(DISK).expect("a reason").contains("mapped"));
    assert_eq!(
        world.glue.count(|action| matches!(action, Action::Connect { .. })),
        1,
        "it is not tried again and again"
    );
    world.glue.unmappable = false;
    for (state, own) in [(6, "6"), (1, "2"), (3, "4")] {
        world.frontend(DISK, state);
        world.run();
        assert_eq!(world.own(DISK), own);
    }
    // The same where the intermediate states were missed.
    world.frontend(DISK, 6);
    world.run();
    world.glue.unmappable = true;
    world.frontend(DISK, 3);
    world.pass(5_000);
    assert_eq!(world.own(DISK), "5");
    assert_eq!(world.glue.count(|action| matches!(action, Action::Connect { .. })), 3);
}

#[test]
fn a_ring_that_breaks_is_disconnected_and_the_frontend_told() {
    let mut world = World::new([5]);
    world.connected(DISK);
    world.hotplug.frontend_failed(world.now, DISK, "impossible ring indices".into(), &mut world.client);
    world.run();
    assert_eq!(world.own(DISK), "5");
    assert_eq!(world.glue.held[&DISK], Held::Volume("disk0".into()));
    assert_eq!(world.reason(DISK).as_deref(), Some("impossible ring indices"));
    world.remove(DISK, Force::Off);
    world.frontend(DISK, 6);
    world.pass(600);
    world.assert_nothing_left();
}

#[test]
fn a_guest_that_rewrites_its_state_all_the_time_delays_no_other() {
    // The other guest's attach, in requests until state 2, beside a guest that writes before every request.
    let requests = |hostile: bool| {
        let mut world = World::new([5, 6]);
        world.connected(DISK);
        let quiet = id(6, 1);
        if hostile {
            world.rewriting = Some((Frontend(DISK), 4));
        }
        for _ in 0..1000 {
            world.step();
        }
        world.attach_as(quiet, "disk1", "w");
        let before = world.connection.served;
        for _ in 0..100_000 {
            world.step();
            if world.own(quiet) == "2" {
                return world.connection.served - before;
            }
        }
        panic!("it is never attached");
    };
    let (alone, beside) = (requests(false), requests(true));
    assert!(beside <= 2 * alone + 8, "{beside} requests instead of {alone}");
}

#[test]
fn a_guest_with_a_hundred_changing_devices_delays_another_by_one_round_of_turns() {
    let mut world = World::new([5, 6]);
    world.store.limits.nodes = 10_000;
    for device in 0..100 {
        world.attach_as(id(5, device), &format!("v{device}"), "w");
    }
    world.run();
    for device in 0..100 {
        world.frontend(id(5, device), 1);
    }
    let quiet = id(6, 1);
    world.attach_as(quiet, "disk1", "w");
    let before = world.connection.served;
    while world.own(quiet) != "2" {
        world.step();
    }
    let requests = world.connection.served - before;
    assert!(requests < 150, "{requests} requests; reading all of the other guest's devices takes 300");
}

#[test]
fn a_guest_that_toggles_without_pause_uses_up_its_own_rate_only() {
    let mut world = World::new([5, 6]);
    world.connected(DISK);
    let start = world.connection.served;
    for toggle in 0..1_000 {
        world.frontend(DISK, if toggle % 2 == 0 { 6 } else { 1 });
        world.run();
    }
    let requests = world.connection.served - start;
    assert!(requests < 1_000 * 4, "{requests} requests: each toggle is read, few are answered");
    let quiet = id(6, 1);
    world.attach_as(quiet, "disk1", "w");
    Frontend(quiet).publish(&mut world.store);
    world.pass(600);
    assert_eq!(world.own(quiet), "4");
    world.frontend(DISK, 6);
    world.pass(1_000);
    assert_eq!(world.own(DISK), "6", "the last word counts");
}

#[test]
fn a_thousand_toggles_leave_nothing() {
    let mut world = World::new([5]);
    world.connected(DISK);
    for _ in 0..1_000 {
        for state in [6, 1, 3] {
            world.frontend(DISK, state);
            world.step();
        }
    }
    world.run();
    world.frontend(DISK, 6);
    world.run();
    world.remove(DISK, Force::On);
    world.pass(600);
    world.assert_nothing_left();
}
