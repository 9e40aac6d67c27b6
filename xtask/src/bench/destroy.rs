//! `bench destroy`: how soon a domain is gone, with few and many disks, idle and in full I/O, and driverdom itself.

use anyhow::{Context, ensure};
use nested_tests::dom0::Dom0;
use nested_tests::driverdom::{Config, Driverdom, NAME, crash};
use nested_tests::guest::{console_log, driverdom_disk};
use nested_tests::image::Layout;
use nested_tests::peer::{Backend, End, Ended, Floor, Volume, device_name, end};
use nested_tests::progress::Progress;
use nested_tests::qemu::Accel;
use nested_tests::qmp::Qmp;
use nested_tests::testfront::{TestFront, TestFrontConfig};
use nested_tests::world::{DISK, World};
use serde_json::{Value, json};

use super::numbers::median;
use super::options::Options;
use super::{Promise, stage};
use crate::project::Project;

const DISKS: [usize; 3] = [1, 10, 100];
/// Partitions of the data disk, of [`PARTITION_MIB`] each: as many as a GPT has room for.
const PARTITIONS: usize = 120;
const PARTITION_MIB: u64 = 4;
/// Guests with up to so many disks are measured [`TIMES`] times, and the median counts.
const MANY: usize = 50;
const TIMES: usize = 3;

/// The guest that is destroyed.
const VICTIM: &str = "victim";

/// What the guest does when it is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Idle,
    /// Reads and writes in flight on each disk.
    Io,
}

/// Measured guests.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    backend: &'static str,
    disks: usize,
    work: Work,
    seconds: Result<f64, String>,
}

