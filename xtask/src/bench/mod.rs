//! `cargo xtask bench`: what is said in seconds and bytes, measured in the nested system and judged.

mod boot;

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
    /// What to measure beside driverdom; without this, a peer that cannot be measured is passed over
    #[arg(long, value_enum)]
    vs: Option<Peer>,
    /// Write the rows to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Name {
    /// From 'xl create' to ready, memory, image size, idle CPU time, destroy
    Boot,
}

/// A backend that driverdom is measured against.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// A Linux driver domain
    LinuxDomu,
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
    let (rows, promises) = match arguments.name {
        Name::Boot => boot::run(project, arguments.vs, arguments.boot.accel.resolve(), Progress::default())?,
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
