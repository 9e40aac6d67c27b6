//! What driverdom occupies: its own counters, Xen's list of its event channels, and every node in xenstore.
//!
//! Taken before and after a scenario's work, it shows what leaked. Only the first of the three is driverdom's own word.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::dom0::Dom0;
use crate::driverdom::Driverdom;

/// How long what is given back later than its device may take.
const PATIENCE: Duration = Duration::from_secs(45);

/// What is in use at a moment of rest, as lines that are the same whenever the same is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Footprint(BTreeSet<String>);

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
        let counters = counters.split_whitespace().map(|pair| format!("counter {pair}"));
        let channels = channels.lines().map(|line| format!("event channel {}", line.trim()));
        Ok(Self(counters.chain(channels).chain(nodes.lines().map(|path| format!("node {path}"))).collect()))
    }

    /// Fails if driverdom does not come back to this.
    ///
    /// # Errors
    /// With what is there now and was not, or the other way round.
    pub(super) fn check_again(&self, dom0: &Dom0, driverdom: &Driverdom) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::take(dom0, driverdom)?;
            if now == *self {
                return Ok(());
            }
            if Instant::now() > deadline {
                let list =
                    |lines: &mut dyn Iterator<Item = &String>| lines.map(String::as_str).collect::<Vec<_>>().join(", ");
                bail!(
                    "driverdom occupies other things than before: new [{}], missing [{}]",
                    list(&mut now.0.difference(&self.0)),
                    list(&mut self.0.difference(&now.0))
                );
            }
        }
    }
}
