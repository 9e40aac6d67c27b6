//! driverdom's parts that have no effects of their own, tested on the host; `main.rs` and `glue` add the machine.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod drivers;
#[cfg(test)]
pub mod fake;
pub mod hotplug;
pub mod server;
