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
use nested_tests::peer::{Backend, TOOLS, device_name, device_number};
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::testfront::TestFrontConfig;
use nested_tests::world::World;
use serde_json::{Value, json};

use super::lanes::{Done, Lanes};
use super::peer::Peer;
use super::{Arguments, Promise, stage};
use crate::project::Project;
use load::{Disk, Load, Pressure, Sample};
use plan::{GUESTS, Round, rounds};
use row::{Own, Row};

/// As many as the report has.
const ATTACHES: usize = 3352;
/// Without load nothing rare is looked for.
const QUIET_ATTACHES: usize = 300;
/// For comparison.
const PEER_ATTACHES: usize = 100;
/// For four guests with 80 disks, half of them of memory, at a time.
const MEMORY_MIB: u32 = 48;
/// What a round may take, in seconds: fifty times what it takes on a quiet machine.
const ROUND_LIMIT: u64 = 1200;

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    arguments: &Arguments,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let attaches = arguments.attaches.unwrap_or(ATTACHES);
    let mut world = stage::boot(project, accel, progress)?;
    let mut rows = vec![
        driverdom(&mut world, Disk::Busy, attaches, progress)?,
        driverdom(&mut world, Disk::Idle, attaches.min(QUIET_ATTACHES), progress)?,
    ];
    for peer in &arguments.attach.vs {
        rows.extend(compare(&mut world, *peer, attaches.min(PEER_ATTACHES), progress)?);
    }
    world.power_off()?;
    let promises = rows.iter().filter(|row| row.is_promised()).flat_map(Row::promises).collect();
    Ok((json!({ "bench": "latency", "rows": rows.iter().map(Row::json).collect::<Vec<_>>() }), promises))
}

/// Attaches to a driverdom that was started for them: it counts from its start.
fn driverdom(world: &mut World, disk: Disk, attaches: usize, progress: Progress) -> anyhow::Result<Row> {
    world.clean_up()?;
    disk.limit(&mut world.qmp)?;
    let driverdom = world.driverdom(&Config { memory_mib: MEMORY_MIB, ..Config::default() })?;
    let measured = measure(&world.dom0, &driverdom, disk, attaches, progress)?;
    let own = Own::read(&driverdom.counters("attaches")?)?;
    let row = Row::new("driverdom", disk, &measured, Some(own));
    println!("{}", row.text());
    Ok(row)
}

/// Attaches to a peer, with load and without.
fn compare(world: &mut World, peer: Peer, attaches: usize, progress: Progress) -> anyhow::Result<Vec<Row>> {
    world.clean_up()?;
    let World { dom0, qmp, .. } = world;
    let backend = peer.start(dom0)?;
    let mut rows = vec![];
    for disk in [Disk::Busy, Disk::Idle] {
        disk.limit(qmp)?;
        let measured = measure(dom0, backend.as_ref(), disk, attaches, progress)?;
        let row = Row::new(backend.name(), disk, &measured, None);
        println!("{}", row.text());
        rows.push(row);
    }
    Ok(rows)
}

/// What was seen of attaches.
struct Measured {
    attaches: usize,
    seen: Vec<record::Attach>,
    done: Vec<Done>,
    /// Lines that xl wrote on its standard error.
    complaints: usize,
    pressure: Pressure,
}

fn measure(
    dom0: &Dom0,
    backend: &dyn Backend,
    disk: Disk,
    attaches: usize,
    progress: Progress,
) -> anyhow::Result<Measured> {
    const RECORD: &str = "/run/bench/record";
    let domain = backend.domid();
    // The clock must not wait for what it times.
    let recorder = format!(
        "mkdir -p /run/bench; rm -f {RECORD}; nice -n -10 {TOOLS} record {domain} {RECORD} > /run/bench/recorder 2>&1 & echo $!"
    );
    let recorder = dom0.check(&recorder, 60)?;
    dom0.wait_until(&format!("[ -e {RECORD} ]"), 60)?;
    let load = (disk == Disk::Busy).then(|| Load::start(dom0)).transpose()?;
    let before = Sample::take(dom0)?;
    let result = run_rounds(dom0, backend, attaches, &before, progress);
    let pressure = Sample::take(dom0)?.since(&before);
    if let Some(load) = load {
        load.stop(dom0)?;
    }
    let (done, complaints) = result?;
    dom0.check(&format!("kill {recorder} || {{ cat /run/bench/recorder; false; }}"), 60).context("the recorder")?;
    let text = String::from_utf8(dom0.get(RECORD)?)?;
    Ok(Measured { attaches, seen: record::attaches(&text, domain)?, done, complaints, pressure })
}

fn run_rounds(
    dom0: &Dom0,
    backend: &dyn Backend,
    attaches: usize,
    begun: &Sample,
    progress: Progress,
) -> anyhow::Result<(Vec<Done>, usize)> {
    let (mut done, mut complaints) = (vec![], 0);
    let (mut sample, mut made) = (begun.clone(), 0);
    for (number, round) in rounds(attaches).iter().enumerate() {
        // Programs and their libraries come from the disk, as they do where memory is scarce.
        dom0.check("echo 1 > /proc/sys/vm/drop_caches", 120)?;
        let outcome = lanes(backend, round, number).run(dom0, ROUND_LIMIT)?;
        let said = outcome.said.lines().take(5).map(|line| format!("; said: {line}")).collect::<String>();
        done.extend(outcome.done);
        complaints += outcome.said.lines().count();
        made += round.attaches();
        let now = Sample::take(dom0)?;
        progress.say(&format!(
            "{}: {made} of {attaches} attaches; {}{said}",
            backend.name(),
            now.since(&sample).line()
        ));
        sample = now;
    }
    Ok((done, complaints))
}

/// A guest's disk: of each kind of volume in turn.
fn disk(backend: &dyn Backend, number: usize) -> String {
    let kinds = backend.volumes();
    backend.disk(number, kinds[number % kinds.len()])
}

fn lanes(backend: &dyn Backend, round: &Round, number: usize) -> Lanes {
    let mut lanes = Lanes::default();
    let cold = round.cold.into_iter().enumerate().filter(|(_, disks)| *disks > 0);
    let cold: Vec<_> = cold.map(|(lane, disks)| cold_guest(backend, &format!("cold-{number}-{lane}"), disks)).collect();
    let words: Vec<_> = cold.iter().flat_map(|guest| [guest.name.clone(), guest.disks.len().to_string()]).collect();
    lanes.add("cold", &cold, &words);

    let hot: [_; GUESTS] = std::array::from_fn(|lane| TestFrontConfig::new(&format!("hot-{number}-{lane}")));
    let device = |number| device_number(&device_name(number)).to_string();
    let disks = (0..round.hot).flat_map(|number| [device(number), disk(backend, number)]);
    let words: Vec<_> = hot.iter().map(|guest| guest.name.clone()).chain(disks).collect();
    lanes.add("hot", &hot, &words);
    lanes
}

fn cold_guest(backend: &dyn Backend, name: &str, disks: usize) -> TestFrontConfig {
    let mut guest = TestFrontConfig::new(name);
    guest.disks = (0..disks).map(|number| disk(backend, number)).collect();
    guest.script = "connect vbd=all seconds=100; end stay".to_owned();
    guest
}
