//! Guests that end: destroyed with few and many disks, in mid-I/O, rebooting, shut down. Nothing is left, nothing is said.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::Scenario;
use super::footprint::Footprint;
use super::host_bytes::nonce;
use super::vbd::{device_name, wait_all_connected, xl_quietly};
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest, console_log};
use crate::qmp::Qmp;
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "removal-destroy-8-disks",
        about: "xl destroy of a guest with 8 connected disks says nothing, and driverdom holds what it held before",
        boot: Boot::Default,
        run: |world| destroy_with_disks(world, 8),
    },
    Scenario {
        name: "removal-destroy-100-disks",
        about: "the same with 100 disks",
        boot: Boot::Default,
        run: |world| destroy_with_disks(world, 100),
    },
    Scenario {
        name: "removal-destroy-in-mid-io",
        about: "a guest destroyed while it writes is created again at once with the same volume, three times",
        boot: Boot::Default,
        run: destroy_in_mid_io,
    },
    Scenario {
        name: "removal-reboot-and-shutdown",
        about: "a guest that reboots finds its data again; one that shuts down leaves nothing behind",
        boot: Boot::Default,
        run: reboot_and_shutdown,
    },
];

/// Bytes of driverdom's heap that a device may take, and those that the first takes beside (docs/ARCHITECTURE.md).
const HEAP_PER_DEVICE: u64 = 2_000;
const HEAP_ONCE: u64 = 16_000;

pub(super) fn destroy_with_disks(world: &mut World, count: usize) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config { memory_mib: 64, ..Config::default() })?;
    let before = Footprint::take(&world.dom0, &driverdom)?;
    let mut config = LinuxConfig::new("s-many");
    // Every second one a partition, which readers may share.
    for number in 0..count {
        let (access, target) = if number.is_multiple_of(2) { ("rw", "ram:64K") } else { ("r", "gpt:demo") };
        config = config.disk(&device_name(number), access, target);
    }
    config.memory_mib = 448;
    let guest = world.linux(&config)?;
    wait_all_connected(&world.dom0, &driverdom, &guest.name, count)?;
    let heap = before.heap_growth(&world.dom0, &driverdom)?;
    ensure!(
        heap <= HEAP_ONCE + HEAP_PER_DEVICE * count as u64,
        "{count} devices take {heap} bytes of driverdom's heap"
    );
    let read = "for d in /dev/xvd*; do dd if=$d of=/dev/null bs=4k count=4 iflag=direct status=none || echo $d; done | wc -l; ls /dev/xvd* | wc -l";
    let lines = guest.check(read, 180)?;
    ensure!(lines == format!("0\n{count}"), "disks that do not read, and all: {lines}");
    xl_quietly(&world.dom0, "destroy s-many", 240)?;
    before.check_again(&world.dom0, &driverdom)
}

fn destroy_in_mid_io(world: &mut World) -> anyhow::Result<()> {
    let driverdom = Driverdom::start(&world.dom0, &Config::default())?;
    let dom0 = &world.dom0;
    let before = Footprint::take(dom0, &driverdom)?;
    let config = LinuxConfig::new("s-io").disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "gpt:second");
    let guest = LinuxGuest::create(dom0, &config)?;
    for round in 2..5 {
        let before = world.qmp.disk_counts(DISK)?.writes;
        guest.check("for d in xvda xvdb; do (while dd if=/dev/zero of=/dev/$d bs=256k oflag=direct; do :; done) > /dev/null 2>&1 & done", 60)?;
        wait_for_writes(&mut world.qmp, before + 50)?;
        let again = dom0.run("xl destroy s-io && xl create -q /guests/s-io.cfg", 240)?;
        ensure!(again.rc == 0 && again.err.is_empty(), "destroyed in mid-I/O and created again: {again:?}");
        guest.wait_up(round)?;
        wait_all_connected(dom0, &driverdom, "s-io", 2)?;
        guest.check("for d in xvda xvdb; do dd if=/dev/zero of=/dev/$d bs=64k count=4 oflag=direct conv=fsync status=none || exit 1; done", 60)?;
    }
    xl_quietly(dom0, "destroy s-io", 120)?;
    before.check_again(dom0, &driverdom)
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

fn reboot_and_shutdown(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let dom0 = &world.dom0;
    let before = Footprint::take(dom0, &driverdom)?;
    let mut config = LinuxConfig::new("s-boot").disk("xvda", "rw", "gpt:demo");
    config.lines = vec!["on_reboot='restart'".into(), "on_poweroff='destroy'".into()];
    let guest = world.linux(&config)?;
    let word = nonce()?;
    guest.check(
        &format!("mkfs.ext4 -q -F /dev/xvda && mount -t ext4 /dev/xvda /mnt && echo {word} > /mnt/f && sync"),
        120,
    )?;
    let first = dom0.domid(&guest.name)?;
    // The answer never comes: the guest goes first.
    guest.run("reboot -f", 1)?;
    guest.wait_up(2)?;
    let second = dom0.domid(&guest.name)?;
    ensure!(second != first, "it is the same domain as before: it did not reboot");
    let read = guest.check("mount -t ext4 /dev/xvda /mnt && cat /mnt/f && umount /mnt", 60)?;
    ensure!(read == word, "after the reboot the guest reads {read}");
    guest.run("poweroff -f", 1)?;
    dom0.wait_gone(second, 60)?;
    let log = dom0.check("cat /var/log/xen/xl-s-boot.log", 30)?;
    ensure!(!log.contains("libxl: error"), "xl said: {log}; see {}", console_log("s-boot"));
    before.check_again(dom0, &driverdom)
}
