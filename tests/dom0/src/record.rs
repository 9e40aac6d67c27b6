//! The recorder: a line in a file for each change of a `state` node of a backend's vbds and of their frontends.
//!
//! `SECONDS PATH VALUE`: CLOCK_MONOTONIC, which is also what /proc/uptime says on a machine that never slept, when the value was
//! read; the value is `-` once the node is gone. Before the first value of a node that is new stands a line with the value `+`,
//! and the time when it was heard of: on a busy machine what was there then may have been replaced before it is read. Each line is written at once, so nothing is lost when the recorder is killed; the file appears when
//! the recorder has begun.

mod clock;
mod states;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use xen_proto::DomId;

use crate::paths::{frontends, watched};
use crate::store::Store;
use clock::Clock;
use states::States;

/// Records until it is killed.
pub(crate) fn run(domain: DomId, file: &Path) -> anyhow::Result<()> {
    let clock = Clock::start()?;
    let mut store = Store::connect()?;
    store.watch(&watched(domain))?;
    let mut out = File::create(file).with_context(|| file.display().to_string())?;
    let mut states = States::new(domain);
    loop {
        let Some(path) = store.next_change(None)? else { continue };
        let paths = states.reads_after(&path);
        if paths.is_empty() {
            continue;
        }
        let heard = clock.seconds(store.heard_at());
        let values = store.read(&paths)?;
        let now = clock.seconds(Instant::now());
        for (path, value) in paths.iter().zip(values) {
            let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
            let new =
                if value.is_some() && !states.knows(path) { format!("{heard:.6} {path} +\n") } else { String::new() };
            if states.take(path, value.as_deref()) {
                let line = format!("{new}{now:.6} {path} {}\n", value.as_deref().unwrap_or("-"));
                out.write_all(line.as_bytes()).context("the record")?;
            }
        }
        if let Some(guest) = states.take_new_guest() {
            store.watch(&frontends(guest))?;
        }
    }
}
