//! What driverdom occupies: its own counters, Xen's list of its event channels, and every node in xenstore.
//!
//! Taken before and after a scenario's work, it shows what leaked. Only the first of the three is driverdom's own word.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::dom0::Dom0;
use crate::driverdom::{Counters, Driverdom};

/// How long what is given back later than its device may take.
const PATIENCE: Duration = Duration::from_secs(45);

/// Bytes by which the heap may grow in rounds that are like those before them: twenty that lose 52 each would show.
const HEAP_SLACK: u64 = 1 << 10;

/// What is in use at a moment of rest.
#[derive(Debug, Clone)]
pub struct Footprint {
    /// Lines that are the same whenever the same is in use.
    lines: BTreeSet<String>,
    heap_bytes: u64,
}

/// driverdom's counters, once they rest: they are at most three seconds old.
fn counters(dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<String> {
    dom0.wait_rest(&format!("/local/domain/{}/data/driverdom/counters", driverdom.domid), 3)
}

fn heap_bytes(counters: &str) -> anyhow::Result<u64> {
    Counters::parse(counters).get("heap_bytes")
}

impl Footprint {
    /// Waits until the counters rest (they are written at most once a second) and takes all three.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn take(dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<Self> {
        let counters = counters(dom0, driverdom)?;
        let channels = dom0.check(&format!("lsevtchn {} | sed 's/Port .*//'", driverdom.domid), 30)?;
        let nodes = dom0.xenstore_tree("/")?;
        let heap_bytes = heap_bytes(&counters)?;
        let counters = counters.split_whitespace().filter(|pair| !pair.starts_with("heap_bytes="));
        let counters = counters.map(|pair| format!("counter {pair}"));
        let channels = channels.lines().map(|line| format!("event channel {}", line.trim()));
        let lines = counters.chain(channels).chain(nodes.iter().map(|path| format!("node {path}"))).collect();
        Ok(Self { lines, heap_bytes })
    }

    /// Bytes by which driverdom's heap has grown since.
    pub(super) fn heap_growth(&self, dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<u64> {
        Ok(heap_bytes(&counters(dom0, driverdom)?)?.saturating_sub(self.heap_bytes))
    }

    /// Fails if driverdom does not come back to this. The heap is not looked at: collections keep the capacity that they once needed.
    ///
    /// # Errors
    /// With what is there now and was not, or the other way round.
    pub fn check_again(&self, dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<()> {
        self.check_within(dom0, driverdom, u64::MAX)
    }

    /// Fails if rounds of work, of which there were some before, leave anything, heap and all. A collection's capacity that a
    /// slow moment made grow stays, so a heap that has grown must not grow by more such rounds; a leak does each time.
    ///
    /// # Errors
    /// As [`Self::check_again`], and when the rounds fail.
    pub(super) fn check_rounds(
        dom0: &Dom0,
        driverdom: &Driverdom,
        mut rounds: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before = Self::take(dom0, driverdom)?;
        rounds()?;
        before.check_again(dom0, driverdom)?;
        if before.leaks(dom0, driverdom, HEAP_SLACK)?.is_empty() {
            return Ok(());
        }
        let grown = Self::take(dom0, driverdom)?;
        rounds()?;
        before.check_again(dom0, driverdom)?;
        grown.check_within(dom0, driverdom, HEAP_SLACK)
    }

    fn check_within(&self, dom0: &Dom0, driverdom: &Driverdom, heap_slack: u64) -> anyhow::Result<()> {
        let leaks = self.leaks(dom0, driverdom, heap_slack)?;
        ensure!(leaks.is_empty(), "driverdom occupies other things than before: {}", leaks.join(", "));
        Ok(())
    }

    /// What is there and was not, or the other way round, once driverdom has had time to give everything back.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn leaks(&self, dom0: &Dom0, driverdom: &Driverdom, heap_slack: u64) -> anyhow::Result<Vec<String>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leaks = self.changes(&Self::take(dom0, driverdom)?, heap_slack);
            if leaks.is_empty() || Instant::now() > deadline {
                return Ok(leaks);
            }
        }
    }

    fn changes(&self, now: &Self, heap_slack: u64) -> Vec<String> {
        let new = now.lines.difference(&self.lines).map(|line| format!("new {line}"));
        let missing = self.lines.difference(&now.lines).map(|line| format!("missing {line}"));
        let heap = (now.heap_bytes > self.heap_bytes.saturating_add(heap_slack))
            .then(|| format!("heap of {} bytes, was {}", now.heap_bytes, self.heap_bytes));
        new.chain(missing).chain(heap).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_what_is_new_and_what_is_missing() {
        let footprint = |lines: &[&str], heap_bytes| Footprint {
            lines: lines.iter().map(ToString::to_string).collect(),
            heap_bytes,
        };
        let before = footprint(&["counter vbds=0", "node /a"], 100);
        for (now, expect) in [
            (before.clone(), vec![]),
            (footprint(&["counter vbds=0", "node /a"], 110), vec![]),
            (footprint(&["counter vbds=1", "node /a"], 90), vec!["new counter vbds=1", "missing counter vbds=0"]),
            (footprint(&["counter vbds=0", "node /a"], 111), vec!["heap of 111 bytes, was 100"]),
        ] {
            assert_eq!(before.changes(&now, 10), expect);
        }
        assert!(before.changes(&footprint(&["counter vbds=0", "node /a"], u64::MAX), u64::MAX).is_empty());
    }
}
