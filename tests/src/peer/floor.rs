//! The floor: a backend that only answers, in dom0, on behalf of a small guest that does nothing. What it costs is xl's.

use super::{Backend, Volume};
use crate::dom0::Dom0;
use crate::scenarios::vbd::device_name;
use crate::testfront::{TestFront, TestFrontConfig};

/// The domain's name, which guests' disk lines use.
pub const FLOOR: &str = "floor";

/// The program that serves as dom0's agent has the floor and the recorder too (`tests/dom0`).
pub const TOOLS: &str = "/run/dom0-tools";

/// A floor that answers.
#[derive(Debug)]
pub struct Floor<'a> {
    dom0: &'a Dom0,
    domid: u32,
    process: u32,
}

impl<'a> Floor<'a> {
    /// Creates the guest, and lets the program answer for it.
    ///
    /// # Errors
    /// What xl said.
    pub fn start(dom0: &'a Dom0) -> anyhow::Result<Self> {
        let config = TestFrontConfig { script: "end stay".to_owned(), ..TestFrontConfig::new(FLOOR) };
        let domid = TestFront::create(dom0, &config)?.domid;
        let program = format!("setsid nohup {TOOLS} floor {domid} > /run/floor.log 2>&1 < /dev/null & echo $!");
        Ok(Self { dom0, domid, process: dom0.check(&program, 30)?.parse()? })
    }

    /// Ends both.
    ///
    /// # Errors
    /// With what the program said, when it had ended before.
    pub fn stop(self) -> anyhow::Result<()> {
        let stop = format!("kill {} || {{ cat /run/floor.log >&2; false; }}; xl destroy {FLOOR}", self.process);
        self.dom0.check(&stop, 60)?;
        Ok(())
    }
}

impl Backend for Floor<'_> {
    fn name(&self) -> &'static str {
        FLOOR
    }

    fn domid(&self) -> u32 {
        self.domid
    }

    fn volumes(&self) -> &'static [Volume] {
        &[Volume::None]
    }

    fn disk(&self, number: usize, _: Volume) -> String {
        format!("format=raw,vdev={},access=rw,backend={FLOOR},target=none", device_name(number))
    }
}
