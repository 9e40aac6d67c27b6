//! Calls into Xen. The raw call is unsafe; what can be checked by types is wrapped here, the rest where it is used.

use core::arch::asm;

use xen_proto::{DomId, MachineAddr, Nanos};

use crate::abi::event::{self, AllocUnbound, BindInterdomain, BindPirq, BindVirq, Close, Send};
use crate::abi::mmu::{MmuUpdate, TrapInfo, UVMF_INVLPG, XENMEM_MAXIMUM_RAM_PAGE};
use crate::abi::sched::{
    SCHEDOP_POLL, SCHEDOP_SHUTDOWN, SCHEDOP_YIELD, SchedPoll, SchedShutdown, VCPUOP_STOP_PERIODIC_TIMER,
};
use crate::abi::{grant, number};

/// Xen's negative error number (errno.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Calls Xen by `syscall`, which touches no stack (so `nostack` is right even inside a leaf function). Addresses among the
/// arguments are exposed ones, lest the compiler think that Xen cannot reach what they point at.
///
/// # Safety
/// The arguments are what hypercall `number` wants: every pointer among them is good for what Xen reads and writes there,
/// and the effect on this domain's memory breaks no reference of Rust's.
#[inline]
unsafe fn hypercall(number: usize, args: [usize; 4]) -> isize {
    let mut result = number;
    // SAFETY: by the contract of this function; rcx and r11 are what `syscall` and Xen change beside the result and arguments.
    unsafe {
        asm!("syscall", inout("rax") result, inout("rdi") args[0] => _, inout("rsi") args[1] => _,
            inout("rdx") args[2] => _, inout("r10") args[3] => _, out("r8") _, out("r9") _, out("rcx") _, out("r11") _,
            options(nostack));
    }
    result.cast_signed()
}

fn check(result: isize) -> Result<(), Errno> {
    if result < 0 { Err(Errno(i32::try_from(result).unwrap_or(i32::MIN))) } else { Ok(()) }
}

/// The argument of an event-channel operation.
///
/// # Safety
/// `OP` is the operation that takes a pointer to exactly this structure, and does nothing to memory but write its fields.
pub(crate) unsafe trait EventArgument {
    /// `EVTCHNOP_*`.
    const OP: usize;
}

macro_rules! event_argument {
    ($($kind:ty = $op:expr;)*) => {$(
        // SAFETY: the pairs of event_channel.h.
        unsafe impl EventArgument for $kind {
            const OP: usize = $op;
        }
    )*};
}
event_argument! {
    AllocUnbound = event::EVTCHNOP_ALLOC_UNBOUND;
    BindInterdomain = event::EVTCHNOP_BIND_INTERDOMAIN;
    BindPirq = event::EVTCHNOP_BIND_PIRQ;
    BindVirq = event::EVTCHNOP_BIND_VIRQ;
    Close = event::EVTCHNOP_CLOSE;
    Send = event::EVTCHNOP_SEND;
}

/// `HYPERVISOR_event_channel_op`
pub(crate) fn event_channel_op<A: EventArgument>(argument: &mut A) -> Result<(), Errno> {
    // SAFETY: `EventArgument` promises that the operation takes this structure; it is borrowed exclusively for the call.
    check(unsafe { hypercall(number::EVENT_CHANNEL_OP, [A::OP, (&raw mut *argument).expose_provenance(), 0, 0]) })
}

/// The entry of a grant-table operation.
///
/// # Safety
/// `OP` is the operation that takes an array of exactly this structure.
pub(crate) unsafe trait GrantArgument {
    /// `GNTTABOP_*`.
    const OP: usize;
}

macro_rules! grant_argument {
    ($($kind:ty = $op:expr;)*) => {$(
        // SAFETY: the pairs of grant_table.h.
        unsafe impl GrantArgument for $kind {
            const OP: usize = $op;
        }
    )*};
}
grant_argument! {
    grant::MapGrantRef = grant::GNTTABOP_MAP_GRANT_REF;
    grant::UnmapGrantRef = grant::GNTTABOP_UNMAP_GRANT_REF;
    grant::Copy = grant::GNTTABOP_COPY;
    grant::SetupTable = grant::GNTTABOP_SETUP_TABLE;
    grant::QuerySize = grant::GNTTABOP_QUERY_SIZE;
}

/// `HYPERVISOR_grant_table_op`. Each entry has its own status beside the result of the call.
///
/// # Safety
/// What the operations do to memory (map, unmap, copy into) touches no memory that Rust knows about.
pub(crate) unsafe fn grant_table_op<A: GrantArgument>(arguments: &mut [A]) -> Result<(), Errno> {
    // SAFETY: `GrantArgument` promises the structure, the slice its extent; the effects are the caller's promise.
    check(unsafe {
        hypercall(number::GRANT_TABLE_OP, [A::OP, arguments.as_mut_ptr().expose_provenance(), arguments.len(), 0])
    })
}

