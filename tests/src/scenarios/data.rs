//! Data on the disk: file systems, flushes, big requests; found by the host at the physical place.

use anyhow::{Context, ensure};

use super::Scenario;
use super::host_bytes::{nonce, random_bytes, sha256};
use super::vbd::{Vbd, attach, detach, wait_all_connected};
use crate::driverdom::{Config, Driverdom};
use crate::gpt::SECTOR;
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::image::{self, Ext4Copy};
use crate::world::{Boot, DISK, LOGGED_DISK, World};
use crate::writelog;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "data-file-system",
        about: "the host finds a guest's file in its extents on the image, and the file system clean; the guest finds it again",
        boot: Boot::Default,
        run: file_system,
    },
    Scenario {
        name: "data-flush-reaches-the-device",
        about: "after a guest's fsync, QEMU's own log of the disk shows the data and a flush behind it",
        boot: Boot::Default,
        run: flush_reaches_the_device,
    },
    Scenario {
        name: "data-big-requests",
        about: "with 16 ring pages and 256 segments a request, 1 MiB blocks arrive whole, both ways, in few commands to the disk",
        boot: Boot::Default,
        run: big_requests,
    },
];

/// Makes a file system with the file `/f`, which holds `word` many times, and puts it down again.
fn write_file(guest: &LinuxGuest, vdev: &str, word: &str) -> anyhow::Result<()> {
    guest.check(&format!("mkfs.ext4 -q -F /dev/{vdev} && mount -t ext4 /dev/{vdev} /mnt"), 120)?;
    guest.check(&format!("yes {word} | head -c 300000 > /mnt/f && sync && umount /mnt"), 120)?;
    Ok(())
}

fn file_system(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let guest = world.linux(&LinuxConfig::new("s-fs").disk("xvda", "rw", "gpt:demo"))?;
    let word = nonce()?;
    let file = world.disk(DISK).file.clone();
    ensure!(image::find(&file, word.as_bytes(), 1)?.is_empty(), "the word was there before");
    write_file(&guest, "xvda", &word)?;
    detach(&world.dom0, &driverdom, &guest.name, "xvda")?;

    let partition = image::partition(&file, "demo")?;
    let copy = Ext4Copy::of(&file, &partition, &file.with_extension("ext4"))?;
    copy.check()?;
    let read = copy.read("/f")?;
    let expect: Vec<u8> = format!("{word}\n").into_bytes().into_iter().cycle().take(300_000).collect();
    ensure!(read == expect, "the host reads another file than the guest wrote");
    let extents = copy.extents("/f")?;
    let first = *extents.first().context("the file has no blocks")?;
    ensure!(!image::find(&file, word.as_bytes(), 1)?.is_empty(), "the word is not in the image");
    ensure!(image::read_at(&file, first, 32)? == word.as_bytes(), "the word is not at the file's first block, {first}");
    ensure!(
        (partition.first_lba * SECTOR..(partition.last_lba + 1) * SECTOR).contains(&first),
        "byte {first} is not in the partition"
    );

    attach(&world.dom0, &driverdom, &guest.name, "xvdb", "r", "gpt:demo")?;
    let again = guest.check("mount -t ext4 -o ro /dev/xvdb /mnt && sha256sum < /mnt/f; umount /mnt", 60)?;
    ensure!(again.starts_with(&sha256(&expect)?), "the guest reads another file: {again}");
    Ok(())
}

fn flush_reaches_the_device(world: &mut World) -> anyhow::Result<()> {
    let pci = vec![world.disk(LOGGED_DISK).address()];
    let driverdom = Driverdom::start(&world.dom0, &Config { pci, ..Config::default() })?;
    let guest = LinuxGuest::create(&world.dom0, &LinuxConfig::new("s-flush").disk("xvda", "rw", "gpt:demo"))?;
    let vbd = Vbd::of(&world.dom0, &driverdom, &guest.name, "xvda")?;
    ensure!(vbd.backend_node("feature-flush-cache")? == "1", "no flush is offered");
    let log = world.disk(LOGGED_DISK).write_log.clone().context("the disk has no log")?;
    // QEMU settles its log at flushes, so one word without a flush, then one with: only then may they be seen, in this order.
    let (early, late) = (nonce()?, nonce()?);
    let before = world.qmp.disk_counts(LOGGED_DISK)?;
    guest.check(&format!("printf %-512s {early} | dd of=/dev/xvda bs=512 seek=64 oflag=direct status=none"), 60)?;
    let unflushed = world.qmp.disk_counts(LOGGED_DISK)?;
    ensure!(unflushed.writes > before.writes, "the write did not reach the disk");
    ensure!(unflushed.flushes == before.flushes, "a plain write was flushed");
    guest.check(
        &format!("printf %-512s {late} | dd of=/dev/xvda bs=512 seek=128 oflag=direct conv=fsync status=none"),
        60,
    )?;
    ensure!(world.qmp.disk_counts(LOGGED_DISK)?.flushes > unflushed.flushes, "fsync did not flush the disk");
    let entries = writelog::read(&log)?;
    for word in [early, late] {
        ensure!(writelog::flushed(&entries, word.as_bytes()), "no flush after the data in QEMU's log");
    }
    Ok(())
}

/// What is moved, in MiB, and in what blocks.
const BIG_MIB: usize = 8;

fn big_requests(world: &mut World) -> anyhow::Result<()> {
    let file = world.disk(DISK).file.clone();
    let (demo, second) = (image::partition(&file, "demo")?, image::partition(&file, "second")?);
    let planted = random_bytes(BIG_MIB << 20)?;
    image::write_at(&file, second.first_lba * SECTOR, &planted)?;

    let driverdom = Driverdom::start(&world.dom0, &Config::default())?;
    let mut config = LinuxConfig::new("s-big").disk("xvda", "rw", "gpt:demo").disk("xvdb", "r", "gpt:second");
    config.words = "xen_blkfront.max_ring_page_order=4 xen_blkfront.max_indirect_segments=256".into();
    config.memory_mib = 320;
    let guest = LinuxGuest::create(&world.dom0, &config)?;
    wait_all_connected(&world.dom0, &driverdom, &guest.name, 2)?;
    for vdev in ["xvda", "xvdb"] {
        let vbd = Vbd::of(&world.dom0, &driverdom, &guest.name, vdev)?;
        ensure!(vbd.frontend_node("ring-page-order")? == "4", "the guest's ring is smaller");
        vbd.frontend_node("ring-ref15")?;
    }
    let segments = guest.check("cat /sys/block/xvd?/queue/max_segments", 30)?;
    ensure!(segments == "256\n256", "segments a request: {segments}");

    let block = "bs=1M status=none";
    let sum = guest
        .check(&format!("dd if=/dev/xvdb iflag=direct {block} count={BIG_MIB} | tee /tmp/big | sha256sum"), 180)?;
    ensure!(sum.starts_with(&sha256(&planted)?), "the guest reads other bytes than the host planted");

    let before = world.qmp.disk_counts(DISK)?;
    guest.check(&format!("dd if=/tmp/big of=/dev/xvda oflag=direct {block}"), 180)?;
    let commands = world.qmp.disk_counts(DISK)?.writes - before.writes;
    ensure!(
        image::read_at(&file, demo.first_lba * SECTOR, BIG_MIB << 20)? == planted,
        "the host reads other bytes than the guest wrote"
    );
    // 1 MiB is 256 pages, and a command of the disk carries 126; two more where the guest's memory was not aligned to pages.
    ensure!(commands <= 3 * BIG_MIB as u64 + 2, "{commands} writes for {BIG_MIB} blocks");
    Ok(())
}