/// Measures; the rows for `--json`, and what was promised.
pub(super) fn run(
    project: &Project,
    options: &Options,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<(Value, Vec<Promise>)> {
    let mut world = stage::boot(project, accel, progress)?;
    // Layouts name their partitions for good, and so does this one, once.
    let name = |number| (&*partition(number).leak(), PARTITION_MIB);
    world.lay_out(DISK, &Layout((0..PARTITIONS).map(name).collect()))?;
    let disks = options.disks_or(&DISKS);
    let (rows, batch) = guests(&mut world, &disks, progress)?;
    let (own, _) = progress.stage("driverdom itself", || own_ends(&world))?;
    world.power_off()?;

    print(&rows, &own, batch);
    let promises = promises(&rows, &own, batch);
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    let own = json!({ "destroy_s": own.destroy, "crashed_destroy_s": own.crashed, "shutdown_s": own.shutdown });
    Ok((json!({ "bench": "destroy", "rows": rows, "driverdom": own, "longest_grant_batch": batch }), promises))
}

/// Guests of driverdom and of the floor, and the longest batch of grants that driverdom gave to Xen meanwhile.
fn guests(world: &mut World, disks: &[usize], progress: Progress) -> anyhow::Result<(Vec<Row>, u64)> {
    let World { dom0, qmp, .. } = world;
    let config = Config { memory_mib: 32, ..Config::default() };
    let driverdom = Driverdom::start(dom0, &config)?;
    let ours = |number| driverdom_disk(&device_name(number), "rw", &format!("gpt:{}", partition(number)));
    let mut rows = vec![];
    let mut measure = |backend, work, disk: &dyn Fn(usize) -> String| -> anyhow::Result<()> {
        for &count in disks {
            let times = if count <= MANY { TIMES } else { 1 };
            let victim = victim((0..count).map(disk).collect(), work);
            let what = format!("{backend}, {count} disks, {work:?}");
            let mut one = || (0..times).map(|_| destroy(dom0, qmp, &victim, work)).collect::<anyhow::Result<Vec<_>>>();
            let (seconds, _) = progress.stage(&what, || Ok(one()))?;
            let seconds = seconds.map(|all| median(all).unwrap_or_default()).map_err(|error| format!("{error:#}"));
            if let Err(why) = &seconds {
                progress.say(&format!("{what}: {why}"));
                dom0.run(&format!("xl destroy {VICTIM}"), 120)?;
            }
            rows.push(Row { backend, disks: count, work, seconds });
        }
        Ok(())
    };
    measure(NAME, Work::Idle, &ours)?;
    measure(NAME, Work::Io, &ours)?;
    let batch = driverdom.counters("io")?.get("longest_batch")?;
    driverdom.shut_down()?;
    let floor = Floor::start(dom0)?;
    measure(floor.name(), Work::Idle, &|number| floor.disk(number, Volume::None))?;
    floor.stop()?;
    Ok((rows, batch))
}

fn partition(number: usize) -> String {
    format!("p{number}")
}

fn victim(disks: Vec<String>, work: Work) -> TestFrontConfig {
    let then = match work {
        Work::Idle => "end stay",
        Work::Io => "load vbd=all seconds=600 depth=4 mix",
    };
    let script = format!("connect vbd=all seconds=100; {then}");
    TestFrontConfig { memory_mib: 48, disks, script, ..TestFrontConfig::new(VICTIM) }
}

/// Creates the guest, lets it come to its work, and destroys it.
fn destroy(dom0: &Dom0, qmp: &mut Qmp, victim: &TestFrontConfig, work: Work) -> anyhow::Result<f64> {
    let log = console_log(VICTIM);
    dom0.check(&format!("rm -f {log}"), 30)?;
    TestFront::create(dom0, victim)?;
    let connected = format!("grep -a 'testfront: step 1 ok' {log} || {{ tail -n 3 {log}; false; }}");
    dom0.wait_until(&connected, 120)?;
    dom0.check("sleep 2", 30)?;
    let before = qmp.disk_counts(DISK)?.writes;
    dom0.check("sleep 1", 30)?;
    let writes = qmp.disk_counts(DISK)?.writes - before;
    ensure!((work == Work::Io) == (writes > 0), "{writes} writes in a second, and the guest was to be {work:?}");
    end(dom0, VICTIM, End::Destroy)?.quietly()
}

/// Ends of driverdom itself, with a passed-through disk, in seconds. xl says each time that Linux cannot reset that, and after a crash
/// that nobody answers for it any more.
#[derive(Debug)]
struct OwnEnds {
    /// Destroyed while it lives.
    destroy: f64,
    /// Destroyed after it has crashed: xl waits for an answer about the disk that never comes.
    crashed: f64,
    shutdown: f64,
}

fn own_ends(world: &World) -> anyhow::Result<OwnEnds> {
    let times = |before: fn(&Dom0) -> anyhow::Result<()>, how| -> anyhow::Result<f64> {
        let one = |_| {
            world.driverdom(&Config::default())?;
            before(&world.dom0)?;
            let Ended { seconds, said } = end(&world.dom0, NAME, how)?;
            let of_the_disk = |line: &str| line.contains("reset from sysfs") || line.contains("/backend/pci/");
            ensure!(said.lines().all(of_the_disk), "xl said: {said}");
            Ok(seconds)
        };
        median((0..TIMES).map(one).collect::<anyhow::Result<_>>()?).context("nothing was measured")
    };
    let alive = |_: &Dom0| Ok(());
    Ok(OwnEnds {
        destroy: times(alive, End::Destroy)?,
        crashed: times(crash, End::Destroy)?,
        shutdown: times(alive, End::Shutdown)?,
    })
}

impl Row {
    fn json(&self) -> Value {
        let seconds = self.seconds.as_ref().ok();
        json!({
            "backend": self.backend, "disks": self.disks, "io": self.work == Work::Io,
            "ok": seconds.is_some(), "destroy_s": seconds,
        })
    }
}

fn print(rows: &[Row], own: &OwnEnds, batch: u64) {
    println!("backend      disks  work   seconds until gone (medians)");
    for Row { backend, disks, work, seconds } in rows {
        let seconds = match seconds {
            Ok(seconds) => format!("{seconds:.2}"),
            Err(why) => format!("failed: {why}"),
        };
        println!("{backend:<12} {disks:>5}  {:<6} {seconds}", format!("{work:?}"));
    }
    println!(
        "driverdom itself: destroyed in {:.2} s, after a crash in {:.2} s, shut down in {:.2} s; at most {batch} grant operations given to Xen at once",
        own.destroy, own.crashed, own.shutdown
    );
}

/// As many grant operations as Xen may be given at once.
const MOST_GRANTS: u64 = 64;

fn promises(rows: &[Row], own: &OwnEnds, batch: u64) -> Vec<Promise> {
    let failed = rows.iter().filter(|row| row.seconds.is_err()).count();
    let mut promises = vec![
        Promise { text: format!("every guest goes quietly: {failed} rows do not"), kept: failed == 0 },
        Promise {
            text: format!("driverdom, alive and with a disk, is gone after at most 1 s: {:.2}", own.destroy),
            kept: own.destroy <= 1.0,
        },
        Promise {
            text: format!("at most {MOST_GRANTS} grant operations given to Xen at once: {batch}"),
            kept: (1..=MOST_GRANTS).contains(&batch),
        },
    ];
    let idle = |backend, disks| {
        let row = rows.iter().find(|row| (row.backend, row.disks, row.work) == (backend, disks, Work::Idle));
        row.and_then(|row| row.seconds.as_ref().ok().copied())
    };
    let counts = rows.iter().filter(|row| (row.backend, row.work) == (NAME, Work::Idle)).map(|row| row.disks);
    for (disks, ours, floor) in
        counts.filter_map(|disks| Some((disks, idle(NAME, disks)?, idle(nested_tests::peer::FLOOR, disks)?)))
    {
        promises.push(Promise {
            text: format!(
                "{disks} idle disks destroyed in at most 1.25 x the floor's time: {ours:.2} and {floor:.2} s"
            ),
            kept: ours <= 1.25 * floor,
        });
    }
    promises
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(ours: f64, own: f64, batch: u64) -> usize {
        let row = |backend, seconds| Row { backend, disks: 100, work: Work::Idle, seconds: Ok(seconds) };
        let rows = [row(NAME, ours), row(nested_tests::peer::FLOOR, 4.0)];
        let own = OwnEnds { destroy: own, crashed: 11.0, shutdown: 2.0 };
        promises(&rows, &own, batch).iter().filter(|promise| !promise.kept).count()
    }

    #[test]
    fn promises_are_judged() {
        for (ours, own, batch, expected) in [(5.0, 1.0, 64, 0), (5.01, 1.0, 1, 1), (4.0, 1.01, 0, 2), (4.0, 0.5, 65, 1)]
        {
            assert_eq!(broken(ours, own, batch), expected, "{ours} {own} {batch}");
        }
    }
}
