//! Connecting and closing, in order or not. What concerns many vbds is done phase by phase, so that backends work side by side.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::Nanos;

use super::{all_or, several};
use crate::Fallible;
use crate::link::Link;
use crate::platform::Platform;
use crate::script::{Awaited, Connect, Farewell, Form, Haste, Shape};
use crate::vbd::{Facts, Leaving, Manners, state};
use crate::world::World;

/// Publishes a ring for each, and a state with it.
pub(super) fn publish<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    shape: Shape,
    state: Option<u32>,
) -> Fallible<()> {
    for &number in numbers {
        publish_one(world, number, shape, state).map_err(|why| format!("vbd {number}: {why}"))?;
    }
    Ok(())
}

fn publish_one<P: Platform>(world: &mut World<P>, number: u32, shape: Shape, state: Option<u32>) -> Fallible<()> {
    let vbd = world.vbd(number)?;
    if vbd.link.is_some() {
        return Err(format!("it has a ring already (own state {}, backend {:?})", vbd.own, vbd.backend));
    }
    let (domain, stale) = (vbd.domain, vbd.stale_nodes(shape.naming));
    for path in stale {
        // The nodes are seldom there, and a missing one is as good.
        let _ = world.store.remove(&mut world.platform, &path);
    }
    let link = Link::new(&mut world.platform, domain, shape)?;
    let vbd = world.vbd(number)?;
    let nodes = vbd.publication(&link, state);
    vbd.link = Some(link);
    vbd.own = state.unwrap_or(vbd.own);
    world.store.write_together(&mut world.platform, &nodes)
}

/// From the backend's 2 (or at once) to both sides' 4.
pub(super) fn connect<P: Platform>(world: &mut World<P>, numbers: &[u32], connect: &Connect) -> Fallible<String> {
    match connect.haste {
        // A backend that is ahead has not been told to wait for us.
        Haste::Patient => await_states(world, numbers, &[Some(state::INIT_WAIT)], connect.limit)?,
        Haste::Early => await_vbds(world, numbers, connect.limit)?,
    }
    publish(world, numbers, connect.shape, Some(state::INITIALISED))?;
    let wanted = [Some(state::CONNECTED)];
    await_states_or(world, numbers, &wanted, &[Some(state::CLOSING), Some(state::CLOSED), None], connect.limit)?;
    for &number in numbers {
        settle(world, number, connect.shape).map_err(|why| format!("vbd {number}: {why}"))?;
    }
    let first = numbers.first().and_then(|number| world.vbds.get(number)).map(|vbd| vbd.facts).unwrap_or_default();
    Ok(format!("{} sectors={} info={}", several(numbers), first.sectors, first.info))
}

/// Learns what the disk is and goes to 4.
fn settle<P: Platform>(world: &mut World<P>, number: u32, shape: Shape) -> Fallible<()> {
    let vbd = world.vbd(number)?;
    let paths = Facts::NODES.map(|node| format!("{}/{node}", vbd.back));
    let values = world.store.read_all(&mut world.platform, &paths)?;
    let facts = Facts::parse(&values)?;
    world.vbd(number)?.facts = facts;
    if shape.form == Form::Indirect && facts.indirect_segments == 0 {
        return Err("the backend does not offer indirect requests".into());
    }
    world.write_state(number, state::CONNECTED)
}

/// From closed to connected again.
pub(super) fn reconnect<P: Platform>(world: &mut World<P>, numbers: &[u32], how: &Connect) -> Fallible<String> {
    for &number in numbers {
        world.write_state(number, state::INITIALISING)?;
    }
    connect(world, numbers, how)
}

/// Closes, and then finds the backend to have let go of everything.
pub(super) fn close<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    farewell: Farewell,
    limit: Nanos,
) -> Fallible<String> {
    for &number in numbers {
        world.vbd(number)?.leaving = Leaving::Script;
    }
    if farewell == Farewell::Polite {
        write_states(world, numbers, state::CLOSING)?;
        await_states(world, numbers, &[Some(state::CLOSING), Some(state::CLOSED), None], limit)?;
    }
    write_states(world, numbers, state::CLOSED)?;
    await_states(world, numbers, &[Some(state::CLOSED), None], limit)?;
    numbers.iter().for_each(|&number| world.release(number));
    Ok(several(numbers))
}

