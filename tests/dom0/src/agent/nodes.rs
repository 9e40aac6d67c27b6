//! Looking at xenstore, and waiting for it: by watches, so that waiting costs nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{Said, TIMED_OUT};
use crate::store::Store;

/// The exit code for a node that is not there.
const NO_NODE: i32 = 2;

/// What a node is waited to be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    /// It has this value.
    Is(String),
    /// Its value has this among its words.
    Has(String),
    /// It is there, with any value.
    There,
    /// It is not there.
    Gone,
}

impl Expected {
    fn holds(&self, value: Option<&[u8]>) -> bool {
        match self {
            Self::Is(expected) => value == Some(expected.as_bytes()),
            Self::Has(word) => {
                value.is_some_and(|value| value.split(u8::is_ascii_whitespace).any(|has| has == word.as_bytes()))
            }
            Self::There => value.is_some(),
            Self::Gone => value.is_none(),
        }
    }
}

/// `PATH`: a node's value; [`NO_NODE`] when there is none.
pub(super) fn read(path: &str) -> anyhow::Result<Said> {
    let values = Store::connect()?.read(&[path.to_owned()])?;
    Ok(values.into_iter().flatten().next().map_or_else(|| Said::err(NO_NODE, "no such node"), Said::out))
}

/// `NAME`: the number of the domain which is called so; 1 when there is none.
pub(super) fn domid(name: &str) -> anyhow::Result<Said> {
    let found = Store::connect()?.domain(name)?;
    Ok(found
        .map_or_else(|| Said::err(1, &format!("no domain is called {name}")), |domain| Said::out(domain.to_string())))
}

/// `PATH`: all paths below it, a line each; the root is `/`.
pub(super) fn tree(path: &str) -> anyhow::Result<Said> {
    Ok(Said::out(Store::connect()?.tree(path)?.join("\n")))
}

/// Waits until all nodes are as they are expected, a line each: `is PATH VALUE`, `has PATH WORD`, `there PATH` or `gone PATH`. Prints their values.
pub(super) fn wait(text: &str, deadline: Instant) -> anyhow::Result<Said> {
    let (paths, expected): (Vec<_>, Vec<_>) =
        text.lines().map(parse).collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let mut store = Store::connect()?;
    for path in &paths {
        store.watch(path)?;
    }
    let mut values = store.read(&paths)?;
    loop {
        let mut missing = first_missing(&values, &expected);
        if missing.is_none() {
            // Each value is from the moment of its own change: all must hold at once.
            values = store.read(&paths)?;
            missing = first_missing(&values, &expected);
        }
        let Some(missing) = missing else {
            return Ok(Said::out(values.iter().map(|value| printed(value.as_deref())).collect::<Vec<_>>().join("\n")));
        };
        let Some(changed) = store.next_change(Some(deadline))? else {
            if Instant::now() < deadline {
                continue;
            }
            let is = printed(values[missing].as_deref());
            return Ok(Said::err(TIMED_OUT, &format!("{} is {is}, not {:?}", paths[missing], expected[missing])));
        };
        // One that was removed with what is above it is told of by that.
        let concerned =
            |path: &str| path == changed || path.strip_prefix(&changed).is_some_and(|rest| rest.starts_with('/'));
        for (path, value) in paths.iter().zip(&mut values).filter(|(path, _)| concerned(path)) {
            *value = store.read(std::slice::from_ref(path))?.pop().flatten();
        }
    }
}

fn first_missing(values: &[Option<Vec<u8>>], expected: &[Expected]) -> Option<usize> {
    values.iter().zip(expected).position(|(value, expected)| !expected.holds(value.as_deref()))
}

/// `SECONDS PATH`: waits until the node has had its value for so long, and prints it.
pub(super) fn rest(text: &str, deadline: Instant) -> anyhow::Result<Said> {
    let (seconds, path) = text.split_once(' ').context("no seconds and path")?;
    let (seconds, path) = (Duration::from_secs(seconds.parse()?), path.to_owned());
    let mut store = Store::connect()?;
    store.watch(&path)?;
    let mut last = None;
    let mut since = Instant::now();
    loop {
        let value = store.read(std::slice::from_ref(&path))?.pop().flatten();
        if value != last {
            (last, since) = (value, Instant::now());
        }
        let rested = since + seconds;
        while Instant::now() < rested.min(deadline) && store.next_change(Some(rested.min(deadline)))?.is_none() {}
        match &last {
            Some(value) if Instant::now() >= rested => return Ok(Said::out(value.clone())),
            _ if Instant::now() >= deadline => {
                return Ok(Said::err(TIMED_OUT, &format!("{path} does not rest: {}", printed(last.as_deref()))));
            }
            _ => {}
        }
    }
}

fn parse(line: &str) -> anyhow::Result<(String, Expected)> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    Ok(match words.as_slice() {
        ["is", path, value] => ((*path).to_owned(), Expected::Is((*value).to_owned())),
        ["has", path, word] => ((*path).to_owned(), Expected::Has((*word).to_owned())),
        ["there", path] => ((*path).to_owned(), Expected::There),
        ["gone", path] => ((*path).to_owned(), Expected::Gone),
        _ => bail!("no expectation: {line:?}"),
    })
}

fn printed(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations() {
        for (line, value, holds) in [
            ("is /a 4", Some("4"), true),
            ("is /a 4", Some("44"), false),
            ("is /a 4", None, false),
            ("is /a two words", Some("two words"), true),
            ("is /a ", Some(""), true),
            ("has /a b=1", Some("a=2 b=1\n"), true),
            ("has /a b=1", Some("b=12"), false),
            ("has /a b=1", None, false),
            ("there /a", Some(""), true),
            ("there /a", None, false),
            ("gone /a", None, true),
            ("gone /a", Some("1"), false),
        ] {
            let (path, expected) = parse(line).expect("an expectation");
            assert_eq!((path.as_str(), expected.holds(value.map(str::as_bytes))), ("/a", holds), "{line} {value:?}");
        }
        for bad in ["", "is /a", "there", "gone /a b", "had /a b"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
