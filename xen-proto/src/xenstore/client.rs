//! Requests out, events in.

use alloc::{collections::VecDeque, format, string::String, vec::Vec};

use zerocopy::IntoBytes;

use super::{
    frames::{Frame, Frames},
    listing::{Children, Listing, Part},
    wire::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD, ProtocolError, StoreError},
};

/// Requests under way at once. xenstored's quota is 20, and counts requests of ours whose watch events another guest has yet
/// to read (contract: quotas).
pub const MAX_OUTSTANDING: usize = 16;
/// Transactions open at once; xenstored's quota is 10.
pub const MAX_TRANSACTIONS: usize = 8;
/// Requests that wait for their turn.
pub const MAX_QUEUED: usize = 512;

/// Names a request until its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u32);

/// An open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction(u32);

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All of it takes effect, or none ([`StoreError::Again`]).
    Commit,
    /// None of it takes effect.
    Abort,
}

/// A request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// [`MAX_QUEUED`] requests wait already.
    Full,
    /// Longer than [`MAX_PAYLOAD`], or a path with a zero byte.
    Malformed,
}

/// What a request brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Done; nothing to tell.
    Done,
    /// A node's value. Whoever may write the node chose it: trust neither its length nor its form.
    Value(Vec<u8>),
    /// A node's children.
    Children(Children),
    /// The transaction is open.
    Started(Transaction),
}

/// What came from xenstored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The one reply to a request.
    Reply {
        /// The request.
        request: RequestId,
        /// What it brought.
        result: Result<Payload, StoreError>,
    },
    /// Something changed at or below a watched path. Relative watches give relative paths.
    Watch {
        /// What changed.
        path: String,
        /// What the watch was registered with.
        token: String,
    },
}

/// What a reply must look like.
enum Expect {
    Done,
    Value,
    Children(Listing),
    Started,
    Ended,
}

struct Message {
    id: RequestId,
    kind: Kind,
    transaction: u32,
    bytes: Vec<u8>,
    expect: Expect,
}

