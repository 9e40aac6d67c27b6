//! Commands for bash.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Said, TIMED_OUT};

/// Where outputs are written: files, as what a command leaves behind may hold them for ever.
const DIRECTORY: &str = "/run/agent";

/// How long a command may take to obey the first signal.
const OBEY: Duration = Duration::from_secs(5);

/// What the last try may take, however late it begins.
const LAST_TRY: Duration = Duration::from_secs(1);

/// How often a condition is tried.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Runs a command, with all that it started ended after `limit`.
pub(super) fn run(command: &str, limit: Duration) -> anyhow::Result<Said> {
    let (out, err) = (Output::create()?, Output::create()?);
    let mut bash = Command::new("bash");
    bash.args(["-c", command]).stdin(Stdio::null()).stdout(out.file()?).stderr(err.file()?).process_group(0);
    let mut child = bash.spawn().context("bash")?;
    let (ended, end) = channel::<()>();
    let group = child.id();
    let watch = std::thread::spawn(move || end_in_time(group, limit, &end));
    let status = child.wait()?;
    drop(ended);
    let in_time = watch.join().unwrap_or(true);
    // By a signal: as a shell says it.
    let code = if in_time { status.code().unwrap_or(128) } else { TIMED_OUT };
    Ok(Said { code, out: out.bytes()?, err: err.bytes()? })
}

/// Waits for the command's end, or brings it about; whether it was in time.
fn end_in_time(group: u32, limit: Duration, end: &Receiver<()>) -> bool {
    let timed_out = |limit| end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
    if !timed_out(limit) {
        return true;
    }
    signal(group, "TERM");
    if timed_out(OBEY) {
        signal(group, "KILL");
    }
    false
}

fn signal(group: u32, name: &str) {
    // It may just have ended by itself.
    let _ = Command::new("bash").args(["-c", &format!("kill -{name} -- -{group}")]).status();
}

/// Tries a condition until it holds, and gives what it then printed; after `limit`, what it printed last.
pub(crate) fn until(condition: &str, limit: Duration) -> anyhow::Result<Said> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let said = run(condition, left.max(LAST_TRY))?;
        if said.code == 0 {
            return Ok(said);
        }
        if Instant::now() >= deadline {
            return Ok(Said { code: TIMED_OUT, err: [said.out, said.err].concat(), ..Said::default() });
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// A file for what is printed; gone with the value.
struct Output(PathBuf);

impl Output {
    fn create() -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(DIRECTORY).context(DIRECTORY)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self(PathBuf::from(DIRECTORY).join(format!("{}-{number}", std::process::id()))))
    }

    fn file(&self) -> anyhow::Result<File> {
        File::create(&self.0).with_context(|| self.0.display().to_string())
    }

    fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        std::fs::read(&self.0).with_context(|| self.0.display().to_string())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
