//! The queue against a device that checks every descriptor.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests' own")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::drivers::fake::memory::{Memory, Page};
use crate::drivers::fake::queue::DeviceQueue;

const BOTH: [Suppression; 2] = [Suppression::Flags, Suppression::EventIndex];

struct Rig {
    memory: Memory,
    queue: Virtqueue<Page>,
    device: DeviceQueue,
    data: Page,
}

impl Rig {
    fn new(size: u16, slots: u16, suppression: Suppression) -> Self {
        let memory = Memory::default();
        let data = memory.page();
        let queue = Virtqueue::new(size, slots, suppression, || Some(memory.page())).unwrap();
        let device = DeviceQueue::new(memory.clone(), queue.areas(), size, suppression);
        device.want_notice();
        Self { memory, queue, device, data }
    }

    /// One byte to read, `writable` bytes to write.
    fn push(&mut self, slot: u16, writable: u32) {
        let addr = self.data.addr();
        self.queue.push(
            slot,
            [
                Buffer { addr, len: 1, direction: Direction::ToDevice },
                Buffer { addr, len: writable, direction: Direction::FromDevice },
            ],
        );
    }
}

#[test]
fn a_chain_arrives_as_it_was_pushed() {
    // slots share pages in pairs; the longest chain fills its table
    for (slot, to_device, from_device) in [(0, 1, 0), (1, 1, 1), (2, 0, 1), (127, 2, 126), (255, 128, 0), (254, 1, 127)]
    {
        let mut rig = Rig::new(256, 256, Suppression::EventIndex);
        let base = rig.data.addr().0;
        let buffer = |n: u64, direction| Buffer { addr: MachineAddr(base + 16 * n), len: 16 + n as u32, direction };
        let chain: Vec<Buffer> = (0..to_device)
            .map(|n| buffer(n, Direction::ToDevice))
            .chain((to_device..to_device + from_device).map(|n| buffer(n, Direction::FromDevice)))
            .collect();
        rig.queue.push(slot, chain.clone());
        assert_eq!(rig.device.take(), None, "not before it is published");
        assert_eq!(rig.queue.publish(), Notice::Needed);
        let seen = rig.device.take().unwrap();
        let expected = |direction| -> Vec<(u64, u32)> {
            chain.iter().filter(|b| b.direction == direction).map(|b| (b.addr.0, b.len)).collect()
        };
        assert_eq!(seen.head, slot);
        assert_eq!(seen.readable, expected(Direction::ToDevice), "slot {slot}");
        assert_eq!(seen.writable, expected(Direction::FromDevice), "slot {slot}");
        assert_eq!(rig.device.take(), None);
    }
}

#[test]
fn neighbouring_tables_do_not_touch() {
    let mut rig = Rig::new(128, 4, Suppression::Flags);
    let addr = rig.data.addr();
    for slot in 0..4 {
        let len = 16 + u32::from(slot);
        rig.queue.push(slot, (0..MAX_CHAIN).map(|_| Buffer { addr, len, direction: Direction::ToDevice }));
    }
    let _ = rig.queue.publish();
    for slot in 0..4 {
        let seen = rig.device.take().unwrap();
        assert_eq!((seen.head, seen.readable), (slot, vec![(addr.0, 16 + u32::from(slot)); MAX_CHAIN]));
    }
}

#[test]
fn slots_come_back_in_the_order_of_the_device() {
    for suppression in BOTH {
        let mut rig = Rig::new(8, 8, suppression);
        for slot in [3, 0, 7, 5] {
            rig.push(slot, 4);
        }
        let _ = rig.queue.publish();
        let heads: Vec<u16> = std::iter::from_fn(|| rig.device.take()).map(|chain| chain.head).collect();
        assert_eq!(heads, [3, 0, 7, 5]);
        assert_eq!(rig.queue.pop(), Ok(None));
        for head in [7, 3, 5, 0] {
            rig.device.complete(head, 4);
        }
        let interrupts = if suppression == Suppression::EventIndex { 1 } else { 4 };
        assert_eq!(rig.device.interrupts, interrupts, "{suppression:?}");
        let popped: Vec<u16> = std::iter::from_fn(|| rig.queue.pop().unwrap()).collect();
        assert_eq!(popped, [7, 3, 5, 0]);
    }
}

