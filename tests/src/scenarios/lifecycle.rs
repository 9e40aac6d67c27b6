//! driverdom goes and comes again; guests that were there first.

use anyhow::ensure;

use super::Scenario;
use super::host_bytes::nonce;
use super::vbd::{Vbd, attach, xl_quietly};
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "lifecycle-shut-down-and-started-again",
        about: "with a guest attached driverdom shuts down in order; started again it serves a new guest, and the old one after a detach",
        boot: Boot::Default,
        run: shut_down_and_started_again,
    },
    Scenario {
        name: "lifecycle-guest-first",
        about: "a guest that is created before driverdom runs gets its disk when it does",
        boot: Boot::Default,
        run: guest_first,
    },
];

fn shut_down_and_started_again(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let old = world.linux(&LinuxConfig::new("s-old").disk("xvda", "rw", "gpt:demo"))?;
    let word = nonce()?;
    let write = |number| {
        format!(
            "printf %-512s {word}-{number} | dd of=/dev/xvda bs=512 seek={number} oflag=direct conv=fsync status=none"
        )
    };
    let read = |vdev: &str, number: u32| {
        format!("dd if=/dev/{vdev} bs=512 skip={number} count=1 iflag=direct status=none | tr -d ' '")
    };
    old.check(&write(1), 60)?;
    let before = driverdom.domid;
    let console = driverdom.console()?;
    driverdom.shut_down()?;
    ensure!(!console.contains("panic"), "{console}");

    let driverdom = world.driverdom(&Config::default())?;
    ensure!(driverdom.domid != before, "it is the same domain as before");
    let new = world.linux(&LinuxConfig::new("s-new").disk("xvda", "rw", "gpt:second"))?;
    new.check(&write(2), 60)?;
    ensure!(new.check(&read("xvda", 2), 60)? == format!("{word}-2"), "the new guest reads other bytes than it wrote");

    let detached = dom0.run("xl block-detach s-old xvda", 60)?;
    ensure!(detached.rc == 0, "the old guest's disk is not detached: {detached:?}");
    attach(dom0, &driverdom, &old.name, "xvdb", "rw", "gpt:demo")?;
    ensure!(old.check(&read("xvdb", 1), 60)? == format!("{word}-1"), "the old guest does not find what it wrote");
    Ok(())
}

fn guest_first(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let config = LinuxConfig::new("s-first").disk("xvda", "rw", "gpt:demo");
    let path = LinuxGuest::put_config(dom0, &config)?;
    dom0.put("/guests/driverdom.cfg", Config::default().text().as_bytes())?;
    // xl says that Linux cannot reset the device, which driverdom does itself.
    dom0.check("xl create -q -p /guests/driverdom.cfg", 60)?;
    let creating = dom0.spawn(&format!("xl create -q {path}"), 120)?;
    dom0.wait_until("xenstore-ls -f /local/domain/$(xl domid driverdom)/backend/vbd | grep 'state = \"1\"'", 60)?;
    xl_quietly(dom0, "unpause driverdom", 30)?;
    let created = creating.wait()?;
    ensure!(created.rc == 0 && created.err.is_empty(), "{created:?}");
    let driverdom = Driverdom::running(dom0)?;
    let guest = LinuxGuest::of(dom0, "s-first");
    guest.wait_up(1)?;
    Vbd::of(dom0, &driverdom, "s-first", "xvda")?.wait_connected()?;
    guest.check("dd if=/dev/zero of=/dev/xvda bs=64k count=4 oflag=direct conv=fsync status=none", 60)?;
    Ok(())
}
