//! The handshake over a real client, against a xenstored that knows reading, writing and watches.

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use xen_proto::xenstore::{Header, Kind};
use zerocopy::{FromBytes, IntoBytes};

use super::*;

const BACK: &str = "/local/domain/0/backend/pci/5/0";

#[derive(Default)]
struct Xenstored {
    nodes: BTreeMap<String, String>,
    watches: Vec<String>,
    /// Bytes on the way to the client.
    sent: Vec<u8>,
}

impl Xenstored {
    fn set(&mut self, path: &str, value: &str) {
        self.nodes.insert(path.into(), value.into());
        for watch in self.watches.clone() {
            if path == watch || path.starts_with(&format!("{watch}/")) {
                self.send(Kind::WATCH_EVENT, 0, format!("{path}\0pci\0").as_bytes());
            }
        }
    }

    fn back(&mut self, nodes: &[(&str, &str)]) {
        for (name, value) in nodes {
            self.set(&format!("{BACK}/{name}"), value);
        }
    }

    fn send(&mut self, kind: Kind, request: u32, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap();
        let header = Header { kind: kind.0.into(), request: request.into(), transaction: 0.into(), len: len.into() };
        self.sent.extend_from_slice(header.as_bytes());
        self.sent.extend_from_slice(payload);
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while let Ok((header, rest)) = Header::read_from_prefix(bytes) {
            let (payload, rest) = rest.split_at(header.len.get() as usize);
            bytes = rest;
            let request = header.request.get();
            let fields: Vec<&str> = payload.split(|b| *b == 0).map(|f| std::str::from_utf8(f).unwrap()).collect();
            match (Kind(header.kind.get()), self.nodes.get(fields[0]).cloned()) {
                (Kind::READ, Some(value)) => self.send(Kind::READ, request, value.as_bytes()),
                (Kind::READ, None) => self.send(Kind::ERROR, request, b"ENOENT\0"),
                (Kind::WRITE, _) => {
                    self.send(Kind::WRITE, request, b"OK\0");
                    self.set(fields[0], fields[1]);
                }
                (Kind::WATCH, _) => {
                    self.watches.push(fields[0].into());
                    self.send(Kind::WATCH, request, b"OK\0");
                    self.send(Kind::WATCH_EVENT, 0, payload);
                }
                (Kind::UNWATCH, _) => {
                    self.watches.retain(|watch| watch != fields[0]);
                    self.send(Kind::UNWATCH, request, b"OK\0");
                }
                (kind, _) => panic!("{kind:?}"),
            }
        }
    }
}

#[derive(Default)]
struct Rig {
    store: Xenstored,
    client: Client,
    handshake: Handshake,
}

impl Rig {
    /// Runs until nothing moves. Returns the tasks, each with our state in xenstore at that moment.
    fn run(&mut self) -> Vec<(Task, String)> {
        let mut tasks = Vec::new();
        loop {
            while let Some(task) = self.handshake.next(&mut self.client) {
                self.exchange_requests(); // whatever the client was given so far may be sent
                tasks.push((task, self.store.nodes.get("device/pci/0/state").cloned().unwrap_or_default()));
                if matches!(task, Task::OpenChannel(_)) {
                    self.handshake.channel(Some((GrantRef(8), Port(9))));
                }
            }
            self.exchange_requests();
            let sent = std::mem::take(&mut self.store.sent);
            if sent.is_empty() {
                return tasks;
            }
            let mut bytes = &sent[..];
            while !bytes.is_empty() {
                if let Some(event) = self.client.input(&mut bytes).unwrap() {
                    let _ = self.handshake.event(event);
                }
            }
        }
    }

    fn exchange_requests(&mut self) {
        let mut all = Vec::new();
        let mut bytes = [0; 512];
        loop {
            match self.client.output(&mut bytes) {
                0 => break,
                count => all.extend_from_slice(&bytes[..count]),
            }
        }
        self.store.take(&all);
    }
}

fn first() -> Address {
    Address::parse("0000:00:00.0").unwrap()
}

#[test]
fn without_a_device_it_settles_and_leaves_others_alone() {
    let mut rig = Rig::default();
    assert!(!rig.handshake.is_settled());
    assert_eq!(rig.run(), []);
    assert!(rig.handshake.is_settled());
    let theirs = Event::Watch { path: "backend/vbd".into(), token: "backend".into() };
    assert_eq!(rig.handshake.event(theirs.clone()), Err(theirs));
}

#[test]
fn tasks_are_done_before_the_back_hears_of_them() {
    let mut rig = Rig::default();
    for (path, value) in [("device/pci/0/backend", BACK), ("device/pci/0/backend-id", "0"), ("device/pci/0/state", "1")]
    {
        rig.store.set(path, value);
    }
    rig.store.back(&[("state", "3"), ("num_devs", "1"), ("vdev-0", "0000:00:00.00"), ("state-0", "3")]);
    assert_eq!(rig.run(), [(Task::OpenChannel(DomId(0)), "1".into())]);
    let published = ["pci-op-ref", "event-channel", "magic", "state"]
        .map(|name| &rig.store.nodes[&format!("device/pci/0/{name}")][..]);
    assert_eq!(published, ["8", "9", "7", "3"]);

    rig.store.back(&[("state", "4")]);
    assert_eq!(rig.run(), [(Task::Attach(first()), "3".into())]);
    assert!(rig.handshake.is_settled());

    rig.store.back(&[("state-0", "5"), ("state", "7")]);
    assert_eq!(rig.run(), [(Task::Detach(first()), "4".into())], "xl may take the device as soon as it reads 7");
    assert_eq!(rig.store.nodes["device/pci/0/state"], "7");
    rig.store.back(&[("state", "8")]);
    assert_eq!(rig.run(), []);
    assert_eq!(rig.store.nodes["device/pci/0/state"], "4");
}

#[test]
fn a_path_that_is_none_is_survived() {
    let mut rig = Rig::default();
    let long = "x".repeat(5000);
    for (path, value) in
        [("device/pci/0/backend", &long[..]), ("device/pci/0/backend-id", "0"), ("device/pci/0/state", "1")]
    {
        rig.store.nodes.insert(path.into(), value.into());
    }
    // xenstored would not carry such a value: given straight to the front
    let _ = rig.handshake.next(&mut rig.client);
    rig.handshake.reading.clear();
    rig.handshake.step(Input::Values(vec![Some(long.into_bytes()), Some(b"0".to_vec()), Some(b"1".to_vec())]));
    rig.handshake.step(Input::Changed);
    assert_eq!(rig.handshake.next(&mut rig.client), None);
}

#[test]
fn a_client_without_room_is_waited_for() {
    let mut rig = Rig::default();
    while rig.client.room() >= MOST_REQUESTS {
        rig.client.read(None, "other").unwrap();
    }
    assert_eq!(rig.handshake.next(&mut rig.client), None);
    assert!(!rig.handshake.is_settled());
    assert_eq!(rig.run(), []);
    assert!(rig.handshake.is_settled());
}
