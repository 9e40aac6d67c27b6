//! The C memory functions that `core`, `alloc` and LLVM call. In assembly, since LLVM may turn a Rust loop back into a call
//! of the very function. None uses the stack.

use core::arch::naked_asm;

/// Copies forward, 8 bytes at a time.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep movsq",
        "mov ecx, edx",
        "and ecx, 7",
        "rep movsb",
        "ret",
    )
}

/// Copies forward, or backward (from the end, 8 bytes at a time) if the target begins inside the source.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx",
        "jae {memcpy}",
        "mov rax, rdi",
        "2: cmp rdx, 8",
        "jb 3f",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi + rdx - 8], rcx",
        "sub rdx, 8",
        "jmp 2b",
        "3: test rdx, rdx",
        "jz 4f",
        "mov cl, [rsi + rdx - 1]",
        "mov [rdi + rdx - 1], cl",
        "dec rdx",
        "jmp 3b",
        "4: ret",
        memcpy = sym memcpy,
    )
}

/// Fills, 8 bytes at a time.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov r8, rdi",
        "movzx eax, sil",
        "mov r9, 0x0101010101010101",
        "imul rax, r9",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep stosq",
        "mov ecx, edx",
        "and ecx, 7",
        "rep stosb",
        "mov rax, r8",
        "ret",
    )
}

/// Compares, 8 bytes at a time; the first difference decides as unsigned bytes.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn memcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
    naked_asm!(
        "2: cmp rdx, 8",
        "jb 3f",
        "mov rax, [rdi]",
        "mov rcx, [rsi]",
        "cmp rax, rcx",
        "jne 5f",
        "add rdi, 8",
        "add rsi, 8",
        "sub rdx, 8",
        "jmp 2b",
        "3: test rdx, rdx",
        "jz 4f",
        "movzx eax, byte ptr [rdi]",
        "movzx ecx, byte ptr [rsi]",
        "sub eax, ecx",
        "jne 6f",
        "inc rdi",
        "inc rsi",
        "dec rdx",
        "jmp 3b",
        "4: xor eax, eax",
        "6: ret",
        "5: bswap rax",
        "bswap rcx",
        "cmp rax, rcx",
        "sbb eax, eax",
        "or eax, 1",
        "ret",
    )
}

/// As [`memcmp`]; only whether the result is zero matters.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn bcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
    naked_asm!("jmp {memcmp}", memcmp = sym memcmp)
}

/// `core` and `alloc` were compiled to unwind, so their landing pads name this; with `panic=abort` nothing reaches it.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn _Unwind_Resume() {
    naked_asm!("ud2")
}

/// Likewise, in builds without optimisation.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "sysv64" fn rust_eh_personality() {
    naked_asm!("ud2")
}
