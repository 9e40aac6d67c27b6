//! Configuration space as tables.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests' own")]

use super::*;
use crate::drivers::fake::bus::{ADDRESS, FakeBus};

#[test]
fn base_address_registers_are_understood_and_left_as_they_were() {
    const NONE: Option<(u64, u64)> = None;
    // number, (value, changeable bits) of it and the next
    let cases = [
        (0, (0xfebd_0000, 0xffff_f000), (0, 0), Some((0xfebd_0000, 0x1000))),
        (0, (0xfebd_0008, 0xffff_f000), (0, 0), Some((0xfebd_0000, 0x1000))),
        (4, (0xfe00_000c, 0xffff_c000), (0, u32::MAX), Some((0xfe00_0000, 0x4000))),
        (4, (0x0000_000c, 0xffff_c000), (0x38, u32::MAX), Some((0x38_0000_0000, 0x4000))),
        (2, (0x0000_000c, 0x0000_0000), (0x40, 0xffff_fffe), Some((0x40_0000_0000, 0x2_0000_0000))),
        (0, (0x0000_c001, 0xffff_ffc0), (0, 0), NONE), // ports
        (0, (0x0000_0000, 0x0000_0000), (0, 0), NONE), // not there
        (0, (0x0000_0000, 0xffff_f000), (0, 0), NONE), // no address given
        (0, (0xfebd_0002, 0xffff_f000), (0, 0), NONE), // below 1 MiB: history
        (0, (0xfebd_0006, 0xffff_f000), (0, 0), NONE), // reserved
        (0, (0xfebd_0000, 0xfff0_f000), (0, 0), NONE), // no power of two
        (5, (0x0000_000c, 0xffff_c000), (0, 0), NONE), // no upper half
        (6, (0, 0), (0, 0), NONE),
        (255, (0, 0), (0, 0), NONE),
    ];
    for (number, low, high, expected) in cases {
        let mut bus = FakeBus::new(1, 2);
        for (n, (value, mask)) in [(usize::from(number), low), (usize::from(number) + 1, high)] {
            if n < 6 {
                bus.put_bar(n, value, mask);
            }
        }
        let before = bus.config;
        let mut function = Function::new(&mut bus, ADDRESS);
        let expected = expected.map(|(at, len)| Bar { at: MachineAddr(at), len }).ok_or(ConfigError::NoMemory(number));
        assert_eq!(function.bar(number), expected, "{number} {low:x?} {high:x?}");
        assert_eq!(function.bar(number), expected, "asked again");
        let offset = 0x10 + 4 * u16::from(number);
        if number < 6 {
            assert_eq!(function.read32(offset), Ok(low.0), "reads as before");
        }
        assert_eq!(bus.config, before);
    }
}

#[test]
fn the_list_of_capabilities_ends() {
    // (status, pointer, [(offset, id, next)]) -> offsets, or that it does not end
    let long: Vec<(usize, u8, u8)> = (0x40..0x100).step_by(4).map(|n| (n, 1, (n + 4) as u8)).collect();
    let all: Vec<u8> = (0x40..=0xfc).step_by(4).collect();
    type Links<'a> = &'a [(usize, u8, u8)];
    let cases: [(u8, u8, Links<'_>, Option<&[u8]>); 9] = [
        (0x10, 0x40, &[(0x40, 9, 0)], Some(&[0x40])),
        (0x10, 0x84, &[(0x84, 9, 0x40), (0x40, 0x11, 0)], Some(&[0x84, 0x40])),
        (0x10, 0x43, &[(0x40, 9, 0x47), (0x44, 9, 0)], Some(&[0x40, 0x44])), // low bits are reserved
        (0x10, 0x00, &[], Some(&[])),
        (0x00, 0x40, &[(0x40, 9, 0)], Some(&[])), // no list, says the status
        (0x10, 0x40, &long, Some(&all)),
        (0x10, 0x40, &[(0x40, 9, 0x40)], None),
        (0x10, 0x40, &[(0x40, 9, 0x44), (0x44, 9, 0x40)], None),
        (0x10, 0x40, &[(0x40, 9, 0x3c)], None),
    ];
    for (status, pointer, links, expected) in cases {
        let mut bus = FakeBus::new(1, 2);
        bus.put(6, &[status]);
        bus.put(0x34, &[pointer]);
        for (offset, id, next) in links {
            bus.put(*offset, &[*id, *next]);
        }
        let list = Function::new(&mut bus, ADDRESS).capabilities();
        let offsets = list.map(|list| list.iter().map(|c| c.offset).collect::<Vec<_>>());
        assert_eq!(offsets.as_deref().ok(), expected, "{pointer:#x} {links:x?}");
        assert!(bus.calls <= 2 + 48, "bounded: {} calls", bus.calls);
    }
}

#[test]
fn the_command_register_is_changed_bit_by_bit() {
    let mut bus = FakeBus::new(1, 2);
    let mut function = Function::new(&mut bus, ADDRESS);
    let mut trace = Vec::new();
    function.enable_memory().unwrap();
    trace.push(function.read16(4).unwrap());
    function.enable_master().unwrap();
    trace.push(function.read16(4).unwrap());
    function.disable_master().unwrap();
    trace.push(function.read16(4).unwrap());
    assert_eq!(trace, [2, 6, 2]);
}

#[test]
fn a_back_that_refuses_or_has_gone_is_an_error() {
    let mut bus = FakeBus::new(0x1af4, 0x1042);
    let identity = Identity { vendor: 0x1af4, device: 0x1042 };
    assert_eq!(Function::new(&mut bus, ADDRESS).identity(), Ok(identity));
    let elsewhere = Address { slot: 9, ..ADDRESS };
    assert_eq!(Function::new(&mut bus, elsewhere).identity(), Err(BusError::Refused(-1)));
    bus.gone = true;
    assert_eq!(Function::new(&mut bus, ADDRESS).capabilities(), Err(ConfigError::Bus(BusError::Silent)));
}
