//! Ring arithmetic against a naive model: two queues of numbers that never wrap.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use proptest::prelude::*;
use xen_proto::platform::SharedRing;
use xen_proto::ring::{
    BackRing, Broken, Check, FrontRing, Layout, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS, Wake,
};

const SLOT: usize = 8;

/// Plain memory that both sides see.
#[derive(Clone, Debug)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    fn with_slots(slots: usize) -> Self {
        Self(Rc::new(RefCell::new(vec![0xa5; SLOTS + slots * SLOT])))
    }
}

impl SharedRing for Memory {
    fn len(&self) -> usize {
        self.0.borrow().len()
    }
    fn load(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        u32::from_le_bytes(word)
    }
    fn store(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }
    fn fence(&self) {}
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }
    fn write(&self, offset: usize, from: &[u8]) {
        self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
    }
}

#[test]
fn as_many_slots_as_the_header_says() {
    // (pages, slot bytes, slots): blkif 64-bit and 32-bit, netif tx and rx; 32 a page for blkif.
    let cases = [
        (1, 112, 32),
        (1, 108, 32),
        (2, 112, 64),
        (4, 112, 128),
        (8, 112, 256),
        (16, 112, 512),
        (16, 108, 512),
        (1, 12, 256),
        (1, 8, 256),
    ];
    for (pages, slot, slots) in cases {
        assert_eq!(Layout::new(pages * 4096, slot).slots(), slots, "{pages} pages, {slot} bytes");
    }
    assert_eq!(Layout::new(SLOTS + 5, 5).slots(), 1);
}

#[test]
fn indices_that_cannot_be_are_refused() {
    // (req_prod relative to what was consumed, whether the backend believes it); 4 slots, 1 request consumed and unanswered.
    let cases = [(0, true), (3, true), (4, false), (5, false), (1 << 31, false), (u32::MAX, false)];
    for (ahead, believed) in cases {
        let memory = Memory::with_slots(4);
        let mut front = FrontRing::create(memory.clone(), SLOT);
        let mut back = BackRing::attach(memory.clone(), SLOT);
        front.request(&[1; SLOT]);
        let _ = front.publish();
        assert_eq!(back.take(&mut [0; SLOT]), Ok(true));
        memory.store(REQ_PROD, 1_u32.wrapping_add(ahead));
        let expected = if believed { Ok(ahead > 0) } else { Err(Broken) };
        assert_eq!(back.take(&mut [0; SLOT]), expected, "{ahead} ahead");
        if !believed {
            assert_eq!(back.final_check(), Err(Broken), "{ahead} ahead");
        }
    }
}

