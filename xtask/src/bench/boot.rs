//! `bench boot`: how soon driverdom is ready, and what it costs while it does nothing, beside a Linux driver domain.

use anyhow::Context;
use nested_tests::artifacts::Artifacts;
use nested_tests::driverdom::Config;
use nested_tests::guest::{LinuxConfig, driverdom_disk};
use nested_tests::infrastructure::Infrastructure;
use nested_tests::peer::Kind;
use nested_tests::peer::linux_domu::{self, LinuxDomU};
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::world::{DISK, World};
use serde_json::{Value, json};

use super::options::Options;
use super::peer::Peer;
use super::{Promise, numbers, stage};
use crate::project::Project;

/// How long a backend is watched while a guest's connected disks rest.
const IDLE_SECONDS: u32 = 300;
/// Starts of driverdom that are timed; the median counts.
const STARTS: usize = 5;
/// The same of the peer, whose starts are long.
const PEER_STARTS: usize = 3;
/// The peer must take at least so many times as long as driverdom.
const FASTER: f64 = 10.0;

/// What one backend takes.
struct Row {
    backend: &'static str,
    ready: f64,
    memory_mib: u32,
    image_bytes: u64,
    /// Seconds of CPU in [`IDLE_SECONDS`].
    idle: f64,
    destroy: f64,
}

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    options: &Options,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let artifacts = stage::artifacts(project)?;
    let elf = artifacts.guests.iter().find(|guest| guest.ends_with("driverdom")).context("driverdom is built")?;
    let image_bytes = std::fs::metadata(elf)?.len();
    let world = stage::start(project, &artifacts, accel, progress)?;

    let driverdom = driverdom(&world, image_bytes, progress)?;
    driverdom.print();
    let peer = match linux_domu(&world, &artifacts, progress) {
        Ok(row) => Some(row),
        Err(error) if options.vs.contains(&Peer::LinuxDomu) || error.is::<Infrastructure>() => return Err(error),
        Err(error) => {
            println!("no row of {}: {error:#}", linux_domu::NAME);
            None
        }
    };
    world.power_off()?;

    let mut promises = vec![
        Promise { text: format!("ready in less than 2 s: {:.2}", driverdom.ready), kept: driverdom.ready < 2.0 },
        Promise { text: format!("an image of less than 400 KiB: {image_bytes} bytes"), kept: image_bytes < 400 << 10 },
        Promise {
            text: format!("at most 0.1 s of CPU in {IDLE_SECONDS} s idle: {:.2}", driverdom.idle),
            kept: driverdom.idle <= 0.1,
        },
    ];
    if let Some(peer) = &peer {
        peer.print();
        let factor = peer.ready / driverdom.ready;
        let text = format!("ready at least {FASTER} times as soon as {}: {factor:.1} times", peer.backend);
        promises.push(Promise { text, kept: factor >= FASTER });
    }
    let rows: Vec<_> = [Some(driverdom), peer].iter().flatten().map(Row::json).collect();
    Ok((json!({ "bench": "boot", "rows": rows }), promises))
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "backend": self.backend, "ready_s": self.ready, "memory_mib": self.memory_mib, "image_bytes": self.image_bytes,
            "idle_cpu_s_per_min": self.idle * 60.0 / f64::from(IDLE_SECONDS), "destroy_s": self.destroy,
        })
    }

    fn print(&self) {
        let Self { backend, ready, memory_mib, image_bytes, idle, destroy } = self;
        println!(
            "{backend}: ready after {ready:.2} s, destroyed in {destroy:.2} s (medians), {memory_mib} MiB of memory, image of {image_bytes} bytes, {idle:.2} s of CPU in {IDLE_SECONDS} s idle"
        );
    }
}

/// Seconds of one start and of the destruction that followed.
struct Start {
    ready: f64,
    destroy: f64,
}

fn driverdom(world: &World, image_bytes: u64, progress: Progress) -> anyhow::Result<Row> {
    let config = Config::default();
    let start = || {
        let ready = world.driverdom(&config)?.seconds;
        let output = world.dom0.run("xl destroy driverdom", 60)?;
        anyhow::ensure!(output.rc == 0, "xl destroy ended with {}: {}", output.rc, output.err);
        Ok(Start { ready, destroy: output.seconds() })
    };
    let (starts, _) = progress
        .stage("driverdom: start and destroy", || (0..STARTS).map(|_| start()).collect::<anyhow::Result<Vec<_>>>())?;
    let (idle, _) = progress.stage("driverdom: idle with two connected disks", || {
        let driverdom = world.driverdom(&config)?;
        let disks = [driverdom_disk("xvda", "rw", "gpt:demo"), driverdom_disk("xvdb", "r", "gpt:second")];
        idle(world, driverdom.domid, disks)
    })?;
    world.clean_up()?;
    row("driverdom", config.memory_mib, image_bytes, &starts, idle)
}

fn linux_domu(world: &World, artifacts: &Artifacts, progress: Progress) -> anyhow::Result<Row> {
    let start = || {
        let domain = LinuxDomU::start(&world.dom0, DISK)?;
        Ok(Start { ready: domain.seconds, destroy: domain.destroy()? })
    };
    let (starts, _) = progress.stage("linux-domu: start and destroy", || {
        (0..PEER_STARTS).map(|_| start()).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let domain = LinuxDomU::start(&world.dom0, DISK)?;
    let serving = domain.prepare(Kind::Dm, 8, 64)?;
    println!("{}", serving.configuration()?);
    progress.stage("linux-domu: proof that it serves 1 to 8 disks", || serving.healthy())?;
    let (idle, _) = progress.stage("linux-domu: idle with two connected disks", || {
        idle(world, domain.domid, [serving.disk(0, "xvda", "rw"), serving.disk(1, "xvdb", "r")])
    })?;
    world.clean_up()?;
    row(linux_domu::NAME, linux_domu::MEMORY_MIB, linux_domu::image_bytes(artifacts)?, &starts, idle)
}

fn row(backend: &'static str, memory_mib: u32, image_bytes: u64, starts: &[Start], idle: f64) -> anyhow::Result<Row> {
    let median = |time: fn(&Start) -> f64| numbers::median(starts.iter().map(time).collect()).context("no start");
    let (ready, destroy) = (median(|start| start.ready)?, median(|start| start.destroy)?);
    Ok(Row { backend, ready, memory_mib, image_bytes, idle, destroy })
}

/// Seconds of CPU that the backend `domid` used while a guest's two disks rested.
fn idle(world: &World, domid: u32, disks: [String; 2]) -> anyhow::Result<f64> {
    let guest = world.linux(&LinuxConfig { disks: disks.into(), ..LinuxConfig::new("g") })?;
    for device in ["xvda", "xvdb"] {
        let read = format!("until dd if=/dev/{device} of=/dev/null bs=1M count=16; do sleep 0.1; done");
        guest.check(&read, 60)?;
    }
    // What the reading began may still be ending.
    world.dom0.check("sleep 5", 30)?;
    let before = world.dom0.cpu_seconds(domid)?;
    world.dom0.check(&format!("sleep {IDLE_SECONDS}"), u64::from(IDLE_SECONDS) + 60)?;
    Ok(world.dom0.cpu_seconds(domid)? - before)
}
