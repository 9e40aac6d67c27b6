//! Disks attached one by one to a running guest whose frontend goes to 3 at once.

use anyhow::{Context, ensure};

use super::life::memory_mib;
use super::record::{Change, Output, START};
use super::{Backend, Volume, shortened};
use crate::dom0::{Dom0, shell_quoted};
use crate::scenarios::vbd::{device_name, device_number};
use crate::testfront::{TestFront, TestFrontConfig};

/// The guest's name.
const NAME: &str = "bench-hot";

/// One attach, in seconds by dom0's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotAttach {
    /// `xl block-attach`.
    pub attach: f64,
    /// From its begin until the backend was at 4.
    pub connected: f64,
}

/// Attaches `disks` disks one after the other, each to a frontend that waits for nothing; then destroys the guest.
///
/// # Errors
/// What xl said or the guest did.
pub fn hot_attach(dom0: &Dom0, backend: &dyn Backend, volume: Volume, disks: usize) -> anyhow::Result<Vec<HotAttach>> {
    let config = TestFrontConfig { memory_mib: memory_mib(disks), ..TestFrontConfig::new(NAME) };
    let guest = TestFront::create(dom0, &config)?;
    let mut script = format!("set -- {} {}\n{START}{ONE}", backend.domid(), guest.domid);
    for number in 0..disks {
        let device = device_number(&device_name(number));
        script += &format!("one {} {device} {}\n", number + 1, shell_quoted(&backend.disk(number, volume)));
    }
    script += "grep '/backend/.* 4$' $record\n";
    let output = dom0.run(&script, 60 + 10 * disks as u64);
    let destroyed = dom0.run(&format!("xl destroy {NAME}"), 120)?;
    let output = output?;
    ensure!(output.rc == 0 && output.err.is_empty(), "ended with {}: {}", output.rc, shortened(&output.err));
    ensure!(
        destroyed.rc == 0 && destroyed.err.is_empty(),
        "its destroy ended with {}: {}",
        destroyed.rc,
        shortened(&destroyed.err)
    );
    let output = Output::parse(&output.out)?;
    let one = |number: usize| {
        let begin = output.mark("attach", number)?;
        let device = Some(device_number(&device_name(number)));
        let connected = output.changes.iter().find(|change: &&Change| change.device() == device);
        let connected = connected.with_context(|| format!("disk {number} is not recorded as connected"))?.seconds;
        Ok(HotAttach { attach: output.mark("attached", number)? - begin, connected: connected - begin })
    };
    (0..disks).map(one).collect()
}

/// Bash: `one NUMBER DEVICE DISK` has the guest wait for the device, attaches the disk and waits until it is connected.
const ONE: &str = r#"home=/local/domain/$2/data
one() {
  local result=
  xenstore-write $home/step "$1 connect vbd=$2 early seconds=60"
  up attach
  xl block-attach bench-hot "$3" || exit 1
  up attached
  until result=$(xenstore-read $home/result 2>/dev/null) && [ "${result%% *}" = "$1" ]; do sleep 0.05; done
  case $result in "$1 ok"*) ;; *) echo "$result" >&2; exit 1 ;; esac
}
"#;
