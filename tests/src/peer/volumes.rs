//! What the Linux peers share: volumes on one of the data disks, and the proof that a peer serves them well.

use anyhow::ensure;

use super::Volume;
use crate::dom0::{Dom0, Output, shell_quoted};
use crate::guest::{LinuxConfig, LinuxGuest};

/// How many disks a peer must have served before its numbers count.
const PROOF: usize = 8;

/// What a Linux peer's volumes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Files in an ext4 file system, of which the script makes loop devices.
    File,
    /// Linear device-mapper devices, as LVM makes them.
    Dm,
}

impl Kind {
    /// The same, as benches call it.
    pub(super) fn volumes(self) -> &'static [Volume] {
        match self {
            Self::File => &[Volume::File],
            Self::Dm => &[Volume::Dm],
        }
    }
}

/// Volumes on a data disk, numbered from 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Volumes {
    pub(super) kind: Kind,
    /// PCI device number of the disk in the machine, which its serial number carries too.
    pub(super) slot: u8,
    pub(super) count: usize,
    pub(super) mib: u64,
}

impl Volumes {
    /// Shell: makes them, where the disk is.
    pub(super) fn make(self) -> String {
        let Self { slot, count, mib, .. } = self;
        let disk = format!("disk=/dev/$(grep -l data{slot} /sys/block/vd*/serial | cut -d/ -f4)");
        let each = format!("for k in $(seq 0 {}); do", count.saturating_sub(1));
        let sectors = mib << 11;
        match self.kind {
            Kind::File => format!(
                "set -e; {disk}; mkfs.ext4 -qF $disk; mkdir -p /mnt/volumes; mount $disk /mnt/volumes; {each} truncate -s {mib}M /mnt/volumes/$k; done"
            ),
            Kind::Dm => format!(
                "set -e; {disk}; {each} dmsetup create volume$k --table \"0 {sectors} linear $disk $((k * {sectors}))\"; done"
            ),
        }
    }

    /// Shell: gives the disk up.
    pub(super) fn remove(self) -> &'static str {
        match self.kind {
            Kind::File => "umount /mnt/volumes",
            Kind::Dm => "dmsetup remove_all",
        }
    }

    /// The path of volume `number` where the disk is.
    pub(super) fn path(self, number: usize) -> String {
        match self.kind {
            Kind::File => format!("/mnt/volumes/{number}"),
            Kind::Dm => format!("/dev/mapper/volume{number}"),
        }
    }

    /// Proves that 1 to 8 disks connect, can be read, and go again. `disk` gives the xl specification of a volume, `script_log`
    /// what the block script complained of.
    ///
    /// They come and go one after the other: all at once, the script's lock alone may take longer than xl waits.
    pub(super) fn prove(
        self,
        dom0: &Dom0,
        disk: impl Fn(usize, &str) -> String,
        script_log: impl Fn() -> anyhow::Result<Output>,
    ) -> anyhow::Result<()> {
        ensure!(self.count >= PROOF, "{} volumes, and {PROOF} are to be proved", self.count);
        dom0.check("[ -e /dev/stdin ] && [ \"$(head -c 4 /guests/vmlinux | tail -c 3)\" = ELF ]", 30)?;
        let name = "peer-proof";
        let devices: Vec<_> = ('a'..='z').take(PROOF).map(|letter| format!("xvd{letter}")).collect();
        let config = LinuxConfig { disks: vec![disk(0, &devices[0])], ..LinuxConfig::new(name) };
        let guest = LinuxGuest::create(dom0, &config)?;
        for (number, device) in devices.iter().enumerate() {
            if number > 0 {
                dom0.check(&format!("xl block-attach {name} {}", shell_quoted(&disk(number, device))), 60)?;
            }
            guest.check(&format!("until dd if=/dev/{device} of=/dev/null bs=4k count=1; do sleep 0.1; done"), 60)?;
        }
        for device in devices.iter().skip(1) {
            dom0.check(&format!("xl block-detach {name} {device}"), 60)?;
        }
        let said = script_log()?.out;
        ensure!(said.trim().is_empty(), "the block script said: {}", said.trim());
        dom0.check(&format!("xl destroy {name}"), 60)?;
        Ok(())
    }
}

/// Shell: what the block script complained of where it runs.
pub(super) const SCRIPT_LOG: &str = "cat /var/log/xen/xen-hotplug.log";

/// An xl disk specification without a backend: `vdev` as in `xvda`, `access` `r` or `rw`.
pub(super) fn specification(vdev: &str, access: &str, target: &str) -> String {
    format!("format=raw,vdev={vdev},access={access},script=block,target={target}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_mapper_volumes_lie_one_behind_the_other_on_the_disk() {
        let volumes = Volumes { kind: Kind::Dm, slot: 5, count: 3, mib: 16 };
        let script = volumes.make();
        assert!(script.contains("grep -l data5 /sys/block/vd*/serial"), "{script}");
        assert!(script.contains("for k in $(seq 0 2)"), "{script}");
        assert!(script.contains(r#""0 32768 linear $disk $((k * 32768))""#), "{script}");
        assert_eq!(volumes.path(2), "/dev/mapper/volume2");
    }

    #[test]
    fn a_specification_ends_with_its_target() {
        let text = specification("xvda", "r", "/mnt/volumes/0");
        assert_eq!(text, "format=raw,vdev=xvda,access=r,script=block,target=/mnt/volumes/0");
    }
}
