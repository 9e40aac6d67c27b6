//! Carries out what hotplug decides about vbds, and tells it what the block backend reports.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::ops::Bound;

use blkback_core::Backend;
use blkback_core::backend::{Connection, Drained, VbdId};
use blkback_core::heap;
use blkback_core::volume::{Mode, Volume};
use xen_proto::platform::{Events, Grants};

use super::platform::{Parts, Platform};
use super::volumes::{Denial, OUT_OF_MEMORY, Volumes};
use crate::hotplug::{Answer, FlushCache, Properties, Rings};

/// A ring as the platform maps it.
pub(super) type Ring<P> = <<P as Platform>::Grants as Grants>::Ring;

/// A vbd that holds a volume.
#[derive(Debug)]
struct Open {
    /// Here while there are no rings; the backend has it otherwise.
    volume: Option<Volume>,
    /// Its name, as it was asked for.
    target: String,
    mode: Mode,
}

/// All vbds that hold a volume.
#[derive(Debug, Default)]
pub(super) struct Vbds {
    open: BTreeMap<VbdId, Open>,
}

impl Vbds {
    /// How many hold a volume.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Those after `after`, in the order of their names; all if none.
    pub(super) fn after(&self, after: Option<VbdId>) -> impl Iterator<Item = (VbdId, &str, Mode)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.open.range((from, Bound::Unbounded)).map(|(id, open)| (*id, open.target.as_str(), open.mode))
    }

    /// Claims a volume.
    pub(super) fn open<P: Platform>(
        &mut self,
        device: VbdId,
        target: &str,
        mode: Mode,
        volumes: &mut Volumes,
        platform: &mut P,
    ) -> Answer {
        if !heap::has_spare() {
            return Answer::Refused(format!("volume '{target}': {OUT_OF_MEMORY}"));
        }
        match volumes.open(device, target, mode, platform.parts().memory) {
            Ok(volume) => {
                let shape = volumes.shape(&volume);
                self.open.insert(device, Open { volume: Some(volume), target: target.into(), mode });
                Answer::Opened(Properties {
                    sectors: shape.sectors,
                    sector_size: shape.logical_block,
                    physical_sector_size: shape.physical_block,
                    flush_cache: if shape.write_cache { FlushCache::Offered } else { FlushCache::Absent },
                })
            }
            Err(Denial::Draining) => Answer::Draining,
            Err(Denial::Refused(reason)) => Answer::Refused(reason),
        }
    }

    /// Maps the rings, binds the event channel and starts to serve.
    pub(super) fn connect<P: Platform>(
        &mut self,
        device: VbdId,
        rings: &Rings,
        backend: &mut Backend<Ring<P>>,
        platform: &mut P,
    ) -> Answer {
        let Some(open) = self.open.get_mut(&device) else {
            return Answer::ConnectFailed(String::from("it holds no volume"));
        };
        let Parts { grants, events, .. } = platform.parts();
        let ring = match grants.map_ring(device.domain, &rings.pages) {
            Ok(ring) => ring,
            Err(status) => {
                return Answer::ConnectFailed(format!("its ring cannot be mapped (grant status {})", status.0));
            }
        };
        let port = match events.bind(device.domain, rings.event_channel) {
            Ok(port) => port,
            Err(error) => {
                grants.unmap_ring(ring);
                return Answer::ConnectFailed(format!("its event channel cannot be bound (errno {})", -error.0));
            }
        };
        let Some(volume) = open.volume.take() else {
            unreachable!("hotplug connects a vbd once: {device:?}");
        };
        let Open { target, mode, .. } = open;
        let access = match mode {
            Mode::ReadOnly => "read-only",
            Mode::ReadWrite => "writable",
        };
        log::info!("vbd {}/{}: {target}, {access}: connected", device.domain, device.device);
        backend.connect(Connection { id: device, ring, port, abi: rings.abi, volume, mode: *mode });
        Answer::Connected
    }

    /// Gives back rings and event channel of a vbd that the backend has drained, and keeps its volume.
    pub(super) fn drained<P: Platform>(&mut self, drained: Drained<Ring<P>>, platform: &mut P) {
        let Drained { id, ring, port, volume, stats } = drained;
        let Parts { grants, events, .. } = platform.parts();
        events.close(port);
        grants.unmap_ring(ring);
        log::info!("vbd {}/{}: disconnected; {stats:?}", id.domain, id.device);
        let Some(open) = self.open.get_mut(&id) else { unreachable!("a vbd is closed after it is drained: {id:?}") };
        open.volume = Some(volume);
    }

    /// Gives the volume back.
    pub(super) fn close<P: Platform>(&mut self, device: VbdId, volumes: &mut Volumes, platform: &mut P) {
        let Some(Open { volume: Some(volume), .. }) = self.open.remove(&device) else {
            unreachable!("a vbd without rings is closed, and once: {device:?}");
        };
        volumes.close(device, volume, platform.parts().memory);
    }
}
