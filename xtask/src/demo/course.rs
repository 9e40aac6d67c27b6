//! The demo's stages, in their order.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use nested_tests::artifacts::RunDir;
use nested_tests::driverdom::Config;
use nested_tests::guest::{LinuxConfig, LinuxGuest};
use nested_tests::image::{self, Ext4Copy};
use nested_tests::qemu::{Accel, Console, Lifetime};
use nested_tests::world::{Boot, DISK, World, machine};

use super::proof::Proof;
use crate::project::Project;
use crate::{build, image as images, setup};

/// The partition that the guest gets, and the file it writes there.
const PARTITION: &str = "demo";
const FILE: &str = "/proof";

/// The file is this many file system blocks long, each beginning with the nonce and its number.
const BLOCKS: usize = 16;
const BLOCK_BYTES: usize = 4096;

/// Runs all stages. An error is a stage that did not come to its end; what did, yet is wrong, is a check of `proof`.
pub(super) fn run(project: &Project, accel: Accel, directory: &Path, proof: &mut Proof) -> anyhow::Result<()> {
    let nonce = nonce()?;
    proof.stage("setup", setup::ensure_installed)?;
    let mut artifacts = proof.stage("images", || images::ensure_made(project))?;
    let guests = proof.stage("build driverdom", || build::build_all(project))?;
    artifacts.guests.extend(guests.into_iter().map(|guest| guest.stripped));

    let run = RunDir::create(directory)?;
    let machine = machine(Boot::TwoCpus, accel, Console::Log, &run);
    let mut world = World::start(&machine, &artifacts, run, Lifetime::Owned, proof.progress())?;
    proof.add_stages(std::mem::take(&mut world.stages));
    let disk = world.disk(DISK).file.clone();
    let in_guest = serve_a_guest(&mut world, proof, &nonce);
    if in_guest.is_err() {
        let evidence = world.save_evidence("evidence")?;
        proof.progress().say(&format!("evidence: {}", evidence.display()));
    }
    in_guest?;
    let down = proof.stage("power off", || Ok(world.power_off()))?;
    proof.check("the machine goes down cleanly", down);

    let copy = proof.stage("read the disk image", || {
        Ext4Copy::of(&disk, &image::partition(&disk, PARTITION)?, &directory.join("partition.img"))
    })?;
    proof.check(
        "the host finds the nonce on the image, at the extents of the guest's file",
        nonce_at_extents(&disk, &copy, &nonce),
    );
    proof.check("the host reads the guest's file out of the file system, byte for byte", file_is_whole(&copy, &nonce));
    proof.check("e2fsck finds the file system clean", copy.check());
    Ok(())
}

/// From driverdom's start to its end.
fn serve_a_guest(world: &mut World, proof: &mut Proof, nonce: &str) -> anyhow::Result<()> {
    let before = world.qmp.disk_counts(DISK)?;
    let driverdom = proof.stage("driverdom: create to ready", || world.driverdom(&Config::default()))?;
    let config = LinuxConfig::new("g").disk("xvda", "rw", &format!("gpt:{PARTITION}"));
    let guest = proof.stage("guest: create to up", || world.linux(&config))?;
    proof.stage("guest: file system", || {
        guest.check(&format!("mkfs.ext4 -q -b {BLOCK_BYTES} /dev/xvda && mount /dev/xvda /mnt"), 120)
    })?;
    proof.stage("guest: write and fsync", || guest.check(&write_command(nonce), 120))?;
    let sum = proof.stage("guest: read back", || {
        guest.check(&format!("umount /mnt && mount /dev/xvda /mnt && sha256sum < /mnt{FILE}"), 120)
    })?;
    proof.check("the guest reads back what it wrote", same_sum(world, &sum, nonce));
    proof.stage("guest: unmount", || guest.check("umount /mnt", 60))?;
    let detached = proof.stage("detach", || detach(world, &guest))?;
    proof.check("xl detaches the disk without a word on stderr, and the guest's disk is gone", detached);
    proof.stage("guest: shut down", || {
        // The guest's init runs nothing that reacts to 'xl shutdown'.
        guest.run("poweroff -f", 5)?;
        world.dom0.wait_until("! xl domid g", 60)
    })?;
    let console = driverdom.console();
    let ended = proof.stage("driverdom: shut down", || Ok(driverdom.shut_down()))?;
    proof.check("driverdom shuts down when told to", ended.with_context(|| console.unwrap_or_default()));
    let after = world.qmp.disk_counts(DISK)?;
    let flushed = || {
        ensure!(
            after.flushes > before.flushes && after.writes > before.writes,
            "QEMU counts {before:?} before and {after:?} after"
        );
        Ok(())
    };
    proof.check("QEMU saw writes and flushes of the passed-through disk", flushed());
    Ok(())
}

fn write_command(nonce: &str) -> String {
    let last = BLOCKS - 1;
    format!(
        "for i in $(seq 0 {last}); do printf '%-{BLOCK_BYTES}s' \"{nonce} $i \"; done | dd of=/mnt{FILE} conv=fsync 2>&1"
    )
}

/// What the guest was told to write.
fn contents(nonce: &str) -> Vec<u8> {
    (0..BLOCKS).flat_map(|number| format!("{:BLOCK_BYTES$}", format!("{nonce} {number} ")).into_bytes()).collect()
}

fn same_sum(world: &World, guests: &str, nonce: &str) -> anyhow::Result<()> {
    // dom0 sums what the host says, so that no other program decides what the sum is of.
    world.dom0.put("/tmp/contents", &contents(nonce))?;
    let ours = world.dom0.check("sha256sum < /tmp/contents", 30)?;
    ensure!(guests == ours, "sum {guests} instead of {ours}");
    Ok(())
}

fn detach(world: &World, guest: &LinuxGuest) -> anyhow::Result<anyhow::Result<()>> {
    let output = world.dom0.run(&format!("xl block-detach {} xvda", guest.name), 60)?;
    let gone = guest.run("[ ! -e /dev/xvda ]", 30)?;
    Ok(if output.rc == 0 && output.err.is_empty() && gone.rc == 0 {
        Ok(())
    } else {
        Err(anyhow::anyhow!(
            "xl block-detach ended with {}: {}; the guest's look with {}",
            output.rc,
            output.err.trim(),
            gone.rc
        ))
    })
}

fn nonce_at_extents(disk: &Path, copy: &Ext4Copy, nonce: &str) -> anyhow::Result<()> {
    let extents = copy.extents(FILE)?;
    ensure!(extents.len() == BLOCKS, "the file has {} blocks instead of {BLOCKS}", extents.len());
    for (number, offset) in extents.iter().enumerate() {
        let expect = format!("{nonce} {number} ");
        let found = image::read_at(disk, *offset, expect.len())?;
        ensure!(found == expect.as_bytes(), "block {number} is not at byte {offset} of the image");
    }
    Ok(())
}

fn file_is_whole(copy: &Ext4Copy, nonce: &str) -> anyhow::Result<()> {
    ensure!(copy.read(FILE)? == contents(nonce), "the file's bytes are not those written");
    Ok(())
}

/// Chosen by the host for this run: nothing on an old image can hold it.
fn nonce() -> anyhow::Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("nonce-{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_begins_with_the_nonce_and_its_number() {
        let all = contents("n");
        assert_eq!(all.len(), BLOCKS * BLOCK_BYTES);
        assert!(all[BLOCK_BYTES * 3..].starts_with(b"n 3 "));
        assert_eq!(all[BLOCK_BYTES - 1], b' ');
    }
}
