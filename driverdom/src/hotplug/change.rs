//! What is changed in a device's directory, one transaction each: our `state` and `online` are read in it and must be those
//! on which the decision was made.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use xen_proto::xenbus::State;
use xen_proto::xenstore::StoreError;

use super::FlushCache;
use super::batch::Batch;
use super::device::Device;
use super::frontend::MAX_RING_PAGE_ORDER;

/// Segments of an indirect request that we take, as Linux's backend does.
const MAX_INDIRECT_SEGMENTS: u32 = 256;

/// Requests that the removal of a directory takes: two reads and the removal.
const REMOVAL_REQUESTS: usize = 3;

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) kind: Kind,
    /// Our state on which the decision was made.
    pub(super) own: State,
    /// And `online`: the toolstack's 5 may come where 5 stands already.
    pub(super) online: bool,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Publish the features, `InitWait`.
    Offer,
    /// Publish the properties, `Connected`.
    Announce,
    Switch(State),
    /// `Closing`, and say why.
    Fail(String),
    /// Remove the directory of a device that the toolstack removed, and with it those of these other devices of the guest. All
    /// change the directory above, where the toolstack cleans up, too: the fewer transactions, the fewer conflicts.
    Remove(Vec<u32>),
    /// Remove the directory of a device that cannot be served, and say why.
    Refuse(String),
    /// Tell the frontend that flushes are not taken after all.
    WithdrawFlush,
}

/// One request of the transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Read this node of our directory.
    Read(&'static str),
    /// Write this node of our directory.
    Write(&'static str, String),
    /// Remove our directory.
    Remove,
}

/// What a transaction came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It may be committed, or was.
    Done,
    /// The directory is no longer what the decision was made on.
    Stale,
    /// xenstored refused a part of it.
    Failed(StoreError),
}

impl Change {
    /// The requests, reads first, and first of them `state` and `online`.
    pub(super) fn operations(&self, device: &Device) -> Vec<Operation> {
        use Operation::{Read, Remove, Write};
        let state = |state: State| Write("state", state.to_string());
        let mut operations = alloc::vec![Read("state"), Read("online")];
        match &self.kind {
            Kind::Offer => operations.extend([
                Read("params"),
                Read("mode"),
                Write("feature-max-indirect-segments", MAX_INDIRECT_SEGMENTS.to_string()),
                Write("max-ring-page-order", MAX_RING_PAGE_ORDER.to_string()),
                // The older name of the same, for older frontends (blkif.h).
                Write("max-ring-pages", (1 << MAX_RING_PAGE_ORDER).to_string()),
                state(State::INIT_WAIT),
            ]),
            Kind::Announce => {
                if let Some(properties) = &device.properties {
                    operations.extend([
                        Write("sectors", properties.sectors.to_string()),
                        Write("sector-size", properties.sector_size.to_string()),
                        Write("physical-sector-size", properties.physical_sector_size.to_string()),
                        Write("info", device.info.to_string()),
                        flush_cache(properties.flush_cache),
                    ]);
                }
                operations.push(state(State::CONNECTED));
            }
            Kind::Switch(to) => operations.push(state(*to)),
            Kind::Fail(_) => operations.push(state(State::CLOSING)),
            Kind::Remove(_) | Kind::Refuse(_) => operations.push(Remove),
            Kind::WithdrawFlush => operations.push(flush_cache(FlushCache::Absent)),
        }
        operations
    }

    /// Judges the replies to [`Self::operations`].
    pub(super) fn judge(&self, device: &Device, batch: &Batch) -> Outcome {
        let own = batch.value(0).ok().map(State::parse);
        let online = is_online(batch.value(1));
        let (reads, same_volume) = match (&self.kind, &device.config) {
            // The directory could have been made anew, for another volume, since the volume was opened.
            (Kind::Offer, Some(config)) => {
                (4, batch.value(2) == Ok(&config.params) && batch.value(3) == Ok(&config.mode))
            }
            _ => (2, true),
        };
        if (own, online, same_volume) != (Some(self.own), self.online, true) || !self.others_may_go(batch) {
            return Outcome::Stale;
        }
        batch.error_from(reads).map_or(Outcome::Done, Outcome::Failed)
    }

    /// The other devices of the guest that it concerns.
    pub(super) fn others(&self) -> &[u32] {
        if let Kind::Remove(others) = &self.kind { others } else { &[] }
    }

    /// Whether they are still closed and on their way out.
    fn others_may_go(&self, batch: &Batch) -> bool {
        (1..=self.others().len()).map(|other| other * REMOVAL_REQUESTS).all(|slot| {
            batch.value(slot).ok().map(State::parse) == Some(State::CLOSED) && !is_online(batch.value(slot + 1))
        })
    }
}

/// Whether a device is to stay, by its `online`: only the toolstack's 0 says that it is to go.
pub(super) fn is_online(value: Result<&[u8], StoreError>) -> bool {
    value != Ok(b"0")
}

fn flush_cache(offer: FlushCache) -> Operation {
    let value = match offer {
        FlushCache::Offered => "1",
        FlushCache::Absent => "0",
    };
    Operation::Write("feature-flush-cache", value.to_string())
}
