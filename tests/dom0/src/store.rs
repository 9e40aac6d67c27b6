//! dom0's connection to xenstored: requests that wait for their replies, and the changes that came meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use xen_proto::DomId;
use xen_proto::xenstore::{Client, End, Event, Payload, QueueError, RequestId, StoreError, Transaction};

/// Where xenstored listens.
const SOCKETS: [&str; 2] = ["/run/xenstored/socket", "/var/run/xenstored/socket"];

/// Directories that are asked for at once, of a whole tree.
const TREE_AT_ONCE: usize = 64;

/// What a request came to.
pub(crate) type Reply = Result<Payload, StoreError>;

/// One request of a transaction, with paths as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Sets a node.
    Write(String, String),
    /// Removes a node and all below it.
    Remove(String),
}

/// What a transaction came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It took effect.
    Committed,
    /// It did not: somebody changed what it was based on.
    Stale,
}

/// A connection.
pub(crate) struct Store {
    stream: UnixStream,
    client: Client,
    replies: BTreeMap<RequestId, Reply>,
    /// With the moments in which they were heard of.
    changes: VecDeque<(Instant, String)>,
    /// The moment of the change that was taken last.
    heard_at: Instant,
}

impl Store {
    /// Connects.
    pub(crate) fn connect() -> anyhow::Result<Self> {
        let stream = SOCKETS.iter().find_map(|socket| UnixStream::connect(socket).ok());
        let stream = stream.with_context(|| format!("no xenstored at {}: is this dom0?", SOCKETS.join(" or ")))?;
        Ok(Self::over(stream))
    }

    fn over(stream: UnixStream) -> Self {
        Self {
            stream,
            client: Client::new(),
            replies: BTreeMap::new(),
            changes: VecDeque::new(),
            heard_at: Instant::now(),
        }
    }

    /// Asks for changes at and below `path`; the first one says `path` itself.
    pub(crate) fn watch(&mut self, path: &str) -> anyhow::Result<()> {
        self.call_one(|client| client.watch(path, path))?.map(drop).map_err(|error| anyhow!("watch {path}: {error:?}"))
    }

    /// Asks no more.
    pub(crate) fn unwatch(&mut self, path: &str) -> anyhow::Result<()> {
        let reply = self.call_one(|client| client.unwatch(path, path))?;
        reply.map(drop).map_err(|error| anyhow!("unwatch {path}: {error:?}"))
    }

