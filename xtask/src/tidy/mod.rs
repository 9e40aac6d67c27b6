//! `cargo xtask tidy`: what a reader may rely on in the sources.

mod dependencies;
mod sources;

use std::process::Command;

use crate::host_command::{output, run as run_command};
use crate::options::Answer;
use crate::project::Project;

/// Checks the sources: format, lints, module docs, file sizes, where unsafe is, who depends on whom
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, _: &Arguments) -> anyhow::Result<Answer> {
    let faults = check(project)?;
    for fault in &faults {
        println!("tidy: {fault}");
    }
    if faults.is_empty() {
        println!("tidy: good");
    }
    Ok(if faults.is_empty() { Answer::Held } else { Answer::DidNotHold })
}

/// What is not tidy, a line each.
pub(crate) fn check(project: &Project) -> anyhow::Result<Vec<String>> {
    let mut faults = sources::check(project)?;
    let metadata = output(cargo(project).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]))?;
    faults.extend(dependencies::check(&serde_json::from_str(&metadata)?)?);
    let mut format = cargo(project);
    format.args(["fmt", "--all", "--", "--check", "-l"]);
    if let Err(error) = output(&mut format) {
        faults.push(format!("format: {error:#}"));
    }
    for (what, words) in LINTS {
        let mut lint = cargo(project);
        lint.args(["clippy", "--quiet"]).args(*words).args(["--", "-D", "warnings"]);
        if run_command(&mut lint).is_err() {
            faults.push(format!("lints of {what}: see above"));
        }
    }
    Ok(faults)
}

/// What clippy looks at: everything as the host builds it, and the guests' own code.
const LINTS: &[(&str, &[&str])] = &[
    ("the host's build", &["--workspace", "--all-targets"]),
    (
        "the guests' build",
        // Their profile: only with panic=abort is a binary without std well-formed.
        &[
            "--profile=guest",
            "--package=driverdom",
            "--package=testfront",
            "--features=driverdom/guest,testfront/guest",
            "--bins",
        ],
    ),
];

fn cargo(project: &Project) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&project.root);
    cargo
}
