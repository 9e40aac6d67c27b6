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

/// Ends the domain `name`; xl must say nothing. Seconds until it is gone, also as a zombie.
///
/// # Errors
/// What xl said, or that it does not go within two minutes.
pub fn end(dom0: &Dom0, name: &str, how: End) -> anyhow::Result<f64> {
    let command = match how {
        End::Destroy => "xl destroy",
        End::Shutdown => "xl shutdown -q",
    };
    let script = format!("id=$(xl domid {name}) && {} {command} {name} && {GONE}", "read -r begin _ < /proc/uptime;");
    let output = dom0.run(&script, 120)?;
    ensure!(
        output.rc == 0 && output.err.is_empty(),
        "'{command} {name}' ended with {}: {}",
        output.rc,
        shortened(&output.err)
    );
    let seconds: Vec<f64> = output.out.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let &[begin, end] = seconds.as_slice() else { return Err(anyhow::anyhow!("{}", output.out)).context("no times") };
    Ok(end - begin)
}

/// Bash: waits until Xen lists the domain no more.
const GONE: &str =
    "{ while xl list $id > /dev/null 2>&1; do sleep 0.02; done; read -r end _ < /proc/uptime; echo $begin $end; }";
