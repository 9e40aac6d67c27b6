//! Two programs for dom0, over its xenstore socket.
//!
//! `floor DOMID` answers for domain DOMID as a backend that has nothing to do: the yardstick, which costs what xl and libxl
//! cost by themselves. `record DOMID FILE` notes when the states of DOMID's vbds change, at both ends.
#![forbid(unsafe_code)]

mod floor;
mod paths;
mod record;
mod store;

use std::path::Path;

use anyhow::{Context, bail};
use xen_proto::DomId;

const USAGE: &str = "usage: dom0-tools floor DOMID | dom0-tools record DOMID FILE";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["floor", domain] => floor::run(parse_domain(domain)?),
        ["record", domain, file] => record::run(parse_domain(domain)?, Path::new(file)),
        _ => bail!(USAGE),
    }
}

fn parse_domain(word: &str) -> anyhow::Result<DomId> {
    word.parse().map(DomId).with_context(|| format!("{word} is no domain number; {USAGE}"))
}
