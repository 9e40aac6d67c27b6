//! The floor: a backend that only answers, in dom0, on behalf of a small guest that does nothing. What it costs is xl's.

use std::path::Path;

use anyhow::Context;

use super::{Backend, Volume};
use crate::dom0::Dom0;
use crate::scenarios::vbd::device_name;
use crate::testfront::{TestFront, TestFrontConfig};

/// The domain's name, which guests' disk lines use.
pub const FLOOR: &str = "floor";

/// The benches' program in dom0 (`tests/dom0`).
pub const TOOLS: &str = "/guests/dom0-tools";

/// A floor that answers.
#[derive(Debug)]
pub struct Floor<'a> {
    dom0: &'a Dom0,
    domid: u32,
    process: u32,
}

impl<'a> Floor<'a> {
    /// Puts the benches' program into dom0, where the floor and recorders find it.
    ///
    /// # Errors
    /// When dom0 does not take it.
    pub fn put_tools(dom0: &Dom0, program: &Path) -> anyhow::Result<()> {
        dom0.put(TOOLS, &std::fs::read(program).with_context(|| program.display().to_string())?)?;
        dom0.check(&format!("chmod +x {TOOLS}"), 30)?;
        Ok(())
    }

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
