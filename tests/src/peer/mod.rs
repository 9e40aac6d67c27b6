//! What driverdom is measured against: backends as people run them today.

pub mod linux_dom0;
pub mod linux_domu;
mod volumes;

pub use volumes::Kind;
