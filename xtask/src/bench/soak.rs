//! `bench soak`: many rounds, mixed, of several guests at once; afterwards nothing has failed and nothing is left.

use anyhow::Context;
use nested_tests::driverdom::{Config, Driverdom};
use nested_tests::guest::driverdom_disk;
use nested_tests::peer::device_number;
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::scenarios::footprint::Footprint;
use nested_tests::testfront::{TestFront, TestFrontConfig};
use nested_tests::world::World;
use serde_json::{Value, json};

use super::lanes::{Lanes, Outcome};
use super::{Promise, stage};
use crate::project::Project;

/// Rounds of create and destroy, unless told otherwise.
const ROUNDS: usize = 300;
/// Lanes of each kind: so many guests live at once.
const LIVES: usize = 3;
const SWAPS: usize = 2;
/// Rounds of a lane between two lines of progress: three of the one kind to two of the other.
const BATCH: usize = 5;
/// What a round may take, in seconds.
const ROUND_LIMIT: usize = 120;

/// Guests that toggle, vbds of each, and toggles of each vbd in a step.
const TOGGLERS: usize = 2;
const TOGGLED: usize = 4;
const TOGGLES: usize = 5;

/// By which the heap may grow: a loss of 16 bytes a round would show.
const HEAP_SLACK: u64 = 4 << 10;

/// Rounds of one kind.
#[derive(Debug, Clone, Default, PartialEq)]
struct Kind {
    rounds: usize,
    failed: usize,
    seconds: f64,
}

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    rounds: Option<usize>,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let rounds = rounds.unwrap_or(ROUNDS);
    let world = stage::boot(project, accel, progress)?;
    let driverdom = world.driverdom(&Config { memory_mib: 32, ..Config::default() })?;

    // What stays is made in the first rounds: directories, pools.
    let (warmed, _) = progress.stage("first rounds", || {
        Ok([batch(&world, [1; LIVES], [1; SWAPS], 0)?.said, toggle(&world, TOGGLERS * TOGGLED)?.1])
    })?;
    warmed.iter().filter(|said| !said.is_empty()).for_each(|said| progress.say(said));
    let before = Footprint::take(&world.dom0, &driverdom)?;

    let [lives, swaps] = mixed(&world, rounds, rounds * 2 / 3, progress)?;
    let ((toggles, said), _) = progress.stage("toggles", || toggle(&world, rounds * 10 / 3))?;
    progress.say(&format!("toggles: {toggles:?} {said}"));
    let leaks = leaks(&world, &driverdom, &before, progress)?;
    world.power_off()?;

    let rows = [("create-destroy", lives), ("attach-detach", swaps), ("toggle", toggles)];
    let mut promises = vec![];
    for (kind, Kind { rounds, failed, seconds }) in &rows {
        let text = format!("{rounds} rounds of {kind} without a failure: {failed} in {seconds:.0} s");
        promises.push(Promise { text, kept: *failed == 0 });
    }
    promises.push(Promise { text: format!("nothing leaks: {}", leaks.len()), kept: leaks.is_empty() });
    let row = |(kind, Kind { rounds, failed, seconds }): &(&str, Kind)| json!({ "kind": kind, "rounds": rounds, "failed": failed, "seconds": seconds });
    let rows: Vec<Value> = rows.iter().map(row).collect();
    Ok((json!({ "bench": "soak", "rows": rows, "leaks": leaks.len() }), promises))
}

fn leaks(world: &World, driverdom: &Driverdom, before: &Footprint, progress: Progress) -> anyhow::Result<Vec<String>> {
    let (leaks, _) = progress.stage("leaks", || before.leaks(&world.dom0, driverdom, HEAP_SLACK))?;
    leaks.iter().for_each(|leak| progress.say(&format!("leak: {leak}")));
    Ok(leaks)
}

/// Rounds of both kinds side by side; the seconds of each are those that its lanes were at it.
fn mixed(world: &World, lives: usize, swaps: usize, progress: Progress) -> anyhow::Result<[Kind; 2]> {
    let (mut total, mut number) = ([Kind::default(), Kind::default()], 0);
    let (mut lives_left, mut swaps_left) = (lives, swaps);
    while lives_left + swaps_left > 0 {
        number += 1;
        let (lanes, others) = (share(&mut lives_left), share(&mut swaps_left));
        let Outcome { done, said } = batch(world, lanes, others, number)?;
        for (kind, verb, rounds) in
            [(0, "create-destroy", lanes.iter().sum::<usize>()), (1, "attach-detach", others.iter().sum())]
        {
            let mine = || done.iter().filter(|done| done.verb == verb);
            let well = mine().filter(|done| done.code == 0).count();
            total[kind].rounds += rounds;
            total[kind].failed += rounds - well.min(rounds);
            let start = mine().map(|done| done.start).reduce(f64::min);
            let end = mine().map(|done| done.end).reduce(f64::max);
            total[kind].seconds += end.zip(start).map_or(0.0, |(end, start)| end - start);
        }
        let [lives_done, swaps_done] = &total;
        let said = said.lines().take(5).map(|line| format!("; said: {line}")).collect::<String>();
        progress.say(&format!(
            "create-destroy {} of {lives}, attach-detach {} of {swaps}, {} failed{said}",
            lives_done.rounds,
            swaps_done.rounds,
            lives_done.failed + swaps_done.failed
        ));
    }
    Ok(total)
}

