//! What the demo has to show at its end: stages with their seconds, and checks.

use nested_tests::progress::Progress;
use serde_json::{Value, json};

/// Grows as the demo goes on.
#[derive(Debug, Default)]
pub(super) struct Proof {
    progress: Progress,
    stages: Vec<(String, f64)>,
    checks: Vec<(String, bool)>,
}

impl Proof {
    /// The clock, for what reports its own stages.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Does a stage, and notes its seconds.
    ///
    /// # Errors
    /// What the stage returns.
    pub(super) fn stage<T>(&mut self, name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let (value, seconds) = self.progress.stage(name, work)?;
        self.stages.push((name.to_owned(), seconds));
        Ok(value)
    }

    /// Notes stages that reported themselves.
    pub(super) fn add_stages(&mut self, stages: Vec<(String, f64)>) {
        self.stages.extend(stages);
    }

    /// Notes whether something holds; when it does not, the reason is printed and the demo goes on.
    pub(super) fn check(&mut self, name: &str, result: anyhow::Result<()>) {
        match &result {
            Ok(()) => self.progress.say(&format!("holds: {name}")),
            Err(error) => self.progress.say(&format!("DOES NOT HOLD: {name}: {error:#}")),
        }
        self.checks.push((name.to_owned(), result.is_ok()));
    }

    /// Notes that the course was broken off.
    pub(super) fn note_failure(&mut self, error: &anyhow::Error) {
        self.check("the demo runs to its end", Err(anyhow::anyhow!("{error:#}")));
    }

    /// Whether something was checked, and all of it holds.
    pub(super) fn ok(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|(_, ok)| *ok)
    }

    /// For a person.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        for (name, ok) in &self.checks {
            table.push_str(&format!("  {:5} {name}\n", if *ok { "yes" } else { "NO" }));
        }
        table
            + if self.ok() { "proven in " } else { "NOT proven after " }
            + &format!("{:.0} s", self.progress.seconds())
    }

    /// For a program.
    pub(super) fn json(&self) -> Value {
        let stages: Vec<_> =
            self.stages.iter().map(|(name, seconds)| json!({"name": name, "seconds": seconds})).collect();
        let checks: Vec<_> = self.checks.iter().map(|(name, ok)| json!({"name": name, "ok": ok})).collect();
        json!({"ok": self.ok(), "stages": stages, "checks": checks})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checks_that_all_hold_are_a_proof() {
        let mut proof = Proof::default();
        assert!(!proof.ok());
        proof.check("a", Ok(()));
        assert!(proof.ok());
        proof.note_failure(&anyhow::anyhow!("broken off"));
        assert!(!proof.ok());
    }

    #[test]
    fn json_is_as_specified() {
        let mut proof = Proof::default();
        proof.add_stages(vec![("s".into(), 1.5)]);
        proof.check("c", Ok(()));
        assert_eq!(
            proof.json(),
            json!({"ok": true, "stages": [{"name": "s", "seconds": 1.5}], "checks": [{"name": "c", "ok": true}]})
        );
    }
}
