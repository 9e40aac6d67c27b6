//! Loads side by side: every byte is checked, and nobody starves.

use anyhow::{Context, ensure};

use super::Scenario;
use crate::driverdom::Config;
use crate::image::Layout;
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frontend-load-disks",
        about: "two guests with two partitions each under a checked mix of reads and writes; each vbd gets its share",
        boot: Boot::TwoCpus,
        run: |world| loads(world, ["gpt:one", "gpt:two", "gpt:three", "gpt:four"]),
    },
    Scenario {
        name: "frontend-load-memory",
        about: "the same with volumes in memory",
        boot: Boot::TwoCpus,
        run: |world| loads(world, ["ram:4M"; 4]),
    },
];

fn loads(world: &mut World, targets: [&str; 4]) -> anyhow::Result<()> {
    world.lay_out(DISK, &Layout(vec![("one", 32), ("two", 32), ("three", 32), ("four", 32)]))?;
    let dom0 = &world.dom0;
    world.driverdom(&Config { memory_mib: 48, ..Config::default() })?;
    let mut guests = vec![];
    for (name, pair) in ["f-load-1", "f-load-2"].into_iter().zip(targets.chunks(2)) {
        let config = TestFrontConfig::new(name).disk("xvda", "rw", pair[0]).disk("xvdb", "rw", pair[1]);
        let guest = TestFront::create(dom0, &config)?;
        guest.step("connect vbd=all order=2 form=indirect")?;
        guests.push(guest);
    }
    // Small requests and large ones: a share is one of requests.
    for size in [8, 256] {
        let load = format!("load vbd=all seconds=15 depth=16 size={size} mix pattern={size}");
        let running = guests.iter().map(|guest| guest.begin(&[&load], 180)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut said = vec![];
        for load in running {
            said.extend(load.wait(dom0)?);
        }
        let sum = |key| said.iter().map(|said| count(said, key)).sum::<anyhow::Result<u64>>();
        let least = said.iter().map(|said| count(said, "least")).collect::<anyhow::Result<Vec<_>>>()?;
        let equal = sum("requests")? / targets.len() as u64;
        ensure!(equal > 0 && least.iter().all(|least| *least >= equal / 4), "a vbd starves: {said:?}");
    }
    Ok(())
}

/// The number after `key=`.
fn count(said: &str, key: &str) -> anyhow::Result<u64> {
    let value = said.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    Ok(value.with_context(|| format!("no {key} in: {said}"))?.parse()?)
}
