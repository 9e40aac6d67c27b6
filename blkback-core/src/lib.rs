//! The block backend without effects: request parsing, the in-flight slab, volumes, claims and statistics.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod disk;
