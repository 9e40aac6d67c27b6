//! Reads scripts.

mod words;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::FromStr;

use xen_proto::Nanos;

use super::{
    Action, Aim, Awaited, Cases, Connect, Deed, Ending, Farewell, Form, Haste, Load, Mix, Naming, Purpose, Script,
    Shape, Step, Transfer, Until, Which,
};
use crate::malformed;
use crate::request::{Abi, Status};
use words::{Words, number};

pub use words::BadScript;

/// How long a backend may take for what a step waits for, unless `seconds=` says otherwise.
const PATIENCE: Nanos = Nanos::from_millis(30_000);

impl Script {
    /// Reads a command line.
    ///
    /// # Errors
    /// Names the step, from 1, and the word.
    pub fn parse(command_line: &str) -> Result<Self, BadScript> {
        // 'log=' belongs to the platform.
        let mut text = command_line.trim();
        while let Some((_, rest)) = text.strip_prefix("log=").map(|rest| rest.split_once(' ').unwrap_or(("", ""))) {
            text = rest.trim_start();
        }
        match text {
            "script=xenstore" => Ok(Self::Xenstore),
            "script=watch" => Ok(Self::Watch),
            steps => parse_steps(steps).map(Self::Steps),
        }
    }
}

/// Reads steps, separated by semicolons or line ends.
///
/// # Errors
/// Names the step, from 1, and the word.
pub fn parse_steps(text: &str) -> Result<Vec<Step>, BadScript> {
    let steps = text.split([';', '\n']).filter(|step| !step.trim().is_empty());
    let read =
        |(at, step): (usize, &str)| step.parse().map_err(|BadScript(why)| BadScript(format!("step {}: {why}", at + 1)));
    steps.enumerate().map(read).collect()
}

impl FromStr for Step {
    type Err = BadScript;

    fn from_str(text: &str) -> Result<Self, BadScript> {
        let (aim, text) = match text.trim_start().strip_prefix("fails ") {
            Some(rest) => (Aim::Failure, rest),
            None => (Aim::Success, text),
        };
        let mut words = Words::new(text);
        let verb = words.verb().ok_or_else(|| BadScript("an empty step".to_string()))?;
        let deed = parse_deed(verb, &mut words)?;
        words.end()?;
        Ok(Self { aim, deed })
    }
}

fn parse_deed(verb: &str, words: &mut Words<'_>) -> Result<Deed, BadScript> {
    Ok(match verb {
        "list" => Deed::List,
        "echo" => Deed::Echo(words.rest()),
        "sleep" => Deed::Sleep(Nanos::from_millis(words.number("ms")?.unwrap_or(1000))),
        "vanish" => Deed::Vanish {
            how: words.named("how")?.unwrap_or(Ending::Crash),
            depth: words.number("depth")?.unwrap_or(0),
        },
        "end" => Deed::End(words.verb().map_or(Ok(Ending::Poweroff), |word| {
            word.parse().map_err(|()| BadScript(format!("end {word} is not known")))
        })?),
        _ => {
            // Taken out first, looked at last: an unknown verb is the greater fault.
            let which = words.value("vbd");
            let action = parse_action(verb, words)?;
            Deed::On(parse_which(which.ok_or_else(|| BadScript("vbd= is missing".to_string()))?)?, action)
        }
    })
}

fn parse_which(value: &str) -> Result<Which, BadScript> {
    if value == "all" {
        return Ok(Which::All);
    }
    let one = |text: &str| number(text).and_then(|number| u32::try_from(number).ok());
    let these = value.split(',').map(one).collect::<Option<Vec<u32>>>();
    these.map(Which::These).ok_or_else(|| BadScript(format!("vbd={value} is neither 'all' nor numbers")))
}

fn parse_action(verb: &str, words: &mut Words<'_>) -> Result<Action, BadScript> {
    Ok(match verb {
        "publish" => Action::Publish(parse_shape(words)?),
        "connect" => Action::Connect(parse_connect(words)?),
        "reconnect" => Action::Reconnect(parse_connect(words)?),
        "read" | "verify" | "write" | "barrier" | "flush" | "discard" => Action::Transfer(parse_transfer(verb, words)?),
        "load" => Action::Load(parse_load(words)?),
        "state" => {
            let state = words.verb().and_then(number).and_then(|state| u32::try_from(state).ok());
            Action::State(state.ok_or_else(|| BadScript("state needs a number".to_string()))?)
        }
        "set" => Action::Set { key: words.needed("key")?.to_string(), value: words.value("value").map(String::from) },
        "check" => {
            Action::Check { key: words.needed("key")?.to_string(), value: words.value("value").map(String::from) }
        }
        "close" => Action::Close(Farewell::Polite, parse_limit(words)?),
        "close6" => Action::Close(Farewell::Abrupt, parse_limit(words)?),
        "toggle" => Action::Toggle(words.number("n")?.unwrap_or(1)),
        "storm" => Action::Storm(words.number("n")?.unwrap_or(1)),
        "wait" => Action::Wait(words.named("state")?.unwrap_or(Awaited::Gone), parse_limit(words)?),
        "malformed" => Action::Malformed(words.named("kind")?.unwrap_or(Cases::All)),
        "never-close" => Action::NeverClose,
        _ => return Err(BadScript(format!("'{verb}' is not known"))),
    })
}

