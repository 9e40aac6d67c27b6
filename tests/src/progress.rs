//! Lines for the person who waits: each stage with its elapsed time, and a sign of life while a long one runs.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a running stage says that it still runs.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// A clock that started with the command, and prints.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    start: Instant,
    machine: Option<char>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { start: Instant::now(), machine: None }
    }
}

impl Progress {
    /// The same clock for one of several machines that run side by side: its lines begin with the machine's letter.
    #[must_use]
    pub fn of_machine(self, letter: char) -> Self {
        Self { machine: Some(letter), ..self }
    }

    /// Prints `line` after the seconds since the start.
    pub fn say(&self, line: &str) {
        let machine = self.machine.map(|letter| format!("{letter}: ")).unwrap_or_default();
        println!("[{:6.1} s] {machine}{line}", self.start.elapsed().as_secs_f64());
    }

    /// Seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Does `work`, with signs of life while it runs and its seconds after it; these are returned too.
    ///
    /// # Errors
    /// What `work` returns.
    pub fn stage<T>(&self, name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
        let begun = Instant::now();
        let signs = SignsOfLife::start(*self, name.to_owned());
        let result = work();
        drop(signs);
        let seconds = begun.elapsed().as_secs_f64();
        match &result {
            Ok(_) => self.say(&format!("{name}: {seconds:.1} s")),
            Err(_) => self.say(&format!("{name}: FAILED after {seconds:.1} s")),
        }
        result.map(|value| (value, seconds))
    }
}

/// A thread that prints until this is dropped.
struct SignsOfLife {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SignsOfLife {
    fn start(progress: Progress, name: String) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(SIGN_OF_LIFE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                progress.say(&format!("... {name}"));
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for SignsOfLife {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
