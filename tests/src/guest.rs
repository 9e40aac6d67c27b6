//! Linux guests: the ordinary Debian kernel with `tests/images/guest/init`, driven over their consoles.

use anyhow::ensure;

use crate::dom0::{Dom0, Output, Running};

/// Where a guest's console is logged in dom0.
#[must_use]
pub fn console_log(name: &str) -> String {
    format!("/var/log/xen/console/guest-{name}.log")
}

/// An xl config of a Linux guest.
#[derive(Debug, Clone)]
pub struct LinuxConfig {
    /// Domain name.
    pub name: String,
    /// Memory in MiB; 100 disks with persistent grants need over 420.
    pub memory_mib: u32,
    /// xl disk specifications.
    pub disks: Vec<String>,
    /// Further words of the kernel's command line.
    pub words: String,
    /// Further lines of the config.
    pub lines: Vec<String>,
}

impl LinuxConfig {
    /// A small guest without disks.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), memory_mib: 160, disks: vec![], words: String::new(), lines: vec![] }
    }

    /// With a disk of driverdom's: `vdev` as in `xvda`, `access` `r` or `rw`, `target` a volume name.
    #[must_use]
    pub fn disk(mut self, vdev: &str, access: &str, target: &str) -> Self {
        self.disks.push(driverdom_disk(vdev, access, target));
        self
    }

    /// The config as xl reads it.
    #[must_use]
    pub fn text(&self) -> String {
        let disks: Vec<_> = self.disks.iter().map(|disk| format!("'{disk}'")).collect();
        let lines = [
            format!("name='{}'", self.name),
            "kernel='/guests/vmlinux'".to_owned(),
            "ramdisk='/guests/initramfs.gz'".to_owned(),
            format!("memory={}", self.memory_mib),
            "vcpus=1".to_owned(),
            format!("cmdline='console=hvc0 quiet mitigations=off {}'", self.words),
            format!("disk=[{}]", disks.join(", ")),
        ];
        let mut text = lines.join("\n");
        for line in &self.lines {
            text.push('\n');
            text.push_str(line);
        }
        text + "\n"
    }
}

/// A disk specification that names driverdom as its backend.
#[must_use]
pub fn driverdom_disk(vdev: &str, access: &str, target: &str) -> String {
    format!("format=raw,vdev={vdev},access={access},backend=driverdom,target={target}")
}

/// A Linux guest which answers.
#[derive(Debug)]
pub struct LinuxGuest<'a> {
    dom0: &'a Dom0,
    /// Domain name.
    pub name: String,
}

impl<'a> LinuxGuest<'a> {
    /// Puts the config into dom0, as `/guests/NAME.cfg`.
    ///
    /// # Errors
    /// When dom0 does not take it.
    pub fn put_config(dom0: &Dom0, config: &LinuxConfig) -> anyhow::Result<String> {
        let path = format!("/guests/{}.cfg", config.name);
        dom0.put(&path, config.text().as_bytes())?;
        Ok(path)
    }

    /// Creates the guest and waits until it answers.
    ///
    /// # Errors
    /// What xl said, or that the guest did not come up.
    pub fn create(dom0: &'a Dom0, config: &LinuxConfig) -> anyhow::Result<Self> {
        let path = Self::put_config(dom0, config)?;
        dom0.check(&format!("xl create {path}"), 120)?;
        let guest = Self { dom0, name: config.name.clone() };
        guest.wait_up(1)?;
        Ok(guest)
    }

    /// A guest that somebody else created.
    #[must_use]
    pub fn of(dom0: &'a Dom0, name: &str) -> Self {
        Self { dom0, name: name.to_owned() }
    }

    /// Waits until the guest has come up for the `nth` time since its console's log was begun: 2 after a reboot.
    ///
    /// # Errors
    /// When it has not within five minutes, with the end of its console.
    pub fn wait_up(&self, nth: u32) -> anyhow::Result<()> {
        let output = self.dom0.ask("up", &format!("{nth} {}", self.name), 300)?.wait()?;
        ensure!(output.rc == 0, "guest {} is not up in 300 s: {}", self.name, output.err);
        Ok(())
    }

    /// Runs a busybox sh command in the guest, whatever its exit code; `rc` 124 when the guest gave no answer within `limit` seconds.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn run(&self, command: &str, limit: u64) -> anyhow::Result<Output> {
        self.begin(command, limit)?.wait()
    }

    /// Begins a command in the guest, and does not wait for its end.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn begin(&self, command: &str, limit: u64) -> anyhow::Result<Running> {
        self.dom0.ask("guest", &format!("{} {command}", self.name), limit)
    }

    /// Runs a command that must succeed, and returns what it printed, without white space around it.
    ///
    /// # Errors
    /// With its exit code and output, when it is not 0.
    pub fn check(&self, command: &str, limit: u64) -> anyhow::Result<String> {
        let output = self.run(command, limit)?;
        ensure!(
            output.rc == 0,
            "in guest {}: '{command}' ended with {}: {}{}",
            self.name,
            output.rc,
            output.out,
            output.err
        );
        Ok(output.out.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_names_its_disks_as_xl_reads_them() {
        let text = LinuxConfig::new("g").disk("xvda", "rw", "gpt:demo").disk("xvdb", "r", "ram:8M").text();
        let disks = "disk=['format=raw,vdev=xvda,access=rw,backend=driverdom,target=gpt:demo', 'format=raw,vdev=xvdb,access=r,backend=driverdom,target=ram:8M']";
        assert!(text.contains(disks), "{text}");
        assert!(text.starts_with("name='g'\n"));
    }
}
