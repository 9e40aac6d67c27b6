//! Test frontends: guests that do with their vbds what a step tells them (`tests/guests/testfront` has the grammar).

use std::cell::Cell;

use anyhow::{Context, ensure};

use crate::dom0::{Dom0, Output, Running, shell_quoted};
use crate::guest::{console_log, driverdom_disk};

/// What a step may take, in seconds, unless its caller knows better. Steps have limits of their own; this one is for a guest
/// that is gone.
const STEP_LIMIT: u64 = 150;

/// An xl config of a test frontend.
#[derive(Debug, Clone)]
pub struct TestFrontConfig {
    /// Domain name.
    pub name: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// xl disk specifications.
    pub disks: Vec<String>,
    /// Its command line: steps, or where they come from. [`TestFront::step`] needs `script=watch`.
    pub script: String,
}

impl TestFrontConfig {
    /// A guest without disks.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), memory_mib: 16, disks: vec![], script: "script=watch".to_owned() }
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
        format!(
            "name='{}'\nkernel='/guests/testfront'\nmemory={}\nvcpus=1\ncmdline='{}'\non_crash='destroy'\ndisk=[{}]\n",
            self.name,
            self.memory_mib,
            self.script,
            disks.join(", ")
        )
    }
}

/// A test frontend that waits for steps.
#[derive(Debug)]
pub struct TestFront<'a> {
    dom0: &'a Dom0,
    /// Domain name.
    pub name: String,
    /// Domain number.
    pub domid: u32,
    /// The number of the last step: testfront runs a step when its number is new.
    number: Cell<u64>,
}

/// Steps that run.
#[derive(Debug)]
pub struct Stepping<'a> {
    running: Running,
    output: Option<Output>,
    guest: &'a str,
    steps: Vec<String>,
}

impl<'a> TestFront<'a> {
    /// Creates the guest; xl must say nothing.
    ///
    /// # Errors
    /// What xl said.
    pub fn create(dom0: &'a Dom0, config: &TestFrontConfig) -> anyhow::Result<Self> {
        let (name, path) = (&config.name, format!("/guests/{}.cfg", config.name));
        dom0.put(&path, config.text().as_bytes())?;
        let output = dom0.run(&format!("xl create -q {path}"), 120)?;
        ensure!(output.rc == 0 && output.err.is_empty(), "xl create of {name}: {output:?}");
        Ok(Self { dom0, name: name.clone(), domid: dom0.domid(name)?, number: Cell::new(0) })
    }

    /// Runs a step, which must end well, and returns what it said.
    ///
    /// # Errors
    /// What it said when it did not, with the end of the guest's console when it said nothing.
    pub fn step(&self, step: &str) -> anyhow::Result<String> {
        self.steps(&[step])?.pop().context("a step without an answer")
    }

    /// Runs steps one after the other, up to the first that does not end well. Cheaper than one by one.
    ///
    /// # Errors
    /// See [`Self::step`].
    pub fn steps(&self, steps: &[impl AsRef<str>]) -> anyhow::Result<Vec<String>> {
        self.begin(steps, STEP_LIMIT * steps.len() as u64)?.wait(self.dom0)
    }

    /// Begins steps and waits for none of them. Until they have ended there must be no others.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn begin(&self, steps: &[impl AsRef<str>], limit: u64) -> anyhow::Result<Stepping<'_>> {
        let steps: Vec<String> = steps.iter().map(|step| step.as_ref().to_owned()).collect();
        let mut text = self.domid.to_string();
        for step in &steps {
            text += &format!("\n{} {step}", self.next_number());
        }
        Ok(Stepping { running: self.dom0.ask("steps", &text, limit)?, output: None, guest: &self.name, steps })
    }

    /// Gives a step that the guest does not survive, and waits until the domain is gone.
    ///
    /// # Errors
    /// When it is not gone within the step's limit.
    pub fn last_step(self, step: &str) -> anyhow::Result<()> {
        let (path, text) =
            (format!("/local/domain/{}/data/step", self.domid), format!("{} {step}", self.next_number()));
        self.dom0.check(&format!("xenstore-write {path} {}", shell_quoted(&text)), 30)?;
        self.dom0.wait_gone(self.domid, STEP_LIMIT)
    }

    fn next_number(&self) -> u64 {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }
}

impl Stepping<'_> {
    /// Waits until the steps have ended, which they must well, and returns what each said.
    ///
    /// # Errors
    /// See [`TestFront::step`].
    pub fn wait(self, dom0: &Dom0) -> anyhow::Result<Vec<String>> {
        let Output { rc, out, err, .. } = match self.output {
            Some(output) => output,
            None => self.running.wait()?,
        };
        let answers: Vec<_> = out.lines().map(|line| line.split_once(' ').map_or(line, |(_, said)| said)).collect();
        if rc == 0 {
            return Ok(answers.iter().map(|said| said.trim_start_matches("ok").trim_start().to_owned()).collect());
        }
        let well = answers.iter().filter(|said| said.starts_with("ok")).count();
        let (guest, step) = (self.guest, self.steps.get(well).map_or("?", String::as_str));
        let said = match answers.get(well) {
            Some(said) => (*said).to_owned(),
            None => {
                format!("no answer ({rc}) {err}{}", dom0.run(&format!("tail -n 5 {}", console_log(guest)), 30)?.out)
            }
        };
        anyhow::bail!("{guest}: '{step}': {said}")
    }

    /// Whether all steps have ended.
    ///
    /// # Errors
    /// When QEMU is gone.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        if self.output.is_none() {
            self.output = self.running.poll()?;
        }
        Ok(self.output.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_names_kernel_and_disks() {
        let text = TestFrontConfig::new("f").disk("xvda", "rw", "gpt:demo").text();
        for line in [
            "name='f'",
            "kernel='/guests/testfront'",
            "cmdline='script=watch'",
            "disk=['format=raw,vdev=xvda,access=rw,backend=driverdom,target=gpt:demo']",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }
}
