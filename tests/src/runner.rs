//! Runs scenarios, grouped by the boot that they need, and hands what was seen to the verdict.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::artifacts::{Artifacts, RunDir};
use crate::infrastructure::Infrastructure;
use crate::progress::Progress;
use crate::qemu::{Accel, Console, Lifetime};
use crate::scenarios::Scenario;
use crate::selfcheck::self_check;
use crate::verdict::{BootEnd, Judgement, Outcome, Report, judge};
use crate::world::{Boot, World, machine};

/// A machine that breaks is booted anew for the scenarios that are left, this often in all.
const MOST_BOOTS: u32 = 3;

/// What a run needs beside the scenarios.
#[derive(Debug)]
pub struct Run<'a> {
    /// The files to boot.
    pub artifacts: &'a Artifacts,
    /// A directory for logs and disks; each boot gets one in it.
    pub directory: &'a Path,
    /// What executes the machine.
    pub accel: Accel,
    /// Machines that run side by side, at least one.
    pub machines: usize,
    /// The clock.
    pub progress: Progress,
}

/// Scenarios that one machine runs, booted anew if it breaks.
#[derive(Debug, PartialEq, Eq)]
struct Group<S> {
    letter: char,
    boot: Boot,
    scenarios: Vec<S>,
}

/// Each boot's scenarios in groups; those of the default boot, which has most, are dealt to all machines in turn.
fn groups<S>(planned: impl Iterator<Item = (Boot, S)>, machines: usize) -> Vec<Group<S>> {
    let mut hands: BTreeMap<(Boot, usize), Vec<S>> = BTreeMap::new();
    for (number, (boot, scenario)) in planned.enumerate() {
        let hand = if boot == Boot::Default { number % machines.max(1) } else { 0 };
        hands.entry((boot, hand)).or_default().push(scenario);
    }
    ('a'..='z').zip(hands).map(|(letter, ((boot, _), scenarios))| Group { letter, boot, scenarios }).collect()
}

/// What is known so far, by all machines.
#[derive(Debug, Default)]
struct Known {
    reports: Vec<Report>,
    ends: Vec<BootEnd>,
    /// A machine has begun to check the harness itself: all have the same CPU.
    checked: bool,
}

/// Runs what is planned, and judges.
#[must_use]
pub fn run(planned: &[Scenario], run: &Run) -> Judgement {
    let groups = groups(planned.iter().map(|scenario| (scenario.boot, *scenario)), run.machines);
    let known = Mutex::new(Known::default());
    // A machine of two CPUs beside another would be too slow to judge by.
    let (small, big): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.boot.cpus() == 1);
    for (groups, machines) in [(small, run.machines.max(1)), (big, 1)] {
        let waiting = Mutex::new(groups.into_iter());
        std::thread::scope(|scope| {
            for _ in 0..machines {
                scope.spawn(|| {
                    while let Some(group) = { lock(&waiting).next() } {
                        run_group(&group, run, &known);
                    }
                });
            }
        });
    }
    let Known { reports, ends, .. } = known.into_inner().unwrap_or_else(PoisonError::into_inner);
    let names: Vec<_> = planned.iter().map(|scenario| scenario.name).collect();
    judge(&names, &reports, &ends)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_group(group: &Group<Scenario>, run: &Run, known: &Mutex<Known>) {
    let progress = if run.machines > 1 { run.progress.of_machine(group.letter) } else { run.progress };
    let run = Run { progress, ..*run };
    let mut left = group.scenarios.clone();
    for nth in 1..=MOST_BOOTS {
        let before = left.len();
        let end = run_boot(group, nth, &mut left, &run, known);
        if let Err(error) = &end {
            progress.say(&format!("boot '{}' broke: {error:#}", group.boot.name()));
        }
        lock(known).ends.push(end.map_or_else(|error| BootEnd::Broken(format!("{error:#}")), |()| BootEnd::Clean));
        if left.is_empty() || left.len() == before {
            break;
        }
    }
}

/// Boots, and takes scenarios from `left` as they are reported.
fn run_boot(
    group: &Group<Scenario>,
    nth: u32,
    left: &mut Vec<Scenario>,
    run: &Run,
    known: &Mutex<Known>,
) -> anyhow::Result<()> {
    let progress = run.progress;
    progress.say(&format!("boot '{}' for {} scenarios", group.boot.name(), left.len()));
    let directory = RunDir::create(&run.directory.join(format!("{}-{}-{nth}", group.boot.name(), group.letter)))?;
    let machine = machine(group.boot, run.accel, Console::Log, &directory);
    let mut world = World::start(&machine, run.artifacts, directory, Lifetime::Owned, progress)?;
    if !std::mem::replace(&mut lock(known).checked, true) {
        let (sums, _) = progress.stage("self-check", || self_check(&world.dom0))?;
        progress.say(&sums);
        world.clean_up()?;
    }
    while let Some(scenario) = left.first().copied() {
        progress.say(&format!("{} ...", scenario.name));
        let begun = progress.seconds();
        let outcome = outcome_of(&scenario, &mut world);
        let seconds = progress.seconds() - begun;
        lock(known).reports.push(Report { name: scenario.name.to_owned(), outcome: outcome.clone() });
        left.remove(0);
        match &outcome {
            Outcome::Passed => progress.say(&format!("{}: passed ({seconds:.1} s)", scenario.name)),
            Outcome::Failed(why) | Outcome::Infrastructure(why) => {
                progress.say(&format!("{}: FAILED ({seconds:.1} s): {why}", scenario.name));
                let evidence = world.save_evidence(scenario.name)?;
                progress.say(&format!("evidence: {}", evidence.display()));
            }
        }
        world.check_running()?;
        world.clean_up()?;
    }
    progress.stage("power off", || world.power_off())?;
    Ok(())
}

/// Runs a scenario; a panic in it is its failure, and not the end of the run.
fn outcome_of(scenario: &Scenario, world: &mut World) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| (scenario.run)(world))) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(error)) if error.downcast_ref::<Infrastructure>().is_some() => {
            Outcome::Infrastructure(format!("{error:#}"))
        }
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed("the scenario panicked, see above".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_boots_scenarios_are_dealt_and_others_stay_together() {
        use Boot::{Default, NoIommu, Oxenstored};
        let planned = [(Default, 1), (Default, 2), (Default, 3), (Oxenstored, 4), (Oxenstored, 5), (NoIommu, 6)];
        let group = |letter, boot, scenarios: &[i32]| Group { letter, boot, scenarios: scenarios.to_vec() };
        assert_eq!(
            groups(planned.into_iter(), 2),
            [
                group('a', Default, &[1, 3]),
                group('b', Default, &[2]),
                group('c', Oxenstored, &[4, 5]),
                group('d', NoIommu, &[6])
            ]
        );
        let one = groups(planned.into_iter(), 1);
        assert_eq!(one.iter().map(|group| group.scenarios.len()).collect::<Vec<_>>(), [3, 2, 1]);
    }
}
