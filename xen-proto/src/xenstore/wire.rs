//! The wire format: a header of four little-endian words, then at most 4096 bytes of payload (io/xs_wire.h).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U32};

/// Most bytes after a header (`XENSTORE_PAYLOAD_MAX`).
pub const MAX_PAYLOAD: usize = 4096;

/// Bytes of a [`Header`].
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

/// What precedes each message, both ways (`struct xsd_sockmsg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`].
    pub kind: U32,
    /// Chosen by us, echoed in the reply; 0 in watch events.
    pub request: U32,
    /// The transaction that the request belongs to, 0 if none.
    pub transaction: U32,
    /// Bytes of the payload.
    pub len: U32,
}

/// What a message is (`enum xsd_sockmsg_type`); any number may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub u32);

impl Kind {
    /// `XS_DIRECTORY`: names of a node's children.
    pub const DIRECTORY: Self = Self(1);
    /// `XS_READ`: a node's value.
    pub const READ: Self = Self(2);
    /// `XS_WATCH`: be told of changes at and below a path.
    pub const WATCH: Self = Self(4);
    /// `XS_UNWATCH`: no longer.
    pub const UNWATCH: Self = Self(5);
    /// `XS_TRANSACTION_START`.
    pub const TRANSACTION_START: Self = Self(6);
    /// `XS_TRANSACTION_END`: commit or abort.
    pub const TRANSACTION_END: Self = Self(7);
    /// `XS_WRITE`: sets a value, making the node and its parents if need be.
    pub const WRITE: Self = Self(11);
    /// `XS_MKDIR`: makes an empty node.
    pub const MKDIR: Self = Self(12);
    /// `XS_RM`: removes a node and all below it.
    pub const RM: Self = Self(13);
    /// `XS_WATCH_EVENT`: the one message that answers no request.
    pub const WATCH_EVENT: Self = Self(15);
    /// `XS_ERROR`: the reply when a request failed.
    pub const ERROR: Self = Self(16);
    /// `XS_DIRECTORY_PART`: as `DIRECTORY`, from an offset on.
    pub const DIRECTORY_PART: Self = Self(20);
}

/// Why xenstored refused a request (`xsd_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// EAGAIN: the transaction met another's change and was undone; try all of it again.
    Again,
    /// ENOENT: no such node, or no such transaction.
    NoEntry,
    /// EACCES: the node is another's, or gone with its parents.
    Access,
    /// ENOSPC: the quota of nodes (or of a node's size) is used up.
    NoSpace,
    /// E2BIG: too long, or the quota of watches or transactions is used up.
    TooBig,
    /// EEXIST: this very watch is there already.
    Exists,
    /// EINVAL: xenstored does not like the path or the request.
    Invalid,
    /// Any other.
    Other,
}

impl StoreError {
    pub(super) fn parse(payload: &[u8]) -> Self {
        match payload.strip_suffix(b"\0").unwrap_or(payload) {
            b"EAGAIN" => Self::Again,
            b"ENOENT" => Self::NoEntry,
            b"EACCES" | b"EPERM" => Self::Access,
            b"ENOSPC" => Self::NoSpace,
            b"E2BIG" => Self::TooBig,
            b"EEXIST" => Self::Exists,
            b"EINVAL" => Self::Invalid,
            _ => Self::Other,
        }
    }

    /// Whether a quota of xenstored is what stands in the way.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(self, Self::NoSpace | Self::TooBig)
    }
}

/// xenstored broke its own protocol: the stream cannot be trusted any more, and there is no way to start it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A header announces more than [`MAX_PAYLOAD`] bytes.
    TooLong(u32),
    /// A reply to a request that is not under way.
    UnknownRequest(u32),
    /// A reply of another kind than its request.
    WrongKind {
        /// What was asked.
        request: Kind,
        /// What was answered.
        reply: Kind,
    },
    /// A watch event, list of names or transaction number that cannot be read.
    Malformed(Kind),
}