#[test]
fn a_response_leaves_nothing_of_what_was_in_its_slot() {
    let memory = Memory::with_slots(1);
    let mut front = FrontRing::create(memory.clone(), SLOT);
    let mut back = BackRing::attach(memory.clone(), SLOT);
    front.request(&[0xff; SLOT]);
    let _ = front.publish();
    assert_eq!(back.take(&mut [0; SLOT]), Ok(true));
    back.respond(&[7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(memory.0.borrow()[SLOTS..], [7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
#[should_panic(expected = "a response without a request")]
fn answering_twice_is_a_bug() {
    let mut back = BackRing::attach(Memory::with_slots(2), SLOT);
    back.respond(&[0; SLOT]);
}

/// One call on either side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Request,
    PublishRequests,
    TakeRequest,
    CheckRequests,
    Respond,
    PublishResponses,
    TakeResponse,
    CheckResponses,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Step::*;
    let step = prop::sample::select(vec![
        Request,
        PublishRequests,
        TakeRequest,
        CheckRequests,
        Respond,
        PublishResponses,
        TakeResponse,
        CheckResponses,
    ]);
    prop::collection::vec(step, 0..400)
}

/// The naive ring: queues, and events as counts of entries since the start.
#[derive(Default)]
struct Model {
    /// Put into slots, not published.
    requests_hidden: VecDeque<u64>,
    requests: VecDeque<u64>,
    taken: VecDeque<u64>,
    responses_hidden: VecDeque<u64>,
    responses: VecDeque<u64>,
    next: u64,
    requests_published: u64,
    requests_taken: u64,
    responses_published: u64,
    responses_taken: u64,
    /// The count of published entries that wakes the other side.
    request_event: u64,
    response_event: u64,
}

impl Model {
    fn new() -> Self {
        Self { request_event: 1, response_event: 1, ..Self::default() }
    }

    fn outstanding(&self) -> usize {
        [&self.requests_hidden, &self.requests, &self.taken, &self.responses_hidden, &self.responses]
            .iter()
            .map(|queue| queue.len())
            .sum()
    }
}

/// Publishing moves all hidden entries over; the other side is woken if its event is among them.
fn publish(hidden: &mut VecDeque<u64>, shown: &mut VecDeque<u64>, published: &mut u64, event: u64) -> Wake {
    let before = *published;
    *published += hidden.len() as u64;
    shown.append(hidden);
    if (before + 1..=*published).contains(&event) { Wake::Notify } else { Wake::Quiet }
}

fn check(waiting: usize, event: &mut u64, taken: u64) -> Check {
    if waiting > 0 {
        return Check::More;
    }
    *event = taken + 1;
    Check::Sleep
}

fn run(slots: usize, start: u32, steps: &[Step]) {
    let memory = Memory::with_slots(slots);
    let mut front = FrontRing::create_at(memory.clone(), SLOT, start);
    let mut back = BackRing::attach(memory.clone(), SLOT);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Request if model.outstanding() < slots => {
                front.request(&model.next.to_le_bytes());
                model.requests_hidden.push_back(model.next);
                model.next += 1;
            }
            Step::Request => assert_eq!(front.free(), 0),
            Step::PublishRequests => {
                let m = &mut model;
                let wake = publish(&mut m.requests_hidden, &mut m.requests, &mut m.requests_published, m.request_event);
                assert_eq!(front.publish(), wake);
            }
            Step::TakeRequest => {
                let mut slot = [0; SLOT];
                let expected = model.requests.pop_front();
                assert_eq!(back.take(&mut slot), Ok(expected.is_some()));
                if let Some(expected) = expected {
                    assert_eq!(u64::from_le_bytes(slot), expected);
                    model.requests_taken += 1;
                    model.taken.push_back(expected);
                }
            }
            Step::CheckRequests => {
                let expected = check(model.requests.len(), &mut model.request_event, model.requests_taken);
                assert_eq!(back.final_check(), Ok(expected));
            }
            Step::Respond => {
                if let Some(request) = model.taken.pop_back() {
                    back.respond(&request.to_le_bytes());
                    model.responses_hidden.push_back(request);
                }
                assert_eq!(back.unanswered() as usize, model.taken.len());
            }
            Step::PublishResponses => {
                let m = &mut model;
                let wake =
                    publish(&mut m.responses_hidden, &mut m.responses, &mut m.responses_published, m.response_event);
                assert_eq!(back.publish(), wake);
            }
            Step::TakeResponse => {
                let mut slot = [0; SLOT];
                let expected = model.responses.pop_front();
                assert_eq!(front.take(&mut slot), Ok(expected.is_some()));
                if let Some(expected) = expected {
                    assert_eq!(u64::from_le_bytes(slot), expected);
                    model.responses_taken += 1;
                }
            }
            Step::CheckResponses => {
                let expected = check(model.responses.len(), &mut model.response_event, model.responses_taken);
                assert_eq!(front.final_check(), Ok(expected));
            }
        }
        let words = [
            (REQ_PROD, model.requests_published),
            (RSP_PROD, model.responses_published),
            (REQ_EVENT, model.request_event),
            (RSP_EVENT, model.response_event),
        ];
        for (word, value) in words {
            #[expect(clippy::cast_possible_truncation, reason = "indices wrap at 2^32")]
            let value = start.wrapping_add(value as u32);
            assert_eq!(memory.load(word), value, "word {word} after {step:?}");
        }
    }
}

proptest! {
    #[test]
    fn rings_are_queues(order in 0..5_u32, start in start(), steps in steps()) {
        run(1 << order, start, &steps);
    }
}

/// Indices that are about to wrap, mostly.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>(), (0..40_u32).prop_map(|before| before.wrapping_neg())]
}
