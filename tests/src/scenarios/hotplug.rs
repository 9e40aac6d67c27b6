//! Attaching to and detaching from what runs: many rounds without a leak, in use, and dom0 as the guest.

use anyhow::{Context, ensure};

use super::Scenario;
use super::footprint::Footprint;
use super::host_bytes::nonce;
use super::vbd::{attach, detach, xl_quietly};
use crate::dom0::Dom0;
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "hotplug-20-rounds",
        about: "after 20 rounds of attach, I/O and detach no counter, event channel or xenstore node has leaked",
        boot: Boot::Default,
        run: twenty_rounds,
    },
    Scenario {
        name: "hotplug-detach-while-mounted",
        about: "xl succeeds, the Linux 6.1 guest gets EIO, nothing hangs or leaks, and the volume can be attached again",
        boot: Boot::Default,
        run: detach_while_mounted,
    },
    Scenario {
        name: "hotplug-dom0-as-frontend",
        about: "dom0 itself makes a file system on a volume; at once after its detach a guest gets it",
        boot: Boot::Default,
        run: dom0_as_frontend,
    },
];

/// A partition and a RAM volume in turn.
const TARGETS: [&str; 2] = ["gpt:second", "ram:1M"];
const ROUNDS: usize = 20;

fn twenty_rounds(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config { memory_mib: 12, ..Config::default() })?;
    let guest = world.linux(&LinuxConfig::new("s-rounds").disk("xvda", "rw", "gpt:demo"))?;
    // The first rounds make what stays, on both sides: directories, pools.
    rounds(&world.dom0, &driverdom, &guest, 2)?;
    Footprint::check_rounds(&world.dom0, &driverdom, || rounds(&world.dom0, &driverdom, &guest, ROUNDS))
}

/// Attaches `xvdb`, writes to it, reads that back and detaches it, `count` times; all must succeed, and xl say nothing.
pub(super) fn rounds(dom0: &Dom0, driverdom: &Driverdom, guest: &LinuxGuest, count: usize) -> anyhow::Result<()> {
    let io = "head -c 20000 /dev/urandom > /tmp/r && dd if=/tmp/r of=/dev/xvdb conv=fsync status=none && head -c 20000 /dev/xvdb | cmp - /tmp/r";
    for (number, target) in TARGETS.iter().cycle().take(count).enumerate() {
        let round = || {
            attach(dom0, driverdom, &guest.name, "xvdb", "rw", target)?;
            guest.check(io, 60)?;
            detach(dom0, driverdom, &guest.name, "xvdb")
        };
        round().with_context(|| format!("round {number} of {count}"))?;
    }
    Ok(())
}

fn detach_while_mounted(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let guest = world.linux(&LinuxConfig::new("s-mounted").disk("xvda", "rw", "gpt:demo"))?;
    let dom0 = &world.dom0;
    let before = Footprint::take(dom0, &driverdom)?;
    attach(dom0, &driverdom, &guest.name, "xvdb", "rw", "gpt:second")?;
    guest.check("mkfs.ext4 -q -F /dev/xvdb && mount -t ext4 /dev/xvdb /mnt && echo word > /mnt/f && sync", 120)?;
    let writer = "while dd if=/dev/zero of=/mnt/w bs=64k count=16 conv=fsync status=none; do :; done; echo stopped";
    let writing = guest.begin(writer, 200)?;
    guest.check("i=0; until [ -s /mnt/w ] || [ $i -gt 200 ]; do usleep 50000; i=$((i+1)); done; [ -s /mnt/w ]", 60)?;

    detach(dom0, &driverdom, &guest.name, "xvdb")?;
    let writing = writing.wait()?;
    ensure!(
        writing.rc == 0 && writing.out.contains("rror") && writing.out.contains("stopped"),
        "the writer got no I/O error: {writing:?}"
    );
    let read = guest.run("cat /sys/block/xvdb/size; dd if=/dev/xvdb of=/dev/null bs=4k count=1 iflag=direct", 60)?;
    ensure!(read.rc != 0, "the disk is still read: {}", read.out);
    guest.check("umount /mnt || umount -l /mnt; dd if=/dev/xvda of=/dev/null bs=64k count=4 iflag=direct", 60)?;

    attach(dom0, &driverdom, &guest.name, "xvdc", "rw", "gpt:second")?;
    guest.check("e2fsck -p /dev/xvdc; mount -t ext4 /dev/xvdc /mnt && grep word /mnt/f && umount /mnt", 120)?;
    detach(dom0, &driverdom, &guest.name, "xvdc")?;
    before.check_again(dom0, &driverdom)
}

fn dom0_as_frontend(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let dom0 = &world.dom0;
    dom0.check("modprobe xen-blkfront", 60)?;
    let word = nonce()?;
    let round = |prepare: &str, number: u32| {
        attach(dom0, &driverdom, "0", "xvda", "rw", "gpt:second")?;
        dom0.wait_until("[ -b /dev/xvda ]", 30)?;
        let write = format!("mount /dev/xvda /mnt && echo {word}-{number} >> /mnt/f && umount /mnt");
        dom0.check(&format!("{prepare} && {write}"), 120)?;
        detach(dom0, &driverdom, "0", "xvda")
    };
    // The first vbd of all makes what stays.
    round("mkfs.ext4 -q -F /dev/xvda", 0)?;
    let mut numbers = 1..;
    Footprint::check_rounds(dom0, &driverdom, || round("true", numbers.next().unwrap_or_default()))?;

    attach(dom0, &driverdom, "0", "xvda", "r", "gpt:second")?;
    xl_quietly(dom0, "block-detach 0 xvda", 60)?;
    let guest = world.linux(&LinuxConfig::new("s-after").disk("xvda", "rw", "gpt:second"))?;
    let read = guest.check("mount -t ext4 /dev/xvda /mnt && cat /mnt/f", 60)?;
    let written: Vec<_> = (0..numbers.next().unwrap_or_default()).map(|number| format!("{word}-{number}")).collect();
    ensure!(read == written.join("\n"), "the guest reads {read:?}");
    Ok(())
}