#[test]
fn one_notice_for_many_and_none_for_a_device_that_looks() {
    for suppression in BOTH {
        let mut rig = Rig::new(8, 8, suppression);
        assert_eq!(rig.queue.publish(), Notice::Unneeded, "nothing pushed");
        for slot in 0..3 {
            rig.push(slot, 1);
        }
        assert_eq!(rig.queue.publish(), Notice::Needed, "the device looked away");
        assert_eq!(rig.queue.publish(), Notice::Unneeded, "nothing new");
        rig.device.refuse_notice();
        rig.push(3, 1);
        assert_eq!(rig.queue.publish(), Notice::Unneeded, "the device looks, {suppression:?}");
        while rig.device.take().is_some() {}
        rig.device.want_notice();
        rig.push(4, 1);
        assert_eq!(rig.queue.publish(), Notice::Needed, "the device looked away again");
    }
}

#[test]
fn indices_wrap_without_a_lost_notice_or_interrupt() {
    for suppression in BOTH {
        let mut rig = Rig::new(4, 4, suppression);
        let mut interrupts = 0;
        for round in 0..28_000_u32 {
            // 70,000 entries
            let batch = 1 + (round % 4) as u16;
            for slot in 0..batch {
                rig.push(slot, 1);
            }
            assert_eq!(rig.queue.publish(), Notice::Needed, "round {round}: the device sleeps");
            let heads: Vec<u16> = std::iter::from_fn(|| rig.device.take()).map(|chain| chain.head).collect();
            rig.device.want_notice();
            assert_eq!(rig.queue.pop(), Ok(None));
            for head in heads.iter().rev() {
                rig.device.complete(*head, 1);
            }
            interrupts += if suppression == Suppression::EventIndex { 1 } else { usize::from(batch) };
            assert_eq!(rig.device.interrupts, interrupts, "round {round}: the driver slept");
            let popped = std::iter::from_fn(|| rig.queue.pop().unwrap()).count();
            assert_eq!(popped, usize::from(batch));
        }
    }
}

#[test]
fn no_interrupts_while_completions_are_being_taken() {
    for suppression in BOTH {
        let mut rig = Rig::new(8, 8, suppression);
        for slot in 0..4 {
            rig.push(slot, 1);
        }
        let _ = rig.queue.publish();
        while rig.device.take().is_some() {}
        rig.device.complete(0, 1);
        assert_eq!(rig.device.interrupts, 0, "not before the driver found nothing");
        assert_eq!(rig.queue.pop(), Ok(Some(0)));
        rig.device.complete(1, 1);
        assert_eq!(rig.queue.pop(), Ok(Some(1)));
        assert_eq!(rig.device.interrupts, 0, "{suppression:?}");
        assert_eq!(rig.queue.pop(), Ok(None));
        rig.device.complete(2, 1);
        assert_eq!(rig.device.interrupts, 1, "the driver found nothing, {suppression:?}");
    }
}

#[test]
fn a_completion_between_the_look_and_the_arming_is_found() {
    for suppression in BOTH {
        let Rig { memory, mut queue, device, data } = Rig::new(4, 4, suppression);
        queue.push(2, [Buffer { addr: data.addr(), len: 1, direction: Direction::FromDevice }]);
        let _ = queue.publish();
        let device = Rc::new(RefCell::new(device));
        assert_eq!(device.borrow_mut().take().map(|chain| chain.head), Some(2));
        let racing = Rc::clone(&device);
        let mut raced = false;
        // The first store after the driver's look is the one that asks for an interrupt.
        memory.before_store(move |_| {
            if !std::mem::replace(&mut raced, true) {
                racing.borrow_mut().complete(2, 1);
            }
        });
        let popped = queue.pop();
        assert_eq!(device.borrow().interrupts, 0, "the device was not asked yet, {suppression:?}");
        assert_eq!(popped, Ok(Some(2)), "so the driver must find it, {suppression:?}");
    }
}