fn write_states<P: Platform>(world: &mut World<P>, numbers: &[u32], state: u32) -> Fallible<()> {
    numbers.iter().try_for_each(|&number| world.write_state(number, state))
}

/// Closes and connects again, as connected as before.
pub(super) fn toggle<P: Platform>(world: &mut World<P>, numbers: &[u32], times: u32) -> Fallible<String> {
    let first = numbers.first().copied().ok_or("there is no vbd")?;
    let shape = world.vbd(first)?.serving()?.shape();
    let limit = Nanos::from_millis(30_000);
    let how = Connect { shape, haste: Haste::Patient, limit };
    for round in 1..=times {
        let again = close(world, numbers, Farewell::Polite, limit).and_then(|_| reconnect(world, numbers, &how));
        again.map_err(|why| format!("round {round}: {why}"))?;
    }
    Ok(format!("{} rounds={times}", several(numbers)))
}

/// States in every order that a frontend could think of; each step of 5 is coprime to the length.
const STORM: [u32; 7] = [1, 3, 4, 5, 6, 2, 7];

/// Writes states without waiting for anything, and ends closed.
pub(super) fn storm<P: Platform>(world: &mut World<P>, numbers: &[u32], times: u32) -> Fallible<String> {
    for &number in numbers {
        world.vbd(number)?.leaving = Leaving::Script;
    }
    for at in 0..times as usize {
        write_states(world, numbers, STORM[at * 5 % STORM.len()])?;
    }
    write_states(world, numbers, state::CLOSED)?;
    await_states(world, numbers, &[Some(state::CLOSED), None], Nanos::from_millis(30_000))?;
    numbers.iter().for_each(|&number| world.release(number));
    Ok(format!("{} writes={times}", several(numbers)))
}

/// Waits for all backends.
pub(super) fn await_backends<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    awaited: Awaited,
    limit: Nanos,
) -> Fallible<String> {
    let wanted = match awaited {
        Awaited::State(state) => Some(state),
        Awaited::Gone => None,
    };
    await_states(world, numbers, &[wanted], limit).map(|()| several(numbers))
}

/// From now on lets backends close alone.
pub(super) fn never_close<P: Platform>(world: &mut World<P>, numbers: &[u32]) -> Fallible<String> {
    for &number in numbers {
        world.vbd(number)?.manners = Manners::Ignore;
    }
    Ok(several(numbers))
}

/// Waits until the vbds are there, whatever their backends' states.
fn await_vbds<P: Platform>(world: &mut World<P>, numbers: &[u32], limit: Nanos) -> Fallible<()> {
    let deadline = world.after(limit);
    let there = world.wait(deadline, |_, vbds| numbers.iter().all(|number| vbds.contains_key(number)).then_some(()))?;
    all_or(there, numbers, |number| {
        (!world.vbds.contains_key(&number)).then(|| format!("vbd {number}: it has not come"))
    })
}

fn await_states<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    wanted: &[Option<u32>],
    limit: Nanos,
) -> Fallible<()> {
    await_states_or(world, numbers, wanted, &[], limit)
}

/// Waits until each backend is at one of `wanted`; one that gets to one of `hopeless` ends the wait.
fn await_states_or<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    wanted: &[Option<u32>],
    hopeless: &[Option<u32>],
    limit: Nanos,
) -> Fallible<()> {
    let deadline = world.after(limit);
    let waiting = world.wait(deadline, |_, vbds| {
        let states = || numbers.iter().map(|number| vbds.get(number).and_then(|vbd| vbd.backend));
        if states().any(|state| hopeless.contains(&state)) {
            return Some(Err(()));
        }
        states().all(|state| wanted.contains(&state)).then_some(Ok(()))
    })?;
    let wanted_words: Vec<String> = wanted.iter().map(|state| words(*state)).collect();
    all_or(waiting.and_then(Result::ok), numbers, |number| {
        let state = world.vbds.get(&number).and_then(|vbd| vbd.backend);
        let late = !wanted.contains(&state);
        late.then(|| format!("vbd {number}: the backend is at {}, not at {}", words(state), wanted_words.join(" or ")))
    })
}

fn words(state: Option<u32>) -> String {
    state.map_or_else(|| "nothing (gone)".into(), |state| format!("{state}"))
}
