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

/// A request that dom0 is at.
#[derive(Debug)]
pub struct Running {
    answer: Receiver<Output>,
    asked: String,
    limit: u64,
}

/// What a node in xenstore is waited to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// The node at this path has this value.
    Is(String, String),
    /// Its value has this word, between white space.
    Has(String, String),
    /// It is there.
    There(String),
    /// It is not there.
    Gone(String),
}

impl Dom0 {
    /// Sends the program that serves as dom0's agent, for which `tests/images/dom0/agent` waits. The connection is to be held until
    /// it says that it is there.
    ///
    /// # Errors
    /// When QEMU is gone, or dom0 does not take it.
    pub fn send_agent(run: &RunDir, program: &[u8]) -> anyhow::Result<UnixStream> {
        let mut stream = UnixStream::connect(run.bulk_socket()).context("the bulk socket")?;
        stream.set_write_timeout(Some(Duration::from_secs(COPY_LIMIT)))?;
        writeln!(stream, "{}", program.len()).and_then(|()| stream.write_all(program)).context("the bulk socket")?;
        Ok(stream)
    }

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
        self.ask("bash", command, limit)
    }

    /// Starts one of the agent's other verbs (`tests/dom0/src/agent.rs`): none of them costs a process.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub(crate) fn ask(&self, verb: &str, text: &str, limit: u64) -> anyhow::Result<Running> {
        Ok(Running { answer: self.link.send(verb, text, limit)?, asked: format!("{verb} {text}"), limit })
    }

    /// Runs a verb that must succeed, and returns what it printed.
    fn get_said(&self, verb: &str, text: &str, limit: u64) -> anyhow::Result<String> {
        let output = self.ask(verb, text, limit)?.wait()?;
        ensure!(output.rc == 0, "'{verb} {text}': {}{}", output.out, output.err);
        Ok(output.out)
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

    /// Waits until a bash condition holds, tried every 50 ms, and returns what it then printed. What xenstore shows is waited for
    /// with [`Self::wait_nodes`], which costs dom0 nothing.
    ///
    /// # Errors
    /// When it does not within `limit` seconds, with what it last printed.
    pub fn wait_until(&self, condition: &str, limit: u64) -> anyhow::Result<String> {
        let output = self.ask("until", condition, limit)?.wait()?;
        ensure!(output.rc == 0, "'{condition}' did not hold within {limit} s: {}{}", output.out, output.err);
        Ok(output.out.trim().to_owned())
    }

    /// A xenstore node's value, if it exists.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn xenstore(&self, path: &str) -> anyhow::Result<Option<String>> {
        const NO_NODE: i32 = 2;
        let output = self.ask("read", path, 20)?.wait()?;
        ensure!(matches!(output.rc, 0 | NO_NODE), "xenstore's {path}: {}", output.err);
        Ok((output.rc == 0).then(|| output.out.trim_end_matches('\n').to_owned()))
    }

    /// All paths below `path` in xenstore.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn xenstore_tree(&self, path: &str) -> anyhow::Result<Vec<String>> {
        Ok(self.get_said("tree", path, 60)?.lines().map(str::to_owned).collect())
    }

    /// Waits until xenstore's nodes are all as said. The output has their values, a line each, and when that was.
    ///
    /// # Errors
    /// When they are not within `limit` seconds: which one is not.
    pub fn wait_nodes(&self, nodes: &[Node], limit: u64) -> anyhow::Result<Output> {
        let text: Vec<_> = nodes.iter().map(Node::line).collect();
        let output = self.ask("nodes", &text.join("\n"), limit)?.wait()?;
        ensure!(output.rc == 0, "xenstore is not as awaited within {limit} s: {}", output.err);
        Ok(output)
    }

    /// Waits until a xenstore node has `value`.
    ///
    /// # Errors
    /// When it has not within `limit` seconds.
    pub fn wait_xenstore(&self, path: &str, value: &str, limit: u64) -> anyhow::Result<()> {
        self.wait_nodes(&[Node::Is(path.to_owned(), value.to_owned())], limit)?;
        Ok(())
    }

    /// Waits until a xenstore node has kept its value for `seconds`, and returns it.
    ///
    /// # Errors
    /// When it does not come to rest within a minute.
    pub fn wait_rest(&self, path: &str, seconds: u64) -> anyhow::Result<String> {
        self.get_said("rest", &format!("{seconds} {path}"), 60)
    }

    /// The number of the domain which is called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn domid(&self, name: &str) -> anyhow::Result<u32> {
        let text = self.get_said("domid", name, 20)?;
        text.parse().with_context(|| format!("the number of {name}: {text}"))
    }

    /// Waits until xenstore knows the domain no more: `xl` then calls it gone.
    ///
    /// # Errors
    /// When it is not gone within `limit` seconds.
    pub fn wait_gone(&self, domid: u32, limit: u64) -> anyhow::Result<()> {
        self.wait_nodes(&[Node::Gone(format!("/local/domain/{domid}/name"))], limit)?;
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
        let mut stream = UnixStream::connect(&self.bulk).context("the bulk socket")?;
        let running = self.ask("put", &format!("{} {path}", bytes.len()), COPY_LIMIT)?;
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
        let mut stream = UnixStream::connect(&self.bulk).context("the bulk socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(COPY_LIMIT)))?;
        let running = self.ask("get", path, COPY_LIMIT)?;
        let mut length = [0; 8];
        stream.read_exact(&mut length).context("the bulk socket")?;
        let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(length))?];
        stream.read_exact(&mut bytes).context("the bulk socket")?;
        let output = running.wait()?;
        ensure!(output.rc == 0, "{path} could not be got from dom0: {}", output.err);
        Ok(bytes)
    }
}

impl Node {
    /// As the agent reads it.
    fn line(&self) -> String {
        match self {
            Self::Is(path, value) => format!("is {path} {value}"),
            Self::Has(path, word) => format!("has {path} {word}"),
            Self::There(path) => format!("there {path}"),
            Self::Gone(path) => format!("gone {path}"),
        }
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
            Err(RecvTimeoutError::Timeout) => Err(infrastructure(format!("dom0 does not answer to '{}'", self.asked))),
            Err(RecvTimeoutError::Disconnected) => Err(infrastructure(format!("QEMU ended during '{}'", self.asked))),
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
                bail!(infrastructure(format!("QEMU ended during '{}'", self.asked)))
            }
        }
    }
}

/// `text` as one word of a shell.
#[must_use]
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
