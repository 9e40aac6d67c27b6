//! A domain's end, timed in dom0 until Xen knows it no more.

use anyhow::{Context, ensure};

use super::shortened;
use crate::dom0::Dom0;

/// How a domain is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// `xl destroy`.
    Destroy,
    /// `xl shutdown`, which it has to obey.
    Shutdown,
}

/// A domain that is gone, also as a zombie.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// From xl's start until then.
    pub seconds: f64,
    /// What xl wrote on its standard error.
    pub said: String,
}

impl Ended {
    /// The seconds, if xl said nothing.
    ///
    /// # Errors
    /// What it said.
    pub fn quietly(self) -> anyhow::Result<f64> {
        ensure!(self.said.is_empty(), "xl said: {}", shortened(&self.said));
        Ok(self.seconds)
    }
}

/// Ends the domain `name`.
///
/// # Errors
/// What xl said when it failed, or that the domain does not go within two minutes.
pub fn end(dom0: &Dom0, name: &str, how: End) -> anyhow::Result<Ended> {
    let command = match how {
        End::Destroy => "xl destroy",
        End::Shutdown => "xl shutdown -q",
    };
    let script = format!("id=$(xl domid {name}) && {} {command} {name} && {GONE}", "read -r begin _ < /proc/uptime;");
    let output = dom0.run(&script, 120)?;
    ensure!(output.rc == 0, "'{command} {name}' ended with {}: {}", output.rc, shortened(&output.err));
    let seconds: Vec<f64> = output.out.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let &[begin, end] = seconds.as_slice() else { return Err(anyhow::anyhow!("{}", output.out)).context("no times") };
    Ok(Ended { seconds: end - begin, said: output.err })
}

/// Bash: waits until Xen lists the domain no more.
const GONE: &str =
    "{ while xl list $id > /dev/null 2>&1; do sleep 0.02; done; read -r end _ < /proc/uptime; echo $begin $end; }";
