//! What dom0 says of driverdom at a moment.

use std::collections::BTreeMap;

use anyhow::Context;
use nested_tests::driverdom::Counters;

/// One look.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    /// dom0's uptime.
    pub(super) seconds: f64,
    /// driverdom's domain number.
    pub(super) domid: u32,
    /// All of its counters by name.
    pub(super) counters: BTreeMap<String, u64>,
    /// Its devices by guest and number.
    pub(super) devices: BTreeMap<(u32, u32), Device>,
}

/// A device as xenstore has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Device {
    pub(super) state: String,
    pub(super) name: String,
    pub(super) volume: String,
    pub(super) mode: String,
}

impl Sample {
    /// Reads the answer: the uptime, the domain number, three lines of counters, then nodes of devices.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        let mut line = |what: &str| lines.next().with_context(|| format!("no {what}"));
        let seconds = line("uptime")?.trim().parse().context("the uptime")?;
        let domid = line("domain number")?.trim().parse().context("the domain number")?;
        let mut sample = Self { seconds, domid, ..Self::default() };
        for node in ["counters", "attaches", "io"] {
            sample.counters.extend(Counters::parse(line(node)?).into_pairs());
        }
        lines.for_each(|line| sample.add_node(line));
        Ok(sample)
    }

    /// A counter, zero if driverdom does not have it (yet).
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Takes a line of `xenstore-ls -f`: `/local/domain/3/backend/vbd/7/51712/state = "4"`. Others are passed over: nodes may
    /// go while they are listed.
    fn add_node(&mut self, line: &str) {
        let Some((path, value)) = line.split_once(" = ") else { return };
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "local", "domain", _, "backend", "vbd", guest, device, key] = parts[..] else { return };
        let (Ok(guest), Ok(device)) = (guest.parse(), device.parse()) else { return };
        let device = self.devices.entry((guest, device)).or_default();
        let value = value.trim_matches('"').to_owned();
        match key {
            "state" => device.state = value,
            "dev" => device.name = value,
            "params" => device.volume = value,
            "mode" => device.mode = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_dom0() {
        let text = "12.34\n3\nvbds=1 rings=1\nattach_count=2\n\n\
            /local/domain/3/backend/vbd/7/51712/state = \"4\"\n\
            /local/domain/3/backend/vbd/7/51712/dev = \"xvda\"\n\
            /local/domain/3/backend/vbd/7/51712/params = \"gpt:a = b\"\n\
            /local/domain/3/backend/vbd/7/51712/mode = \"w\"\n\
            /local/domain/3/backend/vbd/7/state = \"?\"\n";
        let sample = Sample::parse(text).unwrap();
        assert_eq!((sample.seconds, sample.domid), (12.34, 3));
        assert_eq!(["vbds", "rings", "attach_count", "reads"].map(|name| sample.counter(name)), [1, 1, 2, 0]);
        let device = Device { state: "4".into(), name: "xvda".into(), volume: "gpt:a = b".into(), mode: "w".into() };
        assert_eq!(sample.devices.into_iter().collect::<Vec<_>>(), [((7, 51712), device)]);
    }

    #[test]
    fn an_answer_that_is_cut_short() {
        for (text, missing) in [("", "uptime"), ("1.5\n", "domain number"), ("1.5\n3\nvbds=1\n", "attaches")] {
            let error = Sample::parse(text).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
    }
}
