//! The pure half of testfront, a tiny PV guest that drives vbds as a script tells it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod load;
pub mod malformed;
pub mod pattern;
pub mod report;
pub mod request;
pub mod script;
mod words;

pub use words::BadScript;
