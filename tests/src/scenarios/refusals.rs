//! What cannot be had is refused at once, with a reason to be read, and disturbs nothing else.

use anyhow::ensure;

use super::Scenario;
use super::vbd::{Vbd, attach, device_number};
use crate::dom0::{Dom0, Node, shell_quoted};
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest, driverdom_disk};
use crate::image;
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "refusals-at-create",
        about: "xl create with an unknown volume fails without waiting for a time-out, leaves nothing, and the reason can be read",
        boot: Boot::Default,
        run: at_create,
    },
    Scenario {
        name: "refusals-hot",
        about: "unknown, ambiguous and busy volumes are refused to a running guest, whose disks go on; a corrected attach works",
        boot: Boot::Default,
        run: hot,
    },
];

/// libxl's debug line when a backend says no by removing its node, and its line when it waited in vain (`libxl_event.c`).
const REFUSED: &str = "but it was removed";
const TIMED_OUT: &str = "timed out";

fn at_create(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let config = LinuxConfig::new("s-no").disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "gpt:nosuch");
    let path = LinuxGuest::put_config(&world.dom0, &config)?;
    let output = world.dom0.run(&format!("xl -vvv create {path}"), 120)?;
    ensure!(output.rc != 0, "xl created a guest without its disk");
    ensure!(
        output.err.contains(REFUSED) && !output.err.contains(TIMED_OUT),
        "xl did not see a refusal: {}",
        output.err
    );
    ensure!(world.dom0.run("xl domid s-no", 30)?.rc != 0, "the guest was left");
    let home = format!("/local/domain/{}", driverdom.domid);
    // Its number is gone with it: the reason is found by the device's.
    let reasons = world.dom0.check(&format!("xenstore-ls -f {home}/error"), 30)?;
    let line = reasons.lines().find(|line| line.contains(&format!("/{}/error = ", device_number("xvdb"))));
    ensure!(line.is_some_and(|line| line.contains("gpt:nosuch")), "no reason in xenstore: {reasons}");
    let console = driverdom.console()?;
    ensure!(
        console.lines().any(|line| line.contains("refused") && line.contains("gpt:nosuch")),
        "no reason on the console"
    );
    world.dom0.wait_until(&format!("! xenstore-ls -f {home}/backend | grep /state"), 30)?;

    // The volume that it could have had is free.
    world.linux(&LinuxConfig::new("s-yes").disk("xvda", "rw", "gpt:demo"))?;
    Ok(())
}

/// A hot attach that is refused, and a word that the reason holds.
const REFUSALS: [(&str, &str, &str); 8] = [
    ("rw", "gpt:nosuch", "gpt:nosuch"),
    ("rw", "disk7", "disk7"),
    ("rw", "nonsense", "nonsense"),
    ("rw", "gpt:twin", "gpt:twin"),
    // Held by xvda with rw: by its name, by the whole disk, by its GUID.
    ("rw", "gpt:demo", "gpt:demo"),
    ("r", "disk0", "disk0"),
    ("r", "gpt:GUID-OF-DEMO", "-"),
    // Held by xvdb with r.
    ("rw", "gpt:second", "gpt:second"),
];

fn hot(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let guest =
        world.linux(&LinuxConfig::new("s-hot").disk("xvda", "rw", "gpt:demo").disk("xvdb", "r", "gpt:second"))?;
    let guid = image::partition(&world.disk(DISK).file, "demo")?.guid;
    let dom0 = &world.dom0;
    let sums = "while [ ! -e /tmp/stop ]; do dd if=/dev/xvda bs=1M count=4 iflag=direct status=none | sha256sum; done | sort | uniq -c";
    guest.check("head -c 4M /dev/urandom | dd of=/dev/xvda bs=1M oflag=direct iflag=fullblock status=none", 60)?;
    let loading = guest.begin(sums, 500)?;

    for (access, target, word) in REFUSALS {
        refused(dom0, &driverdom, &guest, access, &target.replace("GUID-OF-DEMO", &guid), word)?;
        detach_refused(dom0, &driverdom, &guest.name)?;
    }
    // Corrected: the same device, now with something to have; and the note of the refusal goes.
    let vbd = attach(dom0, &driverdom, &guest.name, "xvdc", "r", "gpt:second")?;
    ensure!(dom0.xenstore(&reason_of(&vbd))?.is_none(), "the reason is still there");
    guest.check("dd if=/dev/xvdc of=/dev/null bs=64k count=4 iflag=direct", 60)?;

    guest.check("touch /tmp/stop", 60)?;
    let loaded = loading.wait()?;
    let lines: Vec<_> = loaded.out.trim().lines().collect();
    ensure!(loaded.rc == 0 && lines.len() == 1, "the guest's other disk did not go on well: {loaded:?}");
    let rounds: u32 = lines[0].split_whitespace().next().unwrap_or("0").parse()?;
    ensure!(rounds >= 3, "only {rounds} rounds of reading beside the refusals");
    Ok(())
}

/// Ends xl's record of a refused device: xl says that our part is gone already, and nothing else.
fn detach_refused(dom0: &Dom0, driverdom: &Driverdom, guest: &str) -> anyhow::Result<()> {
    let vbd = Vbd::of(dom0, driverdom, guest, "xvdc")?;
    let output = dom0.run(&format!("xl block-detach {guest} xvdc"), 60)?;
    let expected = |line: &str| line.contains("already removed, cleanup frontend only");
    ensure!(output.rc == 0 && output.err.lines().all(expected), "after a refusal: {output:?}");
    vbd.check_gone()
}

/// Where driverdom notes why it refused the device.
fn reason_of(vbd: &Vbd) -> String {
    vbd.backend.replace("/backend/", "/error/backend/") + "/error"
}

fn refused(
    dom0: &Dom0,
    driverdom: &Driverdom,
    guest: &LinuxGuest,
    access: &str,
    target: &str,
    word: &str,
) -> anyhow::Result<()> {
    let disk = shell_quoted(&driverdom_disk("xvdc", access, target));
    let output = dom0.run(&format!("xl -vvv block-attach {} {disk}", guest.name), 60)?;
    ensure!(output.rc != 0, "{access} {target} was given");
    ensure!(
        output.err.contains(REFUSED) && !output.err.contains(TIMED_OUT),
        "{target}: xl did not see a refusal: {}",
        output.err
    );
    let reason = reason_of(&Vbd::of(dom0, driverdom, &guest.name, "xvdc")?);
    let reason = dom0.wait_nodes(&[Node::There(reason)], 20)?.out;
    ensure!(reason.contains(word), "{target}: the reason is '{reason}'");
    ensure!(driverdom.console()?.contains(&reason), "the console does not say '{reason}'");
    // xl keeps its own record until it is told to detach.
    let again = dom0.run(&format!("xl block-attach {} {disk}", guest.name), 60)?;
    ensure!(again.rc != 0 && again.err.contains("already exists"), "{target}: {again:?}");
    Ok(())
}
