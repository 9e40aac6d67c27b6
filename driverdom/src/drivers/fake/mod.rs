//! Fakes for the drivers' tests, stricter than hardware: memory that panics when a device strays, a device that checks every
//! rule of the specification that a driver can break, and a bus that minds the order of things.
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the tests' own")]

pub(crate) mod bus;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod queue;
