//! Running the host's programs, with their names in every error.

use std::process::Command;

use anyhow::{Context, ensure};

/// Directories of programs which are not on everybody's path.
pub(crate) const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Runs `command`, its output passed through.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", described(command)))?;
    ensure!(status.success(), "{} ended with {status}", described(command));
    Ok(())
}

/// Runs `command` and returns what it printed.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", described(command)))?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} ended with {}: {}", described(command), output.status, err.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The directories to look for programs in.
pub(crate) fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    SBIN.iter().fold(path, |path, directory| format!("{path}:{directory}"))
}

/// Whether a program of this name can be started.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::split_paths(&search_path()).any(|directory| directory.join(program).is_file())
}

/// Empty for root, else `sudo`: what stands before a command that needs root.
pub(crate) fn sudo() -> &'static str {
    let root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if root { "" } else { "sudo" }
}

fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.take(6).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
