//! The block backend without effects: request parsing, the in-flight slab, volumes, claims and statistics.
//!
//! [`Backend`] owns every connected vbd and is driven by [`Backend::turn`]. What it needs of the outside it takes as
//! arguments: grants, event channels and our own pages ([`xen_proto::platform`]), and the disks ([`disk::Disk`]).
//! Which volume a vbd gets is found by [`volume::Target`], with partitions from [`gpt`], and guarded by [`claim::Claims`].
//!
//! **Everything a guest writes is hostile**: copied once, checked, answered. A guest can make this crate neither panic, nor stop
//! serving others, nor allocate: all memory of the I/O path is reserved when a disk is added or a vbd connected.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

extern crate alloc;

pub mod backend;
pub mod claim;
pub mod disk;
mod flight;
// Here the numbers are a disk's or a guest's own; elsewhere they were checked, and the guests' profile traps overflow.
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod gpt;
pub mod heap;
mod intake;
mod lane;
mod owed;
mod pool;
pub mod ram;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod request;
pub mod stats;
mod vbd;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod volume;

pub use backend::Backend;
