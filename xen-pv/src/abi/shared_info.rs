//! The page that Xen and the guest share (`struct shared_info`, xen.h and arch-x86/xen.h).

use core::sync::atomic::{AtomicI8, AtomicU8, AtomicU32, AtomicU64};

/// `XEN_LEGACY_MAX_VCPUS`
pub const XEN_LEGACY_MAX_VCPUS: usize = 32;
/// Words of the two-level event-channel bitmaps: 64 x 64 ports.
pub const EVENT_WORDS: usize = 64;

/// `struct vcpu_time_info`: how to turn the TSC into system time.
#[repr(C)]
#[derive(Debug)]
pub struct VcpuTimeInfo {
    /// Odd while Xen updates the record.
    pub version: AtomicU32,
    /// Padding.
    pub pad0: u32,
    /// The TSC when the record was made.
    pub tsc_timestamp: AtomicU64,
    /// System time then, in ns.
    pub system_time: AtomicU64,
    /// Multiplier, 0.32 fixed point, ns per (shifted) tick.
    pub tsc_to_system_mul: AtomicU32,
    /// Shift of the tick count before the multiplication, left if positive.
    pub tsc_shift: AtomicI8,
    /// `XEN_PVCLOCK_*`.
    pub flags: AtomicU8,
    /// Padding.
    pub pad1: [u8; 2],
}

/// `struct arch_vcpu_info`
#[repr(C)]
#[derive(Debug)]
pub struct ArchVcpuInfo {
    /// The address of the last page fault.
    pub cr2: AtomicU64,
    /// Padding.
    pub pad: u64,
}

/// `struct vcpu_info`
#[repr(C)]
#[derive(Debug)]
pub struct VcpuInfo {
    /// Not zero: some word of `evtchn_pending_sel` is.
    pub evtchn_upcall_pending: AtomicU8,
    /// Not zero: no upcall.
    pub evtchn_upcall_mask: AtomicU8,
    /// Which words of `evtchn_pending` to look at.
    pub evtchn_pending_sel: AtomicU64,
    /// x86.
    pub arch: ArchVcpuInfo,
    /// Time.
    pub time: VcpuTimeInfo,
}

/// `struct arch_shared_info`: for save and restore, unused here.
#[repr(C)]
#[derive(Debug)]
pub struct ArchSharedInfo {
    /// Valid entries of the p2m.
    pub max_pfn: AtomicU64,
    /// Frame of the list of lists of p2m frames.
    pub pfn_to_mfn_frame_list_list: AtomicU64,
    /// Why an NMI came.
    pub nmi_reason: AtomicU64,
    /// Page-table root of the linear p2m.
    pub p2m_cr3: AtomicU64,
    /// Its address there.
    pub p2m_vaddr: AtomicU64,
    /// Its generation.
    pub p2m_generation: AtomicU64,
}

/// `struct shared_info`
#[repr(C)]
#[derive(Debug)]
pub struct SharedInfo {
    /// One record a virtual CPU.
    pub vcpu_info: [VcpuInfo; XEN_LEGACY_MAX_VCPUS],
    /// One bit a port: an event came.
    pub evtchn_pending: [AtomicU64; EVENT_WORDS],
    /// One bit a port: do not tell.
    pub evtchn_mask: [AtomicU64; EVENT_WORDS],
    /// Odd while Xen updates the wall clock.
    pub wc_version: AtomicU32,
    /// Wall clock at system time 0, seconds since 1970, low half.
    pub wc_sec: AtomicU32,
    /// And nanoseconds.
    pub wc_nsec: AtomicU32,
    /// Seconds, high half.
    pub wc_sec_hi: AtomicU32,
    /// x86.
    pub arch: ArchSharedInfo,
}

const _: () = assert!(size_of::<VcpuTimeInfo>() == 32);
const _: () = assert!(size_of::<VcpuInfo>() == 64);
const _: () = assert!(core::mem::offset_of!(SharedInfo, evtchn_mask) == 2560);
const _: () = assert!(size_of::<SharedInfo>() <= 4096);
