//! Toolstack and guests in random order, with the driver domain working at random moments.

use proptest::prelude::*;

use super::world::{World, id};
use crate::fake::{Force, Frontend, Outcome};
use blkback_core::backend::VbdId;

#[derive(Clone, Debug)]
enum Act {
    Attach,
    Remove,
    RemoveByForce,
    Wipe,
    Publish(u32),
    Key(&'static str, &'static str),
    State(u32),
    Vanish,
    Conflicts(usize),
    SlowDisconnects,
    FinishDisconnects,
    Broken,
    Steps(usize),
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Vec<(VbdId, Act)>> {
    let act = prop_oneof![
        4 => Just(Act::Attach),
        2 => Just(Act::Remove),
        2 => Just(Act::RemoveByForce),
        1 => Just(Act::Wipe),
        4 => (0u32..5).prop_map(Act::Publish),
        1 => prop_oneof![Just("ring-ref"), Just("event-channel"), Just("ring-page-order"), Just("protocol")]
            .prop_map(|key| Act::Key(key, "nonsense")),
        5 => (0u32..10).prop_map(Act::State),
        1 => Just(Act::Vanish),
        1 => (0usize..12).prop_map(Act::Conflicts),
        1 => Just(Act::SlowDisconnects),
        1 => Just(Act::FinishDisconnects),
        1 => Just(Act::Broken),
        8 => (0usize..60).prop_map(Act::Steps),
        4 => (0u64..1_500).prop_map(Act::Pass),
    ];
    let device = (5u16..7, 0u32..2).prop_map(|(domain, device)| id(domain, device));
    proptest::collection::vec((device, act), 0..60)
}

fn act(world: &mut World, id: VbdId, act: Act) {
    let frontend = Frontend(id);
    match act {
        Act::Attach if world.own(id) == "-" => world.attach_as(id, &format!("v{}-{}", id.domain, id.device), "w"),
        Act::Remove => world.remove(id, Force::Off),
        Act::RemoveByForce => world.remove(id, Force::On),
        Act::Wipe => {
            let path = world.toolstack.path(id, "");
            world.store.clean_up(&path);
        }
        Act::Publish(order) => frontend.publish_order(&mut world.store, order),
        Act::Key(key, value) => frontend.write(&mut world.store, key, value),
        Act::State(state) => frontend.state(&mut world.store, state),
        Act::Vanish => frontend.vanish(&mut world.store),
        Act::Conflicts(count) => world.store.conflicts_to_come = count,
        Act::SlowDisconnects => world.glue.slow = true,
        Act::FinishDisconnects => {
            world.glue.slow = false;
            world.finish_disconnects();
        }
        Act::Broken => world.hotplug.frontend_failed(world.now, id, "broken".into(), &mut world.client),
        Act::Steps(count) => {
            for _ in 0..count {
                world.step();
            }
        }
        Act::Pass(millis) => world.pass(millis),
        Act::Attach => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// The world itself checks the rules at every step: no write into a removed directory, no removal while anything is held,
    /// no 6 with rings mapped, one answer per question, quotas.
    #[test]
    fn no_order_of_events_breaks_a_rule_and_all_can_be_removed(acts in acts()) {
        let mut world = World::new([5, 6]);
        for (id, what) in acts {
            act(&mut world, id, what);
        }
        act(&mut world, id(5, 0), Act::FinishDisconnects);
        world.pass(11_000);
        let disks = [id(5, 0), id(5, 1), id(6, 0), id(6, 1)];
        for disk in disks {
            world.remove(disk, Force::On);
        }
        world.pass(2_000);
        for disk in disks {
            prop_assert_eq!(world.outcome(disk), Some(Outcome::Removed));
        }
        world.pass(crate::hotplug::REASON_LIFE.as_millis());
        world.assert_nothing_left();
    }

    #[test]
    fn a_well_behaved_guest_is_connected_in_the_end(acts in acts()) {
        let mut world = World::new([5, 6, 7]);
        for (id, what) in acts {
            act(&mut world, id, what);
        }
        world.store.conflicts_to_come = 0;
        let disk = id(7, 0);
        world.attach(disk);
        world.run();
        prop_assert_eq!(world.outcome(disk), Some(Outcome::Attached));
        Frontend(disk).publish(&mut world.store);
        world.pass(600);
        prop_assert_eq!(world.own(disk), "4");
    }
}
