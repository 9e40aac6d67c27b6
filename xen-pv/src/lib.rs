//! The platform of a Xen PV guest on one virtual CPU: entry, memory, grants, event channels, time, console, xenstore's
//! ring and the PCI channel. The only crate of the project that is unsafe by trade; what it offers is safe to call.
//!
//! A guest says `xen_pv::entry!(main)` and gets a [`Machine`]: one owned object for each thing there is one of. Interrupts
//! do not exist: events are taken by polling bitmaps, and the only moment when Xen may interrupt is inside the assembly of
//! [`sleep`](event::EventChannels::sleep). So there are no locks but those of the few statics that a panic must reach.
//!
//! Without the feature `guest` the crate is an ordinary library, so that its ABI and arithmetic can be tested on the host.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod abi;
pub mod backtrace;
pub mod clock;
pub mod command_line;
pub mod console;
#[cfg(feature = "guest")]
mod entry;
pub mod event;
pub mod grant;
mod heap;
mod hypercall;
pub mod log_sink;
pub mod machine;
pub mod memory;
pub mod mmio;
#[cfg(all(feature = "guest", not(test)))]
mod panic;
pub mod pci;
mod ring;
pub mod shutdown;
mod sleep;
pub mod store;
#[cfg(feature = "guest")]
mod symbols;
mod trap;

pub use clock::Clock;
pub use event::EventChannels;
pub use grant::GrantTable;
pub use hypercall::Errno;
pub use machine::Machine;
pub use memory::{DmaPage, Memory};
pub use mmio::Mmio;
pub use shutdown::Shutdown;
pub use store::StoreRing;
