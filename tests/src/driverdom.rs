//! driverdom in the nested system: its xl config, and its start.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::dom0::{Dom0, Node};
use crate::guest::console_log;
use crate::scenarios::vbd::xl_quietly;

/// The domain's name, which guests' disk lines use.
pub const NAME: &str = "driverdom";

/// Its config in dom0.
const CONFIG: &str = "/guests/driverdom.cfg";

/// An xl config of driverdom.
#[derive(Debug, Clone)]
pub struct Config {
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Addresses of the devices passed through.
    pub pci: Vec<String>,
    /// Its command line.
    pub cmdline: String,
    /// Further lines of the config.
    pub lines: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { memory_mib: 8, pci: vec!["00:05.0".into()], cmdline: String::new(), lines: vec![] }
    }
}

impl Config {
    /// The config as xl reads it.
    #[must_use]
    pub fn text(&self) -> String {
        let pci: Vec<_> = self.pci.iter().map(|address| format!("'{address}'")).collect();
        let mut text = format!(
            "name='{NAME}'\nkernel='/guests/driverdom'\nmemory={}\nvcpus=1\ncmdline='{}'\npci=[{}]\non_crash='preserve'\n",
            self.memory_mib,
            self.cmdline,
            pci.join(", ")
        );
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// What a node of `data/driverdom` says, in words `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads the words; those that are no numbers are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
        Self(pairs.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?))).collect())
    }

    /// A counter.
    ///
    /// # Errors
    /// When driverdom does not count that.
    pub fn get(&self, key: &str) -> anyhow::Result<u64> {
        self.0.get(key).copied().with_context(|| format!("driverdom's counters have no {key}: {:?}", self.0))
    }

    /// All of them by name.
    pub fn into_pairs(self) -> impl Iterator<Item = (String, u64)> {
        self.0.into_iter()
    }
}

/// A driverdom that said it is ready.
#[derive(Debug)]
pub struct Driverdom<'a> {
    dom0: &'a Dom0,
    /// Its domain number.
    pub domid: u32,
    /// Seconds from `xl create` to ready, by dom0's clock.
    pub seconds: f64,
}

impl<'a> Driverdom<'a> {
    /// Creates the domain and waits until it is ready to serve.
    ///
    /// # Errors
    /// What xl said, or the end of driverdom's console when it does not become ready.
    pub fn start(dom0: &'a Dom0, config: &Config) -> anyhow::Result<Self> {
        dom0.put(CONFIG, config.text().as_bytes())?;
        let created = dom0.run(&format!("xl create {CONFIG}"), 90)?;
        anyhow::ensure!(created.rc == 0, "driverdom could not be created: {}", created.err.trim());
        let domid = dom0.domid(NAME)?;
        let ready = Node::There(format!("/local/domain/{domid}/data/driverdom/ready"));
        match dom0.wait_nodes(&[ready], 30) {
            Ok(ready) => Ok(Self { dom0, domid, seconds: ready.end - created.start }),
            Err(error) => {
                let said = dom0.run(&format!("tail -n 20 {}", console_log(NAME)), 30)?.out;
                anyhow::bail!("driverdom did not become ready: {error:#}; it said: {said}");
            }
        }
    }

    /// A driverdom that somebody else started.
    ///
    /// # Errors
    /// When there is none.
    pub fn running(dom0: &'a Dom0) -> anyhow::Result<Self> {
        Ok(Self { dom0, domid: dom0.domid(NAME)?, seconds: 0.0 })
    }

    /// What it printed so far.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn console(&self) -> anyhow::Result<String> {
        self.dom0.check(&format!("cat {}", console_log(NAME)), 30)
    }

    /// What the node `node` of `data/driverdom` says when all that happened so far is in it: it is three seconds old at most.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn counters(&self, node: &str) -> anyhow::Result<Counters> {
        let path = format!("/local/domain/{}/data/driverdom/{node}", self.domid);
        std::thread::sleep(std::time::Duration::from_secs(3));
        Ok(Counters::parse(&self.dom0.xenstore(&path)?.with_context(|| format!("no {path}"))?))
    }

    /// Shuts it down in order, and waits until the domain is gone.
    ///
    /// # Errors
    /// When it does not go within a minute.
    pub fn shut_down(self) -> anyhow::Result<()> {
        self.dom0.check(&format!("xl shutdown {NAME}"), 30)?;
        self.dom0.wait_gone(self.domid, 60)
    }
}

/// Crashes driverdom and waits until Xen says that it has. It is kept, as the config has it.
///
/// # Errors
/// What xl said, or that driverdom goes on.
pub fn crash(dom0: &Dom0) -> anyhow::Result<()> {
    xl_quietly(dom0, &format!("sysrq {NAME} c"), 30)?;
    dom0.wait_until(&format!("xl list {NAME} | awk 'NR == 2 {{print $5}}' | grep c"), 30)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_words_with_numbers() {
        let counters = Counters::parse("vbds=2 heap_bytes=1234 name=x nonsense\n");
        assert_eq!((counters.get("vbds").unwrap(), counters.get("heap_bytes").unwrap()), (2, 1234));
        assert!(counters.get("name").is_err() && counters.get("rings").is_err());
        assert_eq!(counters.into_pairs().count(), 2);
    }

    #[test]
    fn the_default_config_is_the_demos() {
        let text = Config::default().text();
        for line in ["name='driverdom'", "kernel='/guests/driverdom'", "memory=8", "pci=['00:05.0']"] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }
}
