//! What was measured, for people and for programs.

use nested_tests::driverdom::Counters;
use nested_tests::peer::{Life, Volume};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::bench::numbers::median;

/// Guests with the same number of disks of one backend.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) backend: &'static str,
    pub(super) volume: Volume,
    pub(super) disks: usize,
    /// Each of them, up to a failure: the last may be one.
    pub(super) lives: Vec<Life>,
    /// What went wrong.
    pub(super) failure: Option<String>,
}

impl Row {
    /// The median of one time.
    pub(super) fn time(&self, time: fn(&Life) -> f64) -> Option<f64> {
        median(self.lives.iter().map(time).collect())
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = json!({
            "backend": self.backend, "volume": self.volume.name(), "disks": self.disks, "ok": self.failure.is_none(),
            "create_s": self.time(|life| life.create), "connected_s": self.time(|life| life.connected),
            "backend_connected_s": self.time(|life| life.backend_connected), "destroy_s": self.time(|life| life.destroy),
            "times": self.lives.len(), "failure": self.failure,
        });
        row.serialize(serializer)
    }
}

/// driverdom's own share, in milliseconds, by its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// From seeing a directory to state 2.
    pub(super) attach: Percentiles,
    /// From a frontend being ready to state 4.
    pub(super) connect: Percentiles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Percentiles {
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

impl Own {
    /// Reads `data/driverdom/attaches`.
    pub(super) fn read(counters: &Counters) -> anyhow::Result<Self> {
        let percentiles = |what: &str| -> anyhow::Result<Percentiles> {
            let part = |name: &str| counters.get(&format!("{what}_{name}_us")).map(|micros| micros.div_ceil(1000));
            Ok(Percentiles { p50: part("p50")?, p99: part("p99")?, max: part("max")? })
        };
        Ok(Self { attach: percentiles("attach")?, connect: percentiles("connect")? })
    }

    /// For `--json`.
    pub(super) fn json(self) -> Value {
        let Self { attach, connect } = self;
        json!({
            "p50": attach.p50, "p99": attach.p99, "max": attach.max,
            "connect": { "p50": connect.p50, "p99": connect.p99, "max": connect.max },
        })
    }
}

/// The table for people.
pub(super) fn print(rows: &[Row], own: Own) {
    println!("backend      volume  disks  create  backends at 4  connected  destroy   (seconds, medians)");
    for row in rows {
        let Row { backend, volume, disks, .. } = row;
        let cell = |time: fn(&Life) -> f64| row.time(time).map_or_else(|| "-".into(), |time| format!("{time:.2}"));
        println!(
            "{backend:<12} {:<6} {disks:>6} {:>7} {:>14} {:>10} {:>8}",
            volume.name(),
            cell(|life| life.create),
            cell(|life| life.backend_connected),
            cell(|life| life.connected),
            cell(|life| life.destroy),
        );
        if let Some(why) = &row.failure {
            println!("    failed: {why}");
        }
    }
    let Own { attach, connect } = own;
    println!(
        "driverdom's own share, p50/p99/max: {}/{}/{} ms from seeing a disk to state 2, {}/{}/{} ms from a ready frontend to state 4",
        attach.p50, attach.p99, attach.max, connect.p50, connect.p99, connect.max
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driverdoms_counters_are_read() {
        let text = "attach_count=3 attach_p50_us=4100 attach_p99_us=20000 attach_max_us=16001 connect_count=3 connect_p50_us=1 connect_p99_us=2000 connect_max_us=2000 refused=0 failed=0";
        let own = Own::read(&Counters::parse(text)).expect("counters");
        assert_eq!((own.attach.p50, own.attach.p99, own.attach.max, own.connect.max), (5, 20, 17, 2));
        assert!(Own::read(&Counters::parse("attach_p50_us=5")).is_err());
    }

    #[test]
    fn a_row_has_the_fields_that_programs_read() {
        let life = Life { create: 1.5, backend_connected: 2.0, connected: 2.5, destroy: 0.5, complaint: None };
        let row = Row { backend: "driverdom", volume: Volume::Ram, disks: 8, lives: vec![life], failure: None };
        let value = serde_json::to_value(&row).expect("a row");
        for (key, expected) in [
            ("backend", json!("driverdom")),
            ("volume", json!("ram")),
            ("disks", json!(8)),
            ("ok", json!(true)),
            ("create_s", json!(1.5)),
            ("connected_s", json!(2.5)),
            ("destroy_s", json!(0.5)),
        ] {
            assert_eq!(value[key], expected, "{key}");
        }
        let failed = serde_json::to_value(Row { lives: vec![], failure: Some("why".into()), ..row }).expect("a row");
        assert_eq!((&failed["ok"], &failed["create_s"]), (&json!(false), &Value::Null));
    }
}
