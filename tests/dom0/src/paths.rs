//! Where vbds are in xenstore, as dom0 sees it.

use xen_proto::DomId;

/// A vbd of a backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VbdId {
    /// The frontend's domain.
    pub(crate) guest: DomId,
    /// Its number there.
    pub(crate) device: u32,
}

impl VbdId {
    /// Its directory at the backend `domain`.
    pub(crate) fn backend(self, domain: DomId) -> String {
        format!("{}/{}/{}", backends(domain), self.guest, self.device)
    }

    /// Its directory at the frontend.
    pub(crate) fn frontend(self) -> String {
        format!("{}/{}", frontends(self.guest), self.device)
    }
}

/// The directory of all backends of `domain`, which the toolstack makes with the first.
pub(crate) fn watched(domain: DomId) -> String {
    format!("/local/domain/{domain}/backend")
}

/// The directory of the backends of vbds.
pub(crate) fn backends(domain: DomId) -> String {
    format!("{}/vbd", watched(domain))
}

/// The directory of a guest's vbds.
pub(crate) fn frontends(guest: DomId) -> String {
    format!("/local/domain/{guest}/device/vbd")
}

/// What a changed path concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// A node of a vbd's backend directory.
    BackendNode(VbdId, &'a str),
    /// That directory itself: made or removed.
    Backend(VbdId),
    /// A node of a vbd's frontend directory.
    FrontendNode(VbdId, &'a str),
    /// That directory itself.
    Frontend(VbdId),
    /// What lies above all vbds of a guest, at the backend or at the frontend.
    Guest(DomId),
    /// What lies above those, or something else.
    Other,
}

/// Finds out what `path` concerns, of the backends of `domain` and of all frontends.
pub(crate) fn place(domain: DomId, path: &str) -> Place<'_> {
    if let Some(rest) = path.strip_prefix(&backends(domain)) {
        return place_below(rest, Place::BackendNode, Place::Backend);
    }
    let home = path.strip_prefix("/local/domain/").and_then(|rest| rest.split_once("/device/vbd"));
    let Some((guest, rest)) = home.and_then(|(guest, rest)| Some((guest.parse().map(DomId).ok()?, rest))) else {
        return Place::Other;
    };
    match rest.strip_prefix('/') {
        None => Place::Guest(guest),
        Some(rest) => device(guest, rest, Place::FrontendNode, Place::Frontend),
    }
}

type Node<'a> = fn(VbdId, &'a str) -> Place<'a>;
type Directory<'a> = fn(VbdId) -> Place<'a>;

fn place_below<'a>(rest: &'a str, node: Node<'a>, directory: Directory<'a>) -> Place<'a> {
    let mut parts = rest.strip_prefix('/').unwrap_or_default().splitn(2, '/');
    let Some(guest) = parts.next().and_then(|guest| guest.parse().map(DomId).ok()) else { return Place::Other };
    parts.next().map_or(Place::Guest(guest), |rest| device(guest, rest, node, directory))
}

fn device<'a>(guest: DomId, rest: &'a str, node: Node<'a>, directory: Directory<'a>) -> Place<'a> {
    let (number, key) = rest.split_once('/').map_or((rest, None), |(number, key)| (number, Some(key)));
    let Ok(device) = number.parse() else { return Place::Other };
    let id = VbdId { guest, device };
    key.map_or(directory(id), |key| node(id, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let id = VbdId { guest: DomId(7), device: 51712 };
        for (path, expected) in [
            ("/local/domain/5/backend", Place::Other),
            ("/local/domain/5/backend/vbd", Place::Other),
            ("/local/domain/5/backend/vbd/7", Place::Guest(DomId(7))),
            ("/local/domain/5/backend/vbd/7/51712", Place::Backend(id)),
            ("/local/domain/5/backend/vbd/7/51712/state", Place::BackendNode(id, "state")),
            ("/local/domain/5/backend/vif/7/0/state", Place::Other),
            ("/local/domain/5/backend/vbd/x/51712/state", Place::Other),
            ("/local/domain/6/backend/vbd/7/51712/state", Place::Other),
            ("/local/domain/7/device/vbd", Place::Guest(DomId(7))),
            ("/local/domain/7/device/vbd/51712", Place::Frontend(id)),
            ("/local/domain/7/device/vbd/51712/queue-0/ring-ref", Place::FrontendNode(id, "queue-0/ring-ref")),
            ("/local/domain/7/device/vbd/xvda/state", Place::Other),
            ("/local/domain/7/device", Place::Other),
        ] {
            assert_eq!(place(DomId(5), path), expected, "{path}");
        }
        assert_eq!(place(DomId(5), &id.backend(DomId(5))), Place::Backend(id));
        assert_eq!(place(DomId(5), &id.frontend()), Place::Frontend(id));
    }
}
