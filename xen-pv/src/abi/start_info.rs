//! What the domain builder tells a PV guest at start (`struct start_info`, xen.h).

/// `MAX_GUEST_CMDLINE`, with the terminating NUL.
pub const MAX_GUEST_CMDLINE: usize = 1024;

/// `struct start_info`, with the domU half of its console union.
#[repr(C)]
#[derive(Debug)]
pub struct StartInfo {
    /// "xen-VERSION-PLATFORM".
    pub magic: [u8; 32],
    /// Pages of the domain.
    pub nr_pages: u64,
    /// Machine address of the shared info page.
    pub shared_info: u64,
    /// `SIF_*`.
    pub flags: u32,
    /// Machine frame of the xenstore ring.
    pub store_mfn: u64,
    /// Its event channel.
    pub store_evtchn: u32,
    /// Machine frame of the console ring.
    pub console_mfn: u64,
    /// Its event channel.
    pub console_evtchn: u32,
    /// Virtual address of the top-level page table.
    pub pt_base: u64,
    /// Page-table frames made by the builder, from `pt_base` on.
    pub nr_pt_frames: u64,
    /// Virtual address of the list of machine frames, by own frame number.
    pub mfn_list: u64,
    /// Virtual address of a preloaded module.
    pub mod_start: u64,
    /// Its bytes.
    pub mod_len: u64,
    /// The command line, NUL-terminated.
    pub cmd_line: [u8; MAX_GUEST_CMDLINE],
    /// First frame of `mfn_list` when that lies outside the initial mapping.
    pub first_p2m_pfn: u64,
    /// Its frames.
    pub nr_p2m_frames: u64,
}

const _: () = assert!(size_of::<StartInfo>() == 1168);
