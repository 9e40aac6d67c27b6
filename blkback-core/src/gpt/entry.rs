//! The table's entries (UEFI 5.3.3) and GUIDs (UEFI appendix A).

use core::ops::RangeInclusive;

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// A GUID in its on-disk byte order: its first three fields are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Guid(pub [u8; 16]);

/// A used entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its unique GUID.
    pub guid: Guid,
    /// Its name in UTF-16, ended by 0 unless all units are used.
    pub name: [u16; 36],
    /// First sector of 512 bytes.
    pub start: u64,
    /// Number of sectors of 512 bytes; at least 1.
    pub sectors: u64,
}

/// An entry on the disk.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    type_guid: Guid,
    guid: Guid,
    first_block: U64,
    /// Inclusive.
    last_block: U64,
    _attributes: U64,
    name: [U16; 36],
}

impl Guid {
    /// Parses the usual form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, in either case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        /// The byte that each pair of digits stands for, in the order of the text.
        const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let well_formed = |(at, byte): (usize, u8)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        if text.len() != 36 || !text.bytes().enumerate().all(well_formed) {
            return None;
        }
        let mut digits = text.chars().filter_map(|digit| digit.to_digit(16));
        let mut bytes = [0; 16];
        for at in ORDER {
            let pair = digits.next()? << 4 | digits.next()?;
            *bytes.get_mut(at)? = u8::try_from(pair).ok()?;
        }
        Some(Self(bytes))
    }
}

impl Partition {
    /// Reads an entry of a table for blocks of `block` sectors; `None` if it is not in use, or not inside the usable blocks.
    pub(super) fn parse(bytes: &[u8], usable: &RangeInclusive<u64>, block: u64) -> Option<Self> {
        const UNUSED: Guid = Guid([0; 16]);
        let (raw, _) = RawEntry::ref_from_prefix(bytes).ok()?;
        let (first, last) = (raw.first_block.get(), raw.last_block.get());
        if raw.type_guid == UNUSED || !usable.contains(&first) || !usable.contains(&last) {
            return None;
        }
        let blocks = last.checked_sub(first)?.checked_add(1)?;
        Some(Self {
            guid: raw.guid,
            name: raw.name.map(U16::get),
            start: first.checked_mul(block)?,
            sectors: blocks.checked_mul(block)?,
        })
    }

    /// Whether this is its name, exactly.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        self.name.iter().copied().take_while(|unit| *unit != 0).eq(name.encode_utf16())
    }
}
