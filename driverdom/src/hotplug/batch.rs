//! Requests that are sent together and whose replies are awaited together.

use alloc::vec::Vec;

use xen_proto::xenstore::{Payload, StoreError};

/// The replies of a batch, by slot: the place in the batch.
#[derive(Debug, Default)]
pub(super) struct Batch {
    waiting: usize,
    replies: Vec<Result<Payload, StoreError>>,
}

impl Batch {
    pub(super) fn new(requests: usize) -> Self {
        Self { waiting: requests, replies: alloc::vec![Ok(Payload::Done); requests] }
    }

    pub(super) fn reply(&mut self, slot: usize, result: Result<Payload, StoreError>) {
        self.replies[slot] = result;
        self.waiting -= 1;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.waiting == 0
    }

    /// The value that a read brought.
    pub(super) fn value(&self, slot: usize) -> Result<&[u8], StoreError> {
        match &self.replies[slot] {
            Ok(Payload::Value(value)) => Ok(value),
            Ok(_) => Err(StoreError::Other),
            Err(error) => Err(*error),
        }
    }

    pub(super) fn payload(&self, slot: usize) -> Result<&Payload, StoreError> {
        self.replies[slot].as_ref().map_err(|error| *error)
    }

    /// The first error among the replies from `slot` on.
    pub(super) fn error_from(&self, slot: usize) -> Option<StoreError> {
        self.replies[slot..].iter().find_map(|reply| reply.as_ref().err().copied())
    }
}
