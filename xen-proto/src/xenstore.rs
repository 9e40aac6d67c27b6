//! The xenstore client (io/xs_wire.h) without effects: requests are queued and come out as bytes, bytes of replies go in and
//! come out as events. Whoever owns the transport (the 1 KiB ring of a PV guest) moves the bytes.
//!
//! Many requests are under way at once, within the quotas that xenstored has for an unprivileged domain; what does not fit
//! waits in a bounded queue. Watch events are handed to the consumer as they are parsed and never stored (XSA-349).
//!
//! Paths may be relative: xenstored resolves them against the domain's own home, and they need less of the ring.

mod client;
mod frames;
mod listing;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{
    Client, End, Event, MAX_OUTSTANDING, MAX_QUEUED, MAX_TRANSACTIONS, Payload, QueueError, RequestId, Transaction,
};
pub use listing::Children;
pub use wire::{Header, Kind, MAX_PAYLOAD, ProtocolError, StoreError};
