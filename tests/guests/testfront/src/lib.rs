//! The pure half of testfront, a tiny PV guest that drives vbds as a script tells it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod link;
pub mod load;
pub mod malformed;
pub mod pattern;
pub mod platform;
pub mod report;
pub mod request;
mod run;
pub mod script;
mod steps;
mod store;
mod vbd;
mod words;
mod world;

pub use run::run;
pub use words::BadScript;

/// What a step does, or why it could not.
type Fallible<T> = Result<T, alloc::string::String>;
