//! What driverdom is compared with.

use nested_tests::dom0::Dom0;
use nested_tests::peer::linux_dom0::LinuxDom0;
use nested_tests::peer::linux_domu::LinuxDomU;
use nested_tests::peer::{Backend, Floor, Kind};
use nested_tests::world::LOGGED_DISK;

/// A backend that driverdom is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Peer {
    /// A backend that only answers: what xl and libxl cost by themselves
    Floor,
    /// blkback in dom0 with Xen's block script, and device-mapper volumes
    LinuxDom0,
    /// The same with files
    LinuxDom0File,
    /// A Linux driver domain running 'xl devd', with device-mapper volumes
    LinuxDomu,
}

/// Volumes that a Linux peer has, and the MiB of each: together they are less than a data disk.
const VOLUMES: usize = 200;
const VOLUME_MIB: u64 = 4;

impl Peer {
    /// Starts it, beside driverdom. A Linux peer has proved that it serves 1 to 8 disks, and says how it is configured.
    pub(super) fn start(self, dom0: &Dom0) -> anyhow::Result<Box<dyn Backend + '_>> {
        let linux_dom0 = |kind| -> anyhow::Result<Box<dyn Backend + '_>> {
            let peer = LinuxDom0::prepare(dom0, LOGGED_DISK, kind, VOLUMES, VOLUME_MIB)?;
            println!("{}", peer.configuration()?);
            peer.healthy()?;
            Ok(Box::new(peer))
        };
        match self {
            Self::Floor => Ok(Box::new(Floor::start(dom0)?)),
            Self::LinuxDom0 => linux_dom0(Kind::Dm),
            Self::LinuxDom0File => linux_dom0(Kind::File),
            Self::LinuxDomu => {
                let peer = LinuxDomU::start(dom0, LOGGED_DISK)?.prepare(Kind::Dm, VOLUMES, VOLUME_MIB)?;
                println!("{}", peer.configuration()?);
                peer.healthy()?;
                Ok(Box::new(peer))
            }
        }
    }
}
