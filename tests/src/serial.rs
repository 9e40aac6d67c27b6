//! The serial log: what Xen and dom0 said so far.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::infrastructure::infrastructure;
use crate::qemu::Qemu;

/// The log of a machine that runs.
#[derive(Debug, Clone)]
pub struct Serial(pub PathBuf);

impl Serial {
    /// All of it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn text(&self) -> anyhow::Result<String> {
        let bytes = std::fs::read(&self.0).with_context(|| self.0.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until `marker` stands in the log.
    ///
    /// # Errors
    /// An infrastructure error with the log's last lines, when `limit` passes or QEMU ends first.
    pub fn wait_for(&self, marker: &str, limit: Duration, qemu: &mut Qemu) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let text = self.text().unwrap_or_default();
            if text.contains(marker) {
                return Ok(());
            }
            if let Some(line) =
                text.lines().find(|line| line.contains("Hardware Dom0 crashed") || line.contains("Panic on CPU"))
            {
                return Err(infrastructure(format!("{line}\n{}", last_lines(&text))));
            }
            qemu.check_running()?;
            if Instant::now() >= deadline {
                let seconds = limit.as_secs();
                return Err(infrastructure(format!(
                    "no {marker:?} on the serial line within {seconds} s\n{}",
                    last_lines(&text)
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
