//! What the recorder in dom0 wrote (`tests/dom0`): when which `state` node had which value.

use anyhow::Context;

/// Bash: starts a recorder for the backends of domain `$1`, ends it with the shell; `up NAME` prints `NAME SECONDS`.
pub(super) const START: &str = r#"record=/run/record.$$
/run/dom0-tools record "$1" $record & recorder=$!
trap 'kill $recorder; rm -f $record' EXIT
until [ -e $record ]; do sleep 0.02; done
up() { local now; read -r now _ < /proc/uptime; echo "$1 $now"; }
"#;

/// A `state` node's change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    /// By dom0's clock.
    pub(super) seconds: f64,
    /// The node.
    pub(super) path: String,
    /// None: it is gone, or only heard of.
    pub(super) state: Option<u32>,
}

impl Change {
    /// Whether it is at the backend's end.
    pub(super) fn is_backend(&self) -> bool {
        self.path.contains("/backend/")
    }

    /// The device's number.
    pub(super) fn device(&self) -> Option<u32> {
        self.path.rsplit('/').nth(1)?.parse().ok()
    }
}

/// What the shell and the recorder printed.
#[derive(Debug, Default)]
pub(super) struct Output {
    marks: Vec<(String, f64)>,
    pub(super) changes: Vec<Change>,
}

impl Output {
    /// Reads lines `NAME SECONDS` of the shell's and `SECONDS PATH STATE` of the recorder's.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut output = Self::default();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let wrong = || format!("not a line of the record: {line}");
            match words.as_slice() {
                [name, seconds] => output.marks.push(((*name).to_owned(), seconds.parse().with_context(wrong)?)),
                [seconds, path, state] => output.changes.push(Change {
                    seconds: seconds.parse().with_context(wrong)?,
                    path: (*path).to_owned(),
                    state: state.parse().ok(),
                }),
                _ => anyhow::bail!(wrong()),
            }
        }
        Ok(output)
    }

    /// When `up NAME` was said for the `nth` time, from 0.
    pub(super) fn mark(&self, name: &str, nth: usize) -> anyhow::Result<f64> {
        let found = self.marks.iter().filter(|(known, _)| known == name).nth(nth);
        Ok(found.with_context(|| format!("the shell did not come to '{name}' {nth}"))?.1)
    }

    /// When the last of `count` devices came to 4 at one end.
    pub(super) fn all_connected(&self, count: usize, at_backend: impl Fn(&Change) -> bool) -> anyhow::Result<f64> {
        let at: Vec<f64> = self
            .changes
            .iter()
            .filter(|change| change.state == Some(4) && at_backend(change))
            .map(|change| change.seconds)
            .collect();
        anyhow::ensure!(at.len() == count, "{} devices of {count} are recorded as connected", at.len());
        Ok(at.into_iter().fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "begin 10.00\ncreated 12.50\n\
        11.000001 /local/domain/5/backend/vbd/7/51712/state 1\n\
        13.5 /local/domain/5/backend/vbd/7/51712/state 4\n\
        13.25 /local/domain/5/backend/vbd/7/51728/state 4\n\
        14.0 /local/domain/7/device/vbd/51712/state 4\n\
        15.0 /local/domain/7/device/vbd/51712/state -\n";

    #[test]
    fn a_record_is_read() {
        let output = Output::parse(TEXT).expect("a record");
        assert_eq!((output.mark("begin", 0).ok(), output.mark("begin", 1).ok()), (Some(10.0), None));
        assert_eq!(output.all_connected(2, Change::is_backend).ok(), Some(13.5));
        assert_eq!(output.all_connected(1, |change| !change.is_backend()).ok(), Some(14.0));
        assert!(output.all_connected(2, |change| !change.is_backend()).is_err());
        let last = output.changes.last().expect("changes");
        assert_eq!((last.device(), last.state, last.is_backend()), (Some(51712), None, false));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for line in ["begin", "begin x", "x /local 4", "1 2 3 4"] {
            assert!(Output::parse(line).is_err(), "{line}");
        }
    }
}
