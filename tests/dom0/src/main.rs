//! Programs for dom0, in one file: each is called by its name as the first word, or through a link of that name.
//!
//! `agent` serves the host; `await SECONDS COMMAND` and `guest NAME SECONDS COMMAND` are for scripts and for people at dom0's console.
//! `floor DOMID` answers for domain DOMID as a backend that has nothing to do: the yardstick, which costs what xl and libxl
//! cost by themselves. `record DOMID FILE` notes when the states of DOMID's vbds change, at both ends.
#![forbid(unsafe_code)]

mod agent;
mod console;
mod floor;
mod paths;
mod record;
mod store;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use xen_proto::DomId;

use agent::Said;

const USAGE: &str =
    "usage: dom0-tools agent | await SECONDS COMMAND | guest NAME SECONDS COMMAND | floor DOMID | record DOMID FILE";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (called, rest) = words.split_first().context(USAGE)?;
    match [&[name_of(called)], rest].concat().as_slice() {
        ["dom0-tools", words @ ..] | words => run(words),
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn run(words: &[&str]) -> anyhow::Result<ExitCode> {
    match words {
        ["agent"] => agent::run()?,
        ["await", seconds, condition] => return print(&agent::until(condition, parse_seconds(seconds)?)?),
        ["guest", name, seconds, command] => return print(&console::run(name, command, parse_seconds(seconds)?)?),
        ["floor", domain] => floor::run(parse_domain(domain)?)?,
        ["record", domain, file] => record::run(parse_domain(domain)?, Path::new(file))?,
        _ => bail!(USAGE),
    }
    Ok(ExitCode::SUCCESS)
}

fn print(said: &Said) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(&said.out)?;
    std::io::stderr().write_all(&said.err)?;
    Ok(u8::try_from(said.code).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn parse_seconds(word: &str) -> anyhow::Result<Duration> {
    word.parse().map(Duration::from_secs).with_context(|| format!("{word} is no number of seconds; {USAGE}"))
}

fn parse_domain(word: &str) -> anyhow::Result<DomId> {
    word.parse().map(DomId).with_context(|| format!("{word} is no domain number; {USAGE}"))
}
