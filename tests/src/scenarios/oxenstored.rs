//! Once through everything under the other xenstored.

use anyhow::ensure;

use super::Scenario;
use super::footprint::Footprint;
use super::host_bytes::nonce;
use super::hotplug::rounds;
use super::vbd::Vbd;
use crate::driverdom::Config;
use crate::gpt::SECTOR;
use crate::guest::LinuxConfig;
use crate::image;
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "oxenstored-attach-and-detach",
        about: "under oxenstored a guest's disk works, and four rounds of attach and detach leak nothing",
        boot: Boot::Oxenstored,
        run: attach_and_detach,
    },
    Scenario {
        name: "oxenstored-destroy-8-disks",
        about: "under oxenstored xl destroy of a guest with 8 disks says nothing, and nothing is left",
        boot: Boot::Oxenstored,
        run: |world| super::removal::destroy_with_disks(world, 8),
    },
];

fn attach_and_detach(world: &mut World) -> anyhow::Result<()> {
    ensure!(world.dom0.run("pidof oxenstored", 30)?.rc == 0, "oxenstored does not run");
    let driverdom = world.driverdom(&Config { memory_mib: 12, ..Config::default() })?;
    let guest = world.linux(&LinuxConfig::new("s-ox").disk("xvda", "rw", "gpt:demo"))?;
    Vbd::of(&world.dom0, &driverdom, &guest.name, "xvda")?.wait_connected()?;
    let word = nonce()?;
    guest.check(&format!("printf %-512s {word} | dd of=/dev/xvda bs=512 oflag=direct conv=fsync status=none"), 60)?;
    let file = &world.disk(DISK).file;
    let start = image::partition(file, "demo")?.first_lba * SECTOR;
    ensure!(image::read_at(file, start, 32)? == word.as_bytes(), "the host does not find the guest's word");

    rounds(&world.dom0, &driverdom, &guest, 2)?;
    let before = Footprint::take(&world.dom0, &driverdom)?;
    rounds(&world.dom0, &driverdom, &guest, 4)?;
    before.check_again(&world.dom0, &driverdom)
}
