//! Commands for Linux guests that booted `tests/images/guest/init`, over their consoles.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::agent::{Said, TIMED_OUT};
use crate::store::Store;

/// How often the console's log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

fn log_of(guest: &str) -> String {
    format!("/var/log/xen/console/guest-{guest}.log")
}

/// Runs a command in a guest: what it printed and its code, or 124 when no answer came within `limit`.
pub(crate) fn run(guest: &str, command: &str, limit: Duration) -> anyhow::Result<Said> {
    let deadline = Instant::now() + limit;
    let mut store = Store::connect()?;
    let domain = store.domain(guest)?.with_context(|| format!("no domain is called {guest}"))?;
    let path = format!("/local/domain/{domain}/console/tty");
    let console = store.read(std::slice::from_ref(&path))?.pop().flatten().context(path)?;
    let console = String::from_utf8(console)?;
    let mut log = File::open(log_of(guest)).with_context(|| log_of(guest))?;
    log.seek(SeekFrom::End(0))?;
    let id = format!("{}{}", std::process::id(), SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
    let line = format!("{id} {}\n", BASE64.encode(command));
    File::options().write(true).open(&console).context(console)?.write_all(line.as_bytes())?;
    Ok(answer(&mut log, &id, deadline)?.unwrap_or_else(|| Said { code: TIMED_OUT, ..Said::default() }))
}

/// Waits until a guest's console has said that it is up for the `nth` time; else its last lines.
pub(crate) fn wait_up(guest: &str, nth: usize, deadline: Instant) -> anyhow::Result<Said> {
    loop {
        // The log appears with the guest.
        let text = std::fs::read(log_of(guest)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        if text.lines().filter(|line| line.starts_with("@@up")).count() >= nth {
            return Ok(Said::default());
        }
        if Instant::now() >= deadline {
            let lines: Vec<_> = text.lines().collect();
            return Ok(Said::err(TIMED_OUT, &lines[lines.len().saturating_sub(5)..].join("\n")));
        }
        std::thread::sleep(5 * LOOK_EVERY);
    }
}

/// The line `@@ID CODE o:BASE64` of what is yet to come in the log; none if it does not in time.
fn answer(log: &mut File, id: &str, deadline: Instant) -> anyhow::Result<Option<Said>> {
    let mut text = Vec::new();
    while Instant::now() < deadline {
        if log.read_to_end(&mut text)? == 0 {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        // The last line may not be whole yet.
        let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { continue };
        let lines = String::from_utf8_lossy(&text[..end]);
        if let Some(said) = lines.lines().find_map(|line| parse(line, id)) {
            return Ok(Some(said));
        }
        text.drain(..=end);
    }
    Ok(None)
}

fn parse(line: &str, id: &str) -> Option<Said> {
    let words: Vec<&str> = line.strip_prefix("@@")?.strip_prefix(id)?.split_whitespace().collect();
    let &[code, output] = words.as_slice() else { return None };
    let out = BASE64.decode(output.strip_prefix("o:")?).ok()?;
    Some(Said { code: code.parse().ok()?, out, err: vec![] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_what_else_is_on_a_console() {
        let hi = Said { code: 3, out: b"hi\n".to_vec(), err: vec![] };
        for (line, expected) in [
            ("@@17 3 o:aGkK\r", Some(hi)),
            ("@@17 0 o:", Some(Said::default())),
            ("@@171 0 o:", None),
            ("@@up 3.14", None),
            ("@@17 0", None),
            ("@@17 0 o:%%", None),
            ("17 0 o:", None),
            ("", None),
        ] {
            assert_eq!(parse(line, "17"), expected, "{line:?}");
        }
    }
}
