//! The ground that all others stand on: the toolstack, device passthrough, and a Linux guest that answers.

use anyhow::ensure;

use super::Scenario;
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "toolstack-passes-devices-through",
        about: "xl offers direct I/O to PV guests, and lists the data disks as assignable",
        boot: Boot::Default,
        run: passes_devices_through,
    },
    Scenario {
        name: "toolstack-linux-guest-answers",
        about: "a Linux guest comes up, runs commands side by side, and reports their exit codes",
        boot: Boot::Default,
        run: linux_guest_answers,
    },
];

fn passes_devices_through(world: &mut World) -> anyhow::Result<()> {
    let capabilities = world.dom0.check("xl info virt_caps", 30)?;
    ensure!(capabilities.split_whitespace().any(|word| word == "pv_directio"), "xl info: {capabilities}");
    let assignable = world.dom0.check("xl pci-assignable-list", 30)?;
    for disk in &world.disks {
        ensure!(assignable.contains(&disk.address()), "{} is not in {assignable}", disk.address());
    }
    Ok(())
}

fn linux_guest_answers(world: &mut World) -> anyhow::Result<()> {
    let guest = LinuxGuest::create(&world.dom0, &LinuxConfig::new("g"))?;
    let slow = guest.begin("sleep 3; echo slow", 60)?;
    let quick = guest.run("echo quick; exit 7", 60)?;
    ensure!((quick.rc, quick.out.trim()) == (7, "quick"), "{quick:?}");
    ensure!(slow.poll()?.is_none(), "a command waited for another");
    let slow = slow.wait()?;
    ensure!((slow.rc, slow.out.trim()) == (0, "slow"), "{slow:?}");
    let silent = guest.run("sleep 30", 2)?;
    ensure!(silent.rc == 124, "no answer in time is code 124: {silent:?}");
    Ok(())
}
