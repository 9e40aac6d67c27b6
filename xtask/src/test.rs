//! `cargo xtask test`: everything that proves the project, on the host and in the nested system.

use std::path::PathBuf;

use anyhow::{Context, bail};
use nested_tests::progress::Progress;
use nested_tests::runner::{self, Run};
use nested_tests::scenarios::{self, Scenario};
use nested_tests::verdict::{Judgement, Verdict};
use serde_json::json;

use crate::options::{Answer, BootOptions};
use crate::project::Project;
use crate::{build, elf_check, host_tests, image, setup, tidy};

/// Runs everything that proves the project; the last line is 'N passed, N failed'
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: BootOptions,
    /// Only what runs on the host: unit tests, model checks, the ELF files, the sources
    #[arg(long, conflicts_with = "nested")]
    host: bool,
    /// Only the scenarios in the nested system
    #[arg(long)]
    nested: bool,
    /// Only those whose name contains this, or one of these, separated by commas
    #[arg(long, value_name = "PARTS")]
    filter: Option<String>,
    /// Nested machines side by side; without it two where memory and CPUs are enough, else one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    machines: Option<u8>,
    /// Print what would run, and end
    #[arg(long)]
    list: bool,
    /// Write the result to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A check on the host; an error of it is what did not hold.
struct HostCheck {
    name: &'static str,
    about: &'static str,
    run: fn(&Project) -> anyhow::Result<()>,
}

const HOST_CHECKS: &[HostCheck] = &[
    HostCheck {
        name: "host-tests",
        about: "unit tests, tables, models and simulations of all crates",
        run: host_tests::workspace,
    },
    HostCheck {
        name: "loom",
        about: "the shipped ring never sleeps over a request, in every order of memory accesses",
        run: host_tests::loom,
    },
    HostCheck {
        name: "loom-mutant-no-fence",
        about: "without its barrier the ring does, and loom sees it",
        run: |project| host_tests::loom_mutant(project, "no_fence"),
    },
    HostCheck {
        name: "loom-mutant-no-final-check",
        about: "without its second look the ring does, and loom sees it",
        run: |project| host_tests::loom_mutant(project, "no_final_check"),
    },
    HostCheck { name: "elf-check", about: "the guests' ELF files: red zone, symbols, segments, size", run: elf },
    HostCheck { name: "tidy", about: "the sources: format, lints, docs, sizes, unsafe, dependencies", run: tidiness },
];

/// Runs the subcommand.
pub(crate) fn run(project: &Project, arguments: &Arguments) -> anyhow::Result<Answer> {
    let part = arguments.filter.as_deref();
    let wanted = |check: &&HostCheck| scenarios::wanted(check.name, part);
    let checks: Vec<_> = if arguments.nested { vec![] } else { HOST_CHECKS.iter().filter(wanted).collect() };
    let planned = if arguments.host { vec![] } else { scenarios::matching(part) };
    if checks.is_empty() && planned.is_empty() {
        bail!("nothing is called like {}", part.unwrap_or("that"));
    }
    println!("planned: {} checks on the host, {} scenarios in the nested system", checks.len(), planned.len());
    for check in &checks {
        println!("  {} (host): {}", check.name, check.about);
    }
    for scenario in &planned {
        println!("  {} ({}): {}", scenario.name, scenario.boot.name(), scenario.about);
    }
    if arguments.list {
        return Ok(Answer::Held);
    }
    setup::ensure_installed()?;
    let progress = Progress::default();
    let mut sum = run_host(project, &checks, progress);
    if !planned.is_empty() {
        let nested = run_nested(project, arguments, &planned, progress);
        sum = add(sum, nested.unwrap_or_else(|error| nothing_ran(planned.len(), &error)));
    }
    report(&sum, arguments.json.as_deref())
}

fn run_host(project: &Project, checks: &[&HostCheck], progress: Progress) -> Judgement {
    let mut sum = Judgement { verdict: Verdict::Pass, passed: 0, failed: 0, reasons: vec![] };
    for check in checks {
        match progress.stage(check.name, || (check.run)(project)) {
            Ok(_) => sum.passed += 1,
            Err(error) => {
                sum.failed += 1;
                sum.verdict = Verdict::Fail;
                sum.reasons.push(format!("{}: {error:#}", check.name));
            }
        }
    }
    sum
}

