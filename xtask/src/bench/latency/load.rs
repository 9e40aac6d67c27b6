//! Load on dom0's own disk, and the evidence that there was some.

use anyhow::Context;
use nested_tests::dom0::{Dom0, Running};
use nested_tests::qmp::Qmp;
use serde_json::json;

/// What the disk is limited to, so that processors wait for it as they do for a real one: the field report's dom0 wrote 50 to
/// 120 MB/s, at a load of 5 to 8, while 35 to 60 % of its time went into waiting. With 60 MB/s, TCG spent its time on the writing, and
/// 6 % on waiting.
const BYTES_PER_SECOND: u64 = 15_000_000;

/// While it is there, the writers go on.
const FLAG: &str = "/run/bench/load";
/// Longer than any phase.
const LIMIT: u64 = 4 * 3600;

/// Six writers at full speed, four past the page cache and two that sync, each over and over on a file of its own.
fn writers() -> String {
    format!(
        "touch {FLAG}
        writer() {{ while [ -e {FLAG} ]; do dd if=/dev/zero of=/var/tmp/load.$1 bs=1M count=64 status=none \"${{@:2}}\"; done; }}
        for n in 1 2 3 4; do writer $n oflag=direct conv=notrunc & done
        for n in 5 6; do writer $n conv=notrunc,fsync & done
        wait; rm -f /var/tmp/load.*"
    )
}

/// Running writers.
#[derive(Debug)]
pub(super) struct Load(Running);

impl Load {
    /// Starts the writers and lets them come to speed.
    pub(super) fn start(dom0: &Dom0) -> anyhow::Result<Self> {
        let running = dom0.spawn(&writers(), LIMIT)?;
        dom0.check("sleep 5", 60)?;
        Ok(Self(running))
    }

    /// Ends them.
    pub(super) fn stop(self, dom0: &Dom0) -> anyhow::Result<()> {
        dom0.check(&format!("rm {FLAG}"), 120)?;
        self.0.wait()?;
        Ok(())
    }
}

/// What dom0's disk does while attaches are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// It has more to write than it can.
    Busy,
    /// Nothing of ours.
    Idle,
}

impl Disk {
    /// Limits dom0's root disk in QEMU, or lifts the limit.
    pub(super) fn limit(self, qmp: &mut Qmp) -> anyhow::Result<()> {
        let bytes_per_second = match self {
            Self::Busy => BYTES_PER_SECOND,
            Self::Idle => 0,
        };
        let limits = json!({
            "device": "root", "bps": bytes_per_second, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0,
        });
        qmp.execute("block_set_io_throttle", &limits)?;
        Ok(())
    }
}

/// dom0's counters at a moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    uptime: f64,
    loadavg: String,
    /// Ticks of all CPUs since the start, and those of them that waited for a disk.
    ticks: u64,
    waiting: u64,
    /// Of 512 bytes, written to the root disk.
    sectors: u64,
}

impl Sample {
    /// Reads them.
    pub(super) fn take(dom0: &Dom0) -> anyhow::Result<Self> {
        let root = "r=$(awk '$2 == \"/\" {print $1}' /proc/mounts)";
        let command = format!(
            "{root}; cat /proc/uptime /proc/loadavg; head -n 1 /proc/stat; cat /sys/class/block/${{r##*/}}/stat"
        );
        Self::parse(&dom0.check(&command, 120)?)
    }

    /// /proc/uptime, /proc/loadavg, the first line of /proc/stat (ticks of user, nice, system, idle, iowait, irq, softirq, steal,
    /// and of guests, which user and nice have already), and the disk's stat, whose seventh number is the sectors written.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let number = |line: usize, word: usize| -> anyhow::Result<u64> {
            let word =
                lines.get(line).and_then(|words| words.get(word)).with_context(|| format!("too short: {text}"))?;
            word.parse().with_context(|| word.to_string())
        };
        let ticks = (1..=8).map(|word| number(2, word)).sum::<anyhow::Result<u64>>()?;
        let uptime = lines.first().and_then(|words| words.first()).context("no uptime")?.parse()?;
        let loadavg = lines.get(1).and_then(|words| words.get(..3)).context("no load")?.join(" ");
        Ok(Self { uptime, loadavg, ticks, waiting: number(2, 5)?, sectors: number(3, 6)? })
    }

    /// What dom0 did since `before`.
    pub(super) fn since(&self, before: &Self) -> Pressure {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let seconds = (self.uptime - before.uptime).max(0.001);
        Pressure {
            loadavg: self.loadavg.clone(),
            waiting: share(self.waiting.saturating_sub(before.waiting), self.ticks.saturating_sub(before.ticks)),
            megabytes_per_second: self.sectors.saturating_sub(before.sectors) as f64 * 512.0 / 1e6 / seconds,
        }
    }
}

/// How busy dom0's disk was.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pressure {
    /// The three averages, at the end.
    pub loadavg: String,
    /// Which part of its time the processors waited for a disk, 0 to 1.
    pub waiting: f64,
    pub megabytes_per_second: f64,
}

impl Pressure {
    /// For a person.
    pub(super) fn line(&self) -> String {
        let Self { loadavg, waiting, megabytes_per_second } = self;
        format!(
            "dom0: load {loadavg}, {:.0} % waiting for I/O, {megabytes_per_second:.0} MB/s written",
            waiting * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_the_difference_of_two_samples() {
        let text = |uptime: &str, waiting: u64, sectors: u64| {
            let cpu = 1000 - waiting;
            format!(
                "{uptime} 20.00\n5.10 4.00 2.00 3/120 999\ncpu  {cpu} 0 0 0 {waiting} 0 0 0 0 0\n 10 0 80 5 20 3 {sectors} 7 0 1 2\n"
            )
        };
        let before = Sample::parse(&text("10.00", 100, 0)).expect("a sample");
        let after = Sample { ticks: 2000, ..Sample::parse(&text("20.00", 600, 2_000_000)).expect("a sample") };
        let expect = Pressure { loadavg: "5.10 4.00 2.00".into(), waiting: 0.5, megabytes_per_second: 102.4 };
        assert_eq!(after.since(&before), expect);
        assert_eq!(before.since(&before).waiting, 0.0);
        for bad in ["", "1.0 2\n1 2 3\ncpu 1 2\n", "x\n1 2 3 4 5\ncpu 1 2 3 4 5 6 7 8\n1 2 3 4 5 6 7"] {
            assert!(Sample::parse(bad).is_err(), "{bad}");
        }
    }
}
