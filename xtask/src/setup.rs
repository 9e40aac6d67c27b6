//! `cargo xtask setup`: the host programs that building and booting need, from Debian.
//!
//! Xen and the guests' kernel are not among them: `image` unpacks their packages into the cache, so that the host's own boot is left alone.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::host_command::{is_installed, output, run as run_command, sudo};
use crate::options::Answer;

/// Installs the host programs that are missing (Debian 12; root, or sudo)
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// What shows that a package is there.
enum Sign {
    Program(&'static str),
    File(&'static str),
}

/// Each package with its sign, and what it is for.
const NEEDED: [(&str, Sign, &str); 12] = [
    ("qemu-system-x86", Sign::Program("qemu-system-x86_64"), "runs Xen"),
    ("util-linux", Sign::Program("setpriv"), "ends QEMU with its starter"),
    ("debootstrap", Sign::Program("debootstrap"), "makes dom0's root"),
    ("e2fsprogs", Sign::Program("debugfs"), "makes and checks file systems"),
    ("fdisk", Sign::Program("sfdisk"), "partitions disk images"),
    ("busybox-static", Sign::Program("busybox"), "the initramfs' programs"),
    ("cpio", Sign::Program("cpio"), "packs an initramfs"),
    ("kmod", Sign::Program("depmod"), "picks kernel modules"),
    ("xz-utils", Sign::Program("xz"), "unpacks the guests' kernel"),
    ("binutils", Sign::Program("objdump"), "reads the guests' ELF"),
    ("gcc", Sign::Program("cc"), "links, and compiles the ABI check"),
    ("libxen-dev", Sign::File("/usr/include/xen/xen.h"), "the headers of the ABI check"),
];

impl Sign {
    fn is_there(&self) -> bool {
        match self {
            Self::Program(name) => is_installed(name),
            Self::File(path) => Path::new(path).exists(),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(_: &Arguments) -> anyhow::Result<Answer> {
    ensure_installed()?;
    println!("setup: everything is there");
    Ok(Answer::Held)
}

/// Installs what is missing, and says so; does nothing when nothing is.
pub(crate) fn ensure_installed() -> anyhow::Result<()> {
    check_linker()?;
    let missing: Vec<_> = NEEDED.iter().filter(|(_, sign, _)| !sign.is_there()).collect();
    let lists_there = knows_kernel();
    if missing.is_empty() && lists_there {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(package, ..)| *package).collect();
    if !is_installed("apt-get") {
        bail!("missing {}; without apt-get (this is not Debian) they cannot be installed here", names.join(", "));
    }
    println!("setup: installing from Debian (tools only; Xen itself is not installed on this host):");
    for (package, _, purpose) in &missing {
        println!("  {package}: {purpose}");
    }
    let remedy = || format!("run as root, or with sudo: apt-get update && apt-get install {}", names.join(" "));
    apt(&["update", "-qq"]).with_context(remedy)?;
    if !missing.is_empty() {
        apt(&[&["install", "-qq", "-y", "--no-install-recommends"], names.as_slice()].concat()).with_context(remedy)?;
    }
    if let Some((package, ..)) = NEEDED.iter().find(|(_, sign, _)| !sign.is_there()) {
        bail!("{package} is installed, yet what it is needed for is not there");
    }
    if !knows_kernel() {
        bail!(
            "apt knows no linux-image-amd64 and xen-hypervisor-4.17-amd64: add Debian 12 (bookworm) to the sources of apt"
        );
    }
    Ok(())
}

/// Whether apt knows the packages that `image` unpacks.
fn knows_kernel() -> bool {
    let names = ["linux-image-amd64", "xen-hypervisor-4.17-amd64"];
    let policy = output(Command::new("apt-cache").arg("policy").args(names)).unwrap_or_default();
    policy.lines().filter(|line| line.trim_start().starts_with("Candidate: ") && !line.ends_with("(none)")).count()
        == names.len()
}

/// The guests are linked with the toolchain's own lld.
fn check_linker() -> anyhow::Result<()> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let lld = Path::new(sysroot.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld");
    if !lld.exists() {
        bail!("{} is missing: use a rustup toolchain (stable, 1.95 or newer, x86_64-unknown-linux-gnu)", lld.display());
    }
    Ok(())
}

fn apt(words: &[&str]) -> anyhow::Result<()> {
    let mut all = vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    all.extend(words);
    if !sudo().is_empty() {
        all.insert(0, sudo());
    }
    run_command(Command::new(all[0]).args(&all[1..]).stdout(std::process::Stdio::null()))
}
