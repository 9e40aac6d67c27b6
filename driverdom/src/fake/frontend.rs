//! The guest's end of a block device, as far as xenstore sees it.

use blkback_core::backend::VbdId;

use super::store::Store;

/// A frontend; what it writes, it writes as its guest.
#[derive(Clone, Copy, Debug)]
pub struct Frontend(pub VbdId);

impl Frontend {
    /// The path of one of its nodes.
    pub fn path(self, key: &str) -> String {
        format!("/local/domain/{}/device/vbd/{}/{key}", self.0.domain, self.0.device)
    }

    /// Writes a node, if the guest (still) may.
    pub fn write(self, store: &mut Store, key: &str, value: &str) {
        let _ = store.write(self.0.domain, 0, &self.path(key), value.as_bytes());
    }

    /// Writes its state.
    pub fn state(self, store: &mut Store, state: u32) {
        self.write(store, "state", &state.to_string());
    }

    /// Publishes a ring of one page and goes to Initialised.
    pub fn publish(self, store: &mut Store) {
        self.write(store, "ring-ref", "8");
        self.write(store, "event-channel", "5");
        self.write(store, "protocol", "x86_64-abi");
        self.state(store, 3);
    }

    /// Publishes a ring of `1 << order` pages and goes to Initialised.
    pub fn publish_order(self, store: &mut Store, order: u32) {
        for page in 0..1 << order {
            self.write(store, &format!("ring-ref{page}"), &(100 + page).to_string());
        }
        self.write(store, "ring-page-order", &order.to_string());
        self.write(store, "event-channel", "5");
        self.state(store, 3);
    }

    /// The guest removes its own directory.
    pub fn vanish(self, store: &mut Store) {
        let path = self.path("");
        let _ = store.rm(self.0.domain, 0, path.trim_end_matches('/'));
    }
}
