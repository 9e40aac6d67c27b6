//! Wrong configurations and full quotas: one clear line, and no hang.

use anyhow::ensure;

use super::Scenario;
use super::vbd::{Vbd, attach, detach};
use crate::dom0::{Dom0, shell_quoted};
use crate::driverdom::Config;
use crate::guest::{LinuxConfig, console_log, driverdom_disk};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "bad-input-configurations",
        about: "too little memory and devices that are not there end with a line that says so; without any disk RAM is served",
        boot: Boot::Default,
        run: configurations,
    },
    Scenario {
        name: "bad-input-full-quota",
        about: "with xenstored's quota used up an attach is refused with a line that says so, and devices that are attached go on",
        boot: Boot::Default,
        run: full_quota,
    },
    Scenario {
        name: "bad-input-no-iommu",
        about: "without an IOMMU xl refuses a config with pci= at once; without pci= driverdom serves RAM",
        boot: Boot::NoIommu,
        run: no_iommu,
    },
];

fn configurations(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    for memory_mib in [1, 2, 3] {
        let said = start_badly(dom0, &Config { memory_mib, ..Config::default() })?;
        ensure!(said.contains("memory"), "memory={memory_mib}: nothing about memory in {said}");
    }
    let said = start_badly(dom0, &Config { pci: vec!["00:0a.0".into()], ..Config::default() })?;
    ensure!(said.contains("PCI device 0:0:a.0 is not assignable"), "nothing about the device in {said}");
    serves_ram(world)
}

/// Without a device RAM volumes work, and a disk that is not there is refused.
fn serves_ram(world: &World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config { pci: vec![], memory_mib: 16, ..Config::default() })?;
    let guest = world.linux(&LinuxConfig::new("s-ram").disk("xvda", "rw", "ram:2M"))?;
    Vbd::of(dom0, &driverdom, &guest.name, "xvda")?.wait_connected()?;
    guest.check("head -c 1048576 /dev/urandom > /tmp/r && dd if=/tmp/r of=/dev/xvda bs=64k oflag=direct status=none && head -c 1048576 /dev/xvda | cmp - /tmp/r", 60)?;
    let none =
        dom0.run(&format!("xl block-attach s-ram {}", shell_quoted(&driverdom_disk("xvdb", "rw", "disk0"))), 60)?;
    ensure!(none.rc != 0, "a disk that is not there was given");
    Ok(())
}

fn no_iommu(world: &mut World) -> anyhow::Result<()> {
    let said = start_badly(&world.dom0, &Config::default())?;
    ensure!(said.contains("passthrough not supported on this platform"), "nothing about the IOMMU in {said}");
    serves_ram(world)
}

/// Starts driverdom with a config that cannot work, and returns what xl and driverdom said about it. The domain must be gone
/// soon, or never have been.
fn start_badly(dom0: &Dom0, config: &Config) -> anyhow::Result<String> {
    dom0.put("/guests/bad.cfg", config.text().replace("preserve", "destroy").as_bytes())?;
    let created = dom0.run("xl create -q /guests/bad.cfg", 60)?;
    dom0.wait_until("! xl domid driverdom", 60)?;
    let console = dom0.run(&format!("cat {0}; rm -f {0}", console_log("driverdom")), 30)?;
    Ok(created.err + &console.out)
}

fn full_quota(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let guest = world.linux(&LinuxConfig::new("s-quota").disk("xvda", "rw", "gpt:demo"))?;
    let usage = dom0.check(&format!("xenstore-control quota {} | awk '/nodes/{{print $3}}'", driverdom.domid), 30)?;
    let result = refused_over_quota(world, &guest.name, usage.parse()?);
    // The next scenarios need the quota of the boot, whatever came out.
    dom0.check("xenstore-control quota set nodes 100000", 30)?;
    result?;
    guest.check("dd if=/dev/zero of=/dev/xvda bs=64k count=4 oflag=direct conv=fsync status=none", 60)?;
    dom0.check(&format!("xl block-detach {} xvdb", guest.name), 60)?;
    attach(dom0, &driverdom, &guest.name, "xvdb", "rw", "gpt:second")?;
    detach(dom0, &driverdom, &guest.name, "xvdb")
}

fn refused_over_quota(world: &World, guest: &str, nodes: u32) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    dom0.check(&format!("xenstore-control quota set nodes {nodes}"), 30)?;
    let output = dom0.run(
        &format!("xl -vvv block-attach {guest} {}", shell_quoted(&driverdom_disk("xvdb", "rw", "gpt:second"))),
        60,
    )?;
    ensure!(output.rc != 0 && !output.err.contains("timed out"), "no refusal at once: {output:?}");
    dom0.wait_until(&format!("grep -a quota {}", console_log("driverdom")), 30)?;
    Ok(())
}
