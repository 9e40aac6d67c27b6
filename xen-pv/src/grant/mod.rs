//! Grants, both sides: pages of other domains that we map or copy ([`Grants`]), and pages of ours that we grant.

mod batch;
mod mapped_ring;
mod table;

use core::fmt;

use xen_proto::platform::{
    Access, CopyDirection, DeviceMap, DeviceMapping, GNTST_GENERAL_ERROR, GNTST_NO_DEVICE_SPACE, GrantCopy,
    GrantStatus, Grants,
};
use xen_proto::{DomId, GrantRef, MachineAddr, Mfn};

use crate::abi::DOMID_SELF;
use crate::abi::grant::{
    Copy, CopyFlags, CopyPtr, GNTST_BAD_PAGE, GNTST_NO_SPACE, GNTST_OKAY, MapFlags, MapGrantRef, UnmapGrantRef,
};
use crate::hypercall::Errno;
use crate::memory::{SharedPool, Window};
use batch::{MAX_BATCH, run};
use table::OwnTable;

pub use mapped_ring::MappedRing;

/// The domain's grant table, and what it has mapped of others'.
pub struct GrantTable {
    own: OwnTable,
    window: Window,
    pool: SharedPool,
    mapped_rings: usize,
    mapped_for_device: usize,
    longest_batch: usize,
}

/// The grantee still has the page mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillInUse;

/// Why a page could not be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// The table is full (`max_grant_frames=` in the domain's config).
    Full,
    /// The frame did not come from the pool, so it is not to be shared.
    NotFromPool,
}

/// What is granted and mapped now; all zero again when every guest has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantCounters {
    /// Pages of ours that we grant.
    pub granted: usize,
    /// The most that it was.
    pub granted_peak: usize,
    /// Rings of others, mapped.
    pub mapped_rings: usize,
    /// Pages of others, mapped for a device.
    pub mapped_for_device: usize,
    /// The most operations on others' pages that were given to Xen at once.
    pub longest_batch: usize,
}

impl GrantTable {
    pub(crate) fn new(mut window: Window, pool: SharedPool) -> Result<Self, Errno> {
        let own = OwnTable::new(&mut window)?;
        Ok(Self { own, window, pool, mapped_rings: 0, mapped_for_device: 0, longest_batch: 0 })
    }

    /// Grants a page of the pool, named by [`DmaPage::mfn`](crate::DmaPage::mfn).
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant(&mut self, to: DomId, page: Mfn, access: Access) -> Result<GrantRef, GrantError> {
        self.pool.borrow().lent(page).ok_or(GrantError::NotFromPool)?;
        self.own.grant(&mut self.window, to, page, access).ok_or(GrantError::Full)
    }

    /// Ends a grant of ours.
    ///
    /// # Errors
    /// The grantee has it mapped; it stays granted. Ask again later.
    ///
    /// # Panics
    /// It is no grant of ours: it never was, or it has ended.
    pub fn end(&mut self, gref: GrantRef) -> Result<(), StillInUse> {
        self.own.end(gref)
    }

    /// What is granted and mapped now.
    #[must_use]
    pub const fn counters(&self) -> GrantCounters {
        GrantCounters {
            granted: self.own.granted(),
            granted_peak: self.own.peak(),
            mapped_rings: self.mapped_rings,
            mapped_for_device: self.mapped_for_device,
            longest_batch: self.longest_batch,
        }
    }

    fn note_batch(&mut self, operations: usize) {
        self.longest_batch = self.longest_batch.max(operations);
    }

    fn copy_operation(&self, copy: &GrantCopy) -> Result<Copy, GrantStatus> {
        // Xen would copy over any page of ours: only those that hold no object of Rust's are allowed.
        self.pool.borrow().lent(copy.frame).ok_or(GrantStatus(GNTST_BAD_PAGE))?;
        let ours = CopyPtr { page: copy.frame.0, domid: DOMID_SELF.0, offset: copy.offset };
        let theirs = CopyPtr { page: u64::from(copy.gref.0), domid: copy.domain.0, offset: copy.guest_offset };
        let (source, dest, flags) = match copy.direction {
            CopyDirection::FromGuest => (theirs, ours, CopyFlags::SOURCE_GREF),
            CopyDirection::ToGuest => (ours, theirs, CopyFlags::DEST_GREF),
        };
        Ok(Copy { source, dest, len: copy.len, flags: flags.bits(), status: GNTST_GENERAL_ERROR.0 })
    }
}

impl Grants for GrantTable {
    type Ring = MappedRing;

    fn map_ring(&mut self, domain: DomId, grefs: &[GrantRef]) -> Result<MappedRing, GrantStatus> {
        self.note_batch(grefs.len());
        let ring = MappedRing::map(&mut self.window, domain, grefs)?;
        self.mapped_rings += 1;
        Ok(ring)
    }

