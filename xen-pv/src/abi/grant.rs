//! Grant tables, version 1 (grant_table.h).

use core::sync::atomic::{AtomicU16, AtomicU32};

/// `GNTTABOP_map_grant_ref`
pub const GNTTABOP_MAP_GRANT_REF: usize = 0;
/// `GNTTABOP_unmap_grant_ref`
pub const GNTTABOP_UNMAP_GRANT_REF: usize = 1;
/// `GNTTABOP_setup_table`
pub const GNTTABOP_SETUP_TABLE: usize = 2;
/// `GNTTABOP_copy`
pub const GNTTABOP_COPY: usize = 5;
/// `GNTTABOP_query_size`
pub const GNTTABOP_QUERY_SIZE: usize = 6;

/// `GNTTAB_NR_RESERVED_ENTRIES`: the first entries belong to the toolstack (console, xenstore).
pub const GNTTAB_NR_RESERVED_ENTRIES: u32 = 8;

/// `GTF_permit_access`
pub const GTF_PERMIT_ACCESS: u16 = 1;
/// `GTF_readonly`
pub const GTF_READONLY: u16 = 1 << 2;
/// `GTF_reading`
pub const GTF_READING: u16 = 1 << 3;
/// `GTF_writing`
pub const GTF_WRITING: u16 = 1 << 4;

bitflags::bitflags! {
    /// `GNTMAP_*`
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MapFlags: u32 {
        /// `GNTMAP_device_map`
        const DEVICE_MAP = 1 << 0;
        /// `GNTMAP_host_map`
        const HOST_MAP = 1 << 1;
        /// `GNTMAP_readonly`
        const READONLY = 1 << 2;
        /// `GNTMAP_contains_pte`: `host_addr` is the machine address of a page-table entry.
        const CONTAINS_PTE = 1 << 4;
    }
}

bitflags::bitflags! {
    /// `GNTCOPY_*`
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CopyFlags: u16 {
        /// `GNTCOPY_source_gref`
        const SOURCE_GREF = 1 << 0;
        /// `GNTCOPY_dest_gref`
        const DEST_GREF = 1 << 1;
    }
}

/// `GNTST_okay`
pub const GNTST_OKAY: i16 = 0;
/// `GNTST_general_error`
pub const GNTST_GENERAL_ERROR: i16 = -1;
/// `GNTST_bad_page`
pub const GNTST_BAD_PAGE: i16 = -9;
/// `GNTST_no_space`: out of handles and the like.
pub const GNTST_NO_SPACE: i16 = -13;
/// `GNTST_eagain`: the page is on its way in; try again.
pub const GNTST_EAGAIN: i16 = -12;

/// `struct grant_entry_v1`
#[repr(C)]
#[derive(Debug)]
pub struct GrantEntry {
    /// `GTF_*`.
    pub flags: AtomicU16,
    /// Who is granted.
    pub domid: AtomicU16,
    /// The granted machine frame.
    pub frame: AtomicU32,
}

/// `struct gnttab_map_grant_ref`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MapGrantRef {
    /// In: virtual address, or machine address of a page-table entry.
    pub host_addr: u64,
    /// In: [`MapFlags`].
    pub flags: u32,
    /// In: which grant
    pub gref: u32,
    /// In: whose.
    pub dom: u16,
    /// Out: `GNTST_*`.
    pub status: i16,
    /// Out.
    pub handle: u32,
    /// Out: machine address for a device.
    pub dev_bus_addr: u64,
}

/// `struct gnttab_unmap_grant_ref`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnmapGrantRef {
    /// In: as mapped; 0: no host mapping.
    pub host_addr: u64,
    /// In: as Xen returned it; 0: no device mapping.
    pub dev_bus_addr: u64,
    /// In.
    pub handle: u32,
    /// Out: `GNTST_*`.
    pub status: i16,
}

/// `struct gnttab_copy_ptr`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyPtr {
    /// A grant reference or a machine frame: the union of the two, of which x86 reads the low half for a reference.
    pub page: u64,
    /// Whose.
    pub domid: u16,
    /// Bytes from the start of the page.
    pub offset: u16,
}

/// `struct gnttab_copy`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// In.
    pub source: CopyPtr,
    /// In.
    pub dest: CopyPtr,
    /// In: bytes.
    pub len: u16,
    /// In: [`CopyFlags`].
    pub flags: u16,
    /// Out: `GNTST_*`.
    pub status: i16,
}

/// `struct gnttab_setup_table`
#[repr(C)]
#[derive(Debug)]
pub struct SetupTable {
    /// In.
    pub dom: u16,
    /// In: how many frames the table is to have at least.
    pub nr_frames: u32,
    /// Out: `GNTST_*`.
    pub status: i16,
    /// In: where Xen writes the `nr_frames` machine frames.
    pub frame_list: *mut u64,
}

/// `struct gnttab_query_size`
#[repr(C)]
#[derive(Debug)]
pub struct QuerySize {
    /// In.
    pub dom: u16,
    /// Out: frames of the table now.
    pub nr_frames: u32,
    /// Out: frames that it may have.
    pub max_nr_frames: u32,
    /// Out: `GNTST_*`.
    pub status: i16,
}

const _: () = assert!(size_of::<GrantEntry>() == 8);
const _: () = assert!(size_of::<MapGrantRef>() == 32);
const _: () = assert!(size_of::<UnmapGrantRef>() == 24);
const _: () = assert!(size_of::<Copy>() == 40);
const _: () = assert!(size_of::<SetupTable>() == 24);
const _: () = assert!(size_of::<QuerySize>() == 16);
