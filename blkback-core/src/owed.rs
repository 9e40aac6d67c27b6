//! Answer-once as a type.

use xen_proto::blkif::{Request as RawRequest, Response, Status};

use crate::request::echoed_operation;

/// The answer that is owed to a guest for a request taken from its ring. It must be given exactly once: [`Owed::answer`] uses it
/// up, and dropping it is a bug of ours that stops us.
#[derive(Debug)]
#[must_use]
pub(crate) struct Owed {
    id: u64,
    operation: u8,
}

impl Owed {
    /// The debt that taking this request makes.
    pub(crate) fn for_request(raw: &RawRequest) -> Self {
        Self { id: raw.id(), operation: echoed_operation(raw) }
    }

    pub(crate) fn answer(self, status: Status) -> Response {
        let response = Response::new(self.id, self.operation, status);
        core::mem::forget(self);
        response
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        panic!("request {:#x} was dropped without an answer", self.id);
    }
}
