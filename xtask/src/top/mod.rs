//! `cargo xtask top`: what driverdom does in a machine that `cargo xtask shell --keep` left, second by second.

mod sample;
mod view;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nested_tests::artifacts::RunDir;
use nested_tests::dom0::Dom0;
use nested_tests::driverdom::NAME;

use crate::options::Answer;
use crate::project::Project;
use sample::Sample;

/// How often it looks: driverdom publishes at most once a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// Devices that are listed.
const DEVICES: usize = 20;

/// Shows what driverdom does in a kept machine, every second until Ctrl-C
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The directory that 'cargo xtask shell --keep' printed [default: that of the last one]
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Look twice, a second apart, print once and end
    #[arg(long)]
    once: bool,
}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    let directory = arguments.directory.clone().unwrap_or_else(|| project.target.join("nested/shell"));
    let mut before = take(&directory)?;
    loop {
        std::thread::sleep(INTERVAL);
        let now = take(&directory)?;
        let text = view::render(&now, &before, DEVICES);
        if arguments.once {
            print!("{text}");
            return Ok(Answer::Held);
        }
        // Home, each line to its end, and what is left of a longer picture.
        print!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        std::io::stdout().flush()?;
        before = now;
    }
}

/// Looks once. The machine is free for others in between.
fn take(directory: &Path) -> anyhow::Result<Sample> {
    let run = RunDir::of_running(directory);
    // The agent's sockets take one host at a time.
    let lock = File::create(run.lock_file())
        .with_context(|| format!("no machine was kept in {} (cargo xtask shell --keep)", directory.display()))?;
    lock.lock()?;
    let output = Dom0::connect(&run)?.run(&command(), 30)?;
    anyhow::ensure!(output.rc == 0, "there is no {NAME} in that machine: {}", output.err.trim());
    Sample::parse(&output.out).context("what dom0 answered")
}

/// What is asked of dom0: its uptime, the domain's number, its counters, and its devices.
fn command() -> String {
    format!(
        "cut -d' ' -f1 /proc/uptime && xl domid {NAME} && home=/local/domain/$(xl domid {NAME}) && \
         for node in counters attaches io; do xenstore-read $home/data/driverdom/$node || echo; done && \
         {{ xenstore-ls -f $home/backend/vbd | grep -E '/(state|params|mode|dev) = ' || true; }}"
    )
}
