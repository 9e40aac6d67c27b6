//! The tests that need only cargo: those of the workspace, and loom's, with the mutants that it must catch.

use std::process::Command;

use anyhow::{bail, ensure};

use crate::host_command::run as run_command;
use crate::project::Project;

/// All tests of all crates.
pub(crate) fn workspace(project: &Project) -> anyhow::Result<()> {
    run_command(cargo(project).args(["test", "--quiet", "--workspace"]))
}

/// The model check of the shipped ring.
pub(crate) fn loom(project: &Project) -> anyhow::Result<()> {
    run_command(loom_command(project).args(LOOM_TEST))
}

/// The same on a ring that `mutant` breaks: it must build, and must fail as a test.
pub(crate) fn loom_mutant(project: &Project, mutant: &str) -> anyhow::Result<()> {
    let command = || {
        let mut cargo = loom_command(project);
        cargo.env("RING_MUTANT", mutant).args(LOOM_TEST);
        cargo
    };
    run_command(command().arg("--no-run"))?;
    let output = command().output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(!output.status.success(), "the broken ring passes: the check shows nothing");
    if !said.contains("test result: FAILED") {
        bail!("the broken ring did not fail as a test: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

const LOOM_TEST: [&str; 7] = ["test", "--quiet", "-p", "xen-proto", "--release", "--test", "loom_ring"];

/// Loom's build has flags of its own, and so a target directory of its own.
fn loom_command(project: &Project) -> Command {
    let mut cargo = cargo(project);
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", project.target.join("loom"));
    cargo
}

fn cargo(project: &Project) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&project.root);
    cargo
}
