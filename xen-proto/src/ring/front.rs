//! The frontend's side of a ring.

use super::{Broken, Check, Layout, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, Wake, wake};
use crate::platform::SharedRing;

/// The frontend's side: produces requests, consumes responses. Its memory is the frontend's own.
#[derive(Debug)]
pub struct FrontRing<S> {
    shared: S,
    layout: Layout,
    /// Requests put into slots, not all of them published; trusted.
    requested: u32,
    /// Requests published: what we last wrote to `req_prod`; trusted.
    published: u32,
    /// Responses consumed; trusted.
    consumed: u32,
}

impl<S: SharedRing> FrontRing<S> {
    /// Makes an empty ring with slots of `slot` bytes in this memory (`XEN_FRONT_RING_INIT`, ring.h).
    pub fn create(shared: S, slot: usize) -> Self {
        Self::create_at(shared, slot, 0)
    }

    /// Makes an empty ring whose indices start at `start`, e.g. just before they wrap.
    pub fn create_at(shared: S, slot: usize, start: u32) -> Self {
        for (word, value) in [(REQ_PROD, 0), (REQ_EVENT, 1), (RSP_PROD, 0), (RSP_EVENT, 1)] {
            shared.store(word, start.wrapping_add(value));
        }
        let layout = Layout::new(shared.len(), slot);
        Self { shared, layout, requested: start, published: start, consumed: start }
    }

    /// The number and size of the slots.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Slots free for further requests.
    pub fn free(&self) -> u32 {
        self.layout.slots().saturating_sub(self.requested.wrapping_sub(self.consumed))
    }

    /// Puts a request into the next free slot, for [`FrontRing::publish`] to show.
    ///
    /// # Panics
    /// If no slot is free or the request is longer than a slot.
    pub fn request(&mut self, request: &[u8]) {
        assert!(self.free() > 0, "a request needs a free slot");
        assert!(request.len() <= self.layout.slot_bytes(), "a request is no longer than a slot");
        self.shared.write(self.layout.offset(self.requested), request);
        self.requested = self.requested.wrapping_add(1);
    }

    /// Shows all requests to the backend and says whether it wants an event for them.
    pub fn publish(&mut self) -> Wake {
        if self.published == self.requested {
            return Wake::Quiet;
        }
        self.shared.store(REQ_PROD, self.requested);
        self.shared.fence();
        let old = core::mem::replace(&mut self.published, self.requested);
        wake(old, self.requested, self.shared.load(REQ_EVENT))
    }

    /// Copies the next response into private memory, once, or says that there is none now.
    ///
    /// # Errors
    /// [`Broken`] if the backend's index is impossible; nothing is consumed.
    pub fn take(&mut self, response: &mut [u8]) -> Result<bool, Broken> {
        if self.unconsumed()? == 0 {
            return Ok(false);
        }
        assert!(response.len() <= self.layout.slot_bytes(), "a response is no longer than a slot");
        self.shared.read(self.layout.offset(self.consumed), response);
        self.consumed = self.consumed.wrapping_add(1);
        Ok(true)
    }

    /// Asks for an event at the next response and looks once more (`RING_FINAL_CHECK_FOR_RESPONSES`, ring.h).
    ///
    /// # Errors
    /// [`Broken`] if the backend's index is impossible.
    pub fn final_check(&mut self) -> Result<Check, Broken> {
        if self.unconsumed()? > 0 {
            return Ok(Check::More);
        }
        self.shared.store(RSP_EVENT, self.consumed.wrapping_add(1));
        self.shared.fence();
        Ok(if self.unconsumed()? > 0 { Check::More } else { Check::Sleep })
    }

    /// The shared memory itself, e.g. to write impossible indices on purpose.
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// Gives the memory back.
    pub fn into_shared(self) -> S {
        self.shared
    }

    fn unconsumed(&self) -> Result<u32, Broken> {
        let waiting = self.shared.load(RSP_PROD).wrapping_sub(self.consumed);
        let asked = self.published.wrapping_sub(self.consumed);
        if waiting > asked { Err(Broken) } else { Ok(waiting) }
    }
}
