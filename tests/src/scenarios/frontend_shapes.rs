//! Every form of ring and request that blkif.h allows, with the bytes found on the disk's image by the host.

use anyhow::{Context, ensure};
use testfront::pattern;

use super::Scenario;
use super::vbd::device_number;
use crate::driverdom::Config;
use crate::gpt::{Partition, SECTOR};
use crate::image;
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "frontend-shapes",
    about: "both ABIs, ring orders 0 to 4, direct and indirect requests: what is written is on the image, what is there is read",
    boot: Boot::Default,
    run: shapes,
}];

/// Sectors that each shape writes and reads: several of the largest requests, and a part of one.
const COUNT: u64 = 5000;
/// Where one shape's sectors begin after another's: what lies between must stay as it was.
const STRIDE: u64 = 8192;
/// Seed of what the host puts on the image.
const PLANTED: u64 = 77;

/// Shapes beside the table of ABI, order and form: segments that are not whole pages, indices that wrap, a numbered ring of one
/// page.
const ODD_SHAPES: [&str; 6] = [
    "abi=64 order=0 form=direct skew=3 segment=1",
    "abi=32 order=1 form=direct skew=0 segment=7",
    "abi=64 order=4 form=indirect skew=5 segment=3",
    "abi=32 order=2 form=indirect skew=7 segment=1",
    "abi=64 order=0 numbered form=indirect start=4294967290",
    "abi=32 order=3 form=direct start=4294967295",
];

fn all_shapes() -> Vec<String> {
    let mut shapes: Vec<_> = ODD_SHAPES.map(String::from).into();
    for abi in [64, 32] {
        for order in 0..=4 {
            shapes.extend(["direct", "indirect"].map(|form| format!("abi={abi} order={order} form={form}")));
        }
    }
    shapes
}

fn shapes(world: &mut World) -> anyhow::Result<()> {
    let file = world.disk(DISK).file.clone();
    let (demo, second) = (image::partition(&file, "demo")?, image::partition(&file, "second")?);
    let mut planted = vec![0; usize::try_from(COUNT * SECTOR)?];
    pattern::fill(PLANTED, 0, &mut planted);
    image::write_at(&file, second.first_lba * SECTOR, &planted)?;

    world.driverdom(&Config { memory_mib: 16, ..Config::default() })?;
    let config = TestFrontConfig::new("f-shapes")
        .disk("xvda", "rw", "gpt:demo")
        .disk("xvdb", "r", "gpt:second")
        .disk("xvdc", "rw", "ram:4M");
    let guest = TestFront::create(&world.dom0, &config)?;
    for (index, shape) in (0..).zip(all_shapes()) {
        let seed = 100 + index;
        one_shape(&guest, index, &shape, seed).with_context(|| shape.clone())?;
        check_image(world, &demo, index * STRIDE, seed).with_context(|| shape.clone())?;
    }
    Ok(())
}

/// Connects all vbds in this shape, uses them, and closes them.
fn one_shape(guest: &TestFront, index: u64, shape: &str, seed: u64) -> anyhow::Result<()> {
    let [written, planted, ram] = ["xvda", "xvdb", "xvdc"].map(device_number);
    let verb = if index == 0 { "connect" } else { "reconnect" };
    let area = format!("sector={} count={COUNT} pattern={seed}", index * STRIDE);
    guest.steps(&[
        format!("{verb} vbd=all {shape}"),
        format!("write vbd={written} {area}"),
        format!("flush vbd={written}"),
        format!("verify vbd={written} {area}"),
        format!("verify vbd={planted} count={COUNT} pattern={PLANTED}"),
        format!("write vbd={planted} pattern=1 expect=error"),
        format!("write vbd={ram} count={COUNT} pattern={seed}"),
        format!("verify vbd={ram} count={COUNT} pattern={seed}"),
        "close vbd=all".to_owned(),
    ])?;
    Ok(())
}

/// The host finds the pattern at its place in the partition, and nothing before the next one's.
fn check_image(world: &World, partition: &Partition, sector: u64, seed: u64) -> anyhow::Result<()> {
    let at = (partition.first_lba + sector) * SECTOR;
    let bytes = image::read_at(&world.disk(DISK).file, at, usize::try_from(STRIDE * SECTOR)?)?;
    let (written, beyond) = bytes.split_at(usize::try_from(COUNT * SECTOR)?);
    if let Err(mismatch) = pattern::verify(seed, sector, written) {
        anyhow::bail!("on the image: {mismatch}");
    }
    ensure!(beyond.iter().all(|&byte| byte == 0), "something was written beyond sector {}", sector + COUNT);
    Ok(())
}
