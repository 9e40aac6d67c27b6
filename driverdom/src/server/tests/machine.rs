//! The machine that the server runs on: Xen, xenstore's ring, and the devices behind PCI's back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use xen_proto::platform::Pages;
use xen_proto::{DomId, GrantRef, Port};

use super::disk::FakeDisk;
use super::xen::Xen;
use crate::drivers::pci::Address;
use crate::server::platform::{OwnedDisk, Parts, Platform, Usage};

/// Bytes that xenstore's ring holds in each direction (io/xs_wire.h).
pub(super) const STORE_RING: usize = 1024;
/// What PCI's back is told of our end of the channel.
pub(super) const PCI_CHANNEL: (GrantRef, Port) = (GrantRef(9), Port(3));

/// The machine; a clone is another handle on the same one.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) grants: Xen,
    pub(super) events: Xen,
    pub(super) memory: Xen,
    pub(super) hardware: Rc<RefCell<Hardware>>,
}

/// All but Xen.
#[derive(Default)]
pub(super) struct Hardware {
    pub(super) to_store: VecDeque<u8>,
    pub(super) from_store: VecDeque<u8>,
    pub(super) disks: Vec<FakeDisk>,
    /// PCI's back has our channel.
    pub(super) channel_open: bool,
}

impl Machine {
    pub(super) fn new(xen: &Xen) -> Self {
        let [grants, events, memory] = [xen.clone(), xen.clone(), xen.clone()];
        Self { grants, events, memory, hardware: Rc::default() }
    }
}

impl Platform for Machine {
    type Grants = Xen;
    type Events = Xen;
    type Memory = Xen;
    type Disk = FakeDisk;

    fn parts(&mut self) -> Parts<'_, Self> {
        let Self { grants, events, memory, .. } = self;
        Parts { grants, events, memory }
    }

    fn store_read(&mut self, into: &mut [u8]) -> usize {
        let mut hardware = self.hardware.borrow_mut();
        let count = into.len().min(hardware.from_store.len());
        into.iter_mut().zip(hardware.from_store.drain(..count)).for_each(|(into, byte)| *into = byte);
        count
    }

    fn store_write(&mut self, from: &[u8]) -> usize {
        let mut hardware = self.hardware.borrow_mut();
        let count = from.len().min(STORE_RING - hardware.to_store.len());
        hardware.to_store.extend(&from[..count]);
        count
    }

    fn open_pci_channel(&mut self, back: DomId) -> Result<(GrantRef, Port), String> {
        assert_eq!(back, DomId(0));
        self.hardware.borrow_mut().channel_open = true;
        Ok(PCI_CHANNEL)
    }

    fn close_pci_channel(&mut self) {
        self.hardware.borrow_mut().channel_open = false;
    }

    fn start_disk(&mut self, address: Address) -> Result<FakeDisk, String> {
        let hardware = self.hardware.borrow();
        assert!(hardware.channel_open, "a device is configured through PCI's back");
        let disk = hardware.disks.iter().find(|disk| disk.address() == address).ok_or("it is no virtio disk")?;
        Ok(disk.start())
    }

    fn stop_disk(&mut self, disk: &mut FakeDisk) {
        disk.stop();
    }

    fn usage(&self) -> Usage {
        let hardware = self.hardware.borrow();
        Usage {
            rings: self.grants.connected(),
            mapped_pages: self.grants.mappings(),
            granted_pages: usize::from(hardware.channel_open),
            free_pages: self.memory.free_pages(),
            heap_bytes: 0,
            longest_batch: 0,
        }
    }
}

/// Takes all free pages but so many, as if other volumes had them.
pub(super) fn leave_pages(xen: &Xen, left: usize) {
    let mut xen = xen.clone();
    while xen.free_pages() > left {
        xen.take_page().expect("there are more");
    }
}
