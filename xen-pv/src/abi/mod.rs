//! Xen's ABI for x86-64 PV guests, as far as it is used here: types and numbers, no behaviour.
//!
//! Source: the public headers (Debian's `libxen-dev`, /usr/include/xen). Names follow them. `tests/abi.rs` compares every
//! size, offset and number below with what a C compiler makes of those headers. Fields that Xen or another domain may change
//! under us are atomics, so that a shared reference to such a structure is sound.

pub mod event;
pub mod grant;
pub mod mmu;
pub mod pciif;
pub mod rings;
pub mod sched;
pub mod shared_info;
pub mod start_info;

use xen_proto::DomId;

/// "The calling domain" (`DOMID_SELF`, xen.h).
pub const DOMID_SELF: DomId = DomId(0x7ff0);
/// The owner of I/O memory (`DOMID_IO`, xen.h).
pub const DOMID_IO: DomId = DomId(0x7ff1);

/// Hypercall numbers (`__HYPERVISOR_*`, xen.h).
pub mod number {
    /// `__HYPERVISOR_set_trap_table`
    pub const SET_TRAP_TABLE: usize = 0;
    /// `__HYPERVISOR_mmu_update`
    pub const MMU_UPDATE: usize = 1;
    /// `__HYPERVISOR_set_callbacks`
    pub const SET_CALLBACKS: usize = 4;
    /// `__HYPERVISOR_memory_op`
    pub const MEMORY_OP: usize = 12;
    /// `__HYPERVISOR_update_va_mapping`
    pub const UPDATE_VA_MAPPING: usize = 14;
    /// `__HYPERVISOR_set_timer_op`
    pub const SET_TIMER_OP: usize = 15;
    /// `__HYPERVISOR_xen_version`
    pub const XEN_VERSION: usize = 17;
    /// `__HYPERVISOR_grant_table_op`
    pub const GRANT_TABLE_OP: usize = 20;
    /// `__HYPERVISOR_vcpu_op`
    pub const VCPU_OP: usize = 24;
    /// `__HYPERVISOR_sched_op`
    pub const SCHED_OP: usize = 29;
    /// `__HYPERVISOR_event_channel_op`
    pub const EVENT_CHANNEL_OP: usize = 32;
}
