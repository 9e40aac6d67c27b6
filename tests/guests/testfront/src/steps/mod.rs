//! The steps' effects. A step says what it saw when it succeeds and what went wrong when it does not.

mod connection;
mod load;
mod malformed;
mod nodes;
mod transfer;

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use crate::Fallible;
use crate::platform::Platform;
use crate::script::{Action, Connect, Haste, Which};
use crate::world::World;

/// Does something with vbds.
pub(crate) fn act<P: Platform>(world: &mut World<P>, which: &Which, action: &Action) -> Fallible<String> {
    let numbers = match (which, action) {
        // May come yet, or be gone.
        (Which::These(numbers), Action::Wait(..) | Action::Connect(Connect { haste: Haste::Early, .. })) => {
            numbers.clone()
        }
        _ => world.numbers(which)?,
    };
    match action {
        Action::Publish(shape) => connection::publish(world, &numbers, *shape, None).map(|()| several(&numbers)),
        Action::Connect(connect) => connection::connect(world, &numbers, connect),
        Action::Reconnect(connect) => connection::reconnect(world, &numbers, connect),
        Action::Close(farewell, limit) => connection::close(world, &numbers, *farewell, *limit),
        Action::Toggle(times) => connection::toggle(world, &numbers, *times),
        Action::Storm(times) => connection::storm(world, &numbers, *times),
        Action::Wait(awaited, limit) => connection::await_backends(world, &numbers, *awaited, *limit),
        Action::NeverClose => connection::never_close(world, &numbers),
        Action::Load(load) => load::run(world, &numbers, load),
        Action::Transfer(transfer) => {
            one_by_one(world, &numbers, |world, number| transfer::run(world, number, transfer))
        }
        Action::Malformed(cases) => one_by_one(world, &numbers, |world, number| malformed::run(world, number, *cases)),
        Action::State(state) => {
            one_by_one(world, &numbers, |world, number| world.write_state(number, *state).map(|()| String::new()))
        }
        Action::Set { key, value } => {
            one_by_one(world, &numbers, |world, number| nodes::set(world, number, key, value.as_deref()))
        }
        Action::Check { key, value } => {
            one_by_one(world, &numbers, |world, number| nodes::check(world, number, key, value.as_deref()))
        }
    }
}

pub(crate) use nodes::list;
pub(crate) use transfer::launch;

/// Does something with each vbd; the first that fails ends it.
fn one_by_one<P: Platform>(
    world: &mut World<P>,
    numbers: &[u32],
    mut deed: impl FnMut(&mut World<P>, u32) -> Fallible<String>,
) -> Fallible<String> {
    let mut said = vec![];
    for &number in numbers {
        said.push(deed(world, number).map_err(|why| format!("vbd {number}: {why}"))?);
    }
    Ok(match said.as_slice() {
        [one] => one.clone(),
        all => several_saying(all),
    })
}

fn several(numbers: &[u32]) -> String {
    format!("vbds={}", numbers.len())
}

/// What many vbds have to say: what the first one said, if all said the same.
fn several_saying(all: &[String]) -> String {
    let same = all.windows(2).all(|pair| pair[0] == pair[1]);
    match all.first() {
        Some(first) if same => format!("vbds={} each: {first}", all.len()),
        _ => format!("vbds={}: {}", all.len(), all.join("; ")),
    }
}

/// The vbds of which `failed` is true, in words, or nothing.
fn all_or<T>(waiting: Option<T>, numbers: &[u32], problem: impl Fn(u32) -> Option<String>) -> Fallible<()> {
    if waiting.is_some() {
        return Ok(());
    }
    let late: Vec<String> = numbers.iter().filter_map(|&number| problem(number)).collect();
    match late.as_slice() {
        [] => Ok(()),
        [first, rest @ ..] => Err(format!("{first} ({} more)", rest.len())),
    }
}
