//! The server's platform in the guest: xen-pv's machine and the passed-through devices.

mod hardware;

use alloc::string::{String, ToString};

use driverdom::drivers::pci::Address;
use driverdom::hotplug;
use driverdom::server::platform::{Parts, Platform, Usage};
use hardware::{PassedDisk, Passthrough};
use xen_proto::{DomId, GrantRef, Nanos, Port};
use xen_pv::{EventChannels, GrantTable, Machine, Memory, Shutdown};

/// The machine that we are given, and the devices passed to it.
#[derive(Debug)]
pub(crate) struct Guest {
    machine: Machine,
    passthrough: Passthrough,
}

impl Guest {
    /// Takes the machine.
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, passthrough: Passthrough::default() }
    }

    /// What time it is.
    pub(crate) fn now(&self) -> Nanos {
        self.machine.clock.now()
    }

    /// Reports each port with an event.
    pub(crate) fn take_events(&mut self, report: impl FnMut(Port)) {
        self.machine.events.take_pending(report);
    }

    /// Sleeps until an event comes, or until this moment.
    pub(crate) fn sleep(&mut self, until: Option<Nanos>) {
        self.machine.events.sleep(&self.machine.clock, until);
    }
}

impl Platform for Guest {
    type Grants = GrantTable;
    type Events = EventChannels;
    type Memory = Memory;
    type Disk = PassedDisk;

    fn parts(&mut self) -> Parts<'_, Self> {
        let Machine { grants, events, memory, .. } = &mut self.machine;
        Parts { grants, events, memory }
    }

    fn store_read(&mut self, into: &mut [u8]) -> usize {
        self.machine.store.read(into)
    }

    fn store_write(&mut self, from: &[u8]) -> usize {
        self.machine.store.write(from)
    }

    fn open_pci_channel(&mut self, back: DomId) -> Result<(GrantRef, Port), String> {
        self.passthrough.open_channel(back, &mut self.machine)
    }

    fn close_pci_channel(&mut self) {
        self.passthrough.close_channel(&mut self.machine.grants, &mut self.machine.events);
    }

    fn start_disk(&mut self, address: Address) -> Result<PassedDisk, String> {
        self.passthrough.start_disk(address, &mut self.machine).map_err(|error| error.to_string())
    }

    fn stop_disk(&mut self, disk: &mut PassedDisk) {
        self.passthrough.stop_disk(disk, &mut self.machine);
    }

    fn usage(&self) -> Usage {
        let grants = self.machine.grants.counters();
        let memory = self.machine.memory.statistics();
        Usage {
            rings: grants.mapped_rings,
            mapped_pages: grants.mapped_for_device,
            granted_pages: grants.granted,
            free_pages: memory.free_pages,
            heap_bytes: memory.heap_used_bytes,
            longest_batch: grants.longest_batch,
        }
    }
}

/// How the domain ends, as xen-pv says it.
pub(crate) fn shutdown(how: hotplug::Shutdown) -> Shutdown {
    match how {
        hotplug::Shutdown::PowerOff | hotplug::Shutdown::Halt => Shutdown::Poweroff,
        hotplug::Shutdown::Reboot => Shutdown::Reboot,
    }
}
