//! From nothing to a dom0 that answers: stages, each with its own deadline, so that a hang names its place.

use std::time::Duration;

use anyhow::Context;

use crate::artifacts::{Artifacts, RunDir};
use crate::dom0::Dom0;
use crate::progress::Progress;
use crate::qemu::{Console, Lifetime, Machine, Qemu};
use crate::qmp::Qmp;
use crate::serial::Serial;

/// A stage of the boot: the line of the serial log that ends it, and how long it may take: ten times what it takes on a quiet machine, as two cores may be shared.
struct Stage {
    name: &'static str,
    marker: &'static str,
    limit: Duration,
}

/// The line by which dom0's agent says that it serves.
const AGENT: &str = "@stage agent";

const STAGES: [Stage; 4] = [
    Stage { name: "boot: Xen", marker: "(XEN) Xen version", limit: Duration::from_secs(60) },
    Stage { name: "boot: dom0 kernel", marker: "@stage kernel", limit: Duration::from_secs(300) },
    Stage { name: "boot: toolstack", marker: "@stage toolstack", limit: Duration::from_secs(300) },
    Stage { name: "boot: agent", marker: AGENT, limit: Duration::from_secs(120) },
];

/// The line by which dom0 says that it goes down because it was told to.
const END_MARKER: &str = "@stage end";

/// A machine whose dom0 answers.
#[derive(Debug)]
pub struct Booted {
    /// The process.
    pub qemu: Qemu,
    /// What Xen and dom0 print.
    pub serial: Serial,
    /// The agent.
    pub dom0: Dom0,
    /// QEMU's control.
    pub qmp: Qmp,
    /// Each stage's name and seconds.
    pub stages: Vec<(String, f64)>,
}

/// Boots `machine` through all stages.
///
/// # Errors
/// An infrastructure error that names the stage which did not end.
pub fn boot(
    machine: &Machine,
    artifacts: &Artifacts,
    run: &RunDir,
    lifetime: Lifetime,
    progress: Progress,
) -> anyhow::Result<Booted> {
    let mut qemu = machine.start(artifacts, run, lifetime)?;
    let serial = Serial(run.serial_log());
    let program = std::fs::read(&artifacts.dom0_tools).context("dom0's agent")?;
    let mut stages = vec![];
    for Stage { name, marker, limit } in &STAGES {
        let wait = || {
            let sending = if *marker == AGENT { Some(Dom0::send_agent(run, &program)?) } else { None };
            serial.wait_for(marker, *limit, &mut qemu)?;
            drop(sending);
            Ok(())
        };
        // On a terminal, dom0's own lines are the progress.
        let seconds = match machine.console {
            Console::Log => progress.stage(name, wait)?.1,
            Console::Terminal => progress_free(wait)?,
        };
        stages.push(((*name).to_owned(), seconds));
    }
    let dom0 = Dom0::connect(run)?;
    dom0.check("true", 60)?;
    let qmp = Qmp::connect(&run.qmp_socket())?;
    Ok(Booted { qemu, serial, dom0, qmp, stages })
}

fn progress_free(mut wait: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = std::time::Instant::now();
    wait()?;
    Ok(begun.elapsed().as_secs_f64())
}

impl Booted {
    /// Powers the machine off, and checks that it went down the way it should.
    ///
    /// # Errors
    /// An infrastructure error without the end marker, or when QEMU's exit was not clean.
    pub fn power_off(&mut self) -> anyhow::Result<()> {
        // The command never answers: the machine goes first.
        let _running = self.dom0.spawn("poweroff", 60)?;
        let status = self.qemu.wait(Duration::from_secs(90))?;
        let said_end = self.serial.text()?.contains(END_MARKER);
        anyhow::ensure!(
            said_end && status.success(),
            crate::infrastructure::infrastructure(format!(
                "dom0 went down uncleanly (end marker: {said_end}, QEMU: {status})"
            ))
        );
        Ok(())
    }
}