    fn unmap_ring(&mut self, ring: MappedRing) {
        ring.unmap(&mut self.window);
        self.mapped_rings -= 1;
    }

    fn map_for_device(&mut self, domain: DomId, maps: &mut [DeviceMap]) {
        let mut operations = [map_operation(domain, GrantRef(0), MapFlags::DEVICE_MAP, None); MAX_BATCH];
        for chunk in maps.chunks_mut(MAX_BATCH) {
            self.note_batch(chunk.len());
            let operations = &mut operations[..chunk.len()];
            for (operation, map) in operations.iter_mut().zip(chunk.iter()) {
                let read_only = if map.access == Access::ReadOnly { MapFlags::READONLY } else { MapFlags::empty() };
                *operation = map_operation(domain, map.gref, MapFlags::DEVICE_MAP | read_only, None);
            }
            // SAFETY: a device mapping enters no address space of ours.
            unsafe { run(operations) };
            for (operation, map) in operations.iter().zip(chunk) {
                map.result = status(operation.status)
                    .map(|()| DeviceMapping { handle: operation.handle, addr: MachineAddr(operation.dev_bus_addr) });
                self.mapped_for_device += usize::from(map.result.is_ok());
            }
        }
    }

    fn unmap_for_device(&mut self, mappings: &[DeviceMapping]) {
        let mut operations = [unmap_operation(0, None); MAX_BATCH];
        for chunk in mappings.chunks(MAX_BATCH) {
            self.note_batch(chunk.len());
            let operations = &mut operations[..chunk.len()];
            for (operation, mapping) in operations.iter_mut().zip(chunk) {
                *operation = UnmapGrantRef { dev_bus_addr: mapping.addr.0, ..unmap_operation(mapping.handle, None) };
            }
            unmap_all(operations);
            self.mapped_for_device -= chunk.len();
        }
    }

    fn copy(&mut self, copies: &mut [GrantCopy]) {
        for chunk in copies.chunks_mut(MAX_BATCH) {
            self.note_batch(chunk.len());
            let mut operations = no_operations();
            let mut count = 0;
            for copy in chunk.iter_mut() {
                copy.result = self.copy_operation(copy).map(|operation| {
                    operations[count] = operation;
                    count += 1;
                });
            }
            // SAFETY: what Xen writes of ours are pages of the pool (`copy_operation`), which hold no object of Rust's.
            unsafe { run(&mut operations[..count]) };
            let submitted = chunk.iter_mut().filter(|copy| copy.result.is_ok());
            for (copy, operation) in submitted.zip(&operations[..count]) {
                copy.result = status(operation.status);
            }
        }
    }
}

const fn no_operations() -> [Copy; MAX_BATCH] {
    const NOWHERE: CopyPtr = CopyPtr { page: 0, domid: 0, offset: 0 };
    [Copy { source: NOWHERE, dest: NOWHERE, len: 0, flags: 0, status: 0 }; MAX_BATCH]
}

/// `entry`: the page-table entry for a mapping of ours, none for a device's alone.
fn map_operation(domain: DomId, gref: GrantRef, flags: MapFlags, entry: Option<MachineAddr>) -> MapGrantRef {
    MapGrantRef {
        host_addr: entry.map_or(0, |entry| entry.0),
        flags: flags.bits(),
        gref: gref.0,
        dom: domain.0,
        status: GNTST_GENERAL_ERROR.0,
        handle: 0,
        dev_bus_addr: 0,
    }
}

fn unmap_operation(handle: u32, entry: Option<MachineAddr>) -> UnmapGrantRef {
    UnmapGrantRef {
        host_addr: entry.map_or(0, |entry| entry.0),
        dev_bus_addr: 0,
        handle,
        status: GNTST_GENERAL_ERROR.0,
    }
}

/// Unmaps. A refusal means that our books are wrong, and that somebody can still reach a page: nothing to go on with.
fn unmap_all(operations: &mut [UnmapGrantRef]) {
    // SAFETY: unmapping a grant takes away a mapping in the window or a device's, in which Rust keeps no object.
    unsafe { run(operations) };
    if let Some(refused) = operations.iter().find(|operation| operation.status != GNTST_OKAY) {
        panic!("Xen refused to unmap: {refused:?}");
    }
}

fn status(status: i16) -> Result<(), GrantStatus> {
    match status {
        GNTST_OKAY => Ok(()),
        // Two names for the same trouble: out of handles.
        GNTST_NO_SPACE => Err(GNTST_NO_DEVICE_SPACE),
        other => Err(GrantStatus(other)),
    }
}

impl fmt::Debug for GrantTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantTable").field("counters", &self.counters()).finish_non_exhaustive()
    }
}