/// The client's side of one connection to xenstored.
///
/// Requests go out in the order in which they were queued, except that a transaction waits until fewer than
/// [`MAX_TRANSACTIONS`] are open while later requests pass it.
pub struct Client {
    next_id: u32,
    queue: VecDeque<Message>,
    starts: VecDeque<Message>,
    /// Sent or being sent: at most [`MAX_OUTSTANDING`].
    outstanding: Vec<Message>,
    /// Bytes of the last outstanding message that are still to be sent, counted from its end.
    unsent: usize,
    transactions: usize,
    frames: Frames,
    broken: Option<ProtocolError>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// A client of a connection on which nothing is under way.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next_id: 1,
            queue: VecDeque::new(),
            starts: VecDeque::new(),
            outstanding: Vec::new(),
            unsent: 0,
            transactions: 0,
            frames: Frames::new(),
            broken: None,
        }
    }

    /// Asks for a node's value: [`Payload::Value`].
    ///
    /// # Errors
    /// As for all requests: not taken, see [`QueueError`].
    pub fn read(&mut self, within: Option<Transaction>, path: &str) -> Result<RequestId, QueueError> {
        self.path_request(Kind::READ, within, path, Expect::Value)
    }

    /// Asks for the names of a node's children, however many: [`Payload::Children`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn directory(&mut self, within: Option<Transaction>, path: &str) -> Result<RequestId, QueueError> {
        self.path_request(Kind::DIRECTORY, within, path, Expect::Children(Listing::new(path.into())))
    }

    /// Makes an empty node, and its parents; one that exists is left as it is.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn mkdir(&mut self, within: Option<Transaction>, path: &str) -> Result<RequestId, QueueError> {
        self.path_request(Kind::MKDIR, within, path, Expect::Done)
    }

    /// Removes a node and all below it; a missing one is no error if its parent is there.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn rm(&mut self, within: Option<Transaction>, path: &str) -> Result<RequestId, QueueError> {
        self.path_request(Kind::RM, within, path, Expect::Done)
    }

    /// Sets a node's value, making it and its parents if need be.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn write(&mut self, within: Option<Transaction>, path: &str, value: &[u8]) -> Result<RequestId, QueueError> {
        self.request(Kind::WRITE, within, &[checked(path)?, b"\0", value], Expect::Done)
    }

    /// Registers a watch. One [`Event::Watch`] of the path itself follows at once.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn watch(&mut self, path: &str, token: &str) -> Result<RequestId, QueueError> {
        self.request(Kind::WATCH, None, &[checked(path)?, b"\0", checked(token)?, b"\0"], Expect::Done)
    }

    /// Ends a watch. Events that were under way may still come.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<RequestId, QueueError> {
        self.request(Kind::UNWATCH, None, &[checked(path)?, b"\0", checked(token)?, b"\0"], Expect::Done)
    }

    /// Opens a transaction: [`Payload::Started`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn start_transaction(&mut self) -> Result<RequestId, QueueError> {
        self.request(Kind::TRANSACTION_START, None, &[b"\0"], Expect::Started)
    }

    /// Ends a transaction.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn end_transaction(&mut self, transaction: Transaction, end: End) -> Result<RequestId, QueueError> {
        let answer: &[u8] = match end {
            End::Commit => b"T\0",
            End::Abort => b"F\0",
        };
        self.request(Kind::TRANSACTION_END, Some(transaction), &[answer], Expect::Ended)
    }

    /// How many more requests will be taken now.
    #[must_use]
    pub fn room(&self) -> usize {
        MAX_QUEUED.saturating_sub(self.queue.len() + self.starts.len())
    }

    /// Whether nothing waits to be sent and no reply is awaited.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.starts.is_empty() && self.outstanding.is_empty()
    }

    fn path_request(
        &mut self,
        kind: Kind,
        within: Option<Transaction>,
        path: &str,
        expect: Expect,
    ) -> Result<RequestId, QueueError> {
        self.request(kind, within, &[checked(path)?, b"\0"], expect)
    }

    fn request(
        &mut self,
        kind: Kind,
        within: Option<Transaction>,
        parts: &[&[u8]],
        expect: Expect,
    ) -> Result<RequestId, QueueError> {
        if self.room() == 0 {
            return Err(QueueError::Full);
        }
        let id = RequestId(self.next_id);
        let message = Message::new(id, kind, within.map_or(0, |transaction| transaction.0), parts, expect)?;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        if matches!(message.expect, Expect::Started) {
            self.starts.push_back(message);
        } else {
            self.queue.push_back(message);
        }
        Ok(id)
    }

    /// Fills `into` with bytes for xenstored; returns how many. Zero: nothing to send until a reply or a request comes.
    pub fn output(&mut self, into: &mut [u8]) -> usize {
        let mut written = 0;
        while written < into.len() {
            if self.unsent == 0 && !self.take_next() {
                break;
            }
            let Some(message) = self.outstanding.last_mut() else { break };
            let start = message.bytes.len() - self.unsent;
            let count = self.unsent.min(into.len() - written);
            into[written..written + count].copy_from_slice(&message.bytes[start..start + count]);
            written += count;
            self.unsent -= count;
            if self.unsent == 0 {
                message.bytes = Vec::new();
            }
        }
        written
    }

    /// Makes the next message the one that is being sent, if quotas allow.
    fn take_next(&mut self) -> bool {
        if self.outstanding.len() >= MAX_OUTSTANDING {
            return false;
        }
        let start_first = self.transactions < MAX_TRANSACTIONS
            && self
                .starts
                .front()
                .is_some_and(|start| self.queue.front().is_none_or(|other| start.is_older_than(other)));
        let source = if start_first { &mut self.starts } else { &mut self.queue };
        let Some(message) = source.pop_front() else { return false };
        self.transactions += usize::from(start_first);
        self.unsent = message.bytes.len();
        self.outstanding.push(message);
        true
    }

    /// Takes bytes from xenstored, from the front of `bytes`, up to the first event. Call it until `bytes` is empty; only then
    /// may more be needed for the next event.
    ///
    /// # Errors
    /// The stream cannot be understood. It stays so: every later call says the same.
    pub fn input(&mut self, bytes: &mut &[u8]) -> Result<Option<Event>, ProtocolError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.next_event(bytes);
        self.broken = result.as_ref().err().copied();
        result
    }

    fn next_event(&mut self, bytes: &mut &[u8]) -> Result<Option<Event>, ProtocolError> {
        while let Some(frame) = self.frames.next(bytes)? {
            let event = match frame.kind {
                Kind::WATCH_EVENT => Some(watch_event(&frame.payload)?),
                _ => self.reply(frame)?,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// The event of a reply; none if the client goes on by itself.
    fn reply(&mut self, frame: Frame) -> Result<Option<Event>, ProtocolError> {
        let sent = self.outstanding.len() - usize::from(self.unsent > 0);
        let found = self.outstanding.iter().take(sent).position(|message| message.id.0 == frame.request);
        let message = self.outstanding.remove(found.ok_or(ProtocolError::UnknownRequest(frame.request))?);
        let request = message.id;
        let failed = frame.kind == Kind::ERROR;
        if !failed && frame.kind != message.kind {
            return Err(ProtocolError::WrongKind { request: message.kind, reply: frame.kind });
        }
        if matches!(message.expect, Expect::Ended) || (failed && matches!(message.expect, Expect::Started)) {
            self.transactions -= 1;
        }
        let result = match (failed.then(|| StoreError::parse(&frame.payload)), message.expect) {
            (Some(StoreError::TooBig), Expect::Children(listing)) if message.kind == Kind::DIRECTORY => {
                return Ok(self.ask_part(request, message.transaction, listing, 0));
            }
            (Some(error), _) => Err(error),
            (None, Expect::Children(mut listing)) if message.kind == Kind::DIRECTORY_PART => {
                match listing.add(&frame.payload)? {
                    Part::More(offset) => return Ok(self.ask_part(request, message.transaction, listing, offset)),
                    Part::Complete(children) => Ok(Payload::Children(children)),
                    Part::GivenUp(error) => Err(error),
                }
            }
            (None, Expect::Children(_)) => Ok(Payload::Children(Children::parse(frame.payload)?)),
            (None, Expect::Value) => Ok(Payload::Value(frame.payload)),
            (None, Expect::Started) => Ok(Payload::Started(started(&frame.payload)?)),
            (None, Expect::Done | Expect::Ended) => Ok(Payload::Done),
        };
        Ok(Some(Event::Reply { request, result }))
    }

    /// Asks for the next part of a listing, under the name of the request that began it and before all that wait.
    fn ask_part(&mut self, id: RequestId, transaction: u32, listing: Listing, offset: usize) -> Option<Event> {
        let offset = format!("{offset}");
        let path: String = listing.path().into();
        let parts: [&[u8]; 4] = [path.as_bytes(), b"\0", offset.as_bytes(), b"\0"];
        match Message::new(id, Kind::DIRECTORY_PART, transaction, &parts, Expect::Children(listing)) {
            Ok(message) => {
                self.queue.push_front(message);
                None
            }
            Err(_) => Some(Event::Reply { request: id, result: Err(StoreError::TooBig) }),
        }
    }
}

impl Message {
    fn new(id: RequestId, kind: Kind, transaction: u32, parts: &[&[u8]], expect: Expect) -> Result<Self, QueueError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(len).ok().filter(|len| *len as usize <= MAX_PAYLOAD).ok_or(QueueError::Malformed)?;
        let header =
            Header { kind: kind.0.into(), request: id.0.into(), transaction: transaction.into(), len: len.into() };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + len as usize);
        bytes.extend_from_slice(header.as_bytes());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        Ok(Self { id, kind, transaction, bytes, expect })
    }

    /// Whether it was queued before `other`; numbers wrap.
    fn is_older_than(&self, other: &Self) -> bool {
        other.id.0.wrapping_sub(self.id.0) < u32::MAX / 2
    }
}

fn checked(text: &str) -> Result<&[u8], QueueError> {
    if text.as_bytes().contains(&0) { Err(QueueError::Malformed) } else { Ok(text.as_bytes()) }
}

/// `path\0token\0`.
fn watch_event(payload: &[u8]) -> Result<Event, ProtocolError> {
    const MALFORMED: ProtocolError = ProtocolError::Malformed(Kind::WATCH_EVENT);
    let text = core::str::from_utf8(payload).map_err(|_| MALFORMED)?;
    let (path, token) = text.strip_suffix('\0').and_then(|text| text.split_once('\0')).ok_or(MALFORMED)?;
    if token.contains('\0') {
        return Err(MALFORMED);
    }
    Ok(Event::Watch { path: path.into(), token: token.into() })
}

/// The new transaction's number, decimal; 0 would mean "no transaction".
fn started(payload: &[u8]) -> Result<Transaction, ProtocolError> {
    let text = core::str::from_utf8(payload.strip_suffix(b"\0").unwrap_or(payload)).ok();
    let number = text.and_then(|text| text.parse().ok()).filter(|number| *number != 0);
    number.map(Transaction).ok_or(ProtocolError::Malformed(Kind::TRANSACTION_START))
}
