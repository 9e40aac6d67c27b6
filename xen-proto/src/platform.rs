//! What a backend asks of the platform: grants and event channels. The traits sit here, with the types they speak of,
//! because the backends use them and `xen-pv` implements them; tests implement them with fakes that are stricter than Xen.

use crate::{DomId, GrantRef, MachineAddr, Mfn, Port};

/// Whether the granted page may be written through the mapping (`GNTMAP_readonly`, grant_table.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read: enough for data that a device reads, i.e. a guest's *write* request.
    ReadOnly,
    /// Read and written.
    ReadWrite,
}

/// Xen refused a grant operation; the number is Xen's own `GNTST_*` status (negative, grant_table.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantStatus(pub i16);

/// `GNTST_general_error`: Xen (or the platform) could not say more.
pub const GNTST_GENERAL_ERROR: GrantStatus = GrantStatus(-1);
/// `GNTST_bad_gntref`: the reference is unused, revoked or of another domain.
pub const GNTST_BAD_GNTREF: GrantStatus = GrantStatus(-3);
/// `GNTST_no_device_space`: out of handles (maptrack); it may go away.
pub const GNTST_NO_DEVICE_SPACE: GrantStatus = GrantStatus(-7);

/// Xen's handle of one mapping; what is mapped is unmapped exactly once with exactly this (XSA-218/224).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMapping {
    /// `grant_handle_t`.
    pub handle: u32,
    /// Where a device finds the page's first byte: the `dev_bus_addr` that Xen returned.
    pub addr: MachineAddr,
}

/// One page to be mapped for a device (`GNTMAP_device_map` alone: it appears in no address space of ours).
#[derive(Clone, Copy, Debug)]
pub struct DeviceMap {
    /// The page, as its owner named it.
    pub gref: GrantRef,
    /// What the device may do with it.
    pub access: Access,
    /// Xen's answer for this page alone; meaningless before the call.
    pub result: Result<DeviceMapping, GrantStatus>,
}

impl DeviceMap {
    /// A page not yet mapped.
    #[must_use]
    pub const fn new(gref: GrantRef, access: Access) -> Self {
        Self { gref, access, result: Err(GNTST_GENERAL_ERROR) }
    }
}

/// One copy between a page of ours and a granted page (`GNTTABOP_copy`). Both ends stay inside one page.
#[derive(Clone, Copy, Debug)]
pub struct GrantCopy {
    /// The guest that granted the page.
    pub domain: DomId,
    /// The guest's page.
    pub gref: GrantRef,
    /// Bytes from the start of the guest's page.
    pub guest_offset: u16,
    /// Our page.
    pub frame: Mfn,
    /// Bytes from the start of our page.
    pub offset: u16,
    /// Bytes to copy; each offset plus this is at most a page.
    pub len: u16,
    /// Which way.
    pub direction: CopyDirection,
    /// Xen's answer for this copy alone; meaningless before the call.
    pub result: Result<(), GrantStatus>,
}

/// Which end of a [`GrantCopy`] is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the guest's page to ours.
    FromGuest,
    /// From our page to the guest's.
    ToGuest,
}

/// Grant operations of the domain that maps: batched, with a status for each entry.
pub trait Grants {
    /// A mapped ring. Dropping it without [`Grants::unmap_ring`] leaks the mapping.
    type Ring: SharedRing;

    /// Maps a frontend's ring of `grefs.len()` pages (1, 2, 4, 8 or 16), readable and writable, as one run of bytes.
    ///
    /// # Errors
    /// The status of the first page that Xen refused; the others are unmapped again.
    fn map_ring(&mut self, domain: DomId, grefs: &[GrantRef]) -> Result<Self::Ring, GrantStatus>;

    /// Ends a ring's mapping.
    fn unmap_ring(&mut self, ring: Self::Ring);

    /// Maps pages of one guest for a device. Each entry's `result` is set.
    fn map_for_device(&mut self, domain: DomId, maps: &mut [DeviceMap]);

    /// Ends mappings made by [`Grants::map_for_device`], in batches. When this returns no device can reach the pages.
    fn unmap_for_device(&mut self, mappings: &[DeviceMapping]);

    /// Copies. Each entry's `result` is set.
    fn copy(&mut self, copies: &mut [GrantCopy]);
}

/// A frontend's ring as it lies in shared memory: words and bytes that the other side may change at any moment, so nothing is
/// ever borrowed from it. Offsets are in bytes from the start of the first page; implementations panic outside `len()`,
/// which callers rule out by construction (offsets come from our own masked indices).
pub trait SharedRing {
    /// Bytes in all.
    fn len(&self) -> usize;
    /// Whether there is no byte (never, for a mapped ring).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads a 32-bit word once, with acquire ordering: what was written before the word is visible after.
    fn load(&self, offset: usize) -> u32;
    /// Writes a 32-bit word once, with release ordering.
    fn store(&self, offset: usize, value: u32);
    /// A full barrier: stores before it are visible to the other side before loads after it are done (`xen_mb`, ring.h).
    fn fence(&self);
    /// Copies bytes out of shared memory, each byte read once.
    fn read(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes into shared memory.
    fn write(&self, offset: usize, from: &[u8]);
}

/// Why an event channel could not be bound; the number is Xen's errno (negative).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventError(pub i32);

/// Interdomain event channels.
pub trait Events {
    /// Binds a fresh local port to the port that `domain` offered to us, unmasked.
    ///
    /// # Errors
    /// Xen's errno: no such offer, or no free port (`event_channels` in the domain's config).
    fn bind(&mut self, domain: DomId, remote: u32) -> Result<Port, EventError>;

    /// Closes a local port; a pending event of it is dropped.
    fn close(&mut self, port: Port);

    /// Sends an event. A peer that has gone is no error.
    fn notify(&mut self, port: Port);
}

/// The page of a RAM volume: ours, named to Xen by its machine frame.
pub trait Pages {
    /// Takes a page, or `None` when memory is used up. What is in it was somebody else's: see [`PageBytes::zero_page`].
    fn take_page(&mut self) -> Option<Mfn>;
    /// Gives back a page that came from [`Pages::take_page`].
    fn give_page(&mut self, page: Mfn);
}

/// The bytes of our own pages by machine frame, e.g. what a [`Grants::copy`] or a device put there.
pub trait PageBytes {
    /// Makes all bytes of a page that came from [`Pages::take_page`] zero.
    fn zero_page(&self, page: Mfn);
    /// Copies bytes out of a page that came from [`Pages::take_page`]; `offset` plus the length is at most a page.
    fn read_page(&self, page: Mfn, offset: usize, into: &mut [u8]);
}
