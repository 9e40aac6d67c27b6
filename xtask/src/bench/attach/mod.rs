//! `bench attach`: how long xl takes for guests with many disks, beside a backend that only answers.

mod judge;
mod rows;

use nested_tests::driverdom::{Config, Driverdom};
use nested_tests::peer::{Backend, Floor, HotAttach, Volume, hot_attach, live};
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::world::World;
use serde_json::{Value, json};

use super::{Promise, numbers, stage};
use crate::project::Project;
use rows::{Own, Row};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// What driverdom is compared with
    #[arg(long, value_enum, value_delimiter = ',', default_value = "floor")]
    pub(super) vs: Vec<Peer>,
    /// Numbers of disks, with commas between
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=600))]
    disks: Option<Vec<u16>>,
}

impl Options {
    /// The numbers of disks that were asked for, or these.
    pub(super) fn disks_or(&self, default: &[usize]) -> Vec<usize> {
        self.disks.as_ref().map_or_else(|| default.to_vec(), |disks| disks.iter().copied().map(usize::from).collect())
    }
}

/// A backend that driverdom is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Peer {
    /// A backend that only answers: what xl and libxl cost by themselves
    Floor,
}

/// Starts a peer, and gives it to the bench.
impl Peer {
    pub(super) fn start(self, world: &World) -> anyhow::Result<Box<dyn Backend + '_>> {
        Ok(match self {
            Self::Floor => Box::new(Floor::start(&world.dom0)?),
        })
    }
}

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
    let driverdom = world.driverdom(&Config { memory_mib: MEMORY_MIB, ..Config::default() })?;
    let disks = options.disks_or(&DISKS);
    let mut rows = measure(&world, &driverdom, &disks, progress)?;
    let own = own(&world, &driverdom)?;
    let mut hot = vec![hot_row(&world, &driverdom, &disks, progress)?];
    for peer in &options.vs {
        let peer = peer.start(&world)?;
        rows.extend(measure(&world, peer.as_ref(), &disks, progress)?);
        hot.push(hot_row(&world, peer.as_ref(), &disks, progress)?);
    }
    world.power_off()?;
    rows::print(&rows, own);
    let promises = judge::promises(&rows, own);
    Ok((json!({ "bench": "attach", "rows": rows, "own_ms": own.json(), "hot": hot }), promises))
}

/// A backend's rows: each kind of volume with each number of disks.
fn measure(world: &World, backend: &dyn Backend, disks: &[usize], progress: Progress) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![];
    for &volume in backend.volumes() {
        for &count in disks {
            let name = format!("{}, {count} disks ({})", backend.name(), volume.name());
            let (row, _) = progress.stage(&name, || Ok(row(world, backend, volume, count)))?;
            if let Err(why) = &row.lives {
                progress.say(&format!("{name}: {why}"));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

fn row(world: &World, backend: &dyn Backend, volume: Volume, disks: usize) -> Row {
    let times = if disks <= MANY { TIMES } else { 1 };
    let lives: anyhow::Result<Vec<_>> = (0..times).map(|_| live(&world.dom0, backend, volume, disks)).collect();
    Row { backend: backend.name(), volume, disks, lives: lives.map_err(|error| format!("{error:#}")) }
}

/// driverdom's own share of all attaches so far.
fn own(world: &World, driverdom: &Driverdom) -> anyhow::Result<Own> {
    // The counters are written at most once a second.
    let node = format!("/local/domain/{}/data/driverdom/attaches", driverdom.domid);
    Own::parse(&world.dom0.check(&format!("sleep 2; xenstore-read {node}"), 30)?)
}

/// Disks attached one by one, as far as there are so many to be measured.
fn hot_row(world: &World, backend: &dyn Backend, disks: &[usize], progress: Progress) -> anyhow::Result<Value> {
    let count = disks.iter().copied().max().unwrap_or(0).min(HOT_DISKS);
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