#[test]
fn a_lying_device_is_found_out() {
    type Lie = fn(&mut DeviceQueue);
    // slot 1 with room for 4 bytes is under way, slot 2 is pushed but not published
    let lies: [(&str, Lie, Broken); 9] = [
        ("completes what does not exist", |d| (d.report(4, 0), d.show(1)).1, Broken::Id(4)),
        ("completes what no slot can be", |d| (d.report(0x1_0001, 0), d.show(1)).1, Broken::Id(0x1_0001)),
        ("completes u32::MAX", |d| (d.report(u32::MAX, 0), d.show(1)).1, Broken::Id(u32::MAX)),
        ("completes what was never pushed", |d| (d.report(0, 0), d.show(1)).1, Broken::Id(0)),
        ("writes more than there is room for", |d| (d.report(1, 5), d.show(1)).1, Broken::Length(5)),
        ("writes u32::MAX", |d| (d.report(1, u32::MAX), d.show(1)).1, Broken::Length(u32::MAX)),
        ("completes one more than it was shown", |d| (d.report(1, 4), d.show(2)).1, Broken::Index(2, 0)),
        ("goes backwards", |d| d.show(u16::MAX), Broken::Index(u16::MAX, 0)),
        ("jumps by half the range", |d| d.show(0x8000), Broken::Index(0x8000, 0)),
    ];
    for suppression in BOTH {
        for (what, lie, expected) in &lies {
            let mut rig = Rig::new(8, 4, suppression);
            rig.push(1, 4);
            let _ = rig.queue.publish();
            rig.push(2, 4);
            lie(&mut rig.device);
            assert_eq!(rig.queue.pop(), Err(*expected), "a device that {what}");
            let mut back: Vec<u16> = std::iter::from_fn(|| rig.queue.reclaim()).collect();
            back.sort_unstable();
            assert_eq!(back, [1, 2], "a device that {what}: all slots come back once");
        }
    }
}

#[test]
fn a_completion_twice_is_found_out() {
    let mut rig = Rig::new(8, 4, Suppression::EventIndex);
    rig.push(1, 4);
    rig.push(3, 4);
    let _ = rig.queue.publish();
    rig.device.complete(1, 0);
    rig.device.complete(1, 0);
    assert_eq!(rig.queue.pop(), Ok(Some(1)));
    assert_eq!(rig.queue.pop(), Err(Broken::Id(1)));
}

#[test]
fn events_are_passed_also_where_indices_wrap() {
    // (event, old, new) -> whether entry `event` is among old..new
    for (event, old, new, expected) in [
        (0, 0, 1, true),
        (1, 0, 1, false),
        (0, 0, 4, true),
        (3, 0, 4, true),
        (4, 0, 4, false),
        (0xffff, 0, 4, false),
        (0xffff, 0xffff, 0, true),
        (0, 0xffff, 0, false),
        (0, 0xfffe, 2, true),
        (0xfffe, 0xfffe, 2, true),
        (0xfffd, 0xfffe, 2, false),
        (2, 0xfffe, 2, false),
        (5, 5, 5, false),
    ] {
        assert_eq!(passes(event, old, new), expected, "{event:#x} in {old:#x}..{new:#x}");
    }
}

#[test]
fn memory_is_what_the_doc_says_and_short_memory_is_no_queue() {
    for (slots, pages) in [(1, 3), (2, 3), (3, 4), (128, 66), (256, 130)] {
        let memory = Memory::default();
        let queue = Virtqueue::new(256, slots, Suppression::Flags, || memory.try_page());
        assert_eq!(memory.pages(), pages, "{slots} slots");
        drop(queue);
        assert_eq!(memory.pages(), 0);
        memory.limit(pages - 1);
        assert!(Virtqueue::new(256, slots, Suppression::Flags, || memory.try_page()).is_none());
        assert_eq!(memory.pages(), 0, "given back");
    }
}

