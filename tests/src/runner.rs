//! Runs scenarios, grouped by the boot that they need, and hands what was seen to the verdict.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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
    /// The clock.
    pub progress: Progress,
}

/// Runs what is planned, boot by boot, and judges.
#[must_use]
pub fn run(planned: &[Scenario], run: &Run) -> Judgement {
    let (mut reports, mut ends) = (vec![], vec![]);
    for boot in Boot::ALL {
        let group: Vec<_> = planned.iter().filter(|scenario| scenario.boot == boot).collect();
        for nth in 1..=MOST_BOOTS {
            let done = reports.len();
            let left: Vec<_> = group.iter().filter(|scenario| !is_reported(scenario, &reports)).copied().collect();
            if left.is_empty() {
                break;
            }
            let end = run_boot(boot, nth, &left, run, &mut reports);
            if let Err(error) = &end {
                run.progress.say(&format!("boot '{}' broke: {error:#}", boot.name()));
            }
            ends.push(end.map_or_else(|error| BootEnd::Broken(format!("{error:#}")), |()| BootEnd::Clean));
            if reports.len() == done {
                break;
            }
        }
    }
    let names: Vec<_> = planned.iter().map(|scenario| scenario.name).collect();
    judge(&names, &reports, &ends)
}

fn is_reported(scenario: &Scenario, reports: &[Report]) -> bool {
    reports.iter().any(|report| report.name == scenario.name)
}

fn run_boot(boot: Boot, nth: u32, group: &[&Scenario], run: &Run, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let progress = run.progress;
    progress.say(&format!("boot '{}' for {} scenarios", boot.name(), group.len()));
    let directory = RunDir::create(&run.directory.join(format!("{}-{nth}", boot.name())))?;
    let machine = machine(boot, run.accel, Console::Log, &directory);
    let mut world = World::start(&machine, run.artifacts, directory, Lifetime::Owned, progress)?;
    if reports.is_empty() {
        // All boots have the same CPU.
        let (sums, _) = progress.stage("self-check", || self_check(&world.dom0))?;
        progress.say(&sums);
        world.clean_up()?;
    }
    for scenario in group {
        progress.say(&format!("{} ...", scenario.name));
        let begun = progress.seconds();
        let outcome = outcome_of(scenario, &mut world);
        let seconds = progress.seconds() - begun;
        reports.push(Report { name: scenario.name.to_owned(), outcome: outcome.clone() });
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
