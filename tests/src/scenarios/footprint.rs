//! What driverdom occupies: its own counters, Xen's list of its event channels, and every node in xenstore.
//!
//! Taken before and after a scenario's work, it shows what leaked. Only the first of the three is driverdom's own word.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::dom0::Dom0;
use crate::driverdom::Driverdom;

/// How long what is given back later than its device may take.
const PATIENCE: Duration = Duration::from_secs(45);

/// Bytes by which the heap may grow in rounds that are like those before them: twenty that lose 52 each would show.
const HEAP_SLACK: u64 = 1 << 10;

/// What is in use at a moment of rest.
#[derive(Debug, Clone)]
pub(super) struct Footprint {
    /// Lines that are the same whenever the same is in use.
    lines: BTreeSet<String>,
    heap_bytes: u64,
}

impl Footprint {
    /// Waits until the counters rest (they are written at most once a second) and takes all three.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub(super) fn take(dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<Self> {
        let domid = driverdom.domid;
        let read = format!("xenstore-read /local/domain/{domid}/data/driverdom/counters");
        let counters =
            dom0.wait_until(&format!("a=$({read}) && sleep 2 && [ \"$a\" = \"$({read})\" ] && echo \"$a\""), 60)?;
        let channels = dom0.check(&format!("lsevtchn {domid} | sed 's/Port .*//'"), 30)?;
        let nodes = dom0.check("xenstore-ls -f / | sed 's/ = .*//'", 60)?;
        let heap = counters.split_whitespace().find_map(|pair| pair.strip_prefix("heap_bytes="));
        let heap_bytes = heap.context("driverdom counts its heap")?.parse()?;
        let counters = counters.split_whitespace().filter(|pair| !pair.starts_with("heap_bytes="));
        let counters = counters.map(|pair| format!("counter {pair}"));
        let channels = channels.lines().map(|line| format!("event channel {}", line.trim()));
        let lines = counters.chain(channels).chain(nodes.lines().map(|path| format!("node {path}"))).collect();
        Ok(Self { lines, heap_bytes })
    }

    /// Fails if driverdom does not come back to this. The heap is not looked at: collections keep the capacity that they once needed.
    ///
    /// # Errors
    /// With what is there now and was not, or the other way round.
    pub(super) fn check_again(&self, dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<()> {
        self.check_within(dom0, driverdom, u64::MAX)
    }

    /// The same, heap and all, after rounds that are like some that were before this was taken.
    ///
    /// # Errors
    /// As [`Self::check_again`].
    pub(super) fn check_again_with_heap(&self, dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<()> {
        self.check_within(dom0, driverdom, self.heap_bytes + HEAP_SLACK)
    }

    fn check_within(&self, dom0: &Dom0, driverdom: &Driverdom, heap_bytes: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::take(dom0, driverdom)?;
            if now.lines == self.lines && now.heap_bytes <= heap_bytes {
                return Ok(());
            }
            if Instant::now() > deadline {
                let list =
                    |lines: &mut dyn Iterator<Item = &String>| lines.map(String::as_str).collect::<Vec<_>>().join(", ");
                bail!(
                    "driverdom occupies other things than before: new [{}], missing [{}], heap {} after {} bytes",
                    list(&mut now.lines.difference(&self.lines)),
                    list(&mut self.lines.difference(&now.lines)),
                    now.heap_bytes,
                    self.heap_bytes
                );
            }
        }
    }
}
