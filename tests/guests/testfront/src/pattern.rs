//! What testfront writes into sectors, so that misplaced, stale and torn data are told apart when it is read again.
//!
//! A sector says who it is (mark, seed, number) and fills the rest with words that depend on seed, number and place:
//!
//! | bytes | little-endian |
//! |---|---|
//! | 0..8 | [`MARK`] |
//! | 8..16 | the seed |
//! | 16..24 | the sector's number, in units of 512 bytes from the start of the vbd |
//! | 24..512 | 61 words, each mixed from seed, sector and its own place |
//!
//! Pure, so the host checks a disk's image with the same functions: the nested scenarios depend on this library.

use core::fmt;

/// The bytes of a sector: the unit of the block ring's ABI (blkif.h), whatever a disk's logical block.
pub const SECTOR_BYTES: usize = 512;

/// The first eight bytes of a sector that testfront wrote, in ASCII.
pub const MARK: [u8; 8] = *b"tstfront";

/// Words of a sector before the mixed ones: mark, seed, number.
const HEADER_WORDS: usize = 3;

type Sector = [u8; SECTOR_BYTES];

/// The first sector that is not as expected, and what is there instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The sector that was checked.
    pub sector: u64,
    /// The seed it should carry.
    pub seed: u64,
    /// What it holds.
    pub found: Found,
}

/// What a sector holds that does not hold what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing but zeros: never written, or lost.
    Zeros,
    /// A whole pattern, but another one: an older seed is stale data, another number is misplaced data.
    Other {
        /// The seed that the sector carries.
        seed: u64,
        /// The sector number that it carries.
        sector: u64,
    },
    /// The header of this or another pattern with bytes that do not belong to it.
    Torn {
        /// The seed in the header.
        seed: u64,
        /// The sector number in the header.
        sector: u64,
        /// The first byte of the first word that does not fit the header.
        at: usize,
    },
    /// No pattern at all; the first eight bytes.
    Foreign([u8; 8]),
}

/// Fills whole sectors: the first is number `first`, the next one `first + 1`, and so on. A last part of a sector is left alone.
pub fn fill(seed: u64, first: u64, data: &mut [u8]) {
    let (sectors, _) = data.as_chunks_mut::<SECTOR_BYTES>();
    for (number, sector) in (first..).zip(sectors) {
        for (at, word) in sector.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = word_at(seed, number, at);
        }
    }
}

/// Checks what [`fill`] with the same arguments would have made.
///
/// # Errors
/// The first sector that differs.
pub fn verify(seed: u64, first: u64, data: &[u8]) -> Result<(), Mismatch> {
    let (sectors, _) = data.as_chunks::<SECTOR_BYTES>();
    for (number, sector) in (first..).zip(sectors) {
        if first_difference(seed, number, sector).is_some() {
            return Err(Mismatch { sector: number, seed, found: identify(sector) });
        }
    }
    Ok(())
}

/// Says what a sector holds, from its own content.
fn identify(sector: &Sector) -> Found {
    let words = sector.as_chunks::<8>().0;
    if sector.iter().all(|&byte| byte == 0) {
        return Found::Zeros;
    }
    if words[0] != MARK {
        return Found::Foreign(words[0]);
    }
    let (seed, number) = (u64::from_le_bytes(words[1]), u64::from_le_bytes(words[2]));
    match first_difference(seed, number, sector) {
        None => Found::Other { seed, sector: number },
        Some(at) => Found::Torn { seed, sector: number, at },
    }
}

/// The first byte of the first word that is not as the pattern has it.
fn first_difference(seed: u64, number: u64, sector: &Sector) -> Option<usize> {
    let words = sector.as_chunks::<8>().0.iter().enumerate();
    words.filter(|&(at, word)| *word != word_at(seed, number, at)).map(|(at, _)| at * 8).next()
}

/// The `at`-th word of a sector.
fn word_at(seed: u64, number: u64, at: usize) -> [u8; 8] {
    match at {
        0 => MARK,
        1 => seed.to_le_bytes(),
        2 => number.to_le_bytes(),
        _ => {
            // Place and key go in before the mixing, so that no two words of a disk are related in a simple way.
            let key = mix(seed ^ mix(number));
            mix(key.wrapping_add((at - HEADER_WORDS) as u64)).to_le_bytes()
        }
    }
}

