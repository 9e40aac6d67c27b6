//! Options that several benches have.

use super::peer::Peer;

/// What to compare with, and how much.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// What driverdom is compared with
    ///
    /// Without this, attach takes the floor; boot a Linux driver domain, if it can be measured.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) vs: Vec<Peer>,
    /// Numbers of disks, with commas between
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=600))]
    disks: Option<Vec<u16>>,
}

impl Options {
    /// The peers that were asked for, or the floor.
    pub(super) fn peers(&self) -> &[Peer] {
        if self.vs.is_empty() { &[Peer::Floor] } else { &self.vs }
    }

    /// The numbers of disks that were asked for, or these.
    pub(super) fn disks_or(&self, default: &[usize]) -> Vec<usize> {
        self.disks.as_ref().map_or_else(|| default.to_vec(), |disks| disks.iter().copied().map(usize::from).collect())
    }
}
