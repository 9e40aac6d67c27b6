//! States as they stand in xenstore: decimal numbers that anyone may have written.

use core::fmt;

/// A device's state (`enum xenbus_state`, io/xenbus.h); any number may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State(pub u32);

impl State {
    /// Not a state; also what cannot be read as a number.
    pub const UNKNOWN: Self = Self(0);
    /// The toolstack made the device; its end has yet to look at it.
    pub const INITIALISING: Self = Self(1);
    /// The backend has published what it can do and waits for the frontend.
    pub const INIT_WAIT: Self = Self(2);
    /// The frontend has published its rings.
    pub const INITIALISED: Self = Self(3);
    /// In use.
    pub const CONNECTED: Self = Self(4);
    /// On the way out, by either end's or the toolstack's wish.
    pub const CLOSING: Self = Self(5);
    /// Nothing is shared any more.
    pub const CLOSED: Self = Self(6);
    /// Network and PCI only.
    pub const RECONFIGURING: Self = Self(7);
    /// Network and PCI only.
    pub const RECONFIGURED: Self = Self(8);

    /// Reads a node's value.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        parse_number(value).and_then(|number| u32::try_from(number).ok()).map_or(Self::UNKNOWN, Self)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A decimal number as guests write them into nodes: digits only, at most 20, no sign, no space, within `u64`.
#[must_use]
pub fn parse_number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 20 {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}