    /// The values of nodes; none where there is no node.
    pub(crate) fn read(&mut self, paths: &[String]) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        let replies = self.call(|client| paths.iter().map(|path| client.read(None, path)).collect())?;
        replies.into_iter().zip(paths).map(|(reply, path)| value(reply, path)).collect()
    }

    /// The names of a node's children; none if it is not there.
    pub(crate) fn list(&mut self, path: &str) -> anyhow::Result<Vec<String>> {
        match self.call_one(|client| client.directory(None, path))? {
            Ok(Payload::Children(names)) => Ok(names.iter().map(String::from).collect()),
            Err(StoreError::NoEntry) => Ok(vec![]),
            other => bail!("list {path}: {other:?}"),
        }
    }

    /// All paths below `path`, each before those below it; the root is `/`.
    pub(crate) fn tree(&mut self, path: &str) -> anyhow::Result<Vec<String>> {
        let mut found = vec![];
        let mut level = vec![path.to_owned()];
        while !level.is_empty() {
            let mut below = vec![];
            // What is queued at once is bounded.
            for paths in level.chunks(TREE_AT_ONCE) {
                let replies = self.call(|client| paths.iter().map(|path| client.directory(None, path)).collect())?;
                for (path, reply) in paths.iter().zip(replies) {
                    match reply {
                        Ok(Payload::Children(names)) => {
                            below.extend(names.iter().map(|name| format!("{}/{name}", path.trim_end_matches('/'))));
                        }
                        // Gone since.
                        Err(StoreError::NoEntry) => {}
                        other => bail!("list {path}: {other:?}"),
                    }
                }
            }
            found.extend_from_slice(&below);
            level = below;
        }
        Ok(found)
    }

    /// The domain that is called `name`.
    pub(crate) fn domain(&mut self, name: &str) -> anyhow::Result<Option<DomId>> {
        let numbers = self.list("/local/domain")?;
        let paths: Vec<_> = numbers.iter().map(|number| format!("/local/domain/{number}/name")).collect();
        let names = self.read(&paths)?;
        let found = numbers.iter().zip(names).find(|(_, value)| value.as_deref() == Some(name.as_bytes()));
        found.map(|(number, _)| Ok(DomId(number.parse()?))).transpose()
    }

    /// Sets a node.
    pub(crate) fn write(&mut self, path: &str, value: &str) -> anyhow::Result<()> {
        let reply = self.call_one(|client| client.write(None, path, value.as_bytes()))?;
        reply.map(drop).map_err(|error| anyhow!("write {path}: {error:?}"))
    }

    /// Makes changes together, if the nodes `given` have these values.
    pub(crate) fn change(&mut self, given: &[(String, Vec<u8>)], changes: &[Change]) -> anyhow::Result<Outcome> {
        let transaction = match self.call_one(Client::start_transaction)? {
            Ok(Payload::Started(transaction)) => transaction,
            other => bail!("no transaction: {other:?}"),
        };
        // Reads and changes go out at once; whether they hold is seen before the end.
        let replies = self.call(|client| {
            let reads = given.iter().map(|(path, _)| (path, None));
            let all = reads.chain(changes.iter().map(|change| (change.path(), Some(change))));
            all.map(|(path, change)| queue(client, transaction, path, change)).collect()
        })?;
        let (read, done) = replies.split_at(given.len());
        let holds = read.iter().zip(given).all(|(reply, (_, value))| *reply == Ok(Payload::Value(value.clone())));
        let end = if holds { End::Commit } else { End::Abort };
        let ended = self.call_one(|client| client.end_transaction(transaction, end))?;
        if !holds || ended == Err(StoreError::Again) {
            return Ok(Outcome::Stale);
        }
        let failed = done.iter().zip(changes).find(|(reply, _)| reply.is_err());
        ensure!(failed.is_none(), "a transaction failed at {failed:?}");
        ended.map(|_| Outcome::Committed).map_err(|error| anyhow!("a transaction did not end: {error:?}"))
    }

    /// The next path that changed; none if there is none until then.
    pub(crate) fn next_change(&mut self, until: Option<Instant>) -> anyhow::Result<Option<String>> {
        while self.changes.is_empty() && self.exchange(until)? {}
        Ok(self.heard_change())
    }

    /// A path that changed and has already been heard of.
    pub(crate) fn heard_change(&mut self) -> Option<String> {
        let (at, path) = self.changes.pop_front()?;
        self.heard_at = at;
        Some(path)
    }

    /// When the change that was taken last was heard of: requests may have been waited for since.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    fn call_one(&mut self, queue: impl FnOnce(&mut Client) -> Result<RequestId, QueueError>) -> anyhow::Result<Reply> {
        let mut replies = self.call(|client| Ok(vec![queue(client)?]))?;
        replies.pop().context("a request without a reply")
    }

    /// Queues requests, and waits for the replies.
    fn call(
        &mut self,
        queue: impl FnOnce(&mut Client) -> Result<Vec<RequestId>, QueueError>,
    ) -> anyhow::Result<Vec<Reply>> {
        let requests = queue(&mut self.client).map_err(|error| anyhow!("a request was not taken: {error:?}"))?;
        while requests.iter().any(|request| !self.replies.contains_key(request)) {
            self.exchange(None)?;
        }
        requests.iter().map(|request| self.replies.remove(request).context("a request without a reply")).collect()
    }

    /// Sends what there is to send, and waits for bytes; false if none came until then.
    fn exchange(&mut self, until: Option<Instant>) -> anyhow::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            let count = self.client.output(&mut bytes);
            if count == 0 {
                break;
            }
            self.stream.write_all(&bytes[..count]).context("xenstored's socket")?;
        }
        // A limit of zero would be no limit.
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1)));
        self.stream.set_read_timeout(limit)?;
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => bail!("xenstored closed the connection"),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error).context("xenstored's socket"),
        };
        self.take_in(&bytes[..count])?;
        Ok(true)
    }

    fn take_in(&mut self, mut bytes: &[u8]) -> anyhow::Result<()> {
        let broken = |error| anyhow!("xenstored broke its protocol: {error:?}");
        while let Some(event) = self.client.input(&mut bytes).map_err(broken)? {
            match event {
                Event::Reply { request, result } => {
                    self.replies.insert(request, result);
                }
                Event::Watch { path, .. } => self.changes.push_back((Instant::now(), path)),
            }
        }
        Ok(())
    }
}

impl Change {
    fn path(&self) -> &String {
        match self {
            Self::Write(path, _) | Self::Remove(path) => path,
        }
    }
}

/// Queues a request of a transaction: a read, unless there is a change.
fn queue(
    client: &mut Client,
    transaction: Transaction,
    path: &str,
    change: Option<&Change>,
) -> Result<RequestId, QueueError> {
    match change {
        None => client.read(Some(transaction), path),
        Some(Change::Write(_, value)) => client.write(Some(transaction), path, value.as_bytes()),
        Some(Change::Remove(_)) => client.rm(Some(transaction), path),
    }
}

fn value(reply: Reply, path: &str) -> anyhow::Result<Option<Vec<u8>>> {
    match reply {
        Ok(Payload::Value(value)) => Ok(Some(value)),
        Err(StoreError::NoEntry) => Ok(None),
        other => bail!("read {path}: {other:?}"),
    }
}

#[cfg(test)]
mod tests;
