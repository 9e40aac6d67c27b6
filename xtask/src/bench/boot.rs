//! `bench boot`: how soon driverdom is ready, and what it costs while it does nothing.

use anyhow::Context;
use nested_tests::artifacts::RunDir;
use nested_tests::driverdom::Config;
use nested_tests::guest::LinuxConfig;
use nested_tests::progress::Progress;
use nested_tests::qemu::{Accel, Console, Lifetime};
use nested_tests::world::{Boot, World, machine};
use serde_json::{Value, json};

use super::Promise;
use crate::project::Project;
use crate::{build, image, setup};

/// How long driverdom is watched while a guest's connected disks rest.
const IDLE_SECONDS: u32 = 300;
/// Starts that are timed; the median counts.
const STARTS: usize = 5;

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(project: &Project, accel: Accel, progress: Progress) -> anyhow::Result<(Value, Vec<Promise>)> {
    setup::ensure_installed()?;
    let mut artifacts = image::ensure_made(project)?;
    let guests = build::build_all(project)?;
    let elf = guests.iter().find(|guest| guest.name == "driverdom").context("driverdom is built")?;
    let image_bytes = std::fs::metadata(&elf.stripped)?.len();
    artifacts.guests.extend(guests.into_iter().map(|guest| guest.stripped));
    let run = RunDir::create(&project.target.join("nested/bench"))?;
    let machine = machine(Boot::Default, accel, Console::Log, &run);
    let world = World::start(&machine, &artifacts, run, Lifetime::Owned, progress)?;

    let config = Config::default();
    let (starts, _) = progress.stage("driverdom: start and destroy", || starts(&world, &config))?;
    let (idle, _) = progress.stage("idle with two connected disks", || idle(&world, &config))?;
    world.power_off()?;

    let ready = median(starts.iter().map(|start| start.ready).collect());
    let destroy = median(starts.iter().map(|start| start.destroy).collect());
    let row = json!({
        "backend": "driverdom", "ready_s": ready, "memory_mib": config.memory_mib, "image_bytes": image_bytes,
        "idle_cpu_s_per_min": idle * 60.0 / f64::from(IDLE_SECONDS), "destroy_s": destroy,
    });
    println!(
        "driverdom: ready after {ready:.2} s (median of {STARTS}), destroyed in {destroy:.2} s, {} MiB of memory, image of {image_bytes} bytes, {idle:.1} s of CPU in {IDLE_SECONDS} s idle",
        config.memory_mib
    );
    let promises = vec![
        Promise { text: format!("ready in less than 2 s: {ready:.2}"), kept: ready < 2.0 },
        Promise { text: format!("an image of less than 400 KiB: {image_bytes} bytes"), kept: image_bytes < 400 << 10 },
        Promise { text: format!("at most 0.1 s of CPU in {IDLE_SECONDS} s idle: {idle:.1}"), kept: idle <= 0.1 + 1e-9 },
    ];
    Ok((json!({ "bench": "boot", "rows": [row] }), promises))
}

/// Seconds of one start and of the destruction that followed.
struct Start {
    ready: f64,
    destroy: f64,
}

fn starts(world: &World, config: &Config) -> anyhow::Result<Vec<Start>> {
    let start = |_| {
        let ready = world.driverdom(config)?.seconds;
        let output = world.dom0.run("xl destroy driverdom", 60)?;
        anyhow::ensure!(output.rc == 0, "xl destroy ended with {}: {}", output.rc, output.err);
        Ok(Start { ready, destroy: output.seconds })
    };
    (0..STARTS).map(start).collect()
}

/// Seconds of CPU that driverdom used while a guest's disks rested.
fn idle(world: &World, config: &Config) -> anyhow::Result<f64> {
    let driverdom = world.driverdom(config)?;
    let guest = world.linux(&LinuxConfig::new("g").disk("xvda", "rw", "gpt:demo").disk("xvdb", "r", "gpt:second"))?;
    guest.check("dd if=/dev/xvda of=/dev/null bs=1M count=16", 60)?;
    let time = || -> anyhow::Result<f64> {
        let text = world.dom0.check(&format!("xl list {} | awk 'NR==2 {{print $NF}}'", driverdom.domid), 30)?;
        text.trim().parse().context("a domain's CPU time")
    };
    // What the reading began may still be ending.
    world.dom0.check("sleep 5", 30)?;
    let before = time()?;
    world.dom0.check(&format!("sleep {IDLE_SECONDS}"), u64::from(IDLE_SECONDS) + 60)?;
    Ok(time()? - before)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