/// What each lane takes of the rounds that are left.
fn share<const LANES: usize>(left: &mut usize) -> [usize; LANES] {
    std::array::from_fn(|_| {
        let taken = BATCH.min(*left);
        *left -= taken;
        taken
    })
}

fn batch(world: &World, lives: [usize; LIVES], swaps: [usize; SWAPS], number: usize) -> anyhow::Result<Outcome> {
    let mut lanes = Lanes::default();
    for (lane, rounds) in lives.into_iter().enumerate().filter(|(_, rounds)| *rounds > 0) {
        let mut guest = TestFrontConfig::new(&format!("life-{lane}")).disk("xvda", "rw", "ram:128K");
        guest = guest.disk("xvdb", "r", "gpt:demo").disk("xvdc", "rw", "ram:64K");
        let (memory, partition) = ("51712,51744", "51728");
        let write = format!("write vbd={memory} count=64 pattern=1; verify vbd={memory} count=64 pattern=1");
        guest.script = format!("connect vbd=all; {write}; read vbd={partition} count=64; end stay");
        let words = [guest.name.clone(), rounds.to_string(), "step 4 ok".into()];
        lanes.add("lives", &[guest], &words);
    }
    for (lane, rounds) in swaps.into_iter().enumerate().filter(|(_, rounds)| *rounds > 0) {
        let guest = TestFrontConfig::new(&format!("swap-{lane}")).disk("xvda", "r", "gpt:demo");
        // One lane's disk is a partition, the other's is memory, in turn.
        let target = if (lane + number).is_multiple_of(2) { "gpt:second" } else { "ram:64K" };
        let device = device_number("xvdb").to_string();
        let words =
            [guest.name.clone(), rounds.to_string(), "xvdb".into(), device, driverdom_disk("xvdb", "rw", target)];
        lanes.add("swaps", &[guest], &words);
    }
    lanes.run(&world.dom0, (ROUND_LIMIT * BATCH) as u64)
}

/// At least `count` times a frontend closes and comes back, as quickly as driverdom lets it: several vbds of several guests.
fn toggle(world: &World, count: usize) -> anyhow::Result<(Kind, String)> {
    let dom0 = &world.dom0;
    let mut guests = vec![];
    for number in 0..TOGGLERS {
        let mut config = TestFrontConfig::new(&format!("toggle-{number}"));
        for vdev in ["xvda", "xvdb", "xvdc", "xvdd"].iter().take(TOGGLED) {
            config = config.disk(vdev, "rw", "ram:64K");
        }
        let guest = TestFront::create(dom0, &config)?;
        guest.step("connect vbd=all")?;
        guests.push(guest);
    }
    let per_step = TOGGLERS * TOGGLED * TOGGLES;
    let (mut kind, mut said) = (Kind::default(), String::new());
    let begun = std::time::Instant::now();
    for _ in 0..count.div_ceil(per_step) {
        let step = [format!("toggle vbd=all n={TOGGLES}")];
        let running = guests.iter().map(|guest| guest.begin(&step, 240)).collect::<anyhow::Result<Vec<_>>>()?;
        for toggling in running {
            kind.rounds += TOGGLED * TOGGLES;
            if let Err(why) = toggling.wait(dom0) {
                kind.failed += TOGGLED * TOGGLES;
                said = format!("{why:#}");
            }
        }
        if kind.failed > 0 {
            break;
        }
    }
    kind.seconds = begun.elapsed().as_secs_f64();
    for guest in &guests {
        dom0.check(&format!("xl destroy {}", guest.name), 120).context("a guest that toggled")?;
    }
    Ok((kind, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_what_is_left() {
        let mut left = 13;
        let first: [usize; 2] = share(&mut left);
        let second: [usize; 2] = share(&mut left);
        assert_eq!((first, second, left), ([5, 5], [3, 0], 0));
    }
}