fn parse_limit(words: &mut Words<'_>) -> Result<Nanos, BadScript> {
    let seconds = words.number::<u64>("seconds")?;
    Ok(seconds.map_or(PATIENCE, |seconds| Nanos::from_millis(seconds.saturating_mul(1000))))
}

fn parse_connect(words: &mut Words<'_>) -> Result<Connect, BadScript> {
    let haste = if words.flag("early") { Haste::Early } else { Haste::Patient };
    Ok(Connect { shape: parse_shape(words)?, haste, limit: parse_limit(words)? })
}

fn parse_shape(words: &mut Words<'_>) -> Result<Shape, BadScript> {
    let order = words.number("order")?.unwrap_or(0);
    if order > 4 {
        return Err(BadScript(format!("order={order}: a ring has at most 16 pages, order 4")));
    }
    let numbered = words.flag("numbered");
    let skew = words.number("skew")?.unwrap_or(0);
    if skew >= 8 {
        return Err(BadScript(format!("skew={skew}: a page has 8 sectors")));
    }
    let segment = words.number("segment")?.unwrap_or(8 - skew);
    if !(1..=8 - skew).contains(&segment) {
        return Err(BadScript(format!("segment={segment}: it must fit in its page after skew={skew}")));
    }
    Ok(Shape {
        abi: words.named("abi")?.unwrap_or(Abi::X86_64),
        order,
        naming: if numbered || order > 0 { Naming::Numbered } else { Naming::Single },
        start: words.number("start")?.unwrap_or(0),
        form: words.named("form")?.unwrap_or(Form::Direct),
        skew,
        segment,
    })
}

fn parse_transfer(verb: &str, words: &mut Words<'_>) -> Result<Transfer, BadScript> {
    let mut seed = || words.number::<u64>("pattern")?.ok_or_else(|| BadScript("pattern= is missing".to_string()));
    let purpose = match verb {
        "verify" => Purpose::Verify(seed()?),
        "write" => Purpose::Write(seed()?),
        "barrier" => Purpose::Barrier(seed()?),
        "flush" => Purpose::Flush,
        "discard" => Purpose::Discard,
        _ => Purpose::Read,
    };
    let (sector, count) = match purpose {
        Purpose::Flush => (0, 0),
        _ => (words.number("sector")?.unwrap_or(0), words.number("count")?.unwrap_or(8)),
    };
    if u64::checked_add(sector, count).is_none() {
        return Err(BadScript("sector and count overflow (malformed has such requests)".to_string()));
    }
    Ok(Transfer { purpose, sector, count, expect: words.named("expect")?.unwrap_or(Status::Okay) })
}

fn parse_load(words: &mut Words<'_>) -> Result<Load, BadScript> {
    let mix = match (words.flag("mix"), words.flag("reads")) {
        (false, false) => Mix::Writes,
        (true, false) => Mix::Both,
        (false, true) => Mix::Reads,
        (true, true) => return Err(BadScript("mix and reads exclude each other".to_string())),
    };
    let until = match (words.number("seconds")?, words.number("requests")?) {
        (Some(seconds), None) => Until::Elapsed(Nanos::from_millis(u64::saturating_mul(seconds, 1000))),
        (None, Some(requests)) => Until::Requests(requests),
        _ => return Err(BadScript("load needs either seconds= or requests=".to_string())),
    };
    let size = words.number("size")?.unwrap_or(8);
    let depth = words.number("depth")?.unwrap_or(32);
    if size == 0 || depth == 0 {
        return Err(BadScript("size and depth are at least 1".to_string()));
    }
    Ok(Load {
        depth,
        until,
        mix,
        size,
        sector: words.number("sector")?.unwrap_or(0),
        count: words.number("count")?,
        seed: words.number("pattern")?.unwrap_or(1),
    })
}

/// Reads a value that is one of a few names.
macro_rules! named {
    ($type:ty, $($name:literal => $value:expr),+ $(,)?) => {
        impl FromStr for $type {
            type Err = ();
            fn from_str(text: &str) -> Result<Self, ()> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(()),
                }
            }
        }
    };
}

named!(Abi, "32" => Self::X86_32, "64" => Self::X86_64);
named!(Form, "direct" => Self::Direct, "indirect" => Self::Indirect);
named!(Status, "ok" => Self::Okay, "error" => Self::Error, "unsupported" => Self::Unsupported);
named!(Ending, "stay" => Self::Stay, "poweroff" => Self::Poweroff, "reboot" => Self::Reboot, "crash" => Self::Crash);

impl FromStr for Awaited {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "gone" => Ok(Self::Gone),
            _ => text.parse().map(Self::State).map_err(|_| ()),
        }
    }
}

impl FromStr for Cases {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "all" => Ok(Self::All),
            _ => malformed::CASES.iter().find(|case| case.name == text).map(Self::One).ok_or(()),
        }
    }
}

#[cfg(test)]
mod tests;
