//! Arithmetic of a byte ring with free-running 32-bit indices, and copying between it and our memory.

use core::sync::atomic::{AtomicU8, Ordering};

/// Bytes waiting between two indices; `None` if the other side's index makes no sense.
pub(crate) fn filled(prod: u32, cons: u32, size: usize) -> Option<usize> {
    let filled = prod.wrapping_sub(cons) as usize;
    (filled <= size).then_some(filled)
}

/// Copies out of the ring from index `at` on. The ring's size is a power of two.
pub(crate) fn copy_out<const N: usize>(ring: &[AtomicU8; N], at: u32, into: &mut [u8]) {
    const { assert!(N.is_power_of_two()) };
    for (i, byte) in into.iter_mut().enumerate() {
        *byte = ring[(at as usize + i) % N].load(Ordering::Relaxed);
    }
}

/// Copies into the ring from index `at` on. The ring's size is a power of two.
pub(crate) fn copy_in<const N: usize>(ring: &[AtomicU8; N], at: u32, from: &[u8]) {
    const { assert!(N.is_power_of_two()) };
    for (i, byte) in from.iter().enumerate() {
        ring[(at as usize + i) % N].store(*byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_is_bounded_by_the_size() {
        for (prod, cons, expect) in [
            (0, 0, Some(0)),
            (5, 0, Some(5)),
            (1024, 0, Some(1024)),
            (1025, 0, None),
            (0, 1, None),
            (3, u32::MAX - 1, Some(5)),
        ] {
            assert_eq!(filled(prod, cons, 1024), expect, "prod {prod} cons {cons}");
        }
    }

    #[test]
    fn bytes_wrap_at_the_end_of_the_ring_and_of_the_index() {
        let ring: [AtomicU8; 8] = [const { AtomicU8::new(0) }; 8];
        for at in [0, 6, u32::MAX - 2] {
            copy_in(&ring, at, b"abcdef");
            let mut out = [0; 6];
            copy_out(&ring, at, &mut out);
            assert_eq!(&out, b"abcdef", "at {at}");
        }
    }
}
