//! Malformed requests: each is answered as Linux's backend answers it, harms nobody, and changes nothing on the disk.

use anyhow::{Context, ensure};
use testfront::malformed::{CASES, Needs};
use testfront::pattern;

use super::Scenario;
use super::vbd::{Vbd, device_number};
use crate::driverdom::{Config, NAME};
use crate::gpt::SECTOR;
use crate::guest::console_log;
use crate::image;
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frontend-malformed-requests",
        about: "every malformed request is answered as it must be, on disks and in memory, writable or not; an ordinary read follows each",
        boot: Boot::Default,
        run: requests,
    },
    Scenario {
        name: "frontend-impossible-producer",
        about: "a vbd whose ring is broken closes alone: the guest's other vbd and another guest's load go on, and it reconnects",
        boot: Boot::Default,
        run: impossible_producer,
    },
];

/// Sectors at both partitions' beginnings that hold a pattern, and must hold it still at the end. The second partition follows
/// the first: what is written beyond the first one's end would be found here.
const KEPT: u64 = 64;

fn requests(world: &mut World) -> anyhow::Result<()> {
    let file = world.disk(DISK).file.clone();
    let starts =
        [image::partition(&file, "demo")?, image::partition(&file, "second")?].map(|part| part.first_lba * SECTOR);
    let mut kept = vec![0; usize::try_from(KEPT * SECTOR)?];
    pattern::fill(5, 0, &mut kept);
    for start in starts {
        image::write_at(&file, start, &kept)?;
    }
    world.driverdom(&Config { memory_mib: 16, ..Config::default() })?;
    // A disk, and memory: they are read and written in different ways.
    let vbds =
        [("xvda", "rw", "gpt:demo"), ("xvdb", "r", "gpt:second"), ("xvdc", "rw", "ram:1M"), ("xvdd", "r", "ram:1M")];
    let add = |config: TestFrontConfig, (vdev, access, target): (&str, &str, &str)| config.disk(vdev, access, target);
    let guest = TestFront::create(&world.dom0, &vbds.into_iter().fold(TestFrontConfig::new("f-bad"), add))?;
    for (verb, shape) in [("connect", "abi=64 order=0"), ("reconnect", "abi=32 order=2 form=indirect")] {
        guest.step(&format!("{verb} vbd=all {shape}"))?;
        for (vdev, access, target) in vbds {
            let what = || format!("{access} {target}, {shape}");
            let said = guest.step(&format!("malformed vbd={}", device_number(vdev))).with_context(what)?;
            let expected = CASES.iter().filter(|case| match case.needs {
                Needs::Nothing | Needs::Indirect | Needs::NoDiscard => true,
                Needs::ReadOnly => access == "r",
                Needs::LargeBlocks => false,
            });
            ensure!(said == format!("cases={}", expected.count()), "{}: {said}", what());
        }
        guest.step("close vbd=all")?;
    }
    for start in starts {
        ensure!(image::read_at(&file, start, kept.len())? == kept, "a malformed request changed the disk");
    }
    Ok(())
}

fn impossible_producer(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config { memory_mib: 16, ..Config::default() })?;
    let breaker = TestFrontConfig::new("f-breaker").disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "ram:1M");
    let breaker = TestFront::create(dom0, &breaker)?;
    let other = TestFront::create(dom0, &TestFrontConfig::new("f-other").disk("xvda", "rw", "gpt:second"))?;
    let [broken, beside] = ["xvda", "xvdb"].map(device_number);
    breaker.step("connect vbd=all order=1")?;
    breaker.step(&format!("write vbd={beside} count=2048 pattern=9"))?;
    other.step(&format!("connect vbd={broken} order=1"))?;

    let load = other.begin(&[format!("load vbd={broken} seconds=20 depth=16 mix pattern=30")], 180)?;
    for _ in 0..3 {
        breaker.step(&format!("malformed vbd={broken} kind=req-prod"))?;
        // Not connected again: it was never closed.
        breaker.step(&format!("verify vbd={beside} count=2048 pattern=9"))?;
        breaker.step(&format!("write vbd={broken} count=64 pattern=10"))?;
        breaker.step(&format!("verify vbd={broken} count=64 pattern=10"))?;
    }
    load.wait(dom0)?;
    let said = dom0.check(&format!("grep -a 'frontend.s fault' {}", console_log(NAME)), 30)?;
    let wanted = format!("vbd {}/{broken}:", breaker.domid);
    ensure!(said.lines().all(|line| line.contains(&wanted)), "others were closed too: {said}");
    Vbd::of(dom0, &driverdom, &other.name, "xvda")?.wait_connected()
}
