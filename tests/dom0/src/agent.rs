//! The agent: serves the host over the virtio-serial port `org.driverdom.commands`.
//!
//! A line `ID LIMIT VERB BASE64` asks for something, each served by a thread of its own; the answer is the line
//! `ID CODE START END o:BASE64 e:BASE64`: an exit code (124: over LIMIT seconds), dom0's uptime at begin and end, and what there was
//! to print. Most scenarios are made of many small things, and a process costs dom0 more than what it is for: only what must be a
//! shell's or xl's is one.

mod bulk;
mod nodes;
mod shell;
mod steps;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::console;
pub(crate) use shell::until;

const PORT: &str = "/dev/virtio-ports/org.driverdom.commands";

/// How long to pause while no host is connected: a read then ends at once.
const PAUSE: Duration = Duration::from_millis(300);

/// The exit code of what ran out of time, as `timeout` has it.
pub(crate) const TIMED_OUT: i32 = 124;

/// What was printed, and the exit code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
}

impl Said {
    /// Success, with this output.
    pub(crate) fn out(text: impl Into<Vec<u8>>) -> Self {
        Self { out: text.into(), ..Self::default() }
    }

    /// Failure, with the reason.
    pub(crate) fn err(code: i32, why: &str) -> Self {
        Self { code, err: why.into(), ..Self::default() }
    }
}

/// Serves until the machine goes.
pub(crate) fn run() -> anyhow::Result<()> {
    let port = File::options().read(true).write(true).open(PORT).context(PORT)?;
    let answers = Arc::new(Mutex::new(port.try_clone()?));
    let mut requests = BufReader::new(port);
    writeln!(File::options().write(true).open("/dev/console")?, "@stage agent")?;
    let mut line = String::new();
    loop {
        match requests.read_line(&mut line) {
            Ok(0) => std::thread::sleep(PAUSE),
            Ok(_) if line.ends_with('\n') => {
                let (request, answers) = (std::mem::take(&mut line), answers.clone());
                std::thread::spawn(move || answer(&request, &answers));
            }
            // A host that went in the middle of a line.
            Ok(_) | Err(_) => line.clear(),
        }
    }
}

fn answer(line: &str, answers: &Mutex<File>) {
    let Some(id) = line.split_whitespace().next() else { return };
    let start = uptime();
    let said = serve(line).unwrap_or_else(|error| Said::err(1, &format!("{error:#}\n")));
    let (out, err) = (BASE64.encode(&said.out), BASE64.encode(&said.err));
    let answer = format!("{id} {} {start} {} o:{out} e:{err}\n", said.code, uptime());
    // Without its port nobody could be told of an error.
    let _ = answers.lock().unwrap_or_else(PoisonError::into_inner).write_all(answer.as_bytes());
}

fn serve(line: &str) -> anyhow::Result<Said> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[_, limit, verb, coded] = words.as_slice() else { bail!("not a request: {line:?}") };
    let text = String::from_utf8(BASE64.decode(coded)?)?;
    let limit = Duration::from_secs(limit.parse()?);
    let deadline = Instant::now() + limit;
    match verb {
        "bash" => shell::run(&text, limit),
        "until" => shell::until(&text, limit),
        "put" => bulk::put(&text, deadline),
        "get" => bulk::get(&text),
        "read" => nodes::read(&text),
        "domid" => nodes::domid(&text),
        "tree" => nodes::tree(&text),
        "nodes" => nodes::wait(&text, deadline),
        "rest" => nodes::rest(&text, deadline),
        "steps" => steps::run(&text, deadline),
        "guest" => guest(&text, limit),
        "up" => up(&text, deadline),
        other => bail!("no such verb: {other}"),
    }
}

/// `NAME COMMAND`.
fn guest(text: &str, limit: Duration) -> anyhow::Result<Said> {
    let (name, command) = text.split_once(' ').context("no name and command")?;
    console::run(name, command, limit)
}

/// `NTH NAME`.
fn up(text: &str, deadline: Instant) -> anyhow::Result<Said> {
    let (nth, name) = text.split_once(' ').context("no number and name")?;
    console::wait_up(name, nth.parse()?, deadline)
}

/// dom0's uptime in seconds, to the hundredth; nothing without /proc.
fn uptime() -> String {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("0").to_owned()
}
