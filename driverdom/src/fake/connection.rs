//! One unprivileged domain's connection to the fake store, byte by byte, with the rules of a backend enforced.

use std::collections::{BTreeMap, VecDeque};

use xen_proto::DomId;
use xen_proto::xenstore::{Header, Kind};
use zerocopy::{FromBytes, IntoBytes};

use super::store::{Errno, Flavour, Store};

/// The connection of a domain.
pub struct Connection {
    domain: DomId,
    incoming: Vec<u8>,
    requests: VecDeque<Request>,
    /// Messages that are still to be sent, the first of them from this byte on.
    outgoing: VecDeque<Vec<u8>>,
    sent_of_first: usize,
    /// Transactions and the nodes they have read, with whether they were there.
    read: BTreeMap<(u32, String), bool>,
    /// Requests served so far.
    pub served: usize,
    /// Bytes of them.
    pub bytes_received: usize,
    /// Bytes of replies and events so far.
    pub bytes_sent: usize,
    /// Watch events so far.
    pub events: usize,
    /// What took effect of what the domain wrote and removed, oldest first: path below home, value or none.
    pub effects: Vec<(String, Option<String>)>,
    uncommitted: Vec<(u32, String, Option<String>)>,
}

struct Request {
    header: Header,
    payload: Vec<u8>,
}

impl Connection {
    /// A fresh connection.
    pub fn new(domain: DomId) -> Self {
        Self {
            domain,
            incoming: Vec::new(),
            requests: VecDeque::new(),
            outgoing: VecDeque::new(),
            sent_of_first: 0,
            read: BTreeMap::new(),
            served: 0,
            bytes_received: 0,
            bytes_sent: 0,
            events: 0,
            effects: Vec::new(),
            uncommitted: Vec::new(),
        }
    }

    /// Takes bytes that the domain sent.
    pub fn receive(&mut self, bytes: &[u8], store: &Store) {
        self.incoming.extend_from_slice(bytes);
        self.bytes_received += bytes.len();
        while let Ok((header, rest)) = Header::read_from_prefix(&self.incoming) {
            let len = header.len.get() as usize;
            assert!(len <= 4096, "a payload of {len} bytes: xenstored ends the connection");
            if rest.len() < len {
                break;
            }
            let payload = rest[..len].to_vec();
            self.incoming.drain(..size_of::<Header>() + len);
            self.requests.push_back(Request { header, payload });
        }
        assert!(self.requests.len() <= store.limits.outstanding, "{} requests outstanding", self.requests.len());
    }

