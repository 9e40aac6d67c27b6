//! The mark of an error that says nothing about driverdom: the nested system itself failed.

use std::fmt;

/// Put around an error by code that can tell: QEMU died, dom0 does not answer, a checksum in dom0 is wrong.
#[derive(Debug)]
pub struct Infrastructure(pub String);

impl fmt::Display for Infrastructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "infrastructure: {}", self.0)
    }
}

impl std::error::Error for Infrastructure {}

/// An error with the mark.
pub fn infrastructure(what: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Infrastructure(what.into()))
}
