//! Where things are in xenstore. Paths without a leading slash are relative to our own home.

use alloc::format;
use alloc::string::String;

use blkback_core::backend::VbdId;
use xen_proto::DomId;
use xen_proto::xenbus::parse_number;

/// All our devices, of whatever kind.
pub(super) const BACKEND: &str = "backend";
/// All our block devices.
pub(super) const VBDS: &str = "backend/vbd";
/// Our notes on why devices do not work. The directory above is the toolstack's.
pub(super) const REASONS: &str = "error/backend";
/// How the toolstack wants the domain to end.
pub(super) const SHUTDOWN: &str = "control/shutdown";
/// The key that a person pressed, as it were.
pub(super) const SYSRQ: &str = "control/sysrq";
/// 1 from when devices are looked after, 0 from when they no longer are.
pub(super) const READY: &str = "data/driverdom/ready";

/// Our directory of a guest's devices.
pub(super) fn guest(domain: DomId) -> String {
    format!("{VBDS}/{domain}")
}

/// Our directory of a device.
pub(super) fn backend(id: VbdId) -> String {
    format!("{VBDS}/{}/{}", id.domain, id.device)
}

/// The guest's own directory of its block devices.
pub(super) fn frontends(domain: DomId) -> String {
    format!("/local/domain/{domain}/device/vbd")
}

/// The guest's own directory of a device. libxl makes it there and nowhere else, so `frontend` need not be read.
pub(super) fn frontend(id: VbdId) -> String {
    format!("{}/{}", frontends(id.domain), id.device)
}

/// Our notes on why a guest's devices do not work.
pub(super) fn reasons(domain: DomId) -> String {
    format!("{REASONS}/vbd/{domain}")
}

/// Our note on why a device does not work.
pub(super) fn reason(id: VbdId) -> String {
    format!("{}/{}", reasons(id.domain), id.device)
}

/// What a watch event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// This device.
    Device(VbdId),
    /// Any device of this guest, by a change above them.
    Guest(DomId),
    /// Any device, by a change above them.
    All,
    /// A device of a kind that is not ours.
    OtherKind(&'a str),
    /// Nothing that matters.
    Nothing,
}

/// Reads the path of an event of the watch on [`BACKEND`], relative or not. Of a device's nodes only those count that the
/// toolstack changes.
pub(super) fn backend_change(path: &str) -> Change<'_> {
    let path = match path.strip_prefix("/local/domain/").and_then(|rest| rest.split_once('/')) {
        Some((_, relative)) => relative,
        None => path,
    };
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some(BACKEND), None) => return Change::All,
        (Some(BACKEND), Some("vbd")) => {}
        (Some(BACKEND), Some(kind)) => return Change::OtherKind(kind),
        _ => return Change::Nothing,
    }
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (None, ..) => Change::All,
        (Some(domain), None, ..) => domain_number(domain).map_or(Change::Nothing, Change::Guest),
        (Some(domain), Some(device), None | Some("state" | "online"), None) => {
            vbd(domain, device).map_or(Change::Nothing, Change::Device)
        }
        _ => Change::Nothing,
    }
}

/// Reads the path of an event of the watch on [`frontends`]. The guest makes what nodes it likes there.
pub(super) fn frontend_change(domain: DomId, path: &str) -> Change<'_> {
    let Some(below) = path.strip_prefix(frontends(domain).as_str()) else { return Change::Guest(domain) };
    let mut parts = below.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(""), None, ..) => Change::Guest(domain),
        (Some(""), Some(device), None | Some("state"), None) => {
            device_number(device).map_or(Change::Nothing, |device| Change::Device(VbdId { domain, device }))
        }
        _ => Change::Nothing,
    }
}

/// A device from the names of its directories.
pub(super) fn vbd(domain: &str, device: &str) -> Option<VbdId> {
    Some(VbdId { domain: domain_number(domain)?, device: device_number(device)? })
}

/// A domain from the name of a directory.
pub(super) fn domain_number(name: &str) -> Option<DomId> {
    canonical(name).and_then(|number| u16::try_from(number).ok()).map(DomId)
}

fn device_number(name: &str) -> Option<u32> {
    canonical(name).and_then(|number| u32::try_from(number).ok())
}

/// A number written as we would write it, so that name and number stand for each other.
fn canonical(name: &str) -> Option<u64> {
    parse_number(name.as_bytes()).filter(|_| name == "0" || !name.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Change<'static> = Change::Device(VbdId { domain: DomId(5), device: 51712 });

    #[test]
    fn events_of_our_own_directory() {
        for (path, change) in [
            ("backend", Change::All),
            ("backend/vbd", Change::All),
            ("backend/vbd/5", Change::Guest(DomId(5))),
            ("backend/vbd/5/51712", DEVICE),
            ("backend/vbd/5/51712/state", DEVICE),
            ("backend/vbd/5/51712/online", DEVICE),
            ("/local/domain/3/backend/vbd/5/51712/state", DEVICE),
            ("backend/vbd/5/51712/sectors", Change::Nothing),
            ("backend/vbd/5/51712/state/x", Change::Nothing),
            ("backend/vbd/05/51712", Change::Nothing),
            ("backend/vbd/5/99999999999", Change::Nothing),
            ("backend/vbd/65536/1", Change::Nothing),
            ("backend/vif/5/0/state", Change::OtherKind("vif")),
            ("data", Change::Nothing),
            ("", Change::Nothing),
        ] {
            assert_eq!(backend_change(path), change, "{path}");
        }
    }

    #[test]
    fn events_of_a_guests_directory() {
        for (path, change) in [
            ("/local/domain/5/device/vbd", Change::Guest(DomId(5))),
            ("/local/domain/5/device", Change::Guest(DomId(5))),
            ("/local/domain/5", Change::Guest(DomId(5))),
            ("/local/domain/5/device/vbd/51712", DEVICE),
            ("/local/domain/5/device/vbd/51712/state", DEVICE),
            ("/local/domain/5/device/vbd/51712/ring-ref", Change::Nothing),
            ("/local/domain/5/device/vbd/51712/state/deep/er", Change::Nothing),
            ("/local/domain/5/device/vbd/x", Change::Nothing),
            ("/local/domain/5/device/vbd/", Change::Nothing),
            ("/local/domain/5/device/vbdx", Change::Nothing),
        ] {
            assert_eq!(frontend_change(DomId(5), path), change, "{path}");
        }
    }
}
