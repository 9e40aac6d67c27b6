//! driverdom by itself: small, ready, idle.

use anyhow::{Context, ensure};

use super::Scenario;
use super::vbd::wait_all_connected;
use crate::driverdom::{Config, NAME};
use crate::guest::LinuxConfig;
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "ready-in-8-mib",
        about: "an ELF under 400 KiB, in a domain of 8 MiB, finds its disk and says that it is ready",
        boot: Boot::Default,
        run: ready_in_8_mib,
    },
    Scenario {
        name: "idle-costs-nothing",
        about: "with connected disks and nothing to do, Xen counts no more than 0.1 s of CPU in 300 s",
        boot: Boot::Default,
        run: idle_costs_nothing,
    },
];

/// The stripped ELF's size limit.
const ELF_BYTES: u64 = 400 << 10;

fn ready_in_8_mib(world: &mut World) -> anyhow::Result<()> {
    let size: u64 = world.dom0.check("stat -c %s /guests/driverdom", 30)?.parse()?;
    ensure!(size < ELF_BYTES, "the ELF has {size} bytes");
    let driverdom = world.driverdom(&Config::default())?;
    let ready = world.dom0.xenstore(&format!("/local/domain/{}/data/driverdom/ready", driverdom.domid))?;
    ensure!(ready.as_deref() == Some("1"), "data/driverdom/ready is {ready:?}");
    let line = world.dom0.check(&format!("xl list {NAME} | tail -1"), 30)?;
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, _, memory, vcpus, state, _] = words[..] else { anyhow::bail!("xl list: {line}") };
    ensure!((memory, vcpus) == ("8", "1") && !state.contains(['c', 's', 'p', 'd']), "xl list: {line}");
    Ok(())
}

/// How long is looked at, and how much CPU time driverdom may take in it.
const IDLE_SECONDS: u64 = 30;
const IDLE_NANOSECONDS: u64 = IDLE_SECONDS * 100_000_000 / 300;

fn idle_costs_nothing(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let guest =
        world.linux(&LinuxConfig::new("s-idle").disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "gpt:second"))?;
    wait_all_connected(&world.dom0, &driverdom, &guest.name, 2)?;
    guest.check("for d in xvda xvdb; do dd if=/dev/zero of=/dev/$d bs=64k count=4 conv=fsync || exit 1; done", 60)?;
    // xl rounds to 0.1 s; libxc's binding for Python gives what Xen counts.
    let read = format!(
        "PYTHONPATH=/usr/lib/xen-4.17/lib/python python3 -c 'from xen.lowlevel.xc import xc; print(xc().domain_getinfo({0}, 1)[0][\"cpu_time\"])'",
        driverdom.domid
    );
    // What the last requests still cause, the counters' node among them, is not idleness.
    let spent = world
        .dom0
        .check(&format!("sleep 5; a=$({read}); sleep {IDLE_SECONDS}; b=$({read}); echo $a $b"), IDLE_SECONDS + 60)?;
    let (before, after) = spent.split_once(' ').context("two times")?;
    let (before, after): (u64, u64) = (before.parse()?, after.parse()?);
    ensure!(before > 0, "Xen counted nothing at all");
    ensure!(after - before <= IDLE_NANOSECONDS, "{} ns of CPU in {IDLE_SECONDS} idle seconds", after - before);
    Ok(())
}
