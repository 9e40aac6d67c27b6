//! Xen's protocols without effects: ABI types of the shared rings and of xenstore, ring arithmetic, the xenstore client,
//! the backend's xenbus state machine, and the traits by which backends reach the platform.
//!
//! Nothing here touches memory it does not own, reads a clock or waits; everything is tested on the host.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod blkif;
pub mod ids;
pub mod platform;
pub mod ring;
pub mod xenbus;
pub mod xenstore;

pub use ids::{DomId, GrantRef, MachineAddr, Mfn, Nanos, Pfn, Port};
