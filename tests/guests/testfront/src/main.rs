//! testfront's binary: the machine given to what the library does with it.
#![no_std]
#![no_main]

extern crate alloc;

mod guest;

use xen_pv::{Machine, Shutdown};

xen_pv::entry!(main);

fn main(machine: Machine) -> Shutdown {
    let command_line = machine.command_line;
    testfront::run(guest::Guest::new(machine), command_line)
}
