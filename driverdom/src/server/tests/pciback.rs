//! PCI's back in dom0, and what `xl pci-attach` and `xl pci-detach` do with it (contract 5 and 6.5).

use xen_proto::{DomId, Nanos};

use super::machine::PCI_CHANNEL;
use crate::drivers::pci::Address;
use crate::fake::Store;

const DOM0: DomId = DomId(0);
/// How long libxl waits for each answer.
const PATIENCE: Nanos = Nanos::from_millis(10_000);

/// The back of one domain.
pub(super) struct PciBack {
    domain: DomId,
    state: u32,
    /// What its nodes list, with whether each is going.
    devices: Vec<(Address, Place)>,
    /// Since when libxl waits for us to be at 4 again.
    waiting_since: Option<Nanos>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Here,
    Going,
    Gone,
}

impl PciBack {
    /// What libxl writes before the domain starts.
    pub(super) fn new(store: &mut Store, domain: DomId, devices: impl IntoIterator<Item = Address>) -> Self {
        let devices = devices.into_iter().map(|address| (address, Place::Here)).collect();
        let back = Self { domain, state: 1, devices, waiting_since: None };
        let front = back.front("");
        for (path, owner, reader) in [(&front, domain, DOM0), (&back.path(""), DOM0, domain)] {
            let path = path.trim_end_matches('/');
            store.mkdir(DOM0, 0, path).expect("dom0 may");
            store.give(path, owner, reader);
        }
        let backend = back.path("").trim_end_matches('/').to_string();
        for (key, value) in [("backend", backend.as_str()), ("backend-id", "0"), ("state", "1")] {
            store.write(DOM0, 0, &back.front(key), value.as_bytes()).expect("dom0 may");
        }
        back.write(store, "state", 1);
        back.list(store);
        back
    }

    /// Goes on as the front's state allows; whether anything happened.
    pub(super) fn step(&mut self, store: &mut Store, now: Nanos) -> bool {
        let late = self.waiting_since.is_some_and(|since| now.since(since) >= PATIENCE);
        assert!(!late, "libxl has waited in vain for PCI's back to be at 4");
        let front = store.text(&self.front("state")).unwrap_or_default();
        let next = match (self.state, front.as_str()) {
            (1, "1") => 2,
            (2, "1") => 3,
            (3, "3") => {
                let (gref, port) = PCI_CHANNEL;
                for (key, value) in [("pci-op-ref", gref.0), ("event-channel", port.0), ("magic", 7)] {
                    assert_eq!(store.text(&self.front(key)), Some(value.to_string()), "{key}");
                }
                4
            }
            (7, "7") => {
                self.devices
                    .iter_mut()
                    .filter(|(_, place)| *place == Place::Going)
                    .for_each(|(_, place)| *place = Place::Gone);
                self.list(store);
                8
            }
            (8, "4") => {
                self.waiting_since = None;
                4
            }
            _ => return false,
        };
        self.state = next;
        self.write(store, "state", next);
        true
    }

    /// `xl pci-attach`.
    pub(super) fn attach(&mut self, store: &mut Store, now: Nanos, address: Address) {
        self.devices.push((address, Place::Here));
        self.reconfigure(store, now);
    }

    /// `xl pci-detach`.
    pub(super) fn detach(&mut self, store: &mut Store, now: Nanos, address: Address) {
        let (_, place) = self
            .devices
            .iter_mut()
            .find(|(known, place)| *known == address && *place == Place::Here)
            .expect("it is attached");
        *place = Place::Going;
        self.reconfigure(store, now);
    }

    /// Whether libxl waits for nothing.
    pub(super) fn is_settled(&self) -> bool {
        self.state == 4 && self.waiting_since.is_none()
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.waiting_since.map(|since| since + PATIENCE)
    }

    fn reconfigure(&mut self, store: &mut Store, now: Nanos) {
        assert!(self.is_settled(), "libxl waits for 4 first");
        self.list(store);
        self.state = 7;
        self.write(store, "state", 7);
        self.waiting_since = Some(now);
    }

    fn list(&self, store: &mut Store) {
        self.write(store, "num_devs", u32::try_from(self.devices.len()).expect("few"));
        for (number, (address, place)) in self.devices.iter().enumerate() {
            let key = |name: &str| self.path(&format!("{name}-{number}"));
            if *place == Place::Gone {
                for name in ["vdev", "state"] {
                    store.rm(DOM0, 0, &key(name)).expect("dom0 may");
                }
                continue;
            }
            let state: &[u8] = if *place == Place::Going { b"5" } else { b"3" };
            let vdev =
                format!("{:04x}:{:02x}:{:02x}.{:02x}", address.segment, address.bus, address.slot, address.function);
            store.write(DOM0, 0, &key("vdev"), vdev.as_bytes()).expect("dom0 may");
            store.write(DOM0, 0, &key("state"), state).expect("dom0 may");
        }
    }

    fn write(&self, store: &mut Store, key: &str, value: u32) {
        store.write(DOM0, 0, &self.path(key), value.to_string().as_bytes()).expect("dom0 may");
    }

    fn path(&self, key: &str) -> String {
        format!("/local/domain/0/backend/pci/{}/0/{key}", self.domain)
    }

    fn front(&self, key: &str) -> String {
        format!("/local/domain/{}/device/pci/0/{key}", self.domain)
    }
}