/// A bijection of 64-bit numbers that changes about half of the bits when one changes: two multiplications by odd numbers
/// between shifts (the numbers are the fractions of the square roots of 2 and 3).
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0x6a09_e667_f3bc_c909);
    let word = (word ^ (word >> 29)).wrapping_mul(0xbb67_ae85_84ca_a73b);
    word ^ (word >> 32)
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sector, seed, found } = self;
        write!(f, "sector {sector} should hold seed {seed} but holds ")?;
        match found {
            Found::Zeros => f.write_str("zeros"),
            Found::Other { seed, sector } => write!(f, "seed {seed} of sector {sector}"),
            Found::Torn { seed, sector, at } => write!(f, "seed {seed} of sector {sector}, torn at byte {at}"),
            Found::Foreign(bytes) => write!(f, "no pattern (\"{}\")", bytes.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three sectors from number 100 with seed 7, changed by `spoil`; the answer of `verify`.
    fn verified(spoil: impl FnOnce(&mut [u8])) -> Result<(), Mismatch> {
        let mut data = [0; 3 * SECTOR_BYTES];
        fill(7, 100, &mut data);
        spoil(&mut data);
        verify(7, 100, &data)
    }

    fn bad(sector: u64, found: Found) -> Result<(), Mismatch> {
        Err(Mismatch { sector, seed: 7, found })
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(verified(|_| ()), Ok(()));
        assert_eq!(verified(|data| data[512..1024].fill(0)), bad(101, Found::Zeros));
        assert_eq!(verified(|data| fill(6, 102, &mut data[1024..])), bad(102, Found::Other { seed: 6, sector: 102 }));
        assert_eq!(verified(|data| data.copy_within(512..1024, 0)), bad(100, Found::Other { seed: 7, sector: 101 }));
        assert_eq!(verified(|data| data[256] ^= 1), bad(100, Found::Torn { seed: 7, sector: 100, at: 256 }));
        assert_eq!(verified(|data| data[1535] ^= 0x80), bad(102, Found::Torn { seed: 7, sector: 102, at: 504 }));
        assert_eq!(verified(|data| data[0] = b'?'), bad(100, Found::Foreign(*b"?stfront")));
    }

    #[test]
    fn a_sector_half_old_and_half_new_is_torn() {
        let spoil = |data: &mut [u8]| {
            let mut old = [0; SECTOR_BYTES];
            fill(6, 101, &mut old);
            data[768..1024].copy_from_slice(&old[256..]);
        };
        assert_eq!(verified(spoil), bad(101, Found::Torn { seed: 7, sector: 101, at: 256 }));
    }

    #[test]
    fn every_byte_is_checked() {
        for at in 0..SECTOR_BYTES {
            assert!(verified(|data| data[at] ^= 1).is_err(), "byte {at}");
        }
    }

    #[test]
    fn no_word_of_the_body_comes_twice() {
        let mut data = [0; 64 * SECTOR_BYTES];
        fill(1, 0, &mut data[..32 * SECTOR_BYTES]);
        fill(2, 0, &mut data[32 * SECTOR_BYTES..]);
        let mut words = [0; 64 * 61];
        let bodies =
            data.as_chunks::<SECTOR_BYTES>().0.iter().flat_map(|sector| &sector.as_chunks::<8>().0[HEADER_WORDS..]);
        words.iter_mut().zip(bodies).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
    }

    /// The format is read by other programs and other versions: it must not change unnoticed.
    #[test]
    fn the_format_stays() {
        let mut data = [0; SECTOR_BYTES];
        fill(0x0102_0304, 0x10, &mut data);
        assert_eq!(data[..24], *b"tstfront\x04\x03\x02\x01\0\0\0\0\x10\0\0\0\0\0\0\0");
        assert_eq!(data[24..32], [22, 160, 4, 209, 102, 178, 223, 92]);
    }
}