fn run_nested(
    project: &Project,
    arguments: &Arguments,
    planned: &[Scenario],
    progress: Progress,
) -> anyhow::Result<Judgement> {
    let (mut artifacts, _) = progress.stage("images", || image::ensure_made(project))?;
    let (guests, _) = progress.stage("guests", || build::build_all(project))?;
    artifacts.guests.extend(guests.into_iter().map(|guest| guest.stripped));
    let directory = project.target.join("nested/test");
    let machines = arguments.machines.map_or_else(machines_that_fit, usize::from);
    let accel = arguments.boot.accel.resolve();
    Ok(runner::run(planned, &Run { artifacts: &artifacts, directory: &directory, accel, machines, progress }))
}

/// Most machines have one CPU, and each takes up to 6 GiB.
fn machines_that_fit() -> usize {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_mib(&text)).unwrap_or(0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if available >= 12 << 10 && cpus >= 2 { 2 } else { 1 }
}

/// `MemAvailable` of `/proc/meminfo`, in MiB.
fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? >> 10)
}

/// Planned scenarios which could not even be begun.
fn nothing_ran(planned: usize, error: &anyhow::Error) -> Judgement {
    Judgement {
        verdict: Verdict::Infrastructure,
        passed: 0,
        failed: planned,
        reasons: vec![format!("the nested system: {error:#}")],
    }
}

fn add(one: Judgement, other: Judgement) -> Judgement {
    let verdict = match (one.verdict, other.verdict) {
        (Verdict::Fail, _) | (_, Verdict::Fail) => Verdict::Fail,
        (Verdict::Infrastructure, _) | (_, Verdict::Infrastructure) => Verdict::Infrastructure,
        (Verdict::Pass, Verdict::Pass) => Verdict::Pass,
    };
    Judgement {
        verdict,
        passed: one.passed + other.passed,
        failed: one.failed + other.failed,
        reasons: [one.reasons, other.reasons].concat(),
    }
}

fn report(sum: &Judgement, file: Option<&std::path::Path>) -> anyhow::Result<Answer> {
    for reason in &sum.reasons {
        println!("against a pass: {reason}");
    }
    if let Some(file) = file {
        let ok = sum.verdict == Verdict::Pass;
        let text = json!({"ok": ok, "passed": sum.passed, "failed": sum.failed, "reasons": sum.reasons}).to_string();
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    match sum.verdict {
        Verdict::Pass => Ok(Answer::Held),
        Verdict::Fail => Ok(Answer::DidNotHold),
        Verdict::Infrastructure => bail!("no verdict: the nested system itself failed, see above"),
    }
}

fn elf(project: &Project) -> anyhow::Result<()> {
    held(elf_check::run(project, &elf_check::Arguments {})?)
}

fn tidiness(project: &Project) -> anyhow::Result<()> {
    held(tidy::run(project, &tidy::Arguments {})?)
}

fn held(answer: Answer) -> anyhow::Result<()> {
    match answer {
        Answer::Held => Ok(()),
        Answer::DidNotHold => bail!("see above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found() {
        let text = "MemTotal:       24689732 kB\nMemAvailable:   20480000 kB\nBuffers: 1 kB\n";
        assert_eq!(available_mib(text), Some(20_000));
        assert_eq!(available_mib("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_sum_is_as_bad_as_its_worse_half() {
        let one = |verdict| Judgement { verdict, passed: 1, failed: 2, reasons: vec!["r".into()] };
        use Verdict::{Fail, Infrastructure, Pass};
        for (a, b, expect) in [
            (Pass, Pass, Pass),
            (Pass, Infrastructure, Infrastructure),
            (Infrastructure, Fail, Fail),
            (Fail, Pass, Fail),
        ] {
            let sum = add(one(a), one(b));
            assert_eq!((sum.verdict, sum.passed, sum.failed, sum.reasons.len()), (expect, 2, 4, 2));
        }
    }
}
