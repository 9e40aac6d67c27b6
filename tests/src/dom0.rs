//! dom0: commands, files and waiting in it. Polling happens in dom0, not over the wire.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::artifacts::RunDir;
use crate::infrastructure::infrastructure;
use crate::link::Link;
pub use crate::link::Output;

/// How much longer than a command's own limit its answer may take: dom0 ends the command, so only a dead dom0 is slower.
const GRACE: Duration = Duration::from_secs(30);

/// Limit of a command that only moves bytes.
const COPY_LIMIT: u64 = 120;

/// The agent in a running dom0.
#[derive(Debug)]
pub struct Dom0 {
    link: Link,
    bulk: PathBuf,
    /// The bulk port has one reader and one writer at a time.
    bulk_turn: Mutex<()>,
}

/// A command that runs in dom0.
#[derive(Debug)]
pub struct Running {
    answer: Receiver<Output>,
    command: String,
    limit: u64,
}

impl Dom0 {
    /// Connects to the agent of the system in `run`.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn connect(run: &RunDir) -> anyhow::Result<Self> {
        Ok(Self { link: Link::connect(&run.commands_socket())?, bulk: run.bulk_socket(), bulk_turn: Mutex::new(()) })
    }

    /// Starts a bash command, which dom0 ends after `limit` seconds.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn spawn(&self, command: &str, limit: u64) -> anyhow::Result<Running> {
        Ok(Running { answer: self.link.send(command, limit)?, command: command.to_owned(), limit })
    }

    /// Runs a bash command to its end, whatever its exit code.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn run(&self, command: &str, limit: u64) -> anyhow::Result<Output> {
        self.spawn(command, limit)?.wait()
    }

    /// Runs a bash command that must succeed, and returns what it printed, without white space around it.
    ///
    /// # Errors
    /// With the command's exit code and output, when it is not 0.
    pub fn check(&self, command: &str, limit: u64) -> anyhow::Result<String> {
        let output = self.run(command, limit)?;
        ensure!(output.rc == 0, "'{command}' ended with {}: {}{}", output.rc, output.out, output.err);
        Ok(output.out.trim().to_owned())
    }

    /// Waits until a bash condition holds, tried every 50 ms, and returns what it then printed.
    ///
    /// # Errors
    /// When it does not within `limit` seconds, with what it last printed.
    pub fn wait_until(&self, condition: &str, limit: u64) -> anyhow::Result<String> {
        let output = self.run(&format!("await {limit} {}", shell_quoted(condition)), limit + 10)?;
        ensure!(output.rc == 0, "'{condition}' did not hold within {limit} s: {}{}", output.out, output.err);
        Ok(output.out.trim().to_owned())
    }

    /// A xenstore node's value, if it exists.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn xenstore(&self, path: &str) -> anyhow::Result<Option<String>> {
        let output = self.run(&format!("xenstore-read {}", shell_quoted(path)), 20)?;
        Ok((output.rc == 0).then(|| output.out.trim_end_matches('\n').to_owned()))
    }

    /// Waits until a xenstore node has `value`.
    ///
    /// # Errors
    /// When it has not within `limit` seconds.
    pub fn wait_xenstore(&self, path: &str, value: &str, limit: u64) -> anyhow::Result<()> {
        self.wait_until(&format!("v=$(xenstore-read '{path}') && echo \"$v\" && [ \"$v\" = '{value}' ]"), limit)?;
        Ok(())
    }

    /// Seconds of CPU that a domain has used, which Xen counts in nanoseconds.
    ///
    /// # Errors
    /// When there is no such domain.
    pub fn cpu_seconds(&self, domid: u32) -> anyhow::Result<f64> {
        let program =
            format!("import xen.lowlevel.xc as x; print(x.xc().domain_getinfo({domid}, 1)[0]['cpu_time'] / 1e9)");
        let text =
            self.check(&format!("PYTHONPATH=/usr/lib/xen-4.17/lib/python python3 -c {}", shell_quoted(&program)), 30)?;
        text.parse().with_context(|| format!("the CPU time of domain {domid}: {text}"))
    }

    /// Makes the file `path` with `bytes`; an existing one is replaced as a whole.
    ///
    /// # Errors
    /// When dom0 does not take it.
    pub fn put(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let _turn = self.bulk_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let to = shell_quoted(path);
        let length = bytes.len();
        let command = format!(
            "head -c {length} < /dev/virtio-ports/org.driverdom.bulk > {to}.new && [ $(stat -c %s {to}.new) = {length} ] && mv {to}.new {to}"
        );
        let mut stream = UnixStream::connect(&self.bulk).context("the bulk socket")?;
        let running = self.spawn(&command, COPY_LIMIT)?;
        stream.set_write_timeout(Some(Duration::from_secs(COPY_LIMIT)))?;
        stream.write_all(bytes).context("the bulk socket")?;
        let output = running.wait()?;
        ensure!(output.rc == 0, "{path} could not be put into dom0: {}", output.err);
        Ok(())
    }

    /// The bytes of a file in dom0.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let _turn = self.bulk_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let from = shell_quoted(path);
        // A copy with a settled length: a log may grow while it is sent.
        let length: usize =
            self.check(&format!("cp {from} /run/agent/get && stat -c %s /run/agent/get"), COPY_LIMIT)?.parse()?;
        let mut stream = UnixStream::connect(&self.bulk).context("the bulk socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(COPY_LIMIT)))?;
        let running = self.spawn("cat /run/agent/get > /dev/virtio-ports/org.driverdom.bulk", COPY_LIMIT)?;
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).context("the bulk socket")?;
        running.wait()?;
        Ok(bytes)
    }
}

impl Running {
    /// Waits for the command's end.
    ///
    /// # Errors
    /// An infrastructure error when dom0 does not answer.
    pub fn wait(self) -> anyhow::Result<Output> {
        match self.answer.recv_timeout(Duration::from_secs(self.limit) + GRACE) {
            Ok(output) => Ok(output),
            Err(RecvTimeoutError::Timeout) => {
                Err(infrastructure(format!("dom0 does not answer to '{}'", self.command)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(infrastructure(format!("QEMU ended during '{}'", self.command))),
        }
    }

    /// The output, if the command has ended.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn poll(&self) -> anyhow::Result<Option<Output>> {
        match self.answer.try_recv() {
            Ok(output) => Ok(Some(output)),
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                bail!(infrastructure(format!("QEMU ended during '{}'", self.command)))
            }
        }
    }
}

/// `text` as one word of a shell.
#[must_use]
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
