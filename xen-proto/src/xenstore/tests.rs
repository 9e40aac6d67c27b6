//! The client against a scripted xenstored, byte by byte.

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;

/// A request as xenstored sees it.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    kind: u32,
    id: u32,
    transaction: u32,
    payload: Vec<u8>,
}

/// All that the client sends now, `step` bytes at a time.
fn sent(client: &mut Client, step: usize) -> Vec<Request> {
    let mut bytes = Vec::new();
    let mut part = vec![0; step];
    loop {
        let count = client.output(&mut part);
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&part[..count]);
    }
    let mut requests = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (header, after) = Header::read_from_prefix(rest).expect("a whole header");
        let (payload, after) = after.split_at(header.len.get() as usize);
        rest = after;
        requests.push(Request {
            kind: header.kind.get(),
            id: header.request.get(),
            transaction: header.transaction.get(),
            payload: payload.to_vec(),
        });
    }
    requests
}

fn message(kind: Kind, id: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short");
    let header = Header { kind: kind.0.into(), request: id.into(), transaction: 0.into(), len: len.into() };
    [header.as_bytes(), payload].concat()
}

fn events(client: &mut Client, mut bytes: &[u8]) -> Result<Vec<Event>, ProtocolError> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        events.extend(client.input(&mut bytes)?);
    }
    Ok(events)
}

