//! Attaching to and detaching from frontends that are quicker, slower or ruder than Linux.

use anyhow::{Context, ensure};

use super::Scenario;
use super::footprint::Footprint;
use super::vbd::{Vbd, detach, device_number, xl_quietly};
use crate::dom0::{Dom0, shell_quoted};
use crate::driverdom::{Config, Driverdom, NAME};
use crate::guest::driverdom_disk;
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frontend-hot-attach-rounds",
        about: "xl sees the backend's 2 though the frontend goes to 3 at once, 8 times; after the detaches nothing has leaked",
        boot: Boot::Default,
        run: hot_attach,
    },
    Scenario {
        name: "frontend-ready-before-the-backend",
        about: "a frontend that is at 3 while the backend still is at 1 is connected all the same",
        boot: Boot::Default,
        run: ready_before_the_backend,
    },
    Scenario {
        name: "frontend-never-closes",
        about: "xl block-detach fails and I/O goes on; the frontend's later close completes, and a second detach finds nothing left",
        boot: Boot::Default,
        run: never_closes,
    },
    Scenario {
        name: "frontend-directory-removed",
        about: "a frontend's directory that vanishes counts as closed; xl then detaches quietly, and the volume is free",
        boot: Boot::Default,
        run: directory_removed,
    },
    Scenario {
        name: "frontend-storm",
        about: "while a guest writes thousands of states, another one is attached, used and detached; then the first may reconnect",
        boot: Boot::Default,
        run: storm,
    },
];

/// `xl block-attach` to a frontend that connects as soon as it sees its directory.
fn attach_early(dom0: &Dom0, guest: &TestFront, vdev: &str, access: &str, target: &str) -> anyhow::Result<()> {
    let connect = guest.begin(&[format!("connect vbd={} early", device_number(vdev))], 120)?;
    xl_attach(dom0, guest, vdev, access, target)?;
    connect.wait(dom0)?;
    Ok(())
}

fn xl_attach(dom0: &Dom0, guest: &TestFront, vdev: &str, access: &str, target: &str) -> anyhow::Result<()> {
    let disk = driverdom_disk(vdev, access, target);
    xl_quietly(dom0, &format!("block-attach {} {}", guest.name, shell_quoted(&disk)), 60)
}

/// A vbd writes and reads.
fn check_works(guest: &TestFront, vdev: &str, seed: u64) -> anyhow::Result<()> {
    let vbd = device_number(vdev);
    guest.steps(&["write", "verify"].map(|verb| format!("{verb} vbd={vbd} count=300 pattern={seed}")))?;
    Ok(())
}

fn hot_attach(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config { memory_mib: 16, ..Config::default() })?;
    let guest = TestFront::create(dom0, &TestFrontConfig::new("f-hot").disk("xvda", "rw", "gpt:demo"))?;
    guest.step("connect vbd=all")?;
    let round = |number: u64| -> anyhow::Result<()> {
        let target = if number.is_multiple_of(2) { "gpt:second" } else { "ram:1M" };
        attach_early(dom0, &guest, "xvdb", "rw", target)?;
        check_works(&guest, "xvdb", number)?;
        detach(dom0, &driverdom, &guest.name, "xvdb")
    };
    // What stays is made in the first rounds: directories, pools.
    round(0)?;
    round(1)?;
    let mut numbers = 2..;
    Footprint::check_rounds(dom0, &driverdom, || {
        numbers.by_ref().take(8).try_for_each(|number| round(number).with_context(|| format!("round {number}")))
    })
}

fn ready_before_the_backend(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let guest = TestFront::create(dom0, &TestFrontConfig::new("f-early").disk("xvda", "rw", "gpt:demo"))?;
    guest.step("connect vbd=all")?;
    for round in 0..3 {
        let connect = guest.begin(&[format!("connect vbd={} early", device_number("xvdb"))], 120)?;
        dom0.check(&format!("xl pause {NAME}"), 30)?;
        let disk = driverdom_disk("xvdb", "rw", "gpt:second");
        let attach = dom0.spawn(&format!("xl block-attach {} {}", guest.name, shell_quoted(&disk)), 60)?;
        let vbd = Vbd::of(dom0, &driverdom, &guest.name, "xvdb")?;
        let ready = dom0.wait_xenstore(&format!("{}/state", vbd.frontend), "3", 9);
        let backend = vbd.backend_node("state");
        dom0.check(&format!("xl unpause {NAME}"), 30)?;
        ready?;
        ensure!(backend? == "1", "the backend was not kept at 1");
        let attached = attach.wait()?;
        ensure!(attached.rc == 0 && attached.err.is_empty(), "{attached:?}");
        connect.wait(dom0)?;
        check_works(&guest, "xvdb", round)?;
        detach(dom0, &driverdom, &guest.name, "xvdb")?;
    }
    Ok(())
}