/// `HYPERVISOR_mmu_update` on page tables of this domain; `owner` owns the pages that the new entries name.
///
/// # Safety
/// The new mappings must not give Rust's memory a second name or take it away.
pub(crate) unsafe fn mmu_update(updates: &[MmuUpdate], owner: DomId) -> Result<(), Errno> {
    let args = [updates.as_ptr().expose_provenance(), updates.len(), 0, usize::from(owner.0)];
    // SAFETY: Xen reads `updates` only; what the mappings do is the caller's promise.
    check(unsafe { hypercall(number::MMU_UPDATE, args) })
}

/// `HYPERVISOR_update_va_mapping`: replaces the last-level entry of a virtual address and drops its translation.
///
/// # Safety
/// As [`mmu_update`].
pub(crate) unsafe fn update_va_mapping(address: usize, entry: u64) -> Result<(), Errno> {
    // SAFETY: no pointers; the caller answers for the mapping. On x86-64 an entry is as wide as a register.
    check(unsafe { hypercall(number::UPDATE_VA_MAPPING, [address, register(entry), UVMF_INVLPG, 0]) })
}

/// `HYPERVISOR_set_trap_table`; the table ends with an entry whose address is 0.
///
/// # Safety
/// The addresses are handlers that expect Xen's exception frame.
pub(crate) unsafe fn set_trap_table(table: &[TrapInfo]) -> Result<(), Errno> {
    assert!(table.last().is_some_and(|last| last.address == 0), "the trap table has an end");
    // SAFETY: Xen reads up to the entry with address 0, which is there; the caller answers for the handlers.
    check(unsafe { hypercall(number::SET_TRAP_TABLE, [table.as_ptr().expose_provenance(), 0, 0, 0]) })
}

/// `HYPERVISOR_set_callbacks`: where events and failures of Xen's own `iret` are delivered.
///
/// # Safety
/// Both are handlers that expect Xen's frames.
pub(crate) unsafe fn set_callbacks(event: usize, failsafe: usize) -> Result<(), Errno> {
    // SAFETY: plain addresses; the caller answers for what is there.
    check(unsafe { hypercall(number::SET_CALLBACKS, [event, failsafe, 0, 0]) })
}

/// `HYPERVISOR_set_timer_op`: `VIRQ_TIMER` comes at that system time, up to 50 us early.
pub(crate) fn set_timer(at: Nanos) {
    // SAFETY: no pointers, no effect on memory.
    let result = unsafe { hypercall(number::SET_TIMER_OP, [register(at.0), 0, 0, 0]) };
    assert!(result == 0, "set_timer_op: {result}");
}

/// `VCPUOP_stop_periodic_timer`: Xen starts every virtual CPU with a 10 ms tick.
pub(crate) fn stop_periodic_timer() {
    // SAFETY: no pointers, no effect on memory.
    let result = unsafe { hypercall(number::VCPU_OP, [VCPUOP_STOP_PERIODIC_TIMER, 0, 0, 0]) };
    assert!(result == 0, "VCPUOP_stop_periodic_timer: {result}");
}

/// `SCHEDOP_poll` on one port, masked or not: returns when it is pending, at the deadline, or for no reason.
pub(crate) fn poll(port: u32, deadline: Nanos) {
    let argument = SchedPoll { ports: &raw const port, nr_ports: 1, timeout: deadline.0 };
    // SAFETY: Xen reads `argument` and the one port that it names; both live through the call.
    let result =
        unsafe { hypercall(number::SCHED_OP, [SCHEDOP_POLL, (&raw const argument).expose_provenance(), 0, 0]) };
    assert!(result == 0, "SCHEDOP_poll: {result}");
}

/// `SCHEDOP_yield`
pub(crate) fn yield_now() {
    // SAFETY: no pointers, no effect on memory.
    unsafe { hypercall(number::SCHED_OP, [SCHEDOP_YIELD, 0, 0, 0]) };
}

/// `SCHEDOP_shutdown`
pub(crate) fn shutdown(reason: u32) -> ! {
    let argument = SchedShutdown { reason };
    loop {
        // SAFETY: Xen reads `argument`, which lives through the call.
        unsafe { hypercall(number::SCHED_OP, [SCHEDOP_SHUTDOWN, (&raw const argument).expose_provenance(), 0, 0]) };
    }
}

/// `XENMEM_maximum_ram_page`: the highest frame of the machine's RAM.
pub(crate) fn maximum_ram_page() -> usize {
    // SAFETY: no pointers, no effect on memory.
    unsafe { hypercall(number::MEMORY_OP, [XENMEM_MAXIMUM_RAM_PAGE, 0, 0, 0]) }.cast_unsigned()
}

/// `XENVER_version`: major << 16 | minor.
pub(crate) fn xen_version() -> usize {
    // SAFETY: no pointers, no effect on memory.
    unsafe { hypercall(number::XEN_VERSION, [0, 0, 0, 0]) }.cast_unsigned()
}

/// A 64-bit value as it goes into a register: the crate is for x86-64 only.
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits here")]
pub(crate) const fn register(value: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    value as usize
}

/// The machine address of entry `index` of a table in frame `table`.
pub(crate) const fn entry_address(table: MachineAddr, index: usize) -> MachineAddr {
    MachineAddr(table.0 + (index as u64) * 8)
}
