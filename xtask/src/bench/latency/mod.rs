//! `bench latency`: how long attaches take, the longest too, while dom0's disk is busy and while it is not.
//!
//! A 2015 report (Xen 4.4) has 3,352 starts of a device model beside a busy disk: 20 took more than 2 s, 6 more than 9 s. So
//! as many attaches are made here, and each is timed by dom0, from its directory to the backend's 2 and 4.

mod load;
mod plan;
mod record;
mod row;

use anyhow::Context;
use nested_tests::dom0::Dom0;
use nested_tests::driverdom::Config;
use nested_tests::guest::driverdom_disk;
use nested_tests::progress::Progress;
use nested_tests::scenarios::vbd::{device_name, device_number};
use nested_tests::testfront::TestFrontConfig;
use nested_tests::world::World;
use serde_json::{Value, json};

use super::lanes::{Done, Lanes};
use super::{Arguments, Promise, machine};
use crate::project::Project;
use load::{Load, Pressure, Sample};
use plan::{Round, rounds};
use row::{Own, Row};

/// As many as the report has.
const ATTACHES: usize = 3352;
/// Without load nothing rare is looked for.
const QUIET_ATTACHES: usize = 300;
/// For four guests with 80 disks, some of memory, at a time.
const MEMORY_MIB: u32 = 48;
/// What a round may take, in seconds: fifty times what it takes on a quiet machine.
const ROUND_LIMIT: u64 = 1200;

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    arguments: &Arguments,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let attaches = arguments.attaches.unwrap_or(ATTACHES);
    let mut world = machine::start(project, arguments.boot.accel.resolve(), progress)?;
    let mut rows = vec![];
    for (load, attaches) in [(Disk::Busy, attaches), (Disk::Idle, attaches.min(QUIET_ATTACHES))] {
        let row = driverdom(&mut world, load, attaches, progress)?;
        println!("{}", row.text());
        rows.push(row);
    }
    world.power_off()?;
    let promises = rows.iter().filter(|row| row.load).flat_map(Row::promises).collect();
    Ok((json!({ "bench": "latency", "rows": rows.iter().map(Row::json).collect::<Vec<_>>() }), promises))
}

/// What dom0's disk does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Busy,
    Idle,
}

/// Attaches to a driverdom that was started for them.
fn driverdom(world: &mut World, disk: Disk, attaches: usize, progress: Progress) -> anyhow::Result<Row> {
    world.clean_up()?;
    let domain = world.driverdom(&Config { memory_mib: MEMORY_MIB, ..Config::default() })?.domid;
    let backend = Backend { name: "driverdom", domain, disk: mixed_disk };
    let measured = measure(world, &backend, disk, attaches, progress)?;
    // The last change is published a second later at most.
    let own =
        world.dom0.check(&format!("sleep 2; xenstore-read /local/domain/{domain}/data/driverdom/attaches"), 60)?;
    Ok(measured.row(&backend, disk, Some(Own::parse(&own)?)))
}

/// Every second one a partition, which readers may share; the others are memory.
fn mixed_disk(number: usize) -> String {
    let (access, target) = if number.is_multiple_of(2) { ("rw", "ram:64K") } else { ("r", "gpt:demo") };
    driverdom_disk(&device_name(number), access, target)
}

/// Who serves the disks.
struct Backend {
    name: &'static str,
    domain: u32,
    /// xl's specification of a guest's disk, by its number.
    disk: fn(usize) -> String,
}

/// What was seen of attaches.
struct Measured {
    attaches: usize,
    seen: Vec<record::Attach>,
    done: Vec<Done>,
    pressure: Pressure,
}

impl Measured {
    fn row(&self, backend: &Backend, disk: Disk, own: Option<Own>) -> Row {
        Row::new(backend.name, disk == Disk::Busy, self, own)
    }
}

fn measure(
    world: &mut World,
    backend: &Backend,
    disk: Disk,
    attaches: usize,
    progress: Progress,
) -> anyhow::Result<Measured> {
    const RECORD: &str = "/run/bench/record";
    let recorder = format!(
        "mkdir -p /run/bench; rm -f {RECORD}; (nice -n -10 /guests/dom0-tools record {} {RECORD} &> /run/bench/recorder & echo $!)",
        backend.domain
    );
    let recorder = world.dom0.check(&recorder, 60)?;
    world.dom0.wait_until(&format!("[ -e {RECORD} ]"), 60)?;
    let load = (disk == Disk::Busy).then(|| Load::start(world)).transpose()?;
    let before = Sample::take(&world.dom0)?;
    let result = run_rounds(&world.dom0, backend, attaches, &before, progress);
    let pressure = Sample::take(&world.dom0)?.since(&before);
    if let Some(load) = load {
        load.stop(world)?;
    }
    let done = result?;
    world.dom0.check(&format!("kill {recorder}"), 60).context("the recorder ended early")?;
    let text = String::from_utf8(world.dom0.get(RECORD)?)?;
    Ok(Measured { attaches, seen: record::attaches(&text, backend.domain)?, done, pressure })
}

fn run_rounds(
    dom0: &Dom0,
    backend: &Backend,
    attaches: usize,
    begun: &Sample,
    progress: Progress,
) -> anyhow::Result<Vec<Done>> {
    let mut done = vec![];
    let (mut sample, mut made) = (begun.clone(), 0);
    for (number, round) in rounds(attaches).iter().enumerate() {
        // Programs and their libraries come from the disk, as they do where memory is scarce.
        dom0.check("echo 1 > /proc/sys/vm/drop_caches", 120)?;
        let outcome = lanes(backend, round, number).run(dom0, ROUND_LIMIT)?;
        let said = outcome.said.lines().take(5).map(|line| format!("; said: {line}")).collect::<String>();
        done.extend(outcome.done);
        made += round.attaches();
        let now = Sample::take(dom0)?;
        progress.say(&format!("{}: {made} of {attaches} attaches; {}{said}", backend.name, now.since(&sample).line()));
        sample = now;
    }
    Ok(done)
}

fn lanes(backend: &Backend, round: &Round, number: usize) -> Lanes {
    let mut lanes = Lanes::default();
    for (lane, disks) in round.cold.into_iter().enumerate() {
        let mut guest = TestFrontConfig::new(&format!("cold-{number}-{lane}"));
        guest.disks = (0..disks).map(backend.disk).collect();
        guest.script = "connect vbd=all seconds=100; end stay".to_owned();
        lanes.add("cold", &guest, &[disks.to_string()]);
    }
    for (lane, disks) in round.hot.into_iter().enumerate() {
        let guest = TestFrontConfig::new(&format!("hot-{number}-{lane}"));
        let words = (0..disks).flat_map(|disk| [device_number(&device_name(disk)).to_string(), (backend.disk)(disk)]);
        lanes.add("hot", &guest, &words.collect::<Vec<_>>());
    }
    lanes
}