#[test]
fn a_caller_that_breaks_the_rules_is_stopped() {
    let data = Buffer { addr: MachineAddr(0x1_0000_3000), len: 1, direction: Direction::ToDevice };
    let written = Buffer { direction: Direction::FromDevice, ..data };
    type Mistake = fn(&mut Virtqueue<Page>, Buffer, Buffer);
    let mistakes: [(&str, Mistake); 5] = [
        ("slot in use", |queue, data, _| (queue.push(0, [data]), queue.push(0, [data])).1),
        ("no slot", |queue, data, _| queue.push(4, [data])),
        ("empty chain", |queue, _, _| queue.push(0, [])),
        ("chain too long", |queue, data, _| queue.push(0, [data; MAX_CHAIN + 1])),
        ("wrong order", |queue, data, written| queue.push(0, [written, data])),
    ];
    for (what, mistake) in mistakes {
        let outcome =
            std::panic::catch_unwind(|| mistake(&mut Rig::new(8, 4, Suppression::Flags).queue, data, written));
        assert!(outcome.is_err(), "{what}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    Publish,
    Take,
    Complete(usize),
    Pop,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => Just(Op::Push),
        2 => Just(Op::Publish),
        3 => Just(Op::Take),
        3 => any::<usize>().prop_map(Op::Complete),
        3 => Just(Op::Pop),
    ];
    proptest::collection::vec(op, 0..400)
}

proptest! {
    /// Both sides sleep and wake by the protocol only; every slot comes back exactly once, and nothing is left undone.
    #[test]
    fn nothing_is_lost_whatever_the_order(ops in ops(), by_index in any::<bool>(), size in 1_u32..5) {
        let suppression = BOTH[usize::from(by_index)];
        let size = 1_u16 << size;
        let mut rig = Rig::new(size, size, suppression);
        let mut free: BTreeSet<u16> = (0..size).collect();
        let mut at_device: BTreeMap<u16, u32> = BTreeMap::new();
        let mut device_awake = false;
        let mut driver_asleep = false;
        let drain: Vec<Op> = [Op::Publish, Op::Take, Op::Complete(0), Op::Pop].repeat(4 * usize::from(size));
        for op in ops.into_iter().chain(drain) {
            match op {
                Op::Push => {
                    if let Some(slot) = free.pop_first() {
                        rig.push(slot, 1 + u32::from(slot));
                    }
                }
                Op::Publish => device_awake |= rig.queue.publish() == Notice::Needed,
                Op::Take if device_awake => match rig.device.take() {
                    Some(chain) => {
                        prop_assert_eq!(chain.writable_bytes(), 1 + u32::from(chain.head));
                        at_device.insert(chain.head, chain.writable_bytes());
                        rig.device.refuse_notice();
                    }
                    None => {
                        rig.device.want_notice();
                        device_awake = false;
                    }
                },
                Op::Take => prop_assert_eq!(rig.device.take(), None, "published, but the device sleeps"),
                Op::Complete(n) => {
                    let head = at_device.keys().copied().nth(n % at_device.len().max(1));
                    if let Some(head) = head {
                        let before = rig.device.interrupts;
                        rig.device.complete(head, at_device[&head]);
                        at_device.remove(&head);
                        let interrupted = rig.device.interrupts > before;
                        prop_assert!(interrupted || !driver_asleep, "the driver sleeps");
                        prop_assert!(!interrupted || driver_asleep || !by_index, "the driver was told already");
                        driver_asleep = false;
                    }
                }
                Op::Pop => match rig.queue.pop().unwrap() {
                    Some(slot) => {
                        prop_assert!(free.insert(slot), "slot {} came twice", slot);
                        driver_asleep = false;
                    }
                    None => driver_asleep = true,
                },
            }
        }
        prop_assert_eq!(free.len(), usize::from(size), "all came back");
    }
}
