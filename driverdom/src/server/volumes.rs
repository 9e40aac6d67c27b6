//! The volumes on offer: which disks and partitions there are, and which vbd holds which.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use blkback_core::backend::VbdId;
use blkback_core::claim::{ClaimError, Claims};
use blkback_core::disk::{DiskId, Geometry};
use blkback_core::gpt::{GptError, Partition};
use blkback_core::ram::RamVolume;
use blkback_core::volume::{DiskTable, Mode, Target, Volume, locate_disk, locate_partition};
use xen_proto::platform::Pages;

/// The reason, for a person, when memory does not suffice.
pub(super) const OUT_OF_MEMORY: &str = "not enough memory (raise memory= of driverdom)";

/// Why a volume cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// It is being given back; it will be free by itself, soon.
    Draining,
    /// No, and this is why, for a person.
    Refused(String),
}

/// All disks with their partitions, and the claims on them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    tables: Vec<DiskTable>,
    /// Why nothing of these disks can be had any more.
    withdrawn: BTreeMap<usize, &'static str>,
    claims: Claims,
}

impl Volumes {
    /// Adds a disk, whose id is the count of those before it.
    pub(super) fn add_disk(&mut self, geometry: Geometry, partitions: Result<Vec<Partition>, GptError>) {
        self.tables.push(DiskTable { geometry, partitions });
    }

    /// Nothing of this disk can be had any more, and this is why. Its number stays its own.
    pub(super) fn withdraw_disk(&mut self, number: usize, reason: &'static str) {
        self.withdrawn.insert(number, reason);
        if let Ok(partitions) = &mut self.tables[number].partitions {
            partitions.clear();
        }
    }

    /// Finds what `target` names and claims it for a vbd, which must hold nothing.
    ///
    /// # Errors
    /// Why not; nothing is held then.
    pub(super) fn open(
        &mut self,
        holder: VbdId,
        target: &str,
        mode: Mode,
        pages: &mut impl Pages,
    ) -> Result<Volume, Denial> {
        let refused = |reason: &dyn ToString| Denial::Refused(format!("volume '{target}': {}", reason.to_string()));
        let target = Target::parse(target).map_err(|error| refused(&error))?;
        if let Target::Disk(id) | Target::Partition { disk: Some(id), .. } = target
            && let Some(reason) = self.withdrawn.get(&id.0.into())
        {
            return Err(refused(reason));
        }
        let extent = match target {
            Target::Ram { bytes } => {
                return RamVolume::create(bytes, pages).map(Volume::Ram).ok_or_else(|| refused(&OUT_OF_MEMORY));
            }
            Target::Disk(id) => locate_disk(id, &self.tables),
            Target::Partition { disk, key } => locate_partition(disk, key, &self.tables),
        }
        .map_err(|error| refused(&error))?;
        let geometry = self.geometry(extent.disk);
        self.claims.claim(holder, extent, mode, &geometry).map_err(|error| match error {
            ClaimError::Draining(_) => Denial::Draining,
            other => refused(&other),
        })?;
        Ok(Volume::Disk(extent))
    }

    /// The vbd will give its volume back soon: who wants it may wait.
    pub(super) fn drain(&mut self, holder: VbdId) {
        self.claims.drain(holder);
    }

    /// The vbd uses its volume again.
    pub(super) fn keep(&mut self, holder: VbdId) {
        self.claims.keep(holder);
    }

    /// The vbd is done with its volume.
    pub(super) fn close(&mut self, holder: VbdId, volume: Volume, pages: &mut impl Pages) {
        self.claims.release(holder);
        if let Volume::Ram(ram) = volume {
            ram.release(pages);
        }
    }

    /// What a volume is, as its frontend must see it.
    #[must_use]
    pub(super) fn shape(&self, volume: &Volume) -> Geometry {
        match volume {
            Volume::Disk(extent) => Geometry { sectors: extent.sectors, ..self.geometry(extent.disk) },
            Volume::Ram(ram) => ram.geometry(),
        }
    }

    fn geometry(&self, disk: DiskId) -> Geometry {
        self.tables[usize::from(disk.0)].geometry
    }

    /// A line a volume, for the console.
    pub(super) fn describe(&self) -> impl Iterator<Item = String> + '_ {
        self.tables.iter().enumerate().flat_map(|(number, table)| {
            let disk = format!("disk{number}: {} sectors of 512 bytes{}", table.geometry.sectors, read_only(table));
            let partitions = table.partitions.iter().flatten().map(move |partition| {
                let name: String = char::decode_utf16(partition.name.iter().copied().take_while(|unit| *unit != 0))
                    .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect();
                format!("  gpt:{name}: {} sectors from {}", partition.sectors, partition.start)
            });
            let trouble = table.partitions.as_ref().err().map(|error| format!("disk{number} {error}"));
            core::iter::once(disk).chain(partitions).chain(trouble)
        })
    }
}

fn read_only(table: &DiskTable) -> &'static str {
    if table.geometry.writable { "" } else { ", read-only" }
}
