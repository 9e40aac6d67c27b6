//! driverdom in the nested system: its xl config, and its start.

use crate::dom0::Dom0;
use crate::guest::console_log;

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
        let log = console_log(NAME);
        let ready = format!(
            "xenstore-read /local/domain/$(xl domid {NAME})/data/driverdom/ready || {{ tail -n 20 {log}; false; }}"
        );
        let command = format!("xl create {CONFIG} >&2 && await 30 '{ready}' >&2 && xl domid {NAME}");
        let output = dom0.run(&command, 90)?;
        anyhow::ensure!(output.rc == 0, "driverdom did not become ready: {}", output.err.trim());
        Ok(Self { dom0, domid: output.out.trim().parse()?, seconds: output.seconds })
    }

    /// A driverdom that somebody else started.
    ///
    /// # Errors
    /// When there is none.
    pub fn running(dom0: &'a Dom0) -> anyhow::Result<Self> {
        Ok(Self { dom0, domid: dom0.check(&format!("xl domid {NAME}"), 30)?.parse()?, seconds: 0.0 })
    }

    /// What it printed so far.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn console(&self) -> anyhow::Result<String> {
        self.dom0.check(&format!("cat {}", console_log(NAME)), 30)
    }

    /// Shuts it down in order, and waits until the domain is gone.
    ///
    /// # Errors
    /// When it does not go within a minute.
    pub fn shut_down(self) -> anyhow::Result<()> {
        self.dom0.check(&format!("xl shutdown {NAME}"), 30)?;
        self.dom0.wait_until(&format!("! xl domid {NAME}"), 60)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_config_is_the_demos() {
        let text = Config::default().text();
        for line in ["name='driverdom'", "kernel='/guests/driverdom'", "memory=8", "pci=['00:05.0']"] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }
}
