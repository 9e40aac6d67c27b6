//! Backends side by side: what a bench needs of driverdom and of those it is compared with.

mod end;
mod floor;
mod hot;
mod life;
pub mod linux_dom0;
pub mod linux_domu;
mod record;
mod volumes;

use std::fmt;

use crate::driverdom::Driverdom;
use crate::guest::driverdom_disk;
pub use crate::scenarios::vbd::{device_name, device_number};

pub use end::{End, Ended, end};
pub use floor::{FLOOR, Floor, TOOLS};
pub use hot::{HotAttach, hot_attach};
pub use life::{Life, live};
pub use volumes::Kind;

/// A backend's domain that runs and serves vbds.
pub trait Backend: fmt::Debug {
    /// What the rows of benches call it.
    fn name(&self) -> &'static str;
    /// The domain that holds the backends' directories in xenstore.
    fn domid(&self) -> u32;
    /// The kinds of volume that it has.
    fn volumes(&self) -> &'static [Volume];
    /// An xl disk specification for a guest's `number`th disk, from 0. Disks of one guest or of several may be in use together.
    fn disk(&self, number: usize, volume: Volume) -> String;
}

/// What is behind a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volume {
    /// Nothing: it only answers.
    None,
    /// A GPT partition, which all read.
    Gpt,
    /// Memory.
    Ram,
    /// A device-mapper device.
    Dm,
    /// A file on a loop device.
    File,
}

impl Volume {
    /// What the rows of benches call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gpt => "gpt",
            Self::Ram => "ram",
            Self::Dm => "dm",
            Self::File => "file",
        }
    }
}

impl Backend for Driverdom<'_> {
    fn name(&self) -> &'static str {
        "driverdom"
    }

    fn domid(&self) -> u32 {
        self.domid
    }

    fn volumes(&self) -> &'static [Volume] {
        &[Volume::Ram, Volume::Gpt]
    }

    fn disk(&self, number: usize, volume: Volume) -> String {
        let (access, target) = match volume {
            Volume::Gpt => ("r", "gpt:demo"),
            _ => ("rw", "ram:64K"),
        };
        driverdom_disk(&device_name(number), access, target)
    }
}

/// The first of the many lines that xl may say, one for each disk.
fn shortened(text: &str) -> String {
    let lines = text.trim().lines().count();
    let first = text.trim().lines().next().unwrap_or_default();
    if lines > 1 { format!("{first} (and {} lines more)", lines - 1) } else { first.to_owned() }
}
