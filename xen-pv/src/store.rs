//! xenstore's ring (`struct xenstore_domain_interface`, io/xs_wire.h): bytes to and from xenstored, without waiting.

use core::sync::atomic::{Ordering, fence};

use xen_proto::Port;

use crate::abi::rings::{StoreInterface, XENSTORE_RING_SIZE};
use crate::{event, ring};

/// The byte streams to and from xenstored.
#[derive(Debug)]
pub struct StoreRing {
    ring: &'static StoreInterface,
    port: Port,
    /// Where we had read to before the last bytes that we took.
    read_before: u32,
    told_broken: bool,
}

impl StoreRing {
    pub(crate) fn new(ring: &'static StoreInterface, port: Port) -> Self {
        Self { ring, port, read_before: ring.rsp_cons.load(Ordering::Relaxed), told_broken: false }
    }

    /// The port whose events say that there is something to read or room to write.
    #[must_use]
    pub const fn port(&self) -> Port {
        self.port
    }

    /// Reads all that is there; 0: nothing now.
    ///
    /// # Panics
    /// If `into` is smaller than the ring, 1,024 bytes: whether xenstored waits for room is known only when all has been read.
    #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        assert!(into.len() >= XENSTORE_RING_SIZE, "room for a whole ring");
        let ring = self.ring;
        let cons = ring.rsp_cons.load(Ordering::Relaxed);
        let len = self.filled(ring.rsp_prod.load(Ordering::Acquire), cons).unwrap_or(0);
        if len > 0 {
            ring::copy_out(&ring.rsp, cons, &mut into[..len]);
            ring.rsp_cons.store(cons.wrapping_add(len as u32), Ordering::Release);
            // xenstored waits for room only if it filled the ring, maybe just now, and as far as it knew: oxenstored may have
            // looked where we were, copied its bytes while we took the others, and not look again.
            fence(Ordering::SeqCst);
            let filled = ring.rsp_prod.load(Ordering::Relaxed).wrapping_sub(self.read_before);
            if filled as usize >= XENSTORE_RING_SIZE {
                event::notify(self.port);
            }
            self.read_before = cons;
        }
        len
    }

    /// Writes as many bytes as there is room for; 0: no room now.
    #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
    pub fn write(&mut self, from: &[u8]) -> usize {
        let ring = self.ring;
        let prod = ring.req_prod.load(Ordering::Relaxed);
        let filled = self.filled(prod, ring.req_cons.load(Ordering::Acquire)).unwrap_or(XENSTORE_RING_SIZE);
        let len = (XENSTORE_RING_SIZE - filled).min(from.len());
        if len > 0 {
            ring::copy_in(&ring.req, prod, &from[..len]);
            ring.req_prod.store(prod.wrapping_add(len as u32), Ordering::Release);
            event::notify(self.port);
        }
        len
    }

    /// Bytes between two indices. Impossible ones stop this direction: there is nobody to tell but the log.
    fn filled(&mut self, prod: u32, cons: u32) -> Option<usize> {
        let filled = ring::filled(prod, cons, XENSTORE_RING_SIZE);
        if filled.is_none() && !self.told_broken {
            self.told_broken = true;
            log::error!("xenstore's ring is broken: prod {prod:#x}, cons {cons:#x}; dom0 must restart this domain");
        }
        filled
    }
}
