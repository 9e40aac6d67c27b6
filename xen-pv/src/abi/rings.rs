//! The byte rings of the console (`struct xencons_interface`, io/console.h) and of xenstore
//! (`struct xenstore_domain_interface`, io/xs_wire.h). Indices run freely; a byte's place is its index modulo the size.

use core::sync::atomic::{AtomicU8, AtomicU32};

/// Bytes from the console to the guest that fit.
pub const CONSOLE_IN: usize = 1024;
/// Bytes from the guest to the console that fit.
pub const CONSOLE_OUT: usize = 2048;
/// `XENSTORE_RING_SIZE`, each way.
pub const XENSTORE_RING_SIZE: usize = 1024;

/// `struct xencons_interface`
#[repr(C)]
#[derive(Debug)]
pub struct ConsoleInterface {
    /// To the guest.
    pub input: [AtomicU8; CONSOLE_IN],
    /// From the guest.
    pub output: [AtomicU8; CONSOLE_OUT],
    /// Index of the next byte that the guest reads.
    pub in_cons: AtomicU32,
    /// Index where the daemon writes.
    pub in_prod: AtomicU32,
    /// Index of the next byte that the daemon reads.
    pub out_cons: AtomicU32,
    /// Index where the guest writes.
    pub out_prod: AtomicU32,
}

/// `struct xenstore_domain_interface`
#[repr(C)]
#[derive(Debug)]
pub struct StoreInterface {
    /// Requests.
    pub req: [AtomicU8; XENSTORE_RING_SIZE],
    /// Replies and watch events.
    pub rsp: [AtomicU8; XENSTORE_RING_SIZE],
    /// Index of the next request byte that xenstored reads.
    pub req_cons: AtomicU32,
    /// Index where the guest writes.
    pub req_prod: AtomicU32,
    /// Index of the next reply byte that the guest reads.
    pub rsp_cons: AtomicU32,
    /// Index where xenstored writes.
    pub rsp_prod: AtomicU32,
    /// `XENSTORE_SERVER_FEATURE_*`.
    pub server_features: AtomicU32,
    /// Not zero: being reconnected.
    pub connection: AtomicU32,
    /// `XENSTORE_ERROR_*`.
    pub error: AtomicU32,
}

const _: () = assert!(size_of::<ConsoleInterface>() == 3088);
const _: () = assert!(size_of::<StoreInterface>() == 2076);