/// The one result that these bytes bring.
fn result(client: &mut Client, bytes: &[u8]) -> Result<Payload, StoreError> {
    match events(client, bytes).expect("well-formed").as_slice() {
        [Event::Reply { result, .. }] => result.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_request_has_its_form_on_the_wire() {
    type Ask = fn(&mut Client) -> Result<RequestId, QueueError>;
    let rows: [(Ask, u32, &[u8]); 8] = [
        (|client| client.directory(None, "backend"), 1, b"backend\0"),
        (|client| client.read(None, "domid"), 2, b"domid\0"),
        (|client| client.watch("backend", "b"), 4, b"backend\0b\0"),
        (|client| client.unwatch("backend", "b"), 5, b"backend\0b\0"),
        (Client::start_transaction, 6, b"\0"),
        (|client| client.write(None, "data/x", b"1"), 11, b"data/x\x001"),
        (|client| client.mkdir(None, "data/y"), 12, b"data/y\0"),
        (|client| client.rm(None, "data/y"), 13, b"data/y\0"),
    ];
    for (ask, kind, payload) in rows {
        for step in [1, 7, 4096] {
            let mut client = Client::new();
            ask(&mut client).expect("taken");
            let expected = Request { kind, id: 1, transaction: 0, payload: payload.to_vec() };
            assert_eq!(sent(&mut client, step), [expected]);
        }
    }
}

#[test]
fn replies_find_their_requests_in_any_order() {
    let mut client = Client::new();
    let first = client.read(None, "a").expect("taken");
    let second = client.read(None, "b").expect("taken");
    assert_eq!(sent(&mut client, 100).len(), 2);
    let bytes = [message(Kind::READ, 2, b"two"), message(Kind::ERROR, 1, b"ENOENT\0")].concat();
    let value = |text: &[u8]| Ok(Payload::Value(text.to_vec()));
    assert_eq!(
        events(&mut client, &bytes).expect("well-formed"),
        [
            Event::Reply { request: second, result: value(b"two") },
            Event::Reply { request: first, result: Err(StoreError::NoEntry) }
        ]
    );
    assert!(client.is_idle());
}

#[test]
fn errors_have_names() {
    for (text, error) in [
        ("EAGAIN", StoreError::Again),
        ("ENOENT", StoreError::NoEntry),
        ("EACCES", StoreError::Access),
        ("EPERM", StoreError::Access),
        ("ENOSPC", StoreError::NoSpace),
        ("E2BIG", StoreError::TooBig),
        ("EEXIST", StoreError::Exists),
        ("EINVAL", StoreError::Invalid),
        ("EWHATEVER", StoreError::Other),
    ] {
        let mut client = Client::new();
        client.read(None, "a").expect("taken");
        sent(&mut client, 100);
        let with_end = format!("{text}\0");
        assert_eq!(result(&mut client, &message(Kind::ERROR, 1, with_end.as_bytes())), Err(error), "{text}");
    }
}

#[test]
fn a_transaction_is_named_in_its_requests() {
    let mut client = Client::new();
    client.start_transaction().expect("taken");
    sent(&mut client, 100);
    let Ok(Payload::Started(transaction)) = result(&mut client, &message(Kind::TRANSACTION_START, 1, b"77\0")) else {
        panic!("not started")
    };
    client.write(Some(transaction), "a", b"1").expect("taken");
    client.end_transaction(transaction, End::Commit).expect("taken");
    client.end_transaction(transaction, End::Abort).expect("taken");
    let requests = sent(&mut client, 100);
    let seen: Vec<_> = requests.iter().map(|request| (request.transaction, &request.payload[..])).collect();
    assert_eq!(seen, [(77, &b"a\x001"[..]), (77, b"T\0"), (77, b"F\0")]);
}

#[test]
fn no_more_is_under_way_than_the_quota_allows() {
    let mut client = Client::new();
    for _ in 0..40 {
        client.read(None, "a").expect("taken");
    }
    assert_eq!(sent(&mut client, 100).len(), MAX_OUTSTANDING);
    assert_eq!(result(&mut client, &message(Kind::READ, 5, b"")), Ok(Payload::Value(vec![])));
    assert_eq!(sent(&mut client, 100).len(), 1);
}

#[test]
fn no_more_transactions_are_open_than_the_quota_allows_and_others_pass_those_that_wait() {
    let mut client = Client::new();
    for _ in 0..MAX_TRANSACTIONS + 2 {
        client.start_transaction().expect("taken");
    }
    client.read(None, "a").expect("taken");
    let kinds: Vec<_> = sent(&mut client, 100).iter().map(|request| request.kind).collect();
    assert_eq!(kinds, [[6; MAX_TRANSACTIONS].as_slice(), &[2]].concat());

    let Ok(Payload::Started(first)) = result(&mut client, &message(Kind::TRANSACTION_START, 1, b"1\0")) else {
        panic!("not started")
    };
    assert_eq!(result(&mut client, &message(Kind::ERROR, 2, b"E2BIG\0")), Err(StoreError::TooBig));
    assert_eq!(sent(&mut client, 100).len(), 1, "a failed start makes room");
    client.end_transaction(first, End::Commit).expect("taken");
    let end = sent(&mut client, 100);
    assert_eq!(end.len(), 1, "still open until xenstored says so");
    assert_eq!(result(&mut client, &message(Kind::ERROR, end[0].id, b"EAGAIN\0")), Err(StoreError::Again));
    assert_eq!(sent(&mut client, 100).len(), 1, "one that was undone makes room too");
}

#[test]
fn the_queue_is_bounded() {
    let mut client = Client::new();
    for _ in 0..MAX_QUEUED {
        client.read(None, "a").expect("taken");
    }
    assert_eq!(client.room(), 0);
    assert_eq!(client.read(None, "a"), Err(QueueError::Full));
    sent(&mut client, 100);
    assert_eq!(client.room(), MAX_OUTSTANDING);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut client = Client::new();
    let long = "x".repeat(MAX_PAYLOAD);
    assert_eq!(client.read(None, &long), Err(QueueError::Malformed));
    assert_eq!(client.read(None, "a\0b"), Err(QueueError::Malformed));
    assert_eq!(client.write(None, "a", long.as_bytes()), Err(QueueError::Malformed));
    assert_eq!(client.watch("a", "b\0"), Err(QueueError::Malformed));
    assert!(client.is_idle());
}

#[test]
fn names_of_children() {
    let mut client = Client::new();
    client.directory(None, "backend").expect("taken");
    sent(&mut client, 100);
    let Ok(Payload::Children(children)) = result(&mut client, &message(Kind::DIRECTORY, 1, b"vbd\0vif\0")) else {
        panic!("no children")
    };
    assert_eq!(children.iter().collect::<Vec<_>>(), ["vbd", "vif"]);
}

/// Plays xenstored for one listing in parts: (reply to each part asked for), and the offsets that were asked for.
fn list_in_parts(replies: &[&[u8]]) -> (Result<Payload, StoreError>, Vec<String>) {
    let mut client = Client::new();
    client.directory(None, "many").expect("taken");
    sent(&mut client, 100);
    assert_eq!(events(&mut client, &message(Kind::ERROR, 1, b"E2BIG\0")), Ok(vec![]));
    let mut offsets = Vec::new();
    for reply in replies {
        let requests = sent(&mut client, 100);
        assert_eq!((requests.len(), requests[0].kind), (1, Kind::DIRECTORY_PART.0));
        let text = core::str::from_utf8(&requests[0].payload).expect("text");
        offsets
            .push(text.strip_prefix("many\0").and_then(|text| text.strip_suffix('\0')).expect("path, offset").into());
        if let Some(Event::Reply { result, .. }) =
            events(&mut client, &message(Kind::DIRECTORY_PART, requests[0].id, reply)).expect("well-formed").pop()
        {
            return (result, offsets);
        }
    }
    panic!("no end")
}

#[test]
fn a_listing_too_big_for_one_reply_is_read_in_parts() {
    let names = |result: Result<Payload, StoreError>| match result {
        Ok(Payload::Children(children)) => children.iter().map(String::from).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let (result, offsets) = list_in_parts(&[b"9\0aa\0bb\0", b"9\0cc\0\0"]);
    assert_eq!((names(result), offsets), (vec!["aa".into(), "bb".into(), "cc".into()], vec!["0".into(), "6".into()]));
    // It ends with nothing more.
    let (result, _) = list_in_parts(&[b"9\0aa\0", b"9\0\0"]);
    assert_eq!(names(result), ["aa"]);
    // It changed in between: from the start.
    let (result, offsets) = list_in_parts(&[b"9\0aa\0", b"10\0dd\0\0", b"10\0bb\0dd\0\0"]);
    assert_eq!((names(result), offsets), (vec!["bb".into(), "dd".into()], vec!["0".into(), "3".into(), "0".into()]));
}

#[test]
fn a_listing_without_end_is_given_up() {
    let part = [b"9\0".as_slice(), "name\0".repeat(800).as_bytes()].concat();
    let (result, _) = list_in_parts(&[part.as_slice(); 20]);
    assert_eq!(result, Err(StoreError::TooBig));

    let changing: Vec<Vec<u8>> = (0..40).map(|generation| format!("{generation}\0a\0").into_bytes()).collect();
    let (result, _) = list_in_parts(&changing.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_eq!(result, Err(StoreError::Again));
}

#[test]
fn nonsense_from_xenstored_is_an_error_for_good() {
    let rows: [(Vec<u8>, ProtocolError); 8] = [
        (message(Kind::READ, 9, b""), ProtocolError::UnknownRequest(9)),
        (message(Kind::ERROR, 0, b"EINVAL\0"), ProtocolError::UnknownRequest(0)),
        (message(Kind::WRITE, 1, b"OK\0"), ProtocolError::WrongKind { request: Kind::READ, reply: Kind::WRITE }),
        (message(Kind::READ, 1, &[0; MAX_PAYLOAD + 1]), ProtocolError::TooLong(4097)),
        (message(Kind::WATCH_EVENT, 0, b"path only\0"), ProtocolError::Malformed(Kind::WATCH_EVENT)),
        (message(Kind::WATCH_EVENT, 0, b"path\0no end"), ProtocolError::Malformed(Kind::WATCH_EVENT)),
        (message(Kind::WATCH_EVENT, 0, b"\xff\0x\0"), ProtocolError::Malformed(Kind::WATCH_EVENT)),
        (message(Kind::WATCH_EVENT, 0, b"a\0b\0c\0"), ProtocolError::Malformed(Kind::WATCH_EVENT)),
    ];
    for (bytes, error) in rows {
        let mut client = Client::new();
        client.read(None, "a").expect("taken");
        sent(&mut client, 100);
        assert_eq!(events(&mut client, &bytes), Err(error));
        assert_eq!(events(&mut client, &message(Kind::READ, 1, b"fine")), Err(error), "it stays broken");
    }
    for number in ["0", "", "x", "-1", "4294967296"] {
        let mut client = Client::new();
        client.start_transaction().expect("taken");
        sent(&mut client, 100);
        let reply = message(Kind::TRANSACTION_START, 1, number.as_bytes());
        assert_eq!(events(&mut client, &reply), Err(ProtocolError::Malformed(Kind::TRANSACTION_START)), "{number:?}");
    }
}

#[test]
fn a_reply_to_a_request_that_is_still_being_sent_is_nonsense() {
    let mut client = Client::new();
    client.read(None, "a").expect("taken");
    client.output(&mut [0; 10]);
    assert_eq!(events(&mut client, &message(Kind::READ, 1, b"")), Err(ProtocolError::UnknownRequest(1)));
}

/// A client with one request of each kind under way, and replies to all of them mixed with watch events.
fn busy() -> (Client, Vec<u8>) {
    let mut client = Client::new();
    client.read(None, "a").expect("taken");
    client.directory(None, "b").expect("taken");
    client.write(None, "c", b"1").expect("taken");
    client.start_transaction().expect("taken");
    client.rm(None, "d").expect("taken");
    sent(&mut client, 4096);
    let bytes = [
        message(Kind::WATCH_EVENT, 0, b"backend\0b\0"),
        message(Kind::READ, 1, b"value"),
        message(Kind::DIRECTORY, 2, b"x\0y\0"),
        message(Kind::WATCH_EVENT, 0, b"backend/vbd/1/51712/state\0b\0"),
        message(Kind::WRITE, 3, b"OK\0"),
        message(Kind::TRANSACTION_START, 4, b"12\0"),
        message(Kind::ERROR, 5, b"EACCES\0"),
    ];
    (client, bytes.concat())
}

proptest! {
    #[test]
    fn any_cutting_of_the_stream_gives_the_same_events(cuts in proptest::collection::vec(1usize..40, 1..100)) {
        let (mut client, bytes) = busy();
        let whole = events(&mut client, &bytes).expect("well-formed");
        prop_assert_eq!(whole.len(), 7);
        let (mut client, bytes) = busy();
        let mut pieces = Vec::new();
        let (mut rest, mut cut) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((*cut.next().expect("cycle")).min(rest.len()));
            pieces.extend(events(&mut client, piece).expect("well-formed"));
            rest = after;
        }
        prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (mut client, _) = busy();
        let _ = events(&mut client, &bytes);
    }

    /// Random messages with sound headers get further than random bytes.
    #[test]
    fn random_messages_never_panic(
        messages in proptest::collection::vec((0u32..22, 0u32..7, "[a-z0-9\0]{0,12}"), 0..30)
    ) {
        let (mut client, _) = busy();
        for (kind, id, payload) in messages {
            if events(&mut client, &message(Kind(kind), id, payload.as_bytes())).is_err() {
                break;
            }
            sent(&mut client, 64);
        }
    }
}
