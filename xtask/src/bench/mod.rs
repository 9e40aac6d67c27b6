//! `cargo xtask bench`: what is said in seconds and bytes, measured in the nested system and judged.

mod attach;
mod boot;
mod destroy;
mod lanes;
mod latency;
mod numbers;
mod options;
mod peer;
mod soak;
mod stage;
mod times;

use std::path::PathBuf;

use anyhow::Context;
use nested_tests::progress::Progress;

use crate::options::{Answer, BootOptions};
use crate::project::Project;

/// Measures, prints a table, and judges it by what the project promises
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    name: Name,
    #[command(flatten)]
    boot: BootOptions,
    /// latency: attaches under load
    #[arg(long, value_name = "NUMBER")]
    attaches: Option<usize>,
    /// soak: rounds of create and destroy; two thirds as many of attach and detach, ten thirds as many toggles
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<usize>,
    #[command(flatten)]
    attach: options::Options,
    /// Write the rows to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Name {
    /// Seconds of 'xl create', of connecting and of 'xl destroy' by number of disks, and of hot attaches
    Attach,
    /// From 'xl create' to ready, memory, image size, idle CPU time, destroy
    Boot,
    /// How long attaches take while dom0's disk is busy, the longest too
    Latency,
    /// Many rounds of creating and destroying, attaching and detaching, closing and coming back: nothing fails or leaks
    Soak,
    /// From 'xl destroy' until the domain is gone, idle and in full I/O, and driverdom's own end
    Destroy,
}

/// A promise and whether the measurement keeps it.
#[derive(Debug)]
struct Promise {
    text: String,
    kept: bool,
}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load of this machine before the run: {}", load.trim());
    let (accel, progress) = (arguments.boot.accel.resolve(), Progress::default());
    let (rows, promises) = match arguments.name {
        Name::Attach => attach::run(project, &arguments.attach, accel, progress)?,
        Name::Boot => boot::run(project, &arguments.attach, accel, progress)?,
        Name::Destroy => destroy::run(project, &arguments.attach, accel, progress)?,
        Name::Latency => latency::run(project, arguments, accel, progress)?,
        Name::Soak => soak::run(project, arguments.rounds, accel, progress)?,
    };
    if let Some(file) = &arguments.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?).with_context(|| file.display().to_string())?;
    }
    for Promise { text, kept } in &promises {
        println!("{} {text}", if *kept { "kept    " } else { "NOT KEPT" });
    }
    let all = promises.iter().all(|promise| promise.kept);
    Ok(if all { Answer::Held } else { Answer::DidNotHold })
}
