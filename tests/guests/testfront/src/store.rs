//! xenstore as a script needs it: requests that wait for their reply, and a note of what has changed meanwhile.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::Nanos;
use xen_proto::xenstore::{Client, End, Event, Payload, QueueError, RequestId, StoreError, Transaction};

use crate::Fallible;
use crate::platform::Platform;

/// How long xenstored may take for a reply.
const PATIENCE: Nanos = Nanos::from_millis(60_000);
/// Requests that are queued at a time: below the client's limit, whatever else waits.
const BATCH: usize = 128;
/// How often a transaction is tried.
const TRIES: u32 = 50;

/// The watches' tokens.
pub(crate) mod token {
    pub(crate) const BACKEND: &str = "backend";
    pub(crate) const STEP: &str = "step";
    pub(crate) const CONTROL: &str = "control";
    pub(crate) const VBDS: &str = "vbds";
}

/// A client that waits.
#[derive(Default)]
pub(crate) struct Store {
    client: Client,
    replies: BTreeMap<RequestId, Result<Payload, StoreError>>,
    changed: Changed,
}

/// What has changed since it was last asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// `data/step`.
    pub step: bool,
    /// `control/shutdown`.
    pub control: bool,
    /// Which vbds there are below `device/vbd`.
    pub vbds: bool,
    /// Backends' directories, by the vbd's number.
    pub backends: BTreeSet<u32>,
    /// Something above the backends' directories: any of them.
    pub every_backend: bool,
}

impl Store {
    /// Takes the note of changes.
    pub(crate) fn take_changed(&mut self) -> Changed {
        core::mem::take(&mut self.changed)
    }

    /// Moves bytes both ways and sorts what came.
    pub(crate) fn exchange<P: Platform>(&mut self, platform: &mut P) {
        let mut events = Vec::new();
        platform.exchange(&mut self.client, &mut events);
        for event in events {
            match event {
                Event::Reply { request, result } => {
                    self.replies.insert(request, result);
                }
                Event::Watch { path, token } => self.changed.note(&path, &token),
            }
        }
    }

    /// A node's value; `None` if it is not there or not for us to read.
    pub(crate) fn read<P: Platform>(&mut self, platform: &mut P, path: &str) -> Fallible<Option<String>> {
        let mut values = self.read_all(platform, core::slice::from_ref(&path))?;
        Ok(values.pop().flatten())
    }

