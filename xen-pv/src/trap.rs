//! Exceptions. None is expected and each is fatal: registers and a backtrace go to the console, then the domain ends as
//! crashed. NMI and machine check are left unregistered, so Xen drops them. A stack overflow cannot come here, since Xen
//! finds no stack to put its frame on: it ends the domain itself and says so in `xl dmesg`.

use core::arch::naked_asm;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Once;

use crate::abi::mmu::{FLAT_KERNEL_CS64, TI_MASK_EVENTS, TrapInfo};
use crate::abi::sched::SHUTDOWN_CRASH;
use crate::backtrace::return_addresses;
use crate::hypercall::{self, Errno, set_trap_table};
use crate::log_sink::last_word;
use crate::shutdown::{Shutdown, shut_down};
use crate::{console, mmio};

/// Where the stack and the code are.
struct Bounds {
    stack: Range<usize>,
    text: Range<usize>,
}

static BOUNDS: Once<Bounds> = Once::new();
static DYING: AtomicBool = AtomicBool::new(false);

/// What a stub leaves on the stack: our pushes, the vector, and Xen's frame.
#[repr(C)]
#[derive(Debug)]
struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbp: usize,
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Where a stub begins.
type Stub = unsafe extern "sysv64" fn();

/// Saves all registers and goes to [`fatal`]. On entry: vector, error code, rip, cs, rflags, rsp, ss.
#[unsafe(naked)]
unsafe extern "sysv64" fn save_and_die() {
    naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push rax", "push r8", "push r9", "push r10", "push r11",
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {fatal}",
        "ud2",
        fatal = sym fatal,
    )
}

/// A stub for an exception: Xen's frame starts with rcx and r11, then the error code if the exception has one.
macro_rules! stub {
    ($vector:literal, $($no_error:literal)?) => {{
        #[unsafe(naked)]
        unsafe extern "sysv64" fn stub() {
            naked_asm!("pop rcx", "pop r11", $($no_error,)? "push {vector}", "jmp {save}", vector = const $vector, save = sym save_and_die)
        }
        ($vector, stub as Stub)
    }};
}

/// Registers the stubs; what is printed needs the bounds of stack and code.
pub(crate) fn init(stack: Range<usize>, text: Range<usize>) -> Result<(), Errno> {
    BOUNDS.call_once(|| Bounds { stack, text });
    let stubs: [(u8, Stub); 14] = [
        stub!(0, "push 0"),
        stub!(1, "push 0"),
        stub!(3, "push 0"),
        stub!(4, "push 0"),
        stub!(5, "push 0"),
        stub!(6, "push 0"),
        stub!(7, "push 0"),
        stub!(11,),
        stub!(12,),
        stub!(13,),
        stub!(14,),
        stub!(16, "push 0"),
        stub!(17,),
        stub!(19, "push 0"),
    ];
    let mut table = [TrapInfo { vector: 0, flags: 0, cs: 0, address: 0 }; 15];
    for (entry, (vector, stub)) in table.iter_mut().zip(stubs) {
        *entry = TrapInfo { vector, flags: TI_MASK_EVENTS, cs: FLAT_KERNEL_CS64, address: stub as usize };
    }
    // SAFETY: the stubs are written for Xen's exception frames.
    unsafe { set_trap_table(&table) }
}

extern "sysv64" fn fatal(frame: &Frame) -> ! {
    begin_to_die();
    let cr2 = console::shared_info().map_or(0, |shared| shared.vcpu_info[0].arch.cr2.load(Ordering::Relaxed));
    last_word(format_args!("TRAP {} ({}), error {:#x}, cr2 {cr2:#x}", frame.vector, name(frame.vector), frame.error));
    let Frame { rip, rsp, rflags, rax, rbx, rcx, rdx, rsi, rdi, rbp, .. } = *frame;
    last_word(format_args!("rip {rip:#x} rsp {rsp:#x} rbp {rbp:#x} flags {rflags:#x}"));
    last_word(format_args!("rax {rax:#x} rbx {rbx:#x} rcx {rcx:#x} rdx {rdx:#x} rsi {rsi:#x} rdi {rdi:#x}"));
    let Frame { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *frame;
    last_word(format_args!("r8 {r8:#x} r9 {r9:#x} r10 {r10:#x} r11 {r11:#x}"));
    last_word(format_args!("r12 {r12:#x} r13 {r13:#x} r14 {r14:#x} r15 {r15:#x}"));
    print_backtrace(rbp);
    shut_down(Shutdown::Crash)
}

/// First thing on a panic or trap: stops the devices, before anything else can go wrong. Who dies while dying gets no last words.
pub(crate) fn begin_to_die() {
    mmio::stop_devices();
    if DYING.swap(true, Ordering::Relaxed) {
        hypercall::shutdown(SHUTDOWN_CRASH);
    }
}

/// Prints the return addresses from a frame pointer on; `llvm-symbolizer --obj=ELF ADDRESS...` makes lines of them.
pub(crate) fn print_backtrace(frame: usize) {
    const MAX_FRAMES: usize = 32;
    let Some(bounds) = BOUNDS.get() else { return };
    let word = |at: usize| {
        let at: *const usize = core::ptr::with_exposed_provenance(at);
        // SAFETY: `return_addresses` asks only about aligned words of the stack, which is mapped.
        unsafe { at.read_volatile() }
    };
    for address in return_addresses(frame, bounds.stack.clone(), bounds.text.clone(), word).take(MAX_FRAMES) {
        last_word(format_args!("  called from {address:#x}"));
    }
}

/// Names of the Intel manual (volume 3, 6.15).
const fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range",
        6 => "invalid opcode",
        7 => "no FPU",
        11 => "segment not present",
        12 => "stack segment",
        13 => "general protection",
        14 => "page fault",
        16 => "x87",
        17 => "alignment",
        19 => "SIMD",
        _ => "unknown",
    }
}
