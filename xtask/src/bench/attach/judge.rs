//! What is promised of attaches, and whether the rows keep it.

use nested_tests::driverdom::NAME;
use nested_tests::peer::{FLOOR, Life, linux_dom0};

use super::rows::{Own, Row};
use crate::bench::Promise;
use crate::bench::numbers::slope;

/// driverdom's rows of one kind of volume, and others' to compare them with.
struct Comparison<'a> {
    volume: &'static str,
    ours: Vec<&'a Row>,
    floor: Vec<&'a Row>,
    /// Of blkback in dom0 with Xen's block script.
    script: Vec<&'a Row>,
}

/// All promises that the rows have something to say about.
pub(super) fn promises(rows: &[Row], own: Own) -> Vec<Promise> {
    // A Linux peer's failure is a row that says so.
    let judged = rows.iter().filter(|row| [NAME, FLOOR].contains(&row.backend));
    let failed = judged.filter(|row| row.failure.is_some()).count();
    let mut promises = vec![
        Promise { text: format!("every guest comes up and goes quietly: {failed} rows do not"), kept: failed == 0 },
        Promise {
            text: format!("own share from seeing a disk to state 2: p99 at most 50 ms: {}", own.attach.p99),
            kept: own.attach.p99 <= 50,
        },
    ];
    let of = |backend| rows.iter().filter(|row| row.backend == backend).collect::<Vec<&Row>>();
    let (mut ours, floor, script) = (of(NAME), of(FLOOR), of(linux_dom0::NAME));
    ours.sort_by_key(|row| row.volume);
    for rows in ours.chunk_by(|one, other| one.volume == other.volume) {
        let (floor, script) = (floor.clone(), script.clone());
        promises.extend(Comparison { volume: rows[0].volume.name(), ours: rows.to_vec(), floor, script }.promises());
    }
    promises
}

impl Comparison<'_> {
    fn promises(&self) -> Vec<Promise> {
        let of_few = [self.small_destroy(8, 1.8), self.own_start_up(100, 0.05)];
        let of_many = [
            self.creates(1.15),
            self.slopes(1.15),
            self.script_slope(15.0),
            self.straight(50, 1.3),
            self.destroys(100, 1.25),
        ];
        of_few.into_iter().chain(of_many).flatten().collect()
    }

    fn creates(&self, limit: f64) -> Option<Promise> {
        let ratios: Vec<_> =
            self.ours.iter().filter_map(|row| Some((row.disks, self.ratio(row.disks, |life| life.create)?))).collect();
        let worst = ratios.iter().map(|(_, ratio)| *ratio).reduce(f64::max)?;
        let list: Vec<_> = ratios.iter().map(|(disks, ratio)| format!("{disks}: {ratio:.2}")).collect();
        Some(self.promise(&format!("create at most {limit} x the floor's: {}", list.join(", ")), worst <= limit))
    }

    fn slopes(&self, limit: f64) -> Option<Promise> {
        let (ours, floor) = (slope(&creates(&self.ours, |_| true))?, slope(&creates(&self.floor, |_| true))?);
        let text = format!("create's slope at most {limit} x the floor's: {ours:.4} and {floor:.4} s a disk");
        Some(self.promise(&text, ours <= limit * floor))
    }

    /// A disk more costs xl so many times less than with the script, as far as that gets.
    fn script_slope(&self, times: f64) -> Option<Promise> {
        let script = slope(&creates(&self.script, |_| true))?;
        let ours = slope(&creates(&self.ours, |_| true))?;
        let text = format!("create's slope at most 1/{times} of the script's: {ours:.4} and {script:.4} s a disk");
        Some(self.promise(&text, ours * times <= script))
    }

    /// Below and above `bend` disks it takes the same for one more.
    fn straight(&self, bend: usize, limit: f64) -> Option<Promise> {
        let below = slope(&creates(&self.ours, |disks| disks <= bend))?;
        let above = slope(&creates(&self.ours, |disks| disks >= bend))?;
        let text = format!(
            "create's slope from {bend} disks on within {limit} of that up to there: {above:.4} and {below:.4} s a disk"
        );
        Some(self.promise(&text, above <= limit * below))
    }

    /// What a guest with so many disks needs after xl has returned, beside one with a single disk.
    fn own_start_up(&self, disks: usize, limit: f64) -> Option<Promise> {
        let after = |disks| {
            let row = self.ours.iter().find(|row| row.disks == disks)?;
            Some(row.time(|life| life.connected)? - row.time(|life| life.create)?)
        };
        let each = (after(disks)? - after(1)?) / disks as f64;
        let text = format!(
            "{disks} disks connected after the guest's own start-up and at most {limit} s a disk: {each:.3} s a disk"
        );
        Some(self.promise(&text, each <= limit))
    }

    fn destroys(&self, disks: usize, limit: f64) -> Option<Promise> {
        let ratio = self.ratio(disks, |life| life.destroy)?;
        Some(
            self.promise(
                &format!("destroy with {disks} disks at most {limit} x the floor's: {ratio:.2}"),
                ratio <= limit,
            ),
        )
    }

    fn small_destroy(&self, disks: usize, limit: f64) -> Option<Promise> {
        let seconds = self.ours.iter().find(|row| row.disks == disks)?.time(|life| life.destroy)?;
        Some(self.promise(&format!("{disks} disks destroyed in at most {limit} s: {seconds:.2}"), seconds <= limit))
    }

    fn ratio(&self, disks: usize, time: fn(&Life) -> f64) -> Option<f64> {
        let of = |rows: &[&Row]| rows.iter().find(|row| row.disks == disks)?.time(time);
        Some(of(&self.ours)? / of(&self.floor)?)
    }

    fn promise(&self, text: &str, kept: bool) -> Promise {
        Promise { text: format!("{}: {text}", self.volume), kept }
    }
}

