//! The lines that others read: one a step, one at the end; the console puts `testfront: ` before them.

use alloc::format;
use alloc::string::String;

use crate::script::Aim;

/// Counts steps and words their outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps that ended as they had to.
    pub ok: u32,
    /// Steps that did not.
    pub failed: u32,
}

/// How a step ended, with what there is to say of it.
pub type Outcome = Result<String, String>;

impl Tally {
    /// Counts a step and says how it ended: `ok ...` or `failed: ...`.
    pub fn judge(&mut self, aim: Aim, outcome: Outcome) -> String {
        let outcome = match (aim, outcome) {
            (Aim::Success, outcome) => outcome,
            (Aim::Failure, Err(why)) => Ok(format!("failed as it had to: {why}")),
            (Aim::Failure, Ok(text)) => Err(format!("succeeded, which it must not: {text}")),
        };
        match outcome {
            Ok(text) => {
                self.ok += 1;
                format!("ok {text}").trim_end().into()
            }
            Err(why) => {
                self.failed += 1;
                format!("failed: {why}")
            }
        }
    }

    /// The console's line for a step whose outcome [`Tally::judge`] worded.
    #[must_use]
    pub fn step_line(number: u64, verdict: &str) -> String {
        match verdict.strip_prefix("failed: ") {
            Some(why) => format!("step {number} FAILED {why}"),
            None => format!("step {number} {verdict}"),
        }
    }

    /// The console's last line of a script.
    #[must_use]
    pub fn end_line(self) -> String {
        format!("DONE ok={} failed={}", self.ok, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_worded_and_counted() {
        let table = [
            (Aim::Success, Ok("8 sectors"), "ok 8 sectors", "step 3 ok 8 sectors"),
            (Aim::Success, Ok(""), "ok", "step 3 ok"),
            (Aim::Success, Err("why"), "failed: why", "step 3 FAILED why"),
            (Aim::Failure, Err("why"), "ok failed as it had to: why", "step 3 ok failed as it had to: why"),
            (
                Aim::Failure,
                Ok("x"),
                "failed: succeeded, which it must not: x",
                "step 3 FAILED succeeded, which it must not: x",
            ),
        ];
        let mut tally = Tally::default();
        for (aim, outcome, verdict, line) in table {
            let got = tally.judge(aim, outcome.map(String::from).map_err(String::from));
            assert_eq!(got, verdict);
            assert_eq!(Tally::step_line(3, &got), line);
        }
        assert_eq!(tally.end_line(), "DONE ok=3 failed=2");
    }
}
