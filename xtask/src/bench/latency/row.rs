//! A row of the result: what the times say.

use std::collections::BTreeMap;

use nested_tests::driverdom::Counters;
use serde_json::{Value, json};

use super::load::{Disk, Pressure};
use super::record::{Attach, Vbd};
use super::{Done, Measured};
use crate::bench::Promise;
use crate::bench::times::Times;

/// What driverdom says of itself, in seconds: from seeing a directory to having written 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Own {
    count: u64,
    p50: f64,
    p999: f64,
    max: f64,
}

impl Own {
    /// Of the node `data/driverdom/attaches`.
    pub(super) fn read(counters: &Counters) -> anyhow::Result<Self> {
        let seconds = |key: &str| counters.get(key).map(|micros| micros as f64 / 1e6);
        Ok(Self {
            count: counters.get("attach_count")?,
            p50: seconds("attach_p50_us")?,
            p999: seconds("attach_p999_us")?,
            max: seconds("attach_max_us")?,
        })
    }
}

/// All times of one backend, with or without load.
#[derive(Debug)]
pub(super) struct Row {
    backend: &'static str,
    /// Whether dom0's disk was busy.
    load: bool,
    /// Attaches that were asked for, and those of them that xl or the recorder says have failed.
    attaches: usize,
    failed: usize,
    /// From the directory to 2.
    offer: Times,
    /// From the directory to 4, where the guest was running.
    connect: Times,
    /// How many frontends of these were at 3 before the backend was at 4, and within half a second of its 2.
    quick_frontends: usize,
    /// From 2 until xl said that it had seen it; none if it said so before the recorder saw it.
    look: Times,
    /// From the directory until then: that long at most, even if the recorder saw the 2 late.
    look_at_most: Times,
    /// From xl's look to 4: what was left of the time in which it had to look.
    margin: Times,
    /// Attaches whose directory the recorder saw for the first time when 2 stood there already: their 2 came earlier than it says.
    seen_late: usize,
    /// `xl destroy` of the guests.
    destroy: Times,
    /// Lines of xl's about what went wrong, whatever it was.
    complaints: usize,
    own: Option<Own>,
    pressure: Pressure,
}

impl Row {
    pub(super) fn new(backend: &'static str, disk: Disk, measured: &Measured, own: Option<Own>) -> Self {
        let Measured { attaches, seen, done, complaints, pressure } = measured;
        let offered = |attach: &&Attach| attach.offered.is_some();
        let by_vbd: BTreeMap<Vbd, &Attach> = seen.iter().map(|attach| (attach.vbd, attach)).collect();
        let of = |verb: &'static str| {
            let mine = done.iter().filter(move |done| done.verb == verb && done.code == 0);
            let vbd = |done: &Done| Some(Vbd { guest: done.guest.parse().ok()?, device: done.subject });
            mine.filter_map(|done| Some((done, *by_vbd.get(&vbd(done)?)?))).collect::<Vec<(&Done, &Attach)>>()
        };
        let (hot, looks) = (of("attach"), of("look"));
        let quick = |attach: &Attach| {
            let (Some(offered), Some(ready)) = (attach.offered, attach.ready) else { return false };
            ready < offered + 0.5 && attach.connected.is_none_or(|connected| ready <= connected)
        };
        Self {
            backend,
            load: disk == Disk::Busy,
            attaches: *attaches,
            failed: failures(*attaches, seen.iter().filter(offered).count(), done),
            offer: seen.iter().filter_map(|attach| Some(attach.offered? - attach.seen)).collect(),
            connect: hot.iter().filter_map(|(_, attach)| Some(attach.connected? - attach.seen)).collect(),
            quick_frontends: hot.iter().filter(|(_, attach)| quick(attach)).count(),
            look: looks.iter().filter_map(|(look, attach)| Some((look.end - attach.offered?).max(0.0))).collect(),
            look_at_most: looks.iter().map(|(look, attach)| look.end - attach.seen).collect(),
            margin: looks.iter().filter_map(|(look, attach)| Some(attach.connected? - look.end)).collect(),
            seen_late: seen.iter().filter(|attach| attach.is_seen_late).count(),
            destroy: done.iter().filter(|done| done.verb == "destroy").map(|done| done.end - done.start).collect(),
            complaints: *complaints,
            own,
            pressure: pressure.clone(),
        }
    }

    /// Whether something was promised of it: of driverdom under load.
    pub(super) fn is_promised(&self) -> bool {
        self.load && self.own.is_some()
    }

    /// What was promised of attaches under load.
    pub(super) fn promises(&self) -> Vec<Promise> {
        let mut all = vec![Promise {
            text: format!("no attach of {} fails under load: {} did", self.attaches, self.failed),
            kept: self.failed == 0 && self.attaches > 0,
        }];
        let (median, p999) = (self.offer.percentile(500).unwrap_or(0.0), self.offer.percentile(999).unwrap_or(0.0));
        all.push(Promise {
            text: format!("99.9 % of attaches within ten times the median under load: {p999:.3} s, {median:.3} s"),
            kept: p999 <= 10.0 * median,
        });
        if let Some(own) = self.own {
            all.push(Promise {
                text: format!("driverdom's own share of an attach under load never above 2 s: {:.3} s", own.max),
                kept: own.max <= 2.0 && own.count >= self.offer.count() as u64,
            });
        }
        all
    }

    pub(super) fn json(&self) -> Value {
        let Self { offer, connect, look, look_at_most, own, pressure, .. } = self;
        json!({
            "backend": self.backend, "load": self.load, "attaches": self.attaches,
            "p50_s": offer.percentile(500), "p99_s": offer.percentile(990), "p999_s": offer.percentile(999),
            "max_s": offer.max(), "over_2s": offer.over(2.0), "over_9s": offer.over(9.0), "failed": self.failed,
            "own_p50_s": own.map(|own| own.p50), "own_p999_s": own.map(|own| own.p999), "own_max_s": own.map(|own| own.max),
            "seconds": offer.all(), "seen_late": self.seen_late,
            "hot": self.connect.count(), "quick_frontends": self.quick_frontends,
            "hot_connected_p50_s": connect.percentile(500), "hot_connected_p999_s": connect.percentile(999),
            "hot_connected_max_s": connect.max(),
            "xl_looked_p50_s": look.percentile(500), "xl_looked_p999_s": look.percentile(999), "xl_looked_max_s": look.max(),
            "xl_looked_at_most_s": look_at_most.max(), "xl_looked_margin_s": self.margin.min(),
            "destroy_p50_s": self.destroy.percentile(500), "destroy_max_s": self.destroy.max(), "complaints": self.complaints,
            "loadavg": pressure.loadavg, "waiting": pressure.waiting, "written_mb_s": pressure.megabytes_per_second,
        })
    }

    /// For a person.
    pub(super) fn text(&self) -> String {
        let load = if self.load { "disk busy" } else { "disk idle" };
        let own = self.own.map_or(String::new(), |Own { count, p50, p999, max }| {
            format!("  own share: {count} of them: median {p50:.3} s, p99.9 {p999:.3}, max {max:.3}\n")
        });
        format!(
            "{}, {load}: {} attaches, {} failed; over 2 s {}, over 9 s {}; {}\n  directory to 2: {} ({} seen late)\n{own}  hot, directory to 4: {} ({} frontends at 3 within 0.5 s)\n  hot, from 2 to xl's look: {}; from the directory {}; least time from there to 4: {:.3} s\n  xl destroy: {}; lines of complaint from xl: {}",
            self.backend,
            self.attaches,
            self.failed,
            self.offer.over(2.0),
            self.offer.over(9.0),
            self.pressure.line(),
            self.offer.line(),
            self.seen_late,
            self.connect.line(),
            self.quick_frontends,
            self.look.line(),
            self.look_at_most.line(),
            self.margin.min().unwrap_or(f64::NAN),
            self.destroy.line(),
            self.complaints
        )
    }
}

