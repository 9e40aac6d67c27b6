//! The connection against a xenstored of a few lines.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{Change, Outcome, Store};

const READ: u32 = 2;
const WATCH: u32 = 4;
const START: u32 = 6;
const END: u32 = 7;
const WRITE: u32 = 11;
const RM: u32 = 13;
const EVENT: u32 = 15;
const ERROR: u32 = 16;

type Nodes = BTreeMap<String, String>;

/// Serves a connection until it ends, and returns what is then in the store. Each watch fires once; one transaction at a time.
fn serve(mut stream: UnixStream, mut nodes: Nodes) -> Nodes {
    let mut within = nodes.clone();
    let mut header = [0; 16];
    while stream.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut payload = vec![0; word(12) as usize];
        stream.read_exact(&mut payload).expect("a payload");
        let text = String::from_utf8(payload).expect("text");
        let (path, value) = text.split_once('\0').expect("a path");
        let (kind, answer) = match word(0) {
            READ => within.get(path).map_or((ERROR, "ENOENT\0"), |value| (READ, value.as_str())),
            WRITE => {
                within.insert(path.to_owned(), value.to_owned());
                (WRITE, "OK\0")
            }
            RM => {
                within.remove(path);
                (RM, "OK\0")
            }
            START => (START, "1\0"),
            END => {
                let committed = path == "T";
                if committed {
                    nodes.clone_from(&within);
                } else {
                    within.clone_from(&nodes);
                }
                (END, "OK\0")
            }
            other => (other, "OK\0"),
        };
        send(&mut stream, kind, word(4), answer);
        if word(0) == WATCH {
            send(&mut stream, EVENT, 0, &text);
        }
    }
    nodes
}

fn send(stream: &mut UnixStream, kind: u32, request: u32, payload: &str) {
    let length = u32::try_from(payload.len()).expect("short");
    let words = [kind, request, 0, length].map(u32::to_le_bytes);
    stream.write_all(&[words.concat().as_slice(), payload.as_bytes()].concat()).expect("sent");
}

/// What `work` leaves of the store `nodes`.
fn after(nodes: &[(&str, &str)], work: impl FnOnce(&mut Store)) -> Nodes {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let nodes = nodes.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    let server = std::thread::spawn(move || serve(theirs, nodes));
    let mut store = Store::over(ours);
    work(&mut store);
    drop(store);
    server.join().expect("a server")
}

fn write(path: &str, value: &str) -> Change {
    Change::Write(path.into(), value.into())
}

#[test]
fn changes_are_made_together_when_what_they_are_based_on_holds() {
    let nodes = after(&[("/d/state", "1")], |store| {
        let given = [("/d/state".to_owned(), b"1".to_vec())];
        let outcome = store.change(&given, &[write("/d/sectors", "8"), write("/d/state", "2")]);
        assert_eq!(outcome.expect("an outcome"), Outcome::Committed);
    });
    assert_eq!(nodes, [("/d/sectors", "8"), ("/d/state", "2")].map(|(a, b)| (a.into(), b.into())).into());
}

#[test]
fn nothing_is_changed_when_it_does_not() {
    for now in [&[("/d/state", "5")][..], &[]] {
        let nodes = after(now, |store| {
            let given = [("/d/state".to_owned(), b"1".to_vec())];
            let changes = [write("/d/state", "2"), Change::Remove("/d".into())];
            assert_eq!(store.change(&given, &changes).expect("an outcome"), Outcome::Stale);
        });
        assert_eq!(nodes.len(), now.len());
        assert_eq!(nodes.get("/d/state").map(String::as_str), now.first().map(|(_, value)| *value));
    }
}

#[test]
fn a_change_is_heard_and_its_absence_ends_with_the_deadline() {
    after(&[("/d/state", "1")], |store| {
        store.watch("/d").expect("a watch");
        let values = store.read(&["/d/state".into(), "/d/none".into()]).expect("values");
        assert_eq!(values, [Some(b"1".to_vec()), None]);
        assert_eq!(store.next_change(None).expect("a change").as_deref(), Some("/d"));
        assert_eq!(store.heard_change(), None);
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(store.next_change(Some(until)).expect("none"), None);
        assert!(Instant::now() >= until);
    });
}
