//! CLOCK_MONOTONIC as a number, which `Instant` does not give.

use std::time::{Duration, Instant};

use anyhow::Context;

/// A moment known in both ways.
#[derive(Debug)]
pub(super) struct Clock {
    at: Instant,
    seconds: f64,
}

impl Clock {
    /// Waits for the next hundredth of a second of /proc/uptime: at its beginning the number is exact.
    pub(super) fn start() -> anyhow::Result<Self> {
        let first = uptime()?;
        loop {
            let (at, seconds) = (Instant::now(), uptime()?);
            if seconds > first {
                return Ok(Self { at, seconds });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A later moment.
    pub(super) fn seconds(&self, moment: Instant) -> f64 {
        self.seconds + moment.saturating_duration_since(self.at).as_secs_f64()
    }
}

fn uptime() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime").context("/proc/uptime")?;
    let word = text.split_whitespace().next().context("/proc/uptime is empty")?;
    word.parse().with_context(|| format!("/proc/uptime says {word}"))
}
