//! What surrounds driverdom, for tests: an xenstored, a toolstack like libxl, and guests' ends of block devices. All of it is
//! deterministic, and stricter than the real ones: what they would forgive is a panic here.

mod connection;
mod frontend;
mod store;
mod toolstack;

pub use connection::Connection;
pub use frontend::Frontend;
pub use store::{Errno, Flavour, Limits, Store};
pub use toolstack::{Force, Outcome, Toolstack};
