//! Names of a node's children, also when they do not fit in one reply.

use alloc::{string::String, vec::Vec};

use super::wire::{Kind, ProtocolError, StoreError};

/// A listing longer than this is given up: nobody legitimate makes so many nodes where we look.
const MAX_BYTES: usize = 64 * 1024;
/// A listing that changes under us is begun anew this often, then given up.
const MAX_RESTARTS: u8 = 16;

/// The names of a node's children.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Children(String);

impl Children {
    pub(super) fn parse(payload: Vec<u8>) -> Result<Self, ProtocolError> {
        String::from_utf8(payload).map(Self).map_err(|_| ProtocolError::Malformed(Kind::DIRECTORY))
    }

    /// Each name, in xenstored's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split('\0').filter(|name| !name.is_empty())
    }
}

/// A listing read in parts, after xenstored said that it is too big for one reply.
pub(super) struct Listing {
    path: String,
    generation: Vec<u8>,
    names: Vec<u8>,
    restarts: u8,
}

/// What follows from a part.
pub(super) enum Part {
    /// More is to be read, from this offset in bytes.
    More(usize),
    Complete(Children),
    /// Too long, or changing all the time.
    GivenUp(StoreError),
}

impl Listing {
    pub(super) fn new(path: String) -> Self {
        Self { path, generation: Vec::new(), names: Vec::new(), restarts: 0 }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Takes the reply to the part that was asked for: the node's generation, then names; an empty name ends the list.
    pub(super) fn add(&mut self, payload: &[u8]) -> Result<Part, ProtocolError> {
        const MALFORMED: ProtocolError = ProtocolError::Malformed(Kind::DIRECTORY_PART);
        let end = payload.iter().position(|byte| *byte == 0).ok_or(MALFORMED)?;
        let (generation, names) = (&payload[..end], &payload[end + 1..]);
        if !self.names.is_empty() && self.generation != generation {
            self.names.clear();
            self.restarts += 1;
            return Ok(if self.restarts > MAX_RESTARTS { Part::GivenUp(StoreError::Again) } else { Part::More(0) });
        }
        self.generation = generation.to_vec();
        let complete = names == b"\0" || names.ends_with(b"\0\0");
        if names.is_empty() || !names.ends_with(b"\0") {
            return Err(MALFORMED);
        }
        self.names.extend_from_slice(if complete { &names[..names.len() - 1] } else { names });
        if self.names.len() > MAX_BYTES {
            Ok(Part::GivenUp(StoreError::TooBig))
        } else if complete {
            Children::parse(core::mem::take(&mut self.names)).map(Part::Complete)
        } else {
            Ok(Part::More(self.names.len()))
        }
    }
}
