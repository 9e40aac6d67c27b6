//! A panic is the end of the domain: devices stopped, message and backtrace on the console, then a crash.

use core::arch::asm;
use core::panic::PanicInfo;

use crate::log_sink::last_word;
use crate::shutdown::{Shutdown, shut_down};
use crate::trap;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    trap::begin_to_die();
    match info.location() {
        Some(location) => last_word(format_args!("PANIC at {location}: {}", info.message())),
        None => last_word(format_args!("PANIC: {}", info.message())),
    }
    let frame: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    trap::print_backtrace(frame);
    shut_down(Shutdown::Crash)
}
