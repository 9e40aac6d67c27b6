//! `bench attach`: how long xl takes for guests with many disks, beside a backend that only answers.

mod judge;
mod rows;

use nested_tests::driverdom::Config;
use nested_tests::peer::{Backend, HotAttach, Volume, hot_attach, live};
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::world::World;
use serde_json::{Value, json};

use super::options::Options;
use super::{Promise, numbers, stage};
use crate::project::Project;
use rows::{Own, Row};

/// Memory of driverdom: 200 volumes of 64 KiB are among it.
const MEMORY_MIB: u32 = 64;
const DISKS: [usize; 6] = [1, 8, 10, 50, 100, 200];
/// Disks that are attached one by one.
const HOT_DISKS: usize = 100;

/// Guests with up to so many disks are measured [`TIMES`] times, and the median counts.
const MANY: usize = 50;
const TIMES: usize = 3;

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    options: &Options,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let world = stage::boot(project, accel, progress)?;
    let Measured { rows, own, hot } = measure_all(&world, options, progress)?;
    world.power_off()?;
    rows::print(&rows, own);
    let promises = judge::promises(&rows, own);
    Ok((json!({ "bench": "attach", "rows": rows, "own_ms": own.json(), "hot": hot }), promises))
}

/// What the machine showed.
struct Measured {
    rows: Vec<Row>,
    own: Own,
    hot: Vec<Value>,
}

/// Starts all backends, side by side, and measures.
fn measure_all(world: &World, options: &Options, progress: Progress) -> anyhow::Result<Measured> {
    let driverdom = world.driverdom(&Config { memory_mib: MEMORY_MIB, ..Config::default() })?;
    let mut peers = vec![];
    for peer in options.peers() {
        match peer.start(&world.dom0) {
            Ok(peer) => peers.push(peer),
            Err(error) => println!("no rows of {peer:?}: {error:#}"),
        }
    }
    let backends: Vec<&dyn Backend> =
        std::iter::once(&driverdom as &dyn Backend).chain(peers.iter().map(|peer| &**peer)).collect();
    let disks = options.disks_or(&DISKS);
    let rows = measure(world, &backends, &disks, progress)?;
    let own = Own::read(&driverdom.counters("attaches")?)?;
    let hot = hot_rows(world, &backends, &rows, progress)?;
    Ok(Measured { rows, own, hot })
}

/// All rows, of each backend up to the number of disks at which it fails. Those with the same number of disks are measured one
/// after the other: what disturbs one disturbs all.
fn measure(world: &World, backends: &[&dyn Backend], disks: &[usize], progress: Progress) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = vec![];
    for &count in disks {
        for (backend, volume) in
            backends.iter().flat_map(|backend| backend.volumes().iter().map(move |volume| (backend, *volume)))
        {
            let failed = |row: &Row| row.backend == backend.name() && row.volume == volume && row.failure.is_some();
            if rows.iter().any(failed) {
                continue;
            }
            let name = format!("{}, {count} disks ({})", backend.name(), volume.name());
            let (row, _) = progress.stage(&name, || Ok(row(world, *backend, volume, count)))?;
            row.lives.iter().for_each(|life| progress.say(&format!("    {life}")));
            row.failure.iter().for_each(|why| progress.say(&format!("    failed: {why}")));
            rows.push(row);
        }
    }
    Ok(rows)
}

fn row(world: &World, backend: &dyn Backend, volume: Volume, disks: usize) -> Row {
    let times = if disks <= MANY { TIMES } else { 1 };
    let mut row = Row { backend: backend.name(), volume, disks, lives: vec![], failure: None };
    while row.failure.is_none() && row.lives.len() < times {
        match live(&world.dom0, backend, volume, disks) {
            Ok(life) => {
                row.failure.clone_from(&life.complaint);
                row.lives.push(life);
            }
            Err(error) => row.failure = Some(format!("{error:#}")),
        }
    }
    row
}

/// Disks attached one by one to a guest of each backend.
fn hot_rows(world: &World, backends: &[&dyn Backend], rows: &[Row], progress: Progress) -> anyhow::Result<Vec<Value>> {
    backends.iter().map(|backend| hot_row(world, *backend, rows, progress)).collect()
}

/// As many disks as a guest of this backend's could have, or [`HOT_DISKS`].
fn hot_row(world: &World, backend: &dyn Backend, rows: &[Row], progress: Progress) -> anyhow::Result<Value> {
    let well = rows.iter().filter(|row| row.backend == backend.name() && row.failure.is_none());
    let count = well.map(|row| row.disks).max().unwrap_or(0).min(HOT_DISKS);
    let volume = backend.volumes().first().copied().unwrap_or(Volume::None);
    let name = format!("{}, {count} hot attaches ({})", backend.name(), volume.name());
    let (result, _) = progress.stage(&name, || Ok(hot_attach(&world.dom0, backend, volume, count)))?;
    if let Err(error) = &result {
        progress.say(&format!("{name}: {error:#}"));
    }
    let attaches = result.as_deref().unwrap_or_default();
    let median = |of: &[HotAttach], value: fn(&HotAttach) -> f64| numbers::median(of.iter().map(value).collect());
    let edge = attaches.len().min(10);
    let (first, last) = (&attaches[..edge], &attaches[attaches.len() - edge..]);
    let row = json!({
        "backend": backend.name(), "volume": volume.name(), "disks": count, "ok": result.is_ok(),
        "attach_s": median(attaches, |one| one.attach), "connected_s": median(attaches, |one| one.connected),
        "first_attach_s": median(first, |one| one.attach), "last_attach_s": median(last, |one| one.attach),
    });
    progress.say(&format!("{name}: {row}"));
    Ok(row)
}
