//! A Linux driver domain, as Xen's guide describes one: Debian with `xl devd`, udev, the block script and a passed-through disk.
//!
//! It is given what makes it fast: an unpacked kernel, no init system (`tests/images/dom0/driver-domain`), and a root on a second
//! passed-through disk, so that its own creation needs no script in dom0.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};

use super::volumes::{Kind, SCRIPT_LOG, Volumes, specification};
use super::{Backend, Volume, device_name};
use crate::artifacts::Artifacts;
use crate::dom0::Dom0;
use crate::guest::{LinuxGuest, console_log};
use crate::qemu::ROOT_COPY;

/// The domain's name, which guests' disk lines use.
pub const NAME: &str = "linux-domu";

/// Its memory in MiB.
pub const MEMORY_MIB: u32 = 384;

/// Its config in dom0.
const CONFIG: &str = "/guests/linux-domu.cfg";

/// A Linux driver domain whose devd answers.
#[derive(Debug)]
pub struct LinuxDomU<'a> {
    dom0: &'a Dom0,
    slot: u8,
    /// Its domain number.
    pub domid: u32,
    /// Seconds from `xl create` to ready, by dom0's clock.
    pub seconds: f64,
}

/// Its config as xl reads it, with the data disk in `slot`.
fn config(slot: u8) -> String {
    let init = "modules=xen-pcifront init=/usr/local/sbin/driver-domain";
    [
        format!("name='{NAME}'"),
        "kernel='/guests/vmlinux'".into(),
        "ramdisk='/guests/initrd.gz'".into(),
        format!("memory={MEMORY_MIB}"),
        "vcpus=1".into(),
        "driver_domain=1".into(),
        format!("cmdline='console=hvc0 quiet mitigations=off {init}'"),
        // The order is the guest's: the root is its /dev/vda.
        format!("pci=['{ROOT_COPY}', '00:{slot:02x}.0']\n"),
    ]
    .join("\n")
}

/// Bytes of its image: the root's files, with the kernel as Debian packs it.
///
/// # Errors
/// When an image is missing.
pub fn image_bytes(artifacts: &Artifacts) -> anyhow::Result<u64> {
    let metadata = |path: &Path| std::fs::metadata(path).with_context(|| path.display().to_string());
    let root = metadata(&artifacts.dom0_image)?.blocks() * 512;
    let unpacked = metadata(&artifacts.dom0_kernel.with_file_name("vmlinux"))?.len();
    Ok(root - unpacked + metadata(&artifacts.dom0_kernel)?.len())
}

impl<'a> LinuxDomU<'a> {
    /// Creates the domain with the data disk in `slot` and waits until its devd answers.
    ///
    /// # Errors
    /// What xl said, or the end of the domain's console when it does not become ready.
    pub fn start(dom0: &'a Dom0, slot: u8) -> anyhow::Result<Self> {
        dom0.put(CONFIG, config(slot).as_bytes())?;
        dom0.check(&format!("xl pci-assignable-list | grep -q {ROOT_COPY} || xl pci-assignable-add {ROOT_COPY}"), 60)?;
        let log = console_log(NAME);
        let ready =
            format!("xenstore-read /local/domain/$(xl domid {NAME})/data/ready || {{ tail -n 20 {log}; false; }}");
        let command = format!("xl create {CONFIG} >&2 && await 180 '{ready}' >&2 && xl domid {NAME}");
        let output = dom0.run(&command, 240)?;
        ensure!(output.rc == 0, "the Linux driver domain did not become ready: {}", output.err.trim());
        Ok(Self { dom0, slot, domid: output.out.trim().parse()?, seconds: output.seconds() })
    }

    /// Its shell, for a person's commands and ours.
    #[must_use]
    pub fn shell(&self) -> LinuxGuest<'a> {
        LinuxGuest::of(self.dom0, NAME)
    }

    /// Makes `count` volumes of `mib` MiB on its data disk.
    ///
    /// # Errors
    /// What the domain said.
    pub fn prepare(&self, kind: Kind, count: usize, mib: u64) -> anyhow::Result<Serving<'a>> {
        let volumes = Volumes { kind, slot: self.slot, count, mib };
        self.shell().check(&volumes.make(), 120)?;
        Ok(Serving { dom0: self.dom0, domid: self.domid, volumes })
    }

    /// Destroys it, whoever uses its volumes; the seconds that took.
    ///
    /// # Errors
    /// What xl said.
    pub fn destroy(self) -> anyhow::Result<f64> {
        let output = self.dom0.run(&format!("xl destroy {NAME}"), 60)?;
        ensure!(output.rc == 0, "xl destroy {NAME} ended with {}: {}", output.rc, output.err);
        Ok(output.seconds())
    }
}

/// A Linux driver domain with volumes.
#[derive(Debug)]
pub struct Serving<'a> {
    dom0: &'a Dom0,
    domid: u32,
    volumes: Volumes,
}

impl Serving<'_> {
    /// The xl specification of volume `number`: `vdev` as in `xvda`, `access` `r` or `rw`.
    #[must_use]
    pub fn disk(&self, number: usize, vdev: &str, access: &str) -> String {
        format!("backend={NAME},{}", specification(vdev, access, &self.volumes.path(number)))
    }

    /// Proves that 1 to 8 disks connect, can be read, and leave no word in the script's log: only then its numbers count.
    ///
    /// # Errors
    /// What went wrong.
    pub fn healthy(&self) -> anyhow::Result<()> {
        let disk = |number, vdev: &str| self.disk(number, vdev, "rw");
        let shell = LinuxGuest::of(self.dom0, NAME);
        self.volumes.prove(self.dom0, disk, || shell.run(SCRIPT_LOG, 30)).context(NAME)
    }

    /// What runs, for the report.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn configuration(&self) -> anyhow::Result<String> {
        let versions = self.dom0.check("dpkg-query -Wf '${Version}' xen-utils-4.17", 30)?;
        let kernel = LinuxGuest::of(self.dom0, NAME).check("uname -r", 30)?;
        Ok(format!(
            "{NAME}: {MEMORY_MIB} MiB, {:?} on passed-through data disk {}, xl devd and script block; Linux {kernel}, xen-utils {versions}",
            self.volumes.kind, self.volumes.slot
        ))
    }

    /// Removes the volumes, which no guest may use any more.
    ///
    /// # Errors
    /// When one is in use.
    pub fn clean_up(self) -> anyhow::Result<()> {
        LinuxGuest::of(self.dom0, NAME).check(self.volumes.remove(), 60)?;
        Ok(())
    }
}

impl Backend for Serving<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn domid(&self) -> u32 {
        self.domid
    }

    fn volumes(&self) -> &'static [Volume] {
        self.volumes.kind.volumes()
    }

    fn disk(&self, number: usize, _: Volume) -> String {
        Self::disk(self, number, &device_name(number), "r")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_comes_before_the_data_disk() {
        let text = config(5);
        for line in ["name='linux-domu'", "driver_domain=1", "memory=384", "pci=['00:07.0', '00:05.0']"] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }
}
