//! Many grant operations by one hypercall, each with its own status.

use crate::abi::grant::{Copy, GNTST_EAGAIN, MapGrantRef, UnmapGrantRef};
use crate::hypercall::{GrantArgument, grant_table_op, yield_now};

/// Operations by one hypercall at most: Xen is not to be held up by huge batches.
pub(super) const MAX_BATCH: usize = 64;
/// How often an operation on a page that is being paged in is tried again.
const RETRIES: usize = 8;

/// An operation that ends with a status.
pub(super) trait Operation: GrantArgument {
    /// `GNTST_*`.
    fn status(&self) -> i16;
}

impl Operation for MapGrantRef {
    fn status(&self) -> i16 {
        self.status
    }
}

impl Operation for UnmapGrantRef {
    fn status(&self) -> i16 {
        self.status
    }
}

impl Operation for Copy {
    fn status(&self) -> i16 {
        self.status
    }
}

/// Runs a batch; `GNTST_eagain` is tried again a few times. An entry that Xen did not come to keeps its status, so the
/// caller sets an error there before.
///
/// # Safety
/// As [`grant_table_op`].
pub(super) unsafe fn run<O: Operation>(operations: &mut [O]) {
    if operations.is_empty() {
        return;
    }
    // SAFETY: the caller's promise.
    if let Err(errno) = unsafe { grant_table_op(operations) } {
        log::warn!("grant operation {}: {errno:?}", O::OP);
    }
    for operation in operations.iter_mut().filter(|operation| operation.status() == GNTST_EAGAIN) {
        // SAFETY: the caller's promise.
        unsafe { retry(operation) };
    }
}

/// # Safety
/// As [`grant_table_op`].
unsafe fn retry<O: Operation>(operation: &mut O) {
    for _ in 0..RETRIES {
        yield_now();
        // SAFETY: the caller's promise. The result is in the status.
        let _ = unsafe { grant_table_op(core::slice::from_mut(operation)) };
        if operation.status() != GNTST_EAGAIN {
            return;
        }
    }
}