/// Attaches of which somebody says that they failed: xl did, or they are missing in the record, whichever are more.
fn failures(attaches: usize, offered: usize, done: &[Done]) -> usize {
    let failed = done.iter().filter(|done| done.code != 0).map(|done| match done.verb.as_str() {
        "create" => done.subject as usize,
        "attach" => 1,
        _ => 0,
    });
    failed.sum::<usize>().max(attaches.saturating_sub(offered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(verb: &str, guest: &str, subject: u32, end: f64, code: i32) -> Done {
        Done { verb: verb.into(), guest: guest.into(), subject, start: 0.0, end, code }
    }

    fn attach(device: u32, ready: f64, connected: f64) -> Attach {
        let vbd = Vbd { guest: 7, device };
        Attach {
            vbd,
            is_seen_late: false,
            seen: 10.0,
            offered: Some(10.25),
            ready: Some(ready),
            connected: Some(connected),
        }
    }

    #[test]
    fn what_xl_says_and_what_is_missing_are_failures() {
        for (offered, lines, expect) in [
            (40, vec![], 0),
            (38, vec![], 2),
            (40, vec![done("create", "c", 32, 1.0, 3), done("attach", "7", 51712, 1.0, 1)], 33),
            (40, vec![done("destroy", "c", 32, 1.0, 1)], 0),
            (7, vec![done("attach", "7", 51712, 1.0, 1)], 33),
        ] {
            assert_eq!(failures(40, offered, &lines), expect);
        }
    }

    #[test]
    fn a_row_has_the_times_of_those_whom_they_concern() {
        let pressure = Pressure { loadavg: String::new(), waiting: 0.0, megabytes_per_second: 0.0 };
        let cold = Attach {
            is_seen_late: true,
            vbd: Vbd { guest: 8, device: 1 },
            offered: Some(13.0),
            ready: None,
            connected: None,
            seen: 10.0,
        };
        let measured = Measured {
            attaches: 3,
            seen: vec![attach(1, 10.5, 10.75), attach(2, 12.0, 12.5), cold],
            done: vec![
                done("look", "7", 1, 10.5, 0),
                done("attach", "7", 1, 10.75, 0),
                done("look", "7", 2, 10.75, 0),
                done("attach", "7", 2, 11.0, 0),
                done("create", "c", 1, 9.0, 0),
            ],
            complaints: 0,
            pressure,
        };
        let own =
            Own::read(&Counters::parse("attach_count=3 attach_p50_us=250000 attach_p999_us=1 attach_max_us=2000001"))
                .expect("all keys");
        let row = Row::new("driverdom", Disk::Busy, &measured, Some(own));
        assert_eq!((row.failed, row.offer.count(), row.offer.over(2.0), row.quick_frontends), (0, 3, 1, 1));
        assert_eq!((row.look.max(), row.look_at_most.max(), row.connect.max()), (Some(0.5), Some(0.75), Some(2.5)));
        assert_eq!(row.margin.min(), Some(0.25));
        let kept: Vec<bool> = row.promises().iter().map(|promise| promise.kept).collect();
        assert_eq!(kept, [true, false, false]);
        assert_eq!(row.json()["own_max_s"], 2.000_001);
        assert!(Own::read(&Counters::parse("attach_count=3")).is_err());
    }
}
