//! The backend's side of a ring.

use super::{Broken, Check, Layout, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, Wake, wake};
use crate::platform::SharedRing;

/// The backend's side: consumes requests, produces responses.
///
/// Invariant: `published <= responded <= consumed <= published + slots`, counted modulo 2^32 and with `published` behind the rest.
#[derive(Debug)]
pub struct BackRing<S> {
    shared: S,
    layout: Layout,
    /// Requests consumed; trusted.
    consumed: u32,
    /// Responses put into slots, not all of them published; trusted.
    responded: u32,
    /// Responses published: what we last wrote to `rsp_prod`; trusted.
    published: u32,
}

impl<S: SharedRing> BackRing<S> {
    /// Attaches to a mapped ring with slots of `slot` bytes. It goes on where the shared `rsp_prod` says, which is 0 in a fresh
    /// ring; in one that an earlier backend left behind the requests without a response are taken again.
    pub fn attach(shared: S, slot: usize) -> Self {
        let layout = Layout::new(shared.len(), slot);
        let start = shared.load(RSP_PROD);
        Self { shared, layout, consumed: start, responded: start, published: start }
    }

    /// The number and size of the slots.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Copies the next request into private memory, once, or says that there is none now. `request` gets the first bytes of the
    /// slot and may not be longer than it.
    ///
    /// # Errors
    /// [`Broken`] if the frontend's index is impossible; nothing is consumed.
    pub fn take(&mut self, request: &mut [u8]) -> Result<bool, Broken> {
        if self.unconsumed()? == 0 {
            return Ok(false);
        }
        assert!(request.len() <= self.layout.slot_bytes(), "a request is no longer than a slot");
        self.shared.read(self.layout.offset(self.consumed), request);
        self.consumed = self.consumed.wrapping_add(1);
        Ok(true)
    }

    /// Puts a response into the next free slot, for [`BackRing::publish`] to show. `slot` must have the size of a slot, so that no
    /// stale byte of it is shown (XSA-216).
    ///
    /// # Panics
    /// If no request is unanswered, or `slot` has another size.
    pub fn respond(&mut self, slot: &[u8]) {
        assert!(self.responded != self.consumed, "a response without a request");
        assert!(slot.len() == self.layout.slot_bytes(), "a response fills its slot");
        self.shared.write(self.layout.offset(self.responded), slot);
        self.responded = self.responded.wrapping_add(1);
    }

    /// Shows all responses to the frontend and says whether it wants an event for them.
    pub fn publish(&mut self) -> Wake {
        if self.published == self.responded {
            return Wake::Quiet;
        }
        self.shared.store(RSP_PROD, self.responded);
        self.shared.fence();
        let old = core::mem::replace(&mut self.published, self.responded);
        wake(old, self.responded, self.shared.load(RSP_EVENT))
    }

    /// Asks for an event at the next request and looks once more (`RING_FINAL_CHECK_FOR_REQUESTS`, ring.h).
    ///
    /// # Errors
    /// [`Broken`] if the frontend's index is impossible.
    pub fn final_check(&mut self) -> Result<Check, Broken> {
        if self.unconsumed()? > 0 {
            return Ok(Check::More);
        }
        self.shared.store(REQ_EVENT, self.consumed.wrapping_add(1));
        if cfg!(not(mutant_no_fence)) {
            self.shared.fence();
        }
        if cfg!(not(mutant_no_final_check)) && self.unconsumed()? > 0 {
            return Ok(Check::More);
        }
        Ok(Check::Sleep)
    }

    /// Requests taken and not yet answered.
    pub fn unanswered(&self) -> u32 {
        self.consumed.wrapping_sub(self.responded)
    }

    /// Gives the mapping back, to be unmapped.
    pub fn into_shared(self) -> S {
        self.shared
    }

    /// Published requests not yet consumed. The frontend may have at most a ring full of requests without a published response;
    /// in units from `consumed` that also refuses an index that went backwards.
    fn unconsumed(&self) -> Result<u32, Broken> {
        let waiting = self.shared.load(REQ_PROD).wrapping_sub(self.consumed);
        let room = self.layout.slots().saturating_sub(self.consumed.wrapping_sub(self.responded));
        if waiting > room { Err(Broken) } else { Ok(waiting) }
    }
}
