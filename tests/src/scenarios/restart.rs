//! driverdom ends without warning, and is created again under its name while guests have its disks.

use anyhow::ensure;

use super::Scenario;
use super::host_bytes::nonce;
use super::vbd::{attach, xl_quietly};
use crate::dom0::Dom0;
use crate::driverdom::{Config, Driverdom, NAME, crash};
use crate::guest::{LinuxConfig, LinuxGuest, console_log};
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "restart-destroyed",
        about: "destroyed and created again: a new guest works at once, an idle disk is detached and attached, a guest reboots",
        boot: Boot::Default,
        run: destroyed,
    },
    Scenario {
        name: "restart-saved-guest",
        about: "a guest that was saved while one driverdom ran is restored while another does, and finds its data",
        boot: Boot::Default,
        run: saved_guest,
    },
    Scenario {
        name: "restart-crashed",
        about: "crashed in mid-I/O driverdom has reset its disk and said why; destroyed and created again it serves a new guest",
        boot: Boot::Default,
        run: crashed,
    },
];

/// A sector that says something, and how a guest writes and reads it.
struct Sector {
    word: String,
}

impl Sector {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { word: nonce()? })
    }

    fn write(&self, guest: &LinuxGuest, vdev: &str) -> anyhow::Result<()> {
        let command =
            format!("printf %-512s {} | dd of=/dev/{vdev} bs=512 oflag=direct conv=fsync status=none", self.word);
        guest.check(&command, 60)?;
        Ok(())
    }

    fn expect(&self, guest: &LinuxGuest, vdev: &str) -> anyhow::Result<()> {
        let read = format!("dd if=/dev/{vdev} bs=512 count=1 iflag=direct status=none | tr -d ' '");
        let found = guest.check(&read, 60)?;
        ensure!(found == self.word, "{}'s {vdev} has '{found}' where it wrote '{}'", guest.name, self.word);
        Ok(())
    }
}

/// A new test frontend writes and reads at once.
fn serves_a_new_guest(dom0: &Dom0, target: &str) -> anyhow::Result<()> {
    let guest = TestFront::create(dom0, &TestFrontConfig::new("f-new").disk("xvda", "rw", target))?;
    guest.steps(&["connect vbd=all", "write vbd=all count=300 pattern=4", "verify vbd=all count=300 pattern=4"])?;
    xl_quietly(dom0, "destroy f-new", 60)
}

/// xl says that Linux cannot reset the device, which driverdom does itself.
fn destroy_driverdom(dom0: &Dom0) -> anyhow::Result<()> {
    dom0.check(&format!("xl destroy {NAME}"), 60)?;
    Ok(())
}

fn destroyed(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let sector = Sector::new()?;
    world.driverdom(&Config::default())?;
    let config = LinuxConfig::new("s-old").disk("xvda", "rw", "gpt:demo");
    let guest = world.linux(&config)?;
    sector.write(&guest, "xvda")?;
    destroy_driverdom(dom0)?;

    let driverdom = world.driverdom(&Config::default())?;
    serves_a_new_guest(dom0, "gpt:second")?;
    let detached = dom0.run(&format!("xl block-detach {} xvda", guest.name), 60)?;
    ensure!(detached.rc == 0, "the old guest's disk is not detached: {detached:?}");
    attach(dom0, &driverdom, &guest.name, "xvdb", "rw", "gpt:demo")?;
    sector.expect(&guest, "xvdb")?;

    // A guest whose disk has lost its backend reboots into the new one's hands.
    destroy_driverdom(dom0)?;
    world.driverdom(&Config::default())?;
    guest.run("reboot -f", 5)?;
    guest.wait_up(2)?;
    sector.expect(&guest, if is_there(&guest, "xvda")? { "xvda" } else { "xvdb" })
}

fn is_there(guest: &LinuxGuest, vdev: &str) -> anyhow::Result<bool> {
    Ok(guest.run(&format!("[ -b /dev/{vdev} ]"), 30)?.rc == 0)
}

fn saved_guest(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let sector = Sector::new()?;
    let driverdom = world.driverdom(&Config::default())?;
    let guest = world.linux(&LinuxConfig::new("s-saved").disk("xvda", "rw", "gpt:demo"))?;
    sector.write(&guest, "xvda")?;
    dom0.check(&format!("xl save {} /guests/saved", guest.name), 240)?;
    driverdom.shut_down()?;
    world.driverdom(&Config::default())?;
    dom0.check("xl restore /guests/saved; rc=$?; rm /guests/saved; exit $rc", 240)?;
    sector.expect(&guest, "xvda")
}

/// Accesses of devices to memory that was no longer theirs, as Xen has logged them.
fn iommu_faults(dom0: &Dom0) -> anyhow::Result<String> {
    dom0.check("xl dmesg | grep -c 'DMAR:.*DMA' || true", 30)
}

fn crashed(world: &mut World) -> anyhow::Result<()> {
    let faults = iommu_faults(&world.dom0)?;
    world.driverdom(&Config::default())?;
    let guest = TestFront::create(&world.dom0, &TestFrontConfig::new("f-old").disk("xvda", "rw", "gpt:demo"))?;
    guest.step("connect vbd=all")?;
    let load = guest.begin(&["load vbd=all seconds=60 depth=16 mix"], 120)?;
    let writes = world.qmp.disk_counts(DISK)?.writes;
    while world.qmp.disk_counts(DISK)?.writes < writes + 50 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    ensure!(world.qmp.device_is_driven(DISK)?, "QEMU does not see the driver that writes");
    crash(&world.dom0)?;
    ensure!(!world.qmp.device_is_driven(DISK)?, "the crashed driverdom left its disk running");
    let console = world.dom0.check(&format!("cat {}", console_log(NAME)), 30)?;
    ensure!(console.contains("control/sysrq"), "driverdom did not say why it crashed: {console}");

    destroy_driverdom(&world.dom0)?;
    ensure!(iommu_faults(&world.dom0)? == faults, "the disk went on after the crash: see 'xl dmesg'");
    Driverdom::start(&world.dom0, &Config::default())?;
    serves_a_new_guest(&world.dom0, "gpt:second")?;
    // Whatever the old guest does, it can be destroyed; what it waits for never comes.
    world.dom0.run("xl destroy f-old", 60)?;
    drop(load);
    serves_a_new_guest(&world.dom0, "gpt:demo")
}
