//! Cuts a stream of bytes, in whatever pieces it comes, into messages.

use alloc::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use super::wire::{HEADER_BYTES, Header, Kind, MAX_PAYLOAD, ProtocolError};

/// A whole message.
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) request: u32,
    pub(super) payload: Vec<u8>,
}

/// The message that is coming in: at most a header and [`MAX_PAYLOAD`] bytes are held.
pub(super) struct Frames {
    header: Header,
    header_bytes: usize,
    payload: Vec<u8>,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { header: Header::new_zeroed(), header_bytes: 0, payload: Vec::new() }
    }

    /// Takes bytes from the front of `bytes` up to the end of one message.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, ProtocolError> {
        if self.header_bytes < HEADER_BYTES {
            let missing = &mut self.header.as_mut_bytes()[self.header_bytes..];
            let part = take(bytes, missing.len());
            missing[..part.len()].copy_from_slice(part);
            self.header_bytes += part.len();
            if self.header_bytes < HEADER_BYTES {
                return Ok(None);
            }
            let len = self.header.len.get();
            if len as usize > MAX_PAYLOAD {
                return Err(ProtocolError::TooLong(len));
            }
            self.payload.reserve_exact(len as usize);
        }
        let len = self.header.len.get() as usize;
        self.payload.extend_from_slice(take(bytes, len - self.payload.len()));
        if self.payload.len() < len {
            return Ok(None);
        }
        self.header_bytes = 0;
        let payload = core::mem::take(&mut self.payload);
        Ok(Some(Frame { kind: Kind(self.header.kind.get()), request: self.header.request.get(), payload }))
    }
}

/// Splits at most `most` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (part, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    part
}
