//! The sleep protocol of the shipped [`BackRing`] under every order of memory accesses that the memory model allows.
//!
//! The commands, and the two mutants that this must catch, are in the documentation of `xen_proto::ring`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;
use xen_proto::platform::SharedRing;
use xen_proto::ring::{BackRing, Check, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};

/// Bytes of a slot: one word of payload.
const SLOT: usize = 4;
/// Slots: a power of two, so the ring has exactly these.
const COUNT: usize = 4;

/// A ring in loom's memory: four indices and a word for each slot.
#[derive(Clone)]
struct LoomRing(Arc<Vec<AtomicU32>>);

impl LoomRing {
    /// As a frontend leaves it: `published` requests are there, an event is wanted for the one after `req_event - 1`.
    fn new(published: u32, req_event: u32) -> Self {
        let words = (0..4 + COUNT).map(|_| AtomicU32::new(0)).collect();
        let ring = Self(Arc::new(words));
        ring.store(REQ_PROD, published);
        ring.store(REQ_EVENT, req_event);
        ring.store(RSP_EVENT, 1);
        ring
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        match offset {
            REQ_PROD | REQ_EVENT | RSP_PROD | RSP_EVENT => &self.0[offset / 4],
            slot => &self.0[4 + (slot - SLOTS) / SLOT],
        }
    }
}

impl SharedRing for LoomRing {
    fn len(&self) -> usize {
        SLOTS + COUNT * SLOT
    }
    fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }
    fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.word(offset).load(Ordering::Relaxed).to_le_bytes());
    }
    fn write(&self, offset: usize, from: &[u8]) {
        self.word(offset).store(u32::from_le_bytes(from.try_into().unwrap()), Ordering::Relaxed);
    }
}

/// What a frontend does to publish request `index`, from ring.h rather than from our own code.
/// Returns whether it sends an event.
fn publish(ring: &LoomRing, index: u32) -> bool {
    ring.write(SLOTS + index as usize % COUNT * SLOT, &payload(index).to_le_bytes());
    ring.store(REQ_PROD, index + 1);
    ring.fence();
    ring.load(REQ_EVENT) == index + 1
}

fn payload(index: u32) -> u32 {
    100 + index
}

/// Consumes until the ring lets it sleep; returns how many requests it saw, each with its payload.
fn consume(back: &mut BackRing<LoomRing>, mut seen: u32) -> u32 {
    loop {
        let mut slot = [0; SLOT];
        while back.take(&mut slot).unwrap() {
            assert_eq!(u32::from_le_bytes(slot), payload(seen), "a request is seen whole");
            seen += 1;
        }
        if back.final_check().unwrap() == Check::Sleep {
            return seen;
        }
    }
}

/// The frontend publishes `more` requests one by one while the backend consumes and goes to sleep, woken only by events.
fn no_wake_up_is_lost(more: u32) {
    loom::model(move || {
        // One request is queued and its event was consumed: only the protocol can say that more has come.
        let ring = LoomRing::new(0, 1);
        publish(&ring, 0);
        let event = Arc::new(AtomicBool::new(false));
        let frontend = {
            let (ring, event) = (ring.clone(), Arc::clone(&event));
            thread::spawn(move || {
                for index in 1..=more {
                    if publish(&ring, index) {
                        event.store(true, Ordering::Release);
                    }
                }
            })
        };
        let mut back = BackRing::attach(ring, SLOT);
        let mut seen = consume(&mut back, 0);
        frontend.join().unwrap();
        // Asleep: each event that was sent wakes it once more, without one it sleeps for ever.
        while event.swap(false, Ordering::AcqRel) {
            seen = consume(&mut back, seen);
        }
        assert_eq!(seen, 1 + more, "a request is left and nobody will wake the backend");
    });
}

#[test]
fn one_request_against_one_sleep() {
    no_wake_up_is_lost(1);
}

#[test]
fn two_requests_against_one_sleep() {
    no_wake_up_is_lost(2);
}
