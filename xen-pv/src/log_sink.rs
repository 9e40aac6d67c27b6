//! The console as the sink of the `log` crate, and its level from the command line (`log=debug`).

use core::fmt::{Arguments, Write};

use log::{LevelFilter, Log, Metadata, Record};

use crate::clock::Clock;
use crate::command_line;
use crate::console::{self, Line};

struct Sink;

/// Lets `log` write to the console. The level is `info` until [`set_level`].
pub(crate) fn init() {
    if log::set_logger(&Sink).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Takes the level from the word `log=off|error|warn|info|debug|trace`.
pub(crate) fn set_level(command_line: &str) {
    match command_line::value(command_line, "log").map(str::parse) {
        Some(Ok(level)) => log::set_max_level(level),
        Some(Err(_)) => log::warn!("log= must be off, error, warn, info, debug or trace"),
        None => {}
    }
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let mut line = Line::new();
            stamp(&mut line);
            let _ = write!(line, "{:5} {}: {}", record.level(), record.target(), record.args());
            line.end();
            console::write_line(&line);
        }
    }

    fn flush(&self) {}
}

/// Writes one of the last words of a dying domain.
pub(crate) fn last_word(text: Arguments<'_>) {
    let mut line = Line::new();
    stamp(&mut line);
    let _ = line.write_fmt(text);
    line.end();
    console::write_urgently(&line);
}

/// Xen's system time in seconds, as `xl dmesg` has it too.
fn stamp(line: &mut Line) {
    if let Some(shared) = console::shared_info() {
        let us = Clock::new(shared).now().0 / 1000;
        let _ = write!(line, "[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000);
    }
}
