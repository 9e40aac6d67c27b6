//! Shared rings (io/ring.h): one array of slots in memory that a frontend and a backend both write. The frontend puts requests
//! into slots, the backend puts each response into a slot whose request it has consumed; free-running 32-bit indices say how far
//! each side is. [`BackRing`] is the backend's side, [`FrontRing`] the frontend's.
//!
//! **Trusted shadow**: each side decides from its own copies of its own indices. A word of the other side is loaded once and
//! checked against them before use. A ring whose indices are impossible is [`Broken`], and stays so.
//!
//! **The sleep protocol**: before sleeping the consumer says up to where it knows of nothing new (`req_event`), then looks again;
//! the producer publishes, then reads `req_event` and notifies if it was crossed. Each side does a full barrier between its store
//! and its load, so at least one of them sees the other. `tests/loom_ring.rs` proves it on [`BackRing`] itself, and two broken
//! variants of it, made by cfg (see build.rs), must be caught:
//!
//! ```text
//! export RUSTFLAGS="--cfg loom"
//! cargo test -p xen-proto --release --test loom_ring                               # passes
//! RING_MUTANT=no_fence cargo test -p xen-proto --release --test loom_ring          # must fail
//! RING_MUTANT=no_final_check cargo test -p xen-proto --release --test loom_ring    # must fail
//! ```

mod back;
mod front;

pub use back::BackRing;
pub use front::FrontRing;

/// Byte offset of `req_prod`: requests the frontend has published (`struct *_sring`, ring.h).
pub const REQ_PROD: usize = 0;
/// Byte offset of `req_event`: the frontend notifies when it publishes the request just before this index.
pub const REQ_EVENT: usize = 4;
/// Byte offset of `rsp_prod`: responses the backend has published.
pub const RSP_PROD: usize = 8;
/// Byte offset of `rsp_event`: the backend notifies when it publishes the response just before this index.
pub const RSP_EVENT: usize = 12;
/// Byte offset of the first slot.
pub const SLOTS: usize = 64;

/// The other side's indices cannot be: more entries than the ring has slots, or fewer than were there already (XSA-39).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Whether the other side asked to be woken for what was just published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Wake {
    /// Send the event.
    Notify,
    /// It is awake, or has more to do first.
    Quiet,
}

/// Whether a consumer may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Check {
    /// Something is there: go on consuming.
    More,
    /// Nothing is there, and the other side will notify when something comes.
    Sleep,
}

/// Where the slots of a ring are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slot: usize,
    slots: u32,
}

impl Layout {
    /// The slots of `slot` bytes (the larger of request and response) in `bytes` bytes of shared memory: the largest power of
    /// two that fits after the header (`__RING_SIZE`, ring.h). At least one must fit, which one page always grants.
    ///
    /// # Panics
    /// If no slot fits or there are more than 2^31.
    #[must_use]
    pub const fn new(bytes: usize, slot: usize) -> Self {
        assert!(slot > 0 && bytes >= SLOTS + slot, "a ring needs room for a slot");
        let fit = (bytes - SLOTS) / slot;
        assert!(fit <= 1 << 31, "a ring's indices have 32 bits");
        #[expect(clippy::cast_possible_truncation, reason = "asserted to be at most 2^31")]
        Self { slot, slots: 1 << (fit as u32).ilog2() }
    }

    /// Number of slots, a power of two.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Bytes of a slot.
    #[must_use]
    pub const fn slot_bytes(self) -> usize {
        self.slot
    }

    /// Where the slot of a free-running index starts, in bytes.
    #[must_use]
    pub const fn offset(self, index: u32) -> usize {
        SLOTS + (index & (self.slots - 1)) as usize * self.slot
    }
}

/// Whether publishing from `old` to `new` crossed the other side's event index (`RING_PUSH_*_AND_CHECK_NOTIFY`, ring.h).
const fn wake(old: u32, new: u32, event: u32) -> Wake {
    if new.wrapping_sub(event) < new.wrapping_sub(old) { Wake::Notify } else { Wake::Quiet }
}
