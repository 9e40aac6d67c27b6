//! What driverdom tells of itself while it works: counters in xenstore, reports on its console.

use anyhow::{Context, ensure};

use super::Scenario;
use super::vbd::wait_all_connected;
use crate::dom0::Dom0;
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, console_log};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "console-answers-keys",
    about: "what a guest wrote is in data/driverdom/io; s, d and h on the console print reports, a flood of keys harms nobody",
    boot: Boot::Default,
    run: console_answers_keys,
}];

/// Writes of 64 KiB that the guest flushes.
const WRITES: u64 = 16;

fn console_answers_keys(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let guest = world.linux(&LinuxConfig::new("s-keys").disk("xvda", "rw", "gpt:demo"))?;
    wait_all_connected(&world.dom0, &driverdom, &guest.name, 1)?;
    let write = format!("dd if=/dev/zero of=/dev/xvda bs=64k count={WRITES} conv=fsync");
    guest.check(&write, 60)?;
    wait_written(&world.dom0, &driverdom, WRITES << 16)?;

    let tty = world.dom0.check(&format!("xenstore-read /local/domain/{}/console/tty", driverdom.domid), 30)?;
    let log = console_log(crate::driverdom::NAME);
    for (key, line) in [("h", "keys: s "), ("s", "channels  "), ("d", "/51712 .* gpt:demo ")] {
        // Keys that come too soon after a report are not answered.
        world.dom0.check(&format!("sleep 0.5; printf {key} > {tty}"), 30)?;
        world.dom0.wait_until(&format!("grep '{line}' {log}"), 30).context("the console's answer")?;
    }
    // As fast as the console takes them, for three seconds.
    world.dom0.check(&format!("timeout 3 sh -c 'yes s > {tty}'; true"), 30)?;
    guest.check(&write, 60)?;
    wait_written(&world.dom0, &driverdom, 2 * (WRITES << 16))?;
    Ok(())
}

/// Waits until as many bytes as these are counted as written.
fn wait_written(dom0: &Dom0, driverdom: &Driverdom, bytes: u64) -> anyhow::Result<()> {
    let node = format!("/local/domain/{}/data/driverdom/io", driverdom.domid);
    let written =
        format!("n=$(xenstore-read {node} | tr ' ' '\\n' | sed -n s/bytes_written=//p); echo $n; [ $n -ge {bytes} ]");
    dom0.wait_until(&written, 30)?;
    let io = dom0.check(&format!("xenstore-read {node}"), 30)?;
    ensure!(io.split(' ').any(|pair| pair == "errors=0"), "data/driverdom/io: {io}");
    Ok(())
}
