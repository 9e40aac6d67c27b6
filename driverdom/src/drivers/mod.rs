//! Device drivers, without effects of their own: PCI as a PV guest sees it, virtio over it, and the disks on top.
//!
//! [`hardware`] is the seam: what the drivers ask of the machine. `glue::hardware` implements it with xen-pv; tests implement
//! it with fakes that are stricter than hardware. A device is trusted no further than a guest: what it reports is checked
//! against private state, and one that lies is reset and declared broken.

pub mod bounce;
#[cfg(test)]
pub(crate) mod fake;
pub mod hardware;
pub mod pci;
pub mod virtio;
