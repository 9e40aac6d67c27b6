//! `cargo xtask shell`: dom0 for a person, or for a script.
//!
//! Without `--exec` driverdom serves a guest's disk. With it, each command runs in dom0 and its output is printed. `--keep` leaves the
//! machine running, to be used again with `--attach` or looked at with `top`; else, without `--exec`, the terminal becomes dom0's console.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use nested_tests::artifacts::RunDir;
use nested_tests::dom0::{Dom0, shell_quoted};
use nested_tests::driverdom::Config;
use nested_tests::guest::LinuxConfig;
use nested_tests::progress::Progress;
use nested_tests::qemu::{Console, Lifetime};
use nested_tests::world::{Boot, World, machine};

use crate::host_command::run as run_command;
use crate::options::{Answer, BootOptions};
use crate::project::Project;
use crate::{build, image, setup};

/// Boots the nested system and gives its dom0 to you, or runs commands in it
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: BootOptions,
    /// Run this bash command in dom0 instead of giving it to the terminal; may be repeated
    #[arg(long, value_name = "COMMAND")]
    exec: Vec<String>,
    /// Put a file of the host into dom0 first, as FILE:PATH; may be repeated
    #[arg(long, value_name = "FILE:PATH")]
    put: Vec<String>,
    /// Seconds that a command of --exec may take
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Leave the machine running instead of giving it to the terminal, for --attach and for top
    #[arg(long)]
    keep: bool,
    /// Use the machine that an earlier --keep left in this directory
    #[arg(long, value_name = "DIRECTORY", requires = "exec")]
    attach: Option<PathBuf>,
    /// Boot without building driverdom and the test frontend
    #[arg(long)]
    no_build: bool,
    /// Use oxenstored in place of xenstored
    #[arg(long)]
    oxenstored: bool,
}

/// What a person finds in dom0.
const GREETING: &str = "driverdom serves the disk of guest g: try 'xl list', 'guest g 10 ls\\ /dev', 'tail /var/log/xen/console/*.log'; configs are in /guests";

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    if let Some(directory) = &arguments.attach {
        let run = RunDir::of_running(directory);
        // The agent's sockets take one host at a time.
        let lock = std::fs::File::create(run.lock_file()).context("no machine was kept there")?;
        lock.lock()?;
        return execute(&Dom0::connect(&run)?, arguments);
    }
    setup::ensure_installed()?;
    let mut artifacts = image::ensure_made(project)?;
    if !arguments.no_build {
        artifacts.guests.extend(build::build_all(project)?.into_iter().map(|guest| guest.stripped));
    }
    let directory = RunDir::create(&project.target.join("nested/shell"))?;
    let boot = if arguments.oxenstored { Boot::Oxenstored } else { Boot::TwoCpus };
    let person = arguments.exec.is_empty() && !arguments.keep;
    let console = if person { Console::Terminal } else { Console::Log };
    let mut machine = machine(boot, arguments.boot.accel.resolve(), console, &directory);
    if person {
        machine.dom0_words.push("shell".into());
    }
    let lifetime = if arguments.keep { Lifetime::Keepable } else { Lifetime::Owned };
    let world = World::start(&machine, &artifacts, directory, lifetime, Progress::default())?;
    if person {
        return hand_over(world);
    }
    let served = if arguments.exec.is_empty() { serve(&world) } else { Ok(()) };
    let mut answer = execute(&world.dom0, arguments)?;
    if let Err(error) = served {
        println!("not all is running: {error:#}");
        answer = Answer::DidNotHold;
    }
    if arguments.keep {
        let directory = world.keep();
        println!("kept running: cargo xtask top, or cargo xtask shell --attach {} --exec ...", directory.display());
    } else {
        world.power_off()?;
    }
    Ok(answer)
}

/// Puts the files, runs the commands; the answer is whether all ended with 0.
fn execute(dom0: &Dom0, arguments: &Arguments) -> anyhow::Result<Answer> {
    for pair in &arguments.put {
        let Some((file, path)) = pair.split_once(':') else { bail!("--put wants FILE:PATH, not {pair}") };
        dom0.put(path, &std::fs::read(file).with_context(|| file.to_owned())?)?;
    }
    let mut answer = Answer::Held;
    for command in &arguments.exec {
        let output = dom0.run(command, arguments.limit)?;
        print!("{}", output.out);
        eprint!("{}", output.err);
        println!("# '{command}' ended with {} after {:.1} s", output.rc, output.seconds());
        if output.rc != 0 {
            answer = Answer::DidNotHold;
        }
    }
    Ok(answer)
}

/// Starts driverdom, and a guest with a disk of it.
fn serve(world: &World) -> anyhow::Result<()> {
    let disk = LinuxConfig::new("g").disk("xvda", "rw", "gpt:demo");
    world.driverdom(&Config::default()).and_then(|_| world.linux(&disk)).map(|_| ())
}

fn hand_over(world: World) -> anyhow::Result<Answer> {
    let started = serve(&world);
    let greeting = started.map_or_else(|error| format!("not all is running: {error:#}"), |()| GREETING.to_owned());
    world.dom0.check(&format!("echo {} > /dev/console", shell_quoted(&greeting)), 30)?;
    world.wait_for_person()?;
    // QEMU leaves the terminal as it was, yet a shell in it may not have.
    run_command(Command::new("stty").arg("sane"))?;
    Ok(Answer::Held)
}
