//! The heap: one fixed range of the direct map, taken at start, so that nobody can make us grow.

use core::ops::Range;

use linked_list_allocator::LockedHeap;

#[cfg_attr(all(feature = "guest", not(test)), global_allocator)]
static HEAP: LockedHeap = LockedHeap::empty();

/// Gives the heap its memory.
///
/// # Safety
/// `range` is mapped, writable, and used by nobody else from now on; called once.
pub(crate) unsafe fn init(range: Range<usize>) {
    let start = core::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: by the contract of this function.
    unsafe { HEAP.lock().init(start, range.len()) };
}

/// Bytes in use and in all.
pub(crate) fn used_and_size() -> (usize, usize) {
    let heap = HEAP.lock();
    (heap.used(), heap.size())
}
