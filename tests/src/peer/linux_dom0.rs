//! Linux's blkback in dom0 with Xen's own block script: what xl does when a disk names no backend.

use anyhow::Context;

use super::volumes::{Kind, SCRIPT_LOG, Volumes, specification};
use super::{Backend, Volume, device_name};
use crate::dom0::Dom0;

/// Its name in every result.
pub const NAME: &str = "linux-dom0";

/// blkback in dom0, with volumes on a data disk that is dom0's while this serves.
#[derive(Debug)]
pub struct LinuxDom0<'a> {
    dom0: &'a Dom0,
    volumes: Volumes,
}

impl<'a> LinuxDom0<'a> {
    /// Takes the data disk in `slot` into dom0 and makes `count` volumes of `mib` MiB on it.
    ///
    /// # Errors
    /// When another domain has the disk, or it is too small.
    pub fn prepare(dom0: &'a Dom0, slot: u8, kind: Kind, count: usize, mib: u64) -> anyhow::Result<Self> {
        let volumes = Volumes { kind, slot, count, mib };
        dom0.check(&format!("xl pci-assignable-remove -r 00:{slot:02x}.0"), 60)?;
        dom0.wait_until(&format!("grep data{slot} /sys/block/vd*/serial"), 30)?;
        dom0.check(&volumes.make(), 120)?;
        Ok(Self { dom0, volumes })
    }

    /// The xl specification of volume `number`: `vdev` as in `xvda`, `access` `r` or `rw`.
    #[must_use]
    pub fn disk(&self, number: usize, vdev: &str, access: &str) -> String {
        specification(vdev, access, &self.volumes.path(number))
    }

    /// Proves that 1 to 8 disks connect, can be read, and leave no word in the script's log: only then its numbers count.
    ///
    /// # Errors
    /// What went wrong.
    pub fn healthy(&self) -> anyhow::Result<()> {
        let disk = |number, vdev: &str| self.disk(number, vdev, "rw");
        self.volumes.prove(self.dom0, disk, || self.dom0.run(SCRIPT_LOG, 30)).context("blkback in dom0")
    }

    /// What runs, for the report.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn configuration(&self) -> anyhow::Result<String> {
        let versions = self
            .dom0
            .check("echo \"Linux $(uname -r), xen-utils $(dpkg-query -Wf '${Version}' xen-utils-4.17)\"", 30)?;
        Ok(format!(
            "blkback in dom0, {:?} on data disk {}, script block; {versions}",
            self.volumes.kind, self.volumes.slot
        ))
    }

    /// Removes the volumes, which no guest may use any more, and makes the disk assignable again.
    ///
    /// # Errors
    /// When a volume is in use.
    pub fn clean_up(self) -> anyhow::Result<()> {
        self.dom0.check(self.volumes.remove(), 60)?;
        self.dom0.check(&format!("xl pci-assignable-add 00:{:02x}.0", self.volumes.slot), 60)?;
        Ok(())
    }
}

impl Backend for LinuxDom0<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn domid(&self) -> u32 {
        0
    }

    fn volumes(&self) -> &'static [Volume] {
        self.volumes.kind.volumes()
    }

    fn disk(&self, number: usize, _: Volume) -> String {
        Self::disk(self, number, &device_name(number), "r")
    }
}
