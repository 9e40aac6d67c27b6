//! Frontends that end with requests in flight: everything is given back, and the volume is free at once.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;

use super::Scenario;
use super::footprint::Footprint;
use super::vbd::xl_quietly;
use crate::dom0::Dom0;
use crate::driverdom::{Config, Driverdom};
use crate::guest::console_log;
use crate::qmp::Qmp;
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frontend-vanishes",
        about: "a guest that crashes or powers off with writes in flight on a slow disk leaves nothing; its volumes are free at once",
        boot: Boot::TwoCpus,
        run: vanishes,
    },
    Scenario {
        name: "frontend-destroyed-in-mid-io",
        about: "the same for a guest that is destroyed under load and created again at once, three times",
        boot: Boot::TwoCpus,
        run: destroyed_in_mid_io,
    },
];

/// How slow the disk is made, in bytes a second, for writes to be in flight when the guest goes.
const SLOW: u64 = 1 << 20;
/// Writes in flight on each vbd, of 44 KiB.
const DEPTH: u32 = 32;

/// Limits the data disk in QEMU; 0 lifts the limit.
fn throttle(qmp: &mut Qmp, bytes_per_second: u64) -> anyhow::Result<()> {
    let device = format!("/machine/peripheral/data{DISK}/virtio-backend");
    let limits =
        json!({"id": device, "bps": bytes_per_second, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0});
    qmp.execute("block_set_io_throttle", &limits)?;
    Ok(())
}

fn config(name: &str) -> TestFrontConfig {
    TestFrontConfig::new(name).disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "ram:1M")
}

fn connected<'a>(dom0: &'a Dom0, name: &str) -> anyhow::Result<TestFront<'a>> {
    let guest = TestFront::create(dom0, &config(name))?;
    guest.step("connect vbd=all order=2")?;
    Ok(guest)
}

/// A guest that comes at once gets the same volume, and can use it.
fn check_free(dom0: &Dom0, name: &str) -> anyhow::Result<()> {
    let guest = connected(dom0, name)?;
    guest.steps(&["write vbd=all count=600 pattern=6", "verify vbd=all count=600 pattern=6", "close vbd=all"])?;
    xl_quietly(dom0, &format!("destroy {name}"), 60)
}

/// No domain is left that cannot die because somebody holds its pages.
fn check_no_zombie(dom0: &Dom0) -> anyhow::Result<()> {
    dom0.wait_until("xl list; ! xl list | grep -q '(null)'", 60)?;
    Ok(())
}

fn vanishes(world: &mut World) -> anyhow::Result<()> {
    let result = vanish_on_a_slow_disk(world);
    throttle(&mut world.qmp, 0)?;
    result
}

fn vanish_on_a_slow_disk(world: &mut World) -> anyhow::Result<()> {
    let World { dom0, qmp, .. } = world;
    let driverdom = Driverdom::start(dom0, &Config { memory_mib: 16, ..Config::default() })?;
    // The first round makes what stays: directories, and what collections once needed.
    vanish(dom0, qmp, "crash")?;
    let before = Footprint::take(dom0, &driverdom)?;
    for how in ["poweroff", "crash"] {
        vanish(dom0, qmp, how).with_context(|| how)?;
        before.check_again(dom0, &driverdom)?;
    }
    Ok(())
}

/// A guest ends this way with writes in flight, and another one takes its place.
fn vanish(dom0: &Dom0, qmp: &mut Qmp, how: &str) -> anyhow::Result<()> {
    let guest = connected(dom0, "f-gone")?;
    throttle(qmp, SLOW)?;
    guest.last_step(&format!("vanish how={how} depth={DEPTH}"))?;
    let log = console_log("f-gone");
    let said = dom0.check(&format!("grep -ao 'vanishing with [0-9]* requests in flight' {log} && rm {log}"), 30)?;
    let in_flight = said.split(' ').nth(2).and_then(|number| number.parse::<u32>().ok());
    // Those to memory may be answered already; those to the slow disk are not.
    ensure!(in_flight.is_some_and(|number| number >= DEPTH), "{said}, which is too few to show anything");
    throttle(qmp, 0)?;
    check_free(dom0, "f-next")?;
    check_no_zombie(dom0)
}

fn destroyed_in_mid_io(world: &mut World) -> anyhow::Result<()> {
    let World { dom0, qmp, .. } = world;
    let driverdom = Driverdom::start(dom0, &Config { memory_mib: 16, ..Config::default() })?;
    destroy_in_mid_io(dom0, qmp)?;
    let before = Footprint::take(dom0, &driverdom)?;
    for _ in 0..3 {
        destroy_in_mid_io(dom0, qmp)?;
    }
    check_no_zombie(dom0)?;
    before.check_again(dom0, &driverdom)
}

/// A guest is destroyed while it writes, and another one takes its place at once.
fn destroy_in_mid_io(dom0: &Dom0, qmp: &mut Qmp) -> anyhow::Result<()> {
    let guest = connected(dom0, "f-killed")?;
    let count = qmp.disk_counts(DISK)?.writes;
    // Its answer never comes: the guest is gone before.
    let _load = guest.begin(&[format!("load vbd=all seconds=600 depth={DEPTH} size=88")], 60)?;
    wait_for_writes(qmp, count + 50)?;
    xl_quietly(dom0, "destroy f-killed", 60)?;
    check_free(dom0, "f-next")
}

/// Waits until the data disk has completed `count` writes since QEMU's start.
fn wait_for_writes(qmp: &mut Qmp, count: u64) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while qmp.disk_counts(DISK)?.writes < count {
        ensure!(Instant::now() < deadline, "the guest does not write");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
