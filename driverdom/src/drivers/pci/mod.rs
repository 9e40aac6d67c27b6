//! PCI as a PV guest sees it: the handshake with PCI's back in xenstore ([`front`] decides,
//! [`handshake`] talks) and configuration space ([`config`]).

pub mod config;
pub mod front;
pub mod handshake;

use core::fmt;
use core::num::ParseIntError;

pub use config::{Bar, Capability, ConfigError, Function, Identity};
pub use handshake::{Handshake, Task};

/// Where a function sits on PCI, as PCI's back shows it to us (`vdev-N`), not as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Segment, which PCI's back calls domain.
    pub segment: u16,
    /// Bus.
    pub bus: u8,
    /// Slot on the bus, 0 to 31.
    pub slot: u8,
    /// Function in the slot, 0 to 7.
    pub function: u8,
}

impl Address {
    /// Reads `dddd:bb:ss.f`, all hexadecimal, as PCI's back writes it (the function with two digits) and as `xl` does.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (segment, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        let segment = u16::from_str_radix(segment, 16).ok()?;
        let byte = |digits: &str| -> Result<u8, ParseIntError> { u8::from_str_radix(digits, 16) };
        let address = Self { segment, bus: byte(bus).ok()?, slot: byte(slot).ok()?, function: byte(function).ok()? };
        (address.slot < 32 && address.function < 8).then_some(address)
    }

    /// Slot and function as one number (`devfn`, pciif.h).
    #[must_use]
    pub const fn devfn(self) -> u8 {
        (self.slot << 3) | self.function
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.segment, self.bus, self.slot, self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::Address;
    use alloc::string::ToString;

    #[test]
    fn addresses_are_read_as_the_back_and_xl_write_them() {
        let cases = [
            ("0000:00:00.00", Some("0000:00:00.0")),
            ("0000:00:04.0", Some("0000:00:04.0")),
            ("0001:ff:1f.07", Some("0001:ff:1f.7")),
            ("0000:00:20.0", None),
            ("0000:00:00.8", None),
            ("0000:00:00", None),
            ("00:04.0", None),
            ("0000:100:00.0", None),
            ("", None),
            ("0000:00:zz.0", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Address::parse(text).map(|a| a.to_string()).as_deref(), expected, "{text:?}");
        }
        assert_eq!(Address::parse("0000:00:1f.7").map(Address::devfn), Some(0xff));
    }
}
