//! Runs scenarios, grouped by the boot that they need, and hands what was seen to the verdict.

use std::path::Path;

use crate::artifacts::{Artifacts, RunDir};
use crate::infrastructure::Infrastructure;
use crate::progress::Progress;
use crate::qemu::{Accel, Console, Lifetime};
use crate::scenarios::Scenario;
use crate::selfcheck::self_check;
use crate::verdict::{BootEnd, Judgement, Outcome, Report, judge};
use crate::world::{Boot, World, machine};

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
        if group.is_empty() {
            continue;
        }
        let end = run_boot(boot, &group, run, &mut reports);
        if let Err(error) = &end {
            run.progress.say(&format!("boot '{}' broke: {error:#}", boot.name()));
        }
        ends.push(end.map_or_else(|error| BootEnd::Broken(format!("{error:#}")), |()| BootEnd::Clean));
    }
    let names: Vec<_> = planned.iter().map(|scenario| scenario.name).collect();
    judge(&names, &reports, &ends)
}

fn run_boot(boot: Boot, group: &[&Scenario], run: &Run, reports: &mut Vec<Report>) -> anyhow::Result<()> {
    let progress = run.progress;
    progress.say(&format!("boot '{}' for {} scenarios", boot.name(), group.len()));
    let directory = RunDir::create(&run.directory.join(boot.name()))?;
    let machine = machine(boot, run.accel, Console::Log, &directory);
    let mut world = World::start(&machine, run.artifacts, directory, Lifetime::Owned, progress)?;
    let (sums, _) = progress.stage("self-check", || self_check(&world.dom0))?;
    progress.say(&sums);
    world.clean_up()?;
    for scenario in group {
        progress.say(&format!("{} ...", scenario.name));
        let begun = progress.seconds();
        let outcome = outcome_of((scenario.run)(&mut world));
        let seconds = progress.seconds() - begun;
        match &outcome {
            Outcome::Passed => progress.say(&format!("{}: passed ({seconds:.1} s)", scenario.name)),
            Outcome::Failed(why) | Outcome::Infrastructure(why) => {
                progress.say(&format!("{}: FAILED ({seconds:.1} s): {why}", scenario.name));
                let evidence = world.save_evidence(scenario.name)?;
                progress.say(&format!("evidence: {}", evidence.display()));
            }
        }
        reports.push(Report { name: scenario.name.to_owned(), outcome });
        world.check_running()?;
        world.clean_up()?;
    }
    progress.stage("power off", || world.power_off())?;
    Ok(())
}

fn outcome_of(result: anyhow::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed,
        Err(error) if error.downcast_ref::<Infrastructure>().is_some() => Outcome::Infrastructure(format!("{error:#}")),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}
