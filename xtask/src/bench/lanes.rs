//! Lanes of guests in dom0: many xl commands by one script, as each command over the wire costs as much as xl itself.

use anyhow::{Context, ensure};
use nested_tests::dom0::{Dom0, shell_quoted};
use nested_tests::testfront::TestFrontConfig;

/// Functions of the scripts, one for each kind of lane.
const FUNCTIONS: &str = include_str!("lanes.bash");

/// Something that a lane did.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Done {
    /// What.
    pub verb: String,
    /// The guest: its name, or its domain number for what happens to one device.
    pub guest: String,
    /// A device's number, a number of devices or of a round.
    pub subject: u32,
    /// dom0's uptime in seconds, to the hundredth, before and after it.
    pub start: f64,
    pub end: f64,
    /// How it ended.
    pub code: i32,
}

/// Lanes to be run side by side.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    script: String,
}

impl Lanes {
    /// Adds a lane: a call of one of the functions, which may create these guests.
    pub(super) fn add(&mut self, function: &str, guests: &[TestFrontConfig], words: &[String]) {
        for guest in guests {
            self.script += &format!("cat > /run/bench/{}.cfg << 'END'\n{}END\n", guest.name, guest.text());
        }
        let quoted: Vec<_> = words.iter().map(|word| shell_quoted(word)).collect();
        self.script += &format!("{function} {} &\n", quoted.join(" "));
    }

    /// Runs them all to their ends.
    ///
    /// # Errors
    /// When they have not ended after `limit` seconds; what a lane could not do is in what it says it did.
    pub(super) fn run(self, dom0: &Dom0, limit: u64) -> anyhow::Result<Outcome> {
        let script = format!("{FUNCTIONS}\nmkdir -p /run/bench\n{}wait\n", self.script);
        let output = dom0.run(&script, limit)?;
        ensure!(output.rc != 124, "lanes did not end within {limit} s: {}{}", output.out, output.err);
        Ok(Outcome { done: parse(&output.out)?, said: output.err })
    }
}

/// What lanes did.
#[derive(Debug)]
pub(super) struct Outcome {
    pub done: Vec<Done>,
    /// What xl had to say: nothing if all is well.
    pub said: String,
}

fn parse(text: &str) -> anyhow::Result<Vec<Done>> {
    let line = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let &[verb, guest, subject, start, end, code] = words.as_slice() else { return None };
        Some(Done {
            verb: verb.to_owned(),
            guest: guest.to_owned(),
            subject: subject.parse().ok()?,
            start: start.parse().ok()?,
            end: end.parse().ok()?,
            code: code.parse().ok()?,
        })
    };
    text.lines().map(|text| line(text).with_context(|| format!("no lane says {text:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_was_done() {
        let done = Done { verb: "attach".into(), guest: "7".into(), subject: 51712, start: 1.5, end: 2.25, code: 1 };
        assert_eq!(parse("attach 7 51712 1.50 2.25 1\n").expect("a line"), [done]);
        assert_eq!(parse("").expect("nothing"), []);
        for bad in ["attach 7 51712 1.50 2.25", "attach 7 x 1 2 0", "Parsing config", "attach 7 1 1 2 0 0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lane_is_a_call_beside_others() {
        let mut lanes = Lanes::default();
        lanes.add("hot", &[TestFrontConfig::new("h-1")], &["h-1".into(), "a,b=c d".into()]);
        assert!(lanes.script.starts_with("cat > /run/bench/h-1.cfg << 'END'\nname='h-1'\n"), "{}", lanes.script);
        assert!(lanes.script.ends_with("END\nhot 'h-1' 'a,b=c d' &\n"), "{}", lanes.script);
    }
}
