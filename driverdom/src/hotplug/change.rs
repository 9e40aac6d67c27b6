//! What is changed in a device's directory, one transaction each: our `state` is read in it and must be the one on which the
//! decision was made.

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

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) kind: Kind,
    /// Our state on which the decision was made.
    pub(super) own: State,
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
    /// Remove the directory of a device that the toolstack removed.
    Remove,
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
    /// The requests, reads first and `state` first of them.
    pub(super) fn operations(&self, device: &Device) -> Vec<Operation> {
        use Operation::{Read, Remove, Write};
        let state = |state: State| Write("state", state.to_string());
        let mut operations = alloc::vec![Read("state")];
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
            Kind::Remove => operations.extend([Read("online"), Remove]),
            Kind::Refuse(_) => operations.push(Remove),
            Kind::WithdrawFlush => operations.push(flush_cache(FlushCache::Absent)),
        }
        operations
    }

    /// Judges the replies to [`Self::operations`].
    pub(super) fn judge(&self, device: &Device, batch: &Batch) -> Outcome {
        let state = batch.value(0).ok().map(State::parse);
        let (reads, as_expected) = match (&self.kind, &device.config) {
            // The directory could have been made anew, for another volume, since the volume was opened.
            (Kind::Offer, Some(config)) => {
                (3, batch.value(1) == Ok(&config.params) && batch.value(2) == Ok(&config.mode))
            }
            (Kind::Remove, _) => (2, batch.value(1) == Ok(b"0")),
            _ => (1, true),
        };
        if state != Some(self.own) || !as_expected {
            return Outcome::Stale;
        }
        batch.error_from(reads).map_or(Outcome::Done, Outcome::Failed)
    }
}

fn flush_cache(offer: FlushCache) -> Operation {
    let value = match offer {
        FlushCache::Offered => "1",
        FlushCache::Absent => "0",
    };
    Operation::Write("feature-flush-cache", value.to_string())
}
