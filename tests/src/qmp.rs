//! QEMU's control socket, as much of it as is needed (QEMU, docs/interop/qmp-spec).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

/// QEMU answers at once or not at all.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection past its greeting.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

/// What a disk of QEMU's has done since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskCounts {
    /// Flushes completed.
    pub flushes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Reads completed.
    pub reads: u64,
}

impl Qmp {
    /// Connects and says hello.
    ///
    /// # Errors
    /// When QEMU is not there or does not speak QMP.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let writer = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        writer.set_read_timeout(Some(LIMIT))?;
        let mut qmp = Self { reader: BufReader::new(writer.try_clone()?), writer };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            bail!("not a QMP greeting: {greeting}");
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its result; events that come in between are dropped.
    ///
    /// # Errors
    /// QEMU's own description, when it refuses.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.writer, "{request}")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// The counts of the data disk in `slot`, taken where the device hands its requests to QEMU's block layer.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn disk_counts(&mut self, slot: u8) -> anyhow::Result<DiskCounts> {
        let device = format!("/machine/peripheral/data{slot}/virtio-backend");
        let all = self.execute("query-blockstats", &json!({}))?;
        let stats = all
            .as_array()
            .and_then(|disks| disks.iter().find(|disk| disk["qdev"] == device.as_str()))
            .map(|disk| &disk["stats"])
            .ok_or_else(|| anyhow!("QEMU has no disk {device}: {all}"))?;
        let count = |name: &str| stats[name].as_u64().ok_or_else(|| anyhow!("no {name} in {stats}"));
        Ok(DiskCounts {
            flushes: count("flush_operations")?,
            writes: count("wr_operations")?,
            reads: count("rd_operations")?,
        })
    }

    /// Whether a driver has told the data disk in `slot` that it drives it (virtio 1.2, 2.1: `DRIVER_OK`), and not reset it since.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn device_is_driven(&mut self, slot: u8) -> anyhow::Result<bool> {
        let path = format!("/machine/peripheral/data{slot}/virtio-backend");
        let answer = self.execute("x-query-virtio-status", &json!({"path": path}))?;
        let statuses = answer["status"]["statuses"].as_array().with_context(|| format!("no statuses in {answer}"))?;
        Ok(statuses.iter().filter_map(Value::as_str).any(|status| status.contains("DRIVER_OK")))
    }

    fn read(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).context("QMP")? == 0 {
            bail!("QEMU closed its QMP socket");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
