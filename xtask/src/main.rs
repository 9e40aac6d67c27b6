//! `cargo xtask`: builds driverdom, boots it under Xen nested in QEMU, and judges. One file a subcommand.
//!
//! Exit codes: 0 it held, 1 it did not hold, 2 it could not be run (and the last line says what is missing).

mod bench;
mod build;
mod demo;
mod dist;
mod elf_check;
mod host_command;
mod host_tests;
mod image;
mod options;
mod plot;
mod project;
mod setup;
mod shell;
mod test;
mod tidy;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use options::Answer;
use project::Project;

/// Builds driverdom, boots it under Xen nested in QEMU, and judges.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Exit codes: 0 held, 1 did not hold, 2 could not run."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Setup(setup::Arguments),
    Image(image::Arguments),
    Build(build::Arguments),
    Demo(demo::Arguments),
    Bench(bench::Arguments),
    Plot(plot::Arguments),
    Test(test::Arguments),
    Shell(shell::Arguments),
    Top(top::Arguments),
    ElfCheck(elf_check::Arguments),
    Tidy(tidy::Arguments),
    Dist(dist::Arguments),
}

fn main() -> ExitCode {
    let project = Project::locate();
    let answer = match Arguments::parse().command {
        Command::Setup(arguments) => setup::run(&arguments),
        Command::Image(arguments) => image::run(&project, &arguments),
        Command::Build(arguments) => build::run(&project, &arguments),
        Command::Demo(arguments) => demo::run(&project, &arguments),
        Command::Bench(arguments) => bench::run(&project, &arguments),
        Command::Plot(arguments) => plot::run(&project, &arguments),
        Command::Test(arguments) => test::run(&project, &arguments),
        Command::Shell(arguments) => shell::run(&project, &arguments),
        Command::Top(arguments) => top::run(&project, &arguments),
        Command::ElfCheck(arguments) => elf_check::run(&project, &arguments),
        Command::Tidy(arguments) => tidy::run(&project, &arguments),
        Command::Dist(arguments) => dist::run(&project, &arguments),
    };
    match answer {
        Ok(Answer::Held) => ExitCode::SUCCESS,
        Ok(Answer::DidNotHold) => ExitCode::from(1),
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