    /// The values of many nodes.
    pub(crate) fn read_all<P: Platform>(
        &mut self,
        platform: &mut P,
        paths: &[impl AsRef<str>],
    ) -> Fallible<Vec<Option<String>>> {
        let mut values = Vec::with_capacity(paths.len());
        for batch in paths.chunks(BATCH) {
            let queue = |client: &mut Client| batch.iter().map(|path| client.read(None, path.as_ref())).collect();
            for (path, result) in batch.iter().zip(self.call(platform, queue)?) {
                values.push(match result {
                    Ok(Payload::Value(bytes)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
                    Err(StoreError::NoEntry | StoreError::Access) => None,
                    other => return Err(format!("xenstore: read {}: {other:?}", path.as_ref())),
                });
            }
        }
        Ok(values)
    }

    /// The names of a node's children; none if the node is not there.
    pub(crate) fn list<P: Platform>(&mut self, platform: &mut P, path: &str) -> Fallible<Vec<String>> {
        match self.call_one(platform, |client| client.directory(None, path))? {
            Ok(Payload::Children(names)) => Ok(names.iter().map(String::from).collect()),
            Err(StoreError::NoEntry | StoreError::Access) => Ok(Vec::new()),
            other => Err(format!("xenstore: list {path}: {other:?}")),
        }
    }

    /// Writes one node.
    pub(crate) fn write<P: Platform>(&mut self, platform: &mut P, path: &str, value: &str) -> Fallible<()> {
        let result = self.call_one(platform, |client| client.write(None, path, value.as_bytes()))?;
        result.map(drop).map_err(|error| format!("xenstore: write {path}: {error:?}"))
    }

    /// Removes a node.
    pub(crate) fn remove<P: Platform>(&mut self, platform: &mut P, path: &str) -> Fallible<()> {
        let result = self.call_one(platform, |client| client.rm(None, path))?;
        result.map(drop).map_err(|error| format!("xenstore: rm {path}: {error:?}"))
    }

    /// Watches a path.
    pub(crate) fn watch<P: Platform>(&mut self, platform: &mut P, path: &str, token: &str) -> Fallible<()> {
        match self.call_one(platform, |client| client.watch(path, token))? {
            Ok(_) | Err(StoreError::Exists) => Ok(()),
            Err(error) => Err(format!("xenstore: watch {path}: {error:?}")),
        }
    }

    /// Writes nodes all at once, in a transaction: xenstored counts it as one write, and nobody sees a part.
    pub(crate) fn write_together<P: Platform>(&mut self, platform: &mut P, nodes: &[(String, String)]) -> Fallible<()> {
        for _ in 0..TRIES {
            let transaction = match self.call_one(platform, Client::start_transaction)? {
                Ok(Payload::Started(transaction)) => transaction,
                other => return Err(format!("xenstore: transaction: {other:?}")),
            };
            match self.write_within(platform, transaction, nodes)? {
                Ok(()) => return Ok(()),
                Err(StoreError::Again) => (),
                Err(error) => return Err(format!("xenstore: writing {} nodes: {error:?}", nodes.len())),
            }
        }
        Err(format!("xenstore: {TRIES} transactions in a row met others' changes"))
    }

    fn write_within<P: Platform>(
        &mut self,
        platform: &mut P,
        transaction: Transaction,
        nodes: &[(String, String)],
    ) -> Fallible<Result<(), StoreError>> {
        let queue = |client: &mut Client| {
            let writes = nodes.iter().map(|(path, value)| client.write(Some(transaction), path, value.as_bytes()));
            writes.collect()
        };
        let written = self.call(platform, queue)?.into_iter().try_for_each(|result| result.map(drop));
        let end = if written.is_ok() { End::Commit } else { End::Abort };
        let ended = self.call_one(platform, |client| client.end_transaction(transaction, end))?;
        Ok(written.and(ended.map(drop)))
    }

    fn call_one<P: Platform>(
        &mut self,
        platform: &mut P,
        queue: impl FnOnce(&mut Client) -> Result<RequestId, QueueError>,
    ) -> Fallible<Result<Payload, StoreError>> {
        let results = self.call(platform, |client| queue(client).map(|id| Vec::from([id])))?;
        results.into_iter().next().ok_or_else(|| "xenstore: no reply".into())
    }

    /// Queues requests and waits for all their replies, which come back in the requests' order.
    fn call<P: Platform>(
        &mut self,
        platform: &mut P,
        queue: impl FnOnce(&mut Client) -> Result<Vec<RequestId>, QueueError>,
    ) -> Fallible<Vec<Result<Payload, StoreError>>> {
        let requests = queue(&mut self.client).map_err(|error| format!("xenstore: request not taken: {error:?}"))?;
        let deadline = platform.now() + PATIENCE;
        loop {
            self.exchange(platform);
            if requests.iter().all(|id| self.replies.contains_key(id)) {
                return Ok(requests.iter().filter_map(|id| self.replies.remove(id)).collect());
            }
            if platform.now() >= deadline {
                return Err(format!("xenstore: no reply in {} s", PATIENCE.as_millis() / 1000));
            }
            platform.sleep(deadline);
        }
    }
}

impl Changed {
    /// Whether nothing has.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn note(&mut self, path: &str, token: &str) {
        match (token, backend_number(path)) {
            (token::STEP, _) => self.step = true,
            (token::CONTROL, _) => self.control = true,
            // Deeper down are mostly our own writes.
            (token::VBDS, _) if path.split('/').count() <= 3 => self.vbds = true,
            (token::BACKEND, Some(number)) => {
                self.backends.insert(number);
            }
            (token::BACKEND, None) => self.every_backend = true,
            _ => (),
        }
    }
}

/// The vbd's number in a path at or below `/local/domain/BACKEND/backend/vbd/FRONTEND/NUMBER`.
fn backend_number(path: &str) -> Option<u32> {
    path.split('/').nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noted_by_what_they_concern() {
        let table = [
            ("data/step", token::STEP, Changed { step: true, ..Changed::default() }),
            ("control/shutdown", token::CONTROL, Changed { control: true, ..Changed::default() }),
            (
                "/local/domain/3/backend/vbd/7/51712/state",
                token::BACKEND,
                Changed { backends: BTreeSet::from([51712]), ..Changed::default() },
            ),
            (
                "/local/domain/3/backend/vbd/7/51712",
                token::BACKEND,
                Changed { backends: BTreeSet::from([51712]), ..Changed::default() },
            ),
            ("/local/domain/3/backend/vbd/7", token::BACKEND, Changed { every_backend: true, ..Changed::default() }),
            ("device/vbd/51712", token::VBDS, Changed { vbds: true, ..Changed::default() }),
            ("device/vbd/51712/state", token::VBDS, Changed::default()),
            ("else", "else", Changed::default()),
        ];
        for (path, token, expected) in table {
            let mut changed = Changed::default();
            changed.note(path, token);
            assert_eq!(changed, expected, "{path}");
        }
    }
}
