//! One guest's life with its disks: created, connected, destroyed, timed in dom0.

use std::fmt;

use anyhow::bail;

use super::record::{Change, Output, START};
use super::{Backend, Volume, shortened};
use crate::dom0::Dom0;
use crate::testfront::TestFrontConfig;

/// The guest's name.
const NAME: &str = "bench";
/// How long the guest may take to connect its disks, in seconds.
const CONNECT_LIMIT: u64 = 120;

/// Seconds by dom0's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// `xl create`.
    pub create: f64,
    /// From the begin of `xl create` until every backend was at 4.
    pub backend_connected: f64,
    /// From there until every frontend was at 4, too: the guest uses all its disks.
    pub connected: f64,
    /// `xl destroy`.
    pub destroy: f64,
    /// What xl complained of although it came to its end.
    pub complaint: Option<String>,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { create, backend_connected, connected, destroy, .. } = self;
        write!(
            f,
            "created {create:.2} s, backends at 4 {backend_connected:.2} s, connected {connected:.2} s, destroyed {destroy:.2} s"
        )
    }
}

/// Memory of a test frontend with so many disks.
pub(super) fn memory_mib(disks: usize) -> u32 {
    16 + u32::try_from(disks / 8).unwrap_or(u32::MAX)
}

/// Creates a guest with so many disks, waits until it has connected all, and destroys it.
///
/// # Errors
/// What xl said or the guest did.
pub fn live(dom0: &Dom0, backend: &dyn Backend, volume: Volume, disks: usize) -> anyhow::Result<Life> {
    let config = TestFrontConfig {
        memory_mib: memory_mib(disks),
        disks: (0..disks).map(|number| backend.disk(number, volume)).collect(),
        script: format!("connect vbd=all seconds={CONNECT_LIMIT}; end stay"),
        ..TestFrontConfig::new(NAME)
    };
    let path = format!("/guests/{NAME}.cfg");
    dom0.put(&path, config.text().as_bytes())?;
    let script = format!("set -- {} {disks}\n{START}{LIFE}", backend.domid());
    let said = dom0.run(&script, 2 * CONNECT_LIMIT + 180)?;
    let complaint = (!said.err.is_empty()).then(|| shortened(&said.err));
    if said.rc != 0 {
        // What is left would be in the way of the next one.
        dom0.run(&format!("xl destroy {NAME}"), 120)?;
        bail!("ended with {}: {}", said.rc, complaint.unwrap_or_default());
    }
    let output = Output::parse(&said.out)?;
    let begin = output.mark("create", 0)?;
    Ok(Life {
        create: output.mark("created", 0)? - begin,
        backend_connected: output.all_connected(disks, Change::is_backend)? - begin,
        connected: output.all_connected(disks, |change| !change.is_backend())? - begin,
        destroy: output.mark("destroyed", 0)? - output.mark("destroy", 0)?,
        complaint,
    })
}

/// Bash: a life. Waits seldom: the recorder has the times, and a busy dom0 would change them.
const LIFE: &str = r#"rm -f /var/log/xen/console/guest-bench.log
up create
xl create -q /guests/bench.cfg || exit 1
up created
for ((wait = 0; wait < 480; wait++)); do
  [ "$(grep -c '/device/vbd/.* 4$' $record)" = "$2" ] && break
  sleep 0.25
done
[ $wait -lt 480 ] || { grep -a testfront: /var/log/xen/console/guest-bench.log | tail -n 3 >&2; exit 1; }
sleep 1
up destroy
xl destroy bench || exit 1
up destroyed
grep ' 4$' $record
"#;
