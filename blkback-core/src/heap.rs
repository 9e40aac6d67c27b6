//! Whether there is memory for one more: what comes for good is refused in time, so that what comes and goes finds some.

use alloc::vec::Vec;

/// Memory that a disk or a vbd must leave to others, in bytes: its own smaller parts, and all that is taken and given back at run
/// time, e.g. for what guests write into xenstore while it is read.
const SPARE_BYTES: usize = 256 << 10;

/// Whether the heap has what others will need.
#[must_use]
pub fn has_spare() -> bool {
    is_allocatable(SPARE_BYTES)
}

fn is_allocatable(bytes: usize) -> bool {
    let mut memory = Vec::<u8>::new();
    let reserved = memory.try_reserve_exact(bytes).is_ok();
    // Memory that nobody uses is not allocated at all by an optimizing compiler.
    core::hint::black_box(&memory);
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_heap_does_not_have_is_seen() {
        assert!(is_allocatable(SPARE_BYTES));
        assert!(!is_allocatable(isize::MAX.unsigned_abs()));
    }
}
