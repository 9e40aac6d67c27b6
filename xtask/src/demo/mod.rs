//! `cargo xtask demo`: a Linux guest uses a disk through driverdom, and the host finds on the disk what the guest wrote.

mod course;
mod proof;

use std::path::PathBuf;

use anyhow::Context;
use nested_tests::infrastructure::Infrastructure;

use crate::options::{Answer, BootOptions};
use crate::project::Project;
use proof::Proof;

/// Boots Xen in QEMU, lets a Linux guest use a disk through driverdom, and looks at the disk from the host
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: BootOptions,
    /// Keep the disk image and logs, and say where they are
    #[arg(long)]
    keep: bool,
    /// Write stages and checks to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    let directory = project.target.join("nested/demo");
    let mut proof = Proof::default();
    let course = course::run(project, arguments.boot.accel.resolve(), &directory, &mut proof);
    if let Err(error) = &course {
        proof.note_failure(error);
    }
    println!("\n{}", proof.table());
    if let Some(file) = &arguments.json {
        std::fs::write(file, proof.json().to_string()).with_context(|| file.display().to_string())?;
    }
    let failed = !proof.ok();
    if arguments.keep || failed {
        println!("kept: {}", directory.display());
    } else {
        std::fs::remove_dir_all(&directory)?;
    }
    match course {
        Err(error) if error.downcast_ref::<Infrastructure>().is_some() => Err(error),
        _ if failed => Ok(Answer::DidNotHold),
        _ => Ok(Answer::Held),
    }
}
