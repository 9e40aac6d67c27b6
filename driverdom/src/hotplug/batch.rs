//! Requests that are sent together and whose replies are awaited together.

use alloc::vec::Vec;

use xen_proto::xenstore::{Payload, StoreError};

/// No value that makes sense is longer, in bytes. What a guest writes may be, and many are kept at once.
const MAX_VALUE: usize = 512;

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

    /// Takes a reply; a value is kept up to [`MAX_VALUE`].
    pub(super) fn reply(&mut self, slot: usize, mut result: Result<Payload, StoreError>) {
        if let Ok(Payload::Value(value)) = &mut result {
            value.truncate(MAX_VALUE);
            value.shrink_to_fit();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_value_little_is_kept() {
        let mut batch = Batch::new(1);
        batch.reply(0, Ok(Payload::Value(alloc::vec![b'7'; 2048])));
        let Ok(Payload::Value(kept)) = batch.payload(0) else { panic!("a value") };
        assert_eq!((kept.len(), kept.capacity()), (MAX_VALUE, MAX_VALUE));
    }
}