    /// Whether no request waits and nothing is to be sent.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.outgoing.is_empty()
    }

    /// Serves one request; before its reply go the events that came up so far, but for those that xenstored still has to send.
    pub fn serve(&mut self, store: &mut Store) {
        let request = self.requests.pop_front();
        let reply = request.map(|request| {
            self.served += 1;
            let result = self.answer(store, &request);
            (request.header, result)
        });
        while let Some((path, token)) = store.next_event(self.domain) {
            let event = message(Kind::WATCH_EVENT.0, 0, 0, format!("{path}\0{token}\0").as_bytes());
            let merged = store.flavour == Flavour::C && self.outgoing.contains(&event);
            if !merged {
                self.events += 1;
                self.outgoing.push_back(event);
            }
        }
        if let Some((header, result)) = reply {
            let (kind, payload) = match result {
                Ok(payload) => (header.kind.get(), payload),
                Err(errno) => (Kind::ERROR.0, format!("{errno}\0").into_bytes()),
            };
            self.outgoing.push_back(message(kind, header.request.get(), header.transaction.get(), &payload));
        }
    }

    /// Bytes for the domain, at most so many.
    pub fn send(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < most
            && let Some(first) = self.outgoing.front()
        {
            let rest = &first[self.sent_of_first..];
            let count = rest.len().min(most - bytes.len());
            bytes.extend_from_slice(&rest[..count]);
            self.sent_of_first += count;
            if self.sent_of_first == first.len() {
                self.outgoing.pop_front();
                self.sent_of_first = 0;
            }
        }
        self.bytes_sent += bytes.len();
        bytes
    }

    fn answer(&mut self, store: &mut Store, request: &Request) -> Result<Vec<u8>, Errno> {
        const OK: &[u8] = b"OK\0";
        let within = request.header.transaction.get();
        let by = self.domain;
        let (first, rest) = split(&request.payload);
        let path = self.absolute(first);
        match Kind(request.header.kind.get()) {
            Kind::READ => {
                let value = store.read(by, within, &path);
                if within != 0 {
                    self.read.insert((within, path), value.is_ok());
                }
                value
            }
            Kind::DIRECTORY => {
                let names = store.directory(by, within, &path)?;
                let list: String = names.iter().map(|name| format!("{name}\0")).collect();
                if list.len() > 4096 { Err("E2BIG") } else { Ok(list.into_bytes()) }
            }
            Kind::DIRECTORY_PART => {
                let names = store.directory(by, within, &path)?;
                let list: String = names.iter().map(|name| format!("{name}\0")).collect();
                let offset: usize = split(rest).0.parse().map_err(|_| "EINVAL")?;
                Ok(part(&list, offset))
            }
            Kind::WRITE => {
                self.check_rules(within, &path);
                store.write(by, within, &path, rest)?;
                self.affect(within, path, Some(String::from_utf8_lossy(rest).into()));
                Ok(OK.into())
            }
            Kind::MKDIR => {
                self.check_rules(within, &path);
                store.mkdir(by, within, &path).map(|()| OK.into())
            }
            Kind::RM => {
                self.check_rules(within, &path);
                store.rm(by, within, &path)?;
                self.affect(within, path, None);
                Ok(OK.into())
            }
            Kind::WATCH => store.watch(by, &path, first, split(rest).0).map(|()| OK.into()),
            Kind::UNWATCH => store.unwatch(by, &path, split(rest).0).map(|()| OK.into()),
            Kind::TRANSACTION_START => store.start(by).map(|id| format!("{id}\0").into_bytes()),
            Kind::TRANSACTION_END => {
                let commit = first == "T";
                let result = store.end(by, within, commit);
                self.end(within, commit && result.is_ok());
                result.map(|()| OK.into())
            }
            other => panic!("{other:?} is not served here"),
        }
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') { path.into() } else { format!("/local/domain/{}/{path}", self.domain) }
    }

    /// Nothing is done in a device's directory but in a transaction that has read its `state`.
    fn check_rules(&self, within: u32, path: &str) {
        let home = format!("/local/domain/{}/backend/", self.domain);
        let Some(below) = path.strip_prefix(&home) else { return };
        let parts: Vec<&str> = below.split('/').collect();
        assert!(parts.len() >= 3, "{path} is not ours to change");
        let state = format!("{home}{}/state", parts[..3].join("/"));
        assert!(within != 0, "{path} is changed outside of a transaction");
        assert!(self.read.contains_key(&(within, state)), "{path} is changed without a look at its state");
    }

    fn affect(&mut self, within: u32, path: String, value: Option<String>) {
        let path = path.replacen(&format!("/local/domain/{}/", self.domain), "", 1);
        if within == 0 {
            self.effects.push((path, value));
        } else {
            self.uncommitted.push((within, path, value));
        }
    }

    fn end(&mut self, within: u32, committed: bool) {
        let (read, others) = core::mem::take(&mut self.read).into_iter().partition(|((of, _), _)| *of == within);
        self.read = others;
        let read: BTreeMap<(u32, String), bool> = read;
        for ((_, path), there) in read {
            assert!(there || !committed, "a transaction takes effect that has found no {path}");
        }
        let (ended, open): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.uncommitted).into_iter().partition(|(transaction, ..)| *transaction == within);
        self.uncommitted = open;
        if committed {
            self.effects.extend(ended.into_iter().map(|(_, path, value)| (path, value)));
        }
    }
}

fn message(kind: u32, request: u32, transaction: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short");
    let header =
        Header { kind: kind.into(), request: request.into(), transaction: transaction.into(), len: len.into() };
    [header.as_bytes(), payload].concat()
}

/// A string up to its zero byte, and what follows.
fn split(payload: &[u8]) -> (&str, &[u8]) {
    let end = payload.iter().position(|byte| *byte == 0).expect("a string ends with a zero byte");
    (core::str::from_utf8(&payload[..end]).expect("text"), &payload[end + 1..])
}

/// Part of a listing as xenstored gives it: generation, whole names, an empty name at the end of all.
fn part(list: &str, offset: usize) -> Vec<u8> {
    let mut reply = b"1\0".to_vec();
    let rest = list.get(offset..).unwrap_or("");
    let fits = rest.char_indices().rfind(|(at, char)| *char == '\0' && *at < 4000).map_or(0, |(at, _)| at + 1);
    reply.extend_from_slice(&rest.as_bytes()[..fits]);
    if fits == rest.len() {
        reply.push(0);
    }
    reply
}
