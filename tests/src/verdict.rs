//! The verdict: a pure function of what was planned and what was seen.

use std::collections::BTreeSet;

/// How one scenario ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It held.
    Passed,
    /// It did not hold, and why.
    Failed(String),
    /// The nested system failed: nothing was learnt, and why.
    Infrastructure(String),
}

/// What was seen of one scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Its end.
    pub outcome: Outcome,
}

/// How one boot of the nested system ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootEnd {
    /// It came up, computed right, and went down with the end marker and a clean exit of QEMU.
    Clean,
    /// It did not, and why.
    Broken(String),
}

/// The three values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything planned ran and held, on machines that came up and went down cleanly.
    Pass,
    /// At least one scenario did not hold.
    Fail,
    /// No scenario failed, yet something did not run or a machine broke: not driverdom's doing, and no pass.
    Infrastructure,
}

/// A verdict with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Planned scenarios that passed.
    pub passed: usize,
    /// Planned scenarios that did not, among them those that did not run.
    pub failed: usize,
    /// One line for each reason against a pass.
    pub reasons: Vec<String>,
}

/// Judges a run. A planned scenario without a report, or with two, counts as failed; a report of what was not planned is a reason too.
#[must_use]
pub fn judge(planned: &[&str], reports: &[Report], boots: &[BootEnd]) -> Judgement {
    let mut reasons = vec![];
    let (mut passed, mut any_failed, mut any_broken) = (0, false, false);
    for name in planned {
        let mine: Vec<_> = reports.iter().filter(|report| report.name == *name).collect();
        match mine.as_slice() {
            [Report { outcome: Outcome::Passed, .. }] => passed += 1,
            [Report { outcome: Outcome::Failed(why), .. }] => {
                any_failed = true;
                reasons.push(format!("{name}: {why}"));
            }
            [Report { outcome: Outcome::Infrastructure(why), .. }] => {
                any_broken = true;
                reasons.push(format!("{name}: {why}"));
            }
            [] => {
                any_broken = true;
                reasons.push(format!("{name}: did not run"));
            }
            more => {
                any_broken = true;
                reasons.push(format!("{name}: reported {} times", more.len()));
            }
        }
    }
    let known: BTreeSet<_> = planned.iter().copied().collect();
    for report in reports.iter().filter(|report| !known.contains(report.name.as_str())) {
        any_broken = true;
        reasons.push(format!("{}: reported, yet not planned", report.name));
    }
    for end in boots {
        if let BootEnd::Broken(why) = end {
            any_broken = true;
            reasons.push(format!("a boot: {why}"));
        }
    }
    if planned.is_empty() || boots.is_empty() {
        any_broken = true;
        reasons.push("nothing ran".to_owned());
    }
    let verdict = match (any_failed, any_broken) {
        (true, _) => Verdict::Fail,
        (false, true) => Verdict::Infrastructure,
        (false, false) => Verdict::Pass,
    };
    Judgement { verdict, passed, failed: planned.len() - passed, reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, outcome: Outcome) -> Report {
        Report { name: name.to_owned(), outcome }
    }

    fn passed(name: &str) -> Report {
        report(name, Outcome::Passed)
    }

    fn failed(name: &str) -> Report {
        report(name, Outcome::Failed("no".into()))
    }

    fn broken(name: &str) -> Report {
        report(name, Outcome::Infrastructure("gone".into()))
    }

    fn check(reports: &[Report], boots: &[BootEnd], expect: (Verdict, usize, usize)) {
        let judgement = judge(&["a", "b"], reports, boots);
        assert_eq!((judgement.verdict, judgement.passed, judgement.failed), expect, "{reports:?} {boots:?}");
        assert_eq!(judgement.reasons.is_empty(), judgement.verdict == Verdict::Pass);
    }

    #[test]
    fn verdicts() {
        let clean = || vec![BootEnd::Clean];
        let dirty = || vec![BootEnd::Clean, BootEnd::Broken("no end marker".into())];
        check(&[passed("a"), passed("b")], &clean(), (Verdict::Pass, 2, 0));
        check(&[passed("a"), failed("b")], &clean(), (Verdict::Fail, 1, 1));
        check(&[passed("a")], &clean(), (Verdict::Infrastructure, 1, 1));
        check(&[], &clean(), (Verdict::Infrastructure, 0, 2));
        check(&[passed("a"), broken("b")], &clean(), (Verdict::Infrastructure, 1, 1));
        check(&[failed("a"), broken("b")], &clean(), (Verdict::Fail, 0, 2));
        check(&[failed("a")], &dirty(), (Verdict::Fail, 0, 2));
        check(&[passed("a"), passed("b")], &dirty(), (Verdict::Infrastructure, 2, 0));
        check(&[passed("a"), passed("b")], &[], (Verdict::Infrastructure, 2, 0));
        check(&[passed("a"), passed("b"), passed("b")], &clean(), (Verdict::Infrastructure, 1, 1));
        check(&[passed("a"), passed("b"), passed("c")], &clean(), (Verdict::Infrastructure, 2, 0));
    }

    #[test]
    fn an_empty_plan_is_no_pass() {
        assert_eq!(judge(&[], &[], &[BootEnd::Clean]).verdict, Verdict::Infrastructure);
    }
}
