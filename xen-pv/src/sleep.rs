//! The one place where Xen may interrupt us: `SCHEDOP_block`, in assembly, and the handler for what it lets in.
//!
//! Xen's upcall pushes its frame right below the stack pointer, so no Rust code may ever run with upcalls unmasked.
//! `SCHEDOP_block` unmasks, sees whether an event is pending (so none is lost), and sleeps. An upcall can then hit only
//! between `syscall` and the next instruction, in [`block`], whose caller has nothing below the stack pointer.

use core::arch::naked_asm;
use core::sync::atomic::AtomicU8;

use crate::abi::number::SCHED_OP;
use crate::abi::sched::SCHEDOP_BLOCK;
use crate::hypercall::{Errno, set_callbacks};

/// Sleeps until an event is pending; at once if one is. `mask` is our `evtchn_upcall_mask`, which is 1 before and after.
///
/// # Safety
/// [`register_upcall`] was called (without a handler Xen kills the domain), and `mask` is Xen's.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn block(mask: &AtomicU8) {
    naked_asm!(
        "push rbx",
        "mov rbx, rdi",
        "mov eax, {sched_op}",
        "mov edi, {block}",
        "xor esi, esi",
        "syscall",
        "mov byte ptr [rbx], 1",
        "pop rbx",
        "ret",
        sched_op = const SCHED_OP,
        block = const SCHEDOP_BLOCK,
    )
}

/// The upcall: goes back to where it came from. Xen's frame is rcx, r11, rip, cs, rflags, rsp, ss; rcx and r11 are dead
/// after `syscall`, and Xen has masked upcalls again when it came here.
#[unsafe(naked)]
extern "sysv64" fn upcall() {
    naked_asm!("mov rcx, [rsp + 2*8]", "mov rsp, [rsp + 5*8]", "jmp rcx")
}

/// A failed `iret` of Xen's: we have no segments that could be wrong, so it cannot happen.
#[unsafe(naked)]
extern "sysv64" fn failsafe() {
    naked_asm!("ud2")
}

/// Tells Xen of the upcall handler.
pub(crate) fn register_upcall() -> Result<(), Errno> {
    // SAFETY: both are written for Xen's frames, above.
    unsafe { set_callbacks(upcall as *const () as usize, failsafe as *const () as usize) }
}
