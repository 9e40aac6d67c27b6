//! The first instructions, and the notes by which the domain builder knows us (elfnote.h).

use core::arch::global_asm;
use core::ops::Range;

use crate::abi::start_info::StartInfo;
use crate::machine::{self, Image, Machine};
use crate::shutdown::{Shutdown, shut_down};

/// The stack, with its guard page.
const STACK_BYTES: usize = 64 << 10;

global_asm!(
    ".macro xen_note type:req, desc:vararg",
    ".balign 4",
    ".long 4, 9902f - 9901f, \\type",
    ".asciz \"Xen\"",
    "9901: \\desc",
    "9902: .balign 4",
    ".endm",
    ".pushsection .note.Xen, \"a\", @note",
    "xen_note 1, .quad _start",            // ENTRY
    "xen_note 3, .quad _virt_base",        // VIRT_BASE
    "xen_note 4, .quad _virt_base",        // PADDR_OFFSET: physical addresses of the ELF are virtual ones
    "xen_note 5, .asciz \"xen-3.0\"",      // XEN_VERSION
    "xen_note 6, .asciz \"xen-pv\"",    // GUEST_OS
    "xen_note 8, .asciz \"generic\"",      // LOADER
    "xen_note 10, .asciz \"!writable_page_tables|pae_pgdir_above_4gb\"", // FEATURES
    ".popsection",
    ".pushsection .bss.page_aligned, \"aw\", @nobits",
    ".balign 4096",
    "boot_stack: .skip {stack}",
    "boot_stack_end:",
    ".popsection",
    ".pushsection .text.start, \"ax\"",
    ".globl _start",
    "_start:",
    "cld",
    "lea rsp, [rip + boot_stack_end]",
    "mov rdi, rsi",                        // Xen passes the start info in rsi
    "lea rsi, [rip + boot_stack]",
    "xor ebp, ebp",                        // ends backtraces
    "call {start}",
    "ud2",
    ".popsection",
    stack = const STACK_BYTES,
    start = sym start,
);

unsafe extern "C" {
    // Places that link.ld defines.
    static _virt_base: u8;
    static _stext: u8;
    static _etext: u8;
    static _erodata: u8;
}

unsafe extern "Rust" {
    /// What [`entry!`](crate::entry) defines.
    safe fn xen_pv_main(machine: Machine) -> Shutdown;
}

extern "sysv64" fn start(start_info: &'static StartInfo, stack: usize) -> ! {
    // SAFETY: called once, by `_start`, with Xen's own start info, on the stack that `image` names.
    let machine = unsafe { machine::start(&image(stack), start_info) };
    shut_down(xen_pv_main(machine))
}

fn image(stack: usize) -> Image {
    let range = |from: *const u8, to: *const u8| -> Range<usize> { from.expose_provenance()..to.expose_provenance() };
    Image {
        base: (&raw const _virt_base).expose_provenance(),
        text: range(&raw const _stext, &raw const _etext),
        constants: range(&raw const _etext, &raw const _erodata),
        stack: stack..stack + STACK_BYTES,
    }
}
