//! `cargo xtask dist`: a release for a real Xen host.

use std::fs;
use std::process::Command;

use crate::host_command::run as run_command;
use crate::options::Answer;
use crate::project::Project;
use crate::{build, elf_check, setup};

/// Puts a release under target/dist: the ELF, example configs, the operating guide, licences
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// Files of the checkout which go in as they are.
const FILES: [&str; 7] = [
    "xtask/dist/driverdom.cfg",
    "xtask/dist/guest.cfg",
    "docs/OPERATING.md",
    "README.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

/// Runs the subcommand.
pub(crate) fn run(project: &Project, _: &Arguments) -> anyhow::Result<Answer> {
    setup::ensure_installed()?;
    let guest = build::build(project, "driverdom")?;
    let faults = elf_check::check(&guest)?;
    for fault in &faults {
        println!("dist: {fault}");
    }
    if !faults.is_empty() {
        return Ok(Answer::DidNotHold);
    }
    let name = format!("driverdom-{}", env!("CARGO_PKG_VERSION"));
    let dist = project.target.join("dist");
    let release = dist.join(&name);
    if release.exists() {
        fs::remove_dir_all(&release)?;
    }
    fs::create_dir_all(&release)?;
    fs::copy(&guest.stripped, release.join("driverdom"))?;
    // For whoever has to read a backtrace of the driverdom beside it.
    fs::copy(&guest.unstripped, release.join("driverdom.debug"))?;
    for file in FILES {
        let from = project.root.join(file);
        let base = from.file_name().unwrap_or_default();
        fs::copy(&from, release.join(base)).map_err(|error| anyhow::anyhow!("{file}: {error}"))?;
    }
    let archive = dist.join(format!("{name}.tar.gz"));
    // The same checkout gives the same archive.
    let same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=2000-01-01 00:00Z"];
    run_command(Command::new("tar").args(same).arg("-C").arg(&dist).arg("-czf").arg(&archive).arg(&name))?;
    println!("dist: {} and {}", release.display(), archive.display());
    Ok(Answer::Held)
}
