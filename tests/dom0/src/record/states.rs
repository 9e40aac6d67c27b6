//! Which `state` nodes are known and what they were: decides what to read after a change, and what is new.

use std::collections::{BTreeMap, BTreeSet};

use xen_proto::DomId;

use crate::paths::{Place, VbdId, place};

/// The states of the vbds of a backend's domain, and of their frontends.
#[derive(Debug)]
pub(super) struct States {
    domain: DomId,
    /// By the node's path.
    known: BTreeMap<String, String>,
    /// Whose frontends are watched.
    guests: BTreeSet<DomId>,
    new_guest: Option<DomId>,
}

impl States {
    pub(super) fn new(domain: DomId) -> Self {
        Self { domain, known: BTreeMap::new(), guests: BTreeSet::new(), new_guest: None }
    }

    /// The nodes that must be read since `path` changed: itself, or those below it that were there.
    pub(super) fn reads_after(&mut self, path: &str) -> Vec<String> {
        match place(self.domain, path) {
            Place::BackendNode(id, "state") => {
                self.note_guest(id);
                vec![path.to_owned()]
            }
            Place::FrontendNode(_, "state") => vec![path.to_owned()],
            Place::Backend(_) | Place::Frontend(_) | Place::Guest(_) => self.below(path),
            Place::BackendNode(..) | Place::FrontendNode(..) | Place::Other => vec![],
        }
    }

    /// Whether the node was there when it was last read.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.known.contains_key(path)
    }

    /// Takes in a node's value; whether that is a change.
    pub(super) fn take(&mut self, path: &str, value: Option<&str>) -> bool {
        match value {
            None => self.known.remove(path).is_some(),
            Some(value) => self.known.insert(path.to_owned(), value.to_owned()).as_deref() != Some(value),
        }
    }

    /// A guest whose frontends are to be watched from now on.
    pub(super) fn take_new_guest(&mut self) -> Option<DomId> {
        self.new_guest.take()
    }

    fn note_guest(&mut self, VbdId { guest, .. }: VbdId) {
        if self.guests.insert(guest) {
            self.new_guest = Some(guest);
        }
    }

    fn below(&self, path: &str) -> Vec<String> {
        let directory = format!("{path}/");
        let from = self.known.range(directory.clone()..).map(|(path, _)| path);
        from.take_while(|path| path.starts_with(&directory)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: &str = "/local/domain/5/backend/vbd/7/51712";
    const FRONT: &str = "/local/domain/7/device/vbd/51712";

    #[test]
    fn only_states_are_read_and_only_changes_are_new() {
        let mut states = States::new(DomId(5));
        for quiet in
            [BACK, FRONT, &format!("{BACK}/params"), "/local/domain/5/backend", "/local/domain/5/backend/vbd/7"]
        {
            assert!(states.reads_after(quiet).is_empty(), "{quiet}");
        }
        let state = format!("{BACK}/state");
        assert_eq!(states.reads_after(&state), [state.as_str()]);
        assert_eq!(states.take_new_guest(), Some(DomId(7)));
        assert!(states.take(&state, Some("1")));
        assert!(!states.take(&state, Some("1")), "the same again");
        assert!(states.take(&state, Some("2")));
        states.reads_after(&state);
        assert_eq!(states.take_new_guest(), None, "its frontends are watched");
    }

    #[test]
    fn a_removed_directory_takes_its_states_with_it() {
        let mut states = States::new(DomId(5));
        let (first, other) = (format!("{BACK}/state"), "/local/domain/5/backend/vbd/7/51713/state");
        let front = format!("{FRONT}/state");
        for path in [first.as_str(), other, &front] {
            states.take(path, Some("4"));
        }
        assert_eq!(states.reads_after(BACK), [first.as_str()]);
        assert_eq!(states.reads_after("/local/domain/5/backend/vbd/7"), [first.as_str(), other]);
        assert_eq!(states.reads_after("/local/domain/7/device/vbd"), [front]);
        assert!(states.take(&first, None));
        assert!(!states.take(&first, None));
        assert!(states.reads_after(BACK).is_empty());
    }
}