fn never_closes(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let guest = TestFront::create(dom0, &TestFrontConfig::new("f-never").disk("xvda", "rw", "gpt:demo"))?;
    guest.step("connect vbd=all")?;
    let before = Footprint::take(dom0, &driverdom)?;
    attach_early(dom0, &guest, "xvdb", "rw", "gpt:second")?;
    let vbd = device_number("xvdb");
    guest.step(&format!("never-close vbd={vbd}"))?;
    let load = guest.begin(&[format!("load vbd={vbd} seconds=15 depth=8 mix")], 120)?;
    let detached = dom0.run(&format!("xl block-detach {} xvdb", guest.name), 60)?;
    ensure!(detached.rc != 0, "xl says that a disk in use is gone");
    load.wait(dom0)?;
    check_works(&guest, "xvdb", 7)?;
    guest.step(&format!("close vbd={vbd}"))?;
    guest.step(&format!("wait vbd={vbd} state=gone"))?;
    // xl says that there is nothing left to remove, and that it has succeeded.
    let gone = Vbd::of(dom0, &driverdom, &guest.name, "xvdb")?;
    dom0.check(&format!("xl block-detach {} xvdb", guest.name), 60)?;
    gone.check_gone()?;
    before.check_again(dom0, &driverdom)
}

fn directory_removed(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let guest = TestFront::create(dom0, &TestFrontConfig::new("f-removed").disk("xvda", "rw", "gpt:demo"))?;
    guest.step("connect vbd=all")?;
    let before = Footprint::take(dom0, &driverdom)?;
    for round in 0..3 {
        attach_early(dom0, &guest, "xvdb", "rw", "gpt:second")?;
        check_works(&guest, "xvdb", round)?;
        let vbd = Vbd::of(dom0, &driverdom, &guest.name, "xvdb")?;
        dom0.check(&format!("xenstore-rm {}", vbd.frontend), 30)?;
        dom0.wait_xenstore(&format!("{}/state", vbd.backend), "6", 60)?;
        detach(dom0, &driverdom, &guest.name, "xvdb")?;
        check_works(&guest, "xvda", round)?;
    }
    before.check_again(dom0, &driverdom)
}

/// States that the guest writes: xenstored takes 200 a second of it, so they last while xl works for the other guest.
const STORM: u32 = 4000;

fn storm(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let wild = TestFront::create(dom0, &TestFrontConfig::new("f-wild").disk("xvda", "rw", "gpt:demo"))?;
    wild.step("connect vbd=all")?;
    let calm = TestFront::create(dom0, &TestFrontConfig::new("f-calm"))?;
    // The first time makes the directories above the device's, which stay.
    attach_and_detach(dom0, &driverdom, &calm)?;
    wild.steps(&["storm vbd=all n=50", "reconnect vbd=all"])?;
    let before = Footprint::take(dom0, &driverdom)?;
    let mut storm = wild.begin(&[format!("storm vbd=all n={STORM}")], 300)?;
    attach_and_detach(dom0, &driverdom, &calm)?;
    ensure!(!storm.has_ended()?, "the storm was over before the other guest's detach: nothing is shown");
    storm.wait(dom0)?;
    wild.step("reconnect vbd=all")?;
    check_works(&wild, "xvda", 8)?;
    before.check_again(dom0, &driverdom)
}

fn attach_and_detach(dom0: &Dom0, driverdom: &Driverdom, guest: &TestFront) -> anyhow::Result<()> {
    attach_early(dom0, guest, "xvda", "rw", "gpt:second")?;
    check_works(guest, "xvda", 3)?;
    detach(dom0, driverdom, &guest.name, "xvda")
}