/// Seconds of `xl create` by number of disks.
fn creates(rows: &[&Row], wanted: impl Fn(usize) -> bool) -> Vec<(f64, f64)> {
    let wanted = rows.iter().filter(|row| wanted(row.disks));
    wanted.filter_map(|row| Some((row.disks as f64, row.time(|life| life.create)?))).collect()
}

#[cfg(test)]
mod tests {
    use nested_tests::peer::Volume;

    use super::*;
    use crate::bench::attach::rows::Percentiles;

    fn own(p99: u64) -> Own {
        let percentiles = Percentiles { p50: 1, p99, max: p99 };
        Own { attach: percentiles, connect: percentiles }
    }

    /// A backend whose create takes `fixed + each * disks` seconds, and twice of `each` above 50 disks if it `bends`.
    fn rows(backend: &'static str, each: f64, bend: f64) -> Vec<Row> {
        let volume = if backend == FLOOR { Volume::None } else { Volume::Gpt };
        let row = |disks: usize| {
            let below = disks.min(50) as f64;
            let create = 0.5 + each * (below + bend * (disks as f64 - below));
            let life = Life {
                create,
                backend_connected: create,
                connected: create + 0.3,
                destroy: 0.4 + each * disks as f64,
                complaint: None,
            };
            Row { backend, volume, disks, lives: vec![life], failure: None }
        };
        [1, 8, 10, 50, 100, 200].map(row).to_vec()
    }

    fn broken(rows: &[Row], own: Own) -> Vec<String> {
        promises(rows, own).into_iter().filter(|promise| !promise.kept).map(|promise| promise.text).collect()
    }

    #[test]
    fn what_is_like_the_floor_keeps_all() {
        let all = [rows("driverdom", 0.11, 1.0), rows(FLOOR, 0.11, 1.0)].concat();
        assert_eq!(promises(&all, own(50)).len(), 8);
        assert!(broken(&all, own(50)).is_empty(), "{:?}", broken(&all, own(50)));
        assert_eq!(broken(&all, own(51)).len(), 1);
    }

    #[test]
    fn what_is_slower_does_not() {
        let all = [rows("driverdom", 0.15, 1.0), rows(FLOOR, 0.11, 1.0)].concat();
        let broken_ones = broken(&all, own(1));
        assert_eq!(broken_ones.len(), 3, "{broken_ones:?}");
        let all = [rows("driverdom", 0.11, 2.0), rows(FLOOR, 0.11, 2.0)].concat();
        assert!(matches!(broken(&all, own(1)).as_slice(), [one] if one.contains("from 50 disks on")));
    }

    #[test]
    fn the_script_is_compared_as_far_as_it_gets() {
        for (script, broken_ones) in [(1.66, 0), (1.64, 1)] {
            let mut peer = rows(linux_dom0::NAME, script, 1.0);
            peer.truncate(3);
            (peer[2].lives, peer[2].failure) = (vec![], Some("timed out".into()));
            let all = [rows("driverdom", 0.11, 1.0), peer].concat();
            let broken = broken(&all, own(1));
            assert_eq!(broken.len(), broken_ones, "{broken:?}");
            assert!(broken.iter().all(|text| text.contains("1/15")), "{broken:?}");
        }
    }

    #[test]
    fn a_failed_row_breaks_one_and_says_nothing_else() {
        let mut all = rows("driverdom", 0.11, 1.0);
        (all[4].lives, all[4].failure) = (vec![], Some("xl said no".into()));
        let broken = broken(&all, own(1));
        assert!(matches!(broken.as_slice(), [one] if one.contains("1 rows")), "{broken:?}");
    }
}
