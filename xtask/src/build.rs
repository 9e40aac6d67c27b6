//! `cargo xtask build`: the guests' ELF files, with flags that are theirs alone.
//!
//! Host and guest have one triple, so the flags are given on the command line, with a target directory of their own: in a
//! `.cargo/config.toml` they would break every host build. What each flag is for stands beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::host_command::run as run_command;
use crate::options::Answer;
use crate::project::Project;
use crate::setup;

/// Builds the guests: driverdom and the test frontend
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Where the guests are linked to run; the domain's smallest memory follows from it.
const VIRT_BASE: &str = "0x400000";

/// Code generation for a Xen PV guest.
const CODEGEN: [&str; 7] = [
    "relocation-model=static",
    "code-model=small",
    // Xen pushes event frames right below the stack pointer.
    "no-redzone=yes",
    // Backtraces walk frame pointers: there are no unwind tables.
    "force-frame-pointers=yes",
    "force-unwind-tables=no",
    // The toolchain's own linker, called directly: no libc, no start files.
    "linker=rust-lld",
    "linker-flavor=ld.lld",
];

/// A guest, built in two forms.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// Package and program name.
    pub name: &'static str,
    /// With line tables, to make addresses readable.
    pub unstripped: PathBuf,
    /// What is booted and shipped; its file name is `name`.
    pub stripped: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(project: &Project, _: &Arguments) -> anyhow::Result<Answer> {
    setup::ensure_installed()?;
    for guest in build_all(project)? {
        let size = std::fs::metadata(&guest.stripped)?.len();
        println!("build: {} ({size} bytes; with symbols: {})", guest.stripped.display(), guest.unstripped.display());
    }
    Ok(Answer::Held)
}

/// Builds all guests.
pub(crate) fn build_all(project: &Project) -> anyhow::Result<Vec<Guest>> {
    ["driverdom", "testfront"].into_iter().map(|name| build(project, name)).collect()
}

/// Builds one guest.
pub(crate) fn build(project: &Project, name: &'static str) -> anyhow::Result<Guest> {
    let target = project.target.join("guest");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&project.root).args(["build", "--quiet", "--profile", "guest", "--target", TRIPLE]);
    cargo.args(["-p", name, "--bin", name, "--features", "guest"]).arg("--target-dir").arg(&target);
    cargo.arg("--config").arg(format!("target.{TRIPLE}.rustflags={:?}", flags(&project.root)));
    // The host's own flags are not the guest's.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    run_command(&mut cargo)?;
    let unstripped = target.join(TRIPLE).join("guest").join(name);
    let stripped = target.join("stripped").join(name);
    std::fs::create_dir_all(target.join("stripped")).context("the directory of stripped guests")?;
    run_command(Command::new("strip").arg("--strip-all").arg("-o").arg(&stripped).arg(&unstripped))?;
    Ok(Guest { name, unstripped, stripped })
}

/// Builds the benches' program for dom0; it brings its libc along, so that dom0's may be any.
pub(crate) fn dom0_tools(project: &Project) -> anyhow::Result<PathBuf> {
    const NAME: &str = "dom0-tools";
    let target = project.target.join("dom0");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&project.root).args(["build", "--quiet", "--release", "--target", TRIPLE, "-p", NAME]);
    cargo.arg("--target-dir").arg(&target);
    cargo.arg("--config").arg(format!("target.{TRIPLE}.rustflags=['-Ctarget-feature=+crt-static', '-Cstrip=symbols']"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    run_command(&mut cargo)?;
    Ok(target.join(TRIPLE).join("release").join(NAME))
}

/// The compiler's flags. The same checkout elsewhere gives the same ELF.
fn flags(root: &Path) -> Vec<String> {
    let mut flags: Vec<String> = CODEGEN.iter().map(|option| format!("-C{option}")).collect();
    flags.push(format!("-Clink-arg=-T{}", root.join("xen-pv/link.ld").display()));
    flags.push(format!("-Clink-arg=--defsym=VIRT_BASE={VIRT_BASE}"));
    flags.push(format!("--remap-path-prefix={}=.", root.display()));
    flags
}
