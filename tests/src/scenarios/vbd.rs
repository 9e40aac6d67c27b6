//! A vbd from the outside: what xenstore, xl and Xen show of it, whatever driverdom says itself.

use anyhow::{Context, ensure};

use crate::dom0::{Dom0, Node, Output, shell_quoted};
use crate::driverdom::Driverdom;
use crate::guest::driverdom_disk;

/// One guest's device, by the two directories that belong to it.
#[derive(Debug)]
pub(super) struct Vbd<'a> {
    dom0: &'a Dom0,
    /// Its directory in driverdom's part of xenstore.
    pub(super) backend: String,
    /// Its directory in the guest's part.
    pub(super) frontend: String,
}

impl<'a> Vbd<'a> {
    /// The device `vdev` (`xvda`) of the domain `guest`, given by name or number.
    ///
    /// # Errors
    /// When there is no such domain.
    pub(super) fn of(dom0: &'a Dom0, driverdom: &Driverdom, guest: &str, vdev: &str) -> anyhow::Result<Self> {
        let domid: u32 = match guest.parse() {
            Ok(number) => number,
            Err(_) => dom0.domid(guest)?,
        };
        let device = device_number(vdev);
        Ok(Self {
            dom0,
            backend: format!("/local/domain/{}/backend/vbd/{domid}/{device}", driverdom.domid),
            frontend: format!("/local/domain/{domid}/device/vbd/{device}"),
        })
    }

    /// Waits until both ends are connected.
    ///
    /// # Errors
    /// When they are not within a minute.
    pub(super) fn wait_connected(&self) -> anyhow::Result<()> {
        self.dom0.wait_nodes(&connected(&self.backend, &self.frontend), 60)?;
        Ok(())
    }

    /// A node of the backend's directory.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn backend_node(&self, name: &str) -> anyhow::Result<String> {
        self.dom0
            .xenstore(&format!("{}/{name}", self.backend))?
            .with_context(|| format!("no {name} in {}", self.backend))
    }

    /// A node of the frontend's directory.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn frontend_node(&self, name: &str) -> anyhow::Result<String> {
        self.dom0
            .xenstore(&format!("{}/{name}", self.frontend))?
            .with_context(|| format!("no {name} in {}", self.frontend))
    }

    /// Fails if any of its directories is still there, libxl's own among them.
    ///
    /// # Errors
    /// Which one is.
    pub(super) fn check_gone(&self) -> anyhow::Result<()> {
        let libxl = format!("/libxl{}", &self.frontend["/local/domain".len()..]);
        for directory in [&self.backend, &self.frontend, &libxl] {
            ensure!(self.dom0.xenstore(directory)?.is_none(), "still there: {directory}");
        }
        Ok(())
    }
}

/// A device's states when it is connected at both ends.
fn connected(backend: &str, frontend: &str) -> [Node; 2] {
    [backend, frontend].map(|directory| Node::Is(format!("{directory}/state"), "4".to_owned()))
}

/// Waits until the first `count` devices of a guest, `xvda` and so on, are connected at both ends, and driverdom has no others.
///
/// # Errors
/// When they are not within four minutes: which one is not.
pub(super) fn wait_all_connected(dom0: &Dom0, driverdom: &Driverdom, guest: &str, count: usize) -> anyhow::Result<()> {
    let mut nodes = vec![];
    let domid = dom0.domid(guest)?.to_string();
    for number in 0..count {
        let vbd = Vbd::of(dom0, driverdom, &domid, &device_name(number))?;
        nodes.extend(connected(&vbd.backend, &vbd.frontend));
    }
    let counters = format!("/local/domain/{}/data/driverdom/counters", driverdom.domid);
    nodes.push(Node::Has(counters, format!("connected={count}")));
    dom0.wait_nodes(&nodes, 240)?;
    Ok(())
}

/// xl's number of a virtual disk `xvdX`, by blkif.h: the extended form from the seventeenth on.
#[must_use]
pub fn device_number(vdev: &str) -> u32 {
    let letters = vdev.strip_prefix("xvd").unwrap_or_else(|| panic!("{vdev} is no xvd"));
    let disk = letters.bytes().fold(0, |number, letter| number * 26 + u32::from(letter - b'a') + 1) - 1;
    if disk < 16 { 202 << 8 | disk << 4 } else { 1 << 28 | disk << 8 }
}

/// The `number`th virtual disk's name, from 0: `xvda` to `xvdz`, then `xvdaa`.
#[must_use]
pub fn device_name(number: usize) -> String {
    let letter = |index: usize| char::from(b'a' + u8::try_from(index % 26).unwrap_or(0));
    match number / 26 {
        0 => format!("xvd{}", letter(number)),
        above => format!("xvd{}{}", letter(above - 1), letter(number)),
    }
}

/// Runs an xl command that must succeed and say nothing on its standard error.
///
/// # Errors
/// What it said.
pub(crate) fn xl_quietly(dom0: &Dom0, arguments: &str, limit: u64) -> anyhow::Result<()> {
    let Output { rc, err, .. } = dom0.run(&format!("xl {arguments}"), limit)?;
    ensure!(rc == 0 && err.is_empty(), "'xl {arguments}' ended with {rc} and said: {err}");
    Ok(())
}

/// `xl block-attach` of a volume of driverdom's, which must succeed quietly; the device is connected then.
///
/// # Errors
/// What xl said, or that it did not connect.
pub(super) fn attach<'a>(
    dom0: &'a Dom0,
    driverdom: &Driverdom,
    guest: &str,
    vdev: &str,
    access: &str,
    target: &str,
) -> anyhow::Result<Vbd<'a>> {
    xl_quietly(dom0, &format!("block-attach {guest} {}", shell_quoted(&driverdom_disk(vdev, access, target))), 60)?;
    let vbd = Vbd::of(dom0, driverdom, guest, vdev)?;
    vbd.wait_connected()?;
    Ok(vbd)
}

/// `xl block-detach`, which must succeed quietly and leave nothing in xenstore.
///
/// # Errors
/// What xl said, or what is left.
pub(super) fn detach(dom0: &Dom0, driverdom: &Driverdom, guest: &str, vdev: &str) -> anyhow::Result<()> {
    let vbd = Vbd::of(dom0, driverdom, guest, vdev)?;
    xl_quietly(dom0, &format!("block-detach {guest} {vdev}"), 90)?;
    vbd.check_gone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_and_numbers() {
        for (index, name, number) in [
            (0, "xvda", 51712),
            (1, "xvdb", 51728),
            (15, "xvdp", 51952),
            (16, "xvdq", 0x1000_1000),
            (25, "xvdz", 0x1000_1900),
            (26, "xvdaa", 0x1000_1a00),
            (99, "xvdcv", 0x1000_6300),
        ] {
            assert_eq!(device_name(index), name);
            assert_eq!(device_number(name), number, "{name}");
        }
    }
}
