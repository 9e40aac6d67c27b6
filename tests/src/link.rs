//! The wire to dom0's agent (`tests/dom0`): requests and their answers as lines on one virtio-serial port.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// What a request to dom0 came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Exit code; 124 when it ran over its limit.
    pub rc: i32,
    /// What it printed.
    pub out: String,
    /// What it printed on its standard error.
    pub err: String,
    /// dom0's uptime when it began and when it ended, in seconds.
    pub start: f64,
    /// The end.
    pub end: f64,
}

impl Output {
    /// How long it took in dom0.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end - self.start
    }
}

/// Answers that are waited for, by request number.
type Waiting = Arc<Mutex<HashMap<u64, Sender<Output>>>>;

/// The sending end, and a thread that hands out the answers.
#[derive(Debug)]
pub struct Link {
    sender: Mutex<Sending>,
    waiting: Waiting,
}

#[derive(Debug)]
struct Sending {
    stream: UnixStream,
    next: u64,
}

impl Link {
    /// Connects to the agent's socket, which QEMU holds.
    ///
    /// # Errors
    /// When QEMU is not there.
    pub fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let waiting = Waiting::default();
        let reader = BufReader::new(stream.try_clone()?);
        let handed = waiting.clone();
        std::thread::spawn(move || hand_out(reader, &handed));
        // Numbers of an earlier connection's requests may still be answered: start elsewhere.
        let next = u64::from(std::process::id()) << 32;
        Ok(Self { sender: Mutex::new(Sending { stream, next }), waiting })
    }

    /// Sends a request, one of the agent's verbs and its text, which dom0 ends after `limit` seconds.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn send(&self, verb: &str, text: &str, limit: u64) -> anyhow::Result<Receiver<Output>> {
        let (answer, answered) = channel();
        let mut sending = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let id = sending.next;
        sending.next += 1;
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        let line = format!("{id} {limit} {verb} {}\n", BASE64.encode(text));
        sending.stream.write_all(line.as_bytes()).context("the agent's socket")?;
        Ok(answered)
    }
}

/// QEMU serves one connection at a time, and the thread would hold this one open.
impl Drop for Link {
    fn drop(&mut self) {
        let sending = self.sender.get_mut().unwrap_or_else(PoisonError::into_inner);
        // An error means that QEMU has closed it.
        let _ = sending.stream.shutdown(Shutdown::Both);
    }
}

/// Runs until the socket is closed; then nobody waits any more.
fn hand_out(reader: BufReader<UnixStream>, waiting: &Waiting) {
    for line in reader.lines() {
        let Ok(line) = line else { break };
        let Ok((id, output)) = parse_answer(&line) else { continue };
        if let Some(answer) = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
            let _ = answer.send(output);
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn parse_answer(line: &str) -> anyhow::Result<(u64, Output)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[id, rc, start, end, out, err] = words.as_slice() else { bail!("not an answer: {line:?}") };
    let text = |word: &str, tag: &str| -> anyhow::Result<String> {
        let coded = word.strip_prefix(tag).with_context(|| format!("no {tag} in {line:?}"))?;
        Ok(String::from_utf8_lossy(&BASE64.decode(coded)?).into_owned())
    };
    let (start, end) = (start.parse()?, end.parse()?);
    Ok((id.parse()?, Output { rc: rc.parse()?, out: text(out, "o:")?, err: text(err, "e:")?, start, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let (id, output) = parse_answer("17 3 10.50 12.75 o:aGkK e:").expect("an answer");
        assert_eq!((id, output.rc, output.out.as_str(), output.err.as_str()), (17, 3, "hi\n", ""));
        assert!((output.seconds() - 2.25).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for line in [
            "",
            "ready",
            "17 3 1 2 o:aGkK",
            "17 3 1 2 aGkK e:",
            "17 3 1 2 o:%% e:",
            "x 3 1 2 o: e:",
            "17 3 1 2 o: e: more",
        ] {
            assert!(parse_answer(line).is_err(), "{line:?}");
        }
    }
}
