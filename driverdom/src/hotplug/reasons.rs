//! Notes in `error/backend/vbd/<domain>/<device>/error` on why a device does not work, for people: xl cannot show them.
//!
//! A note outlives its device: after a failed `xl create` both are gone before anybody could read it. It goes when a device of
//! that name attaches well, when it is [`REASON_LIFE`] old, or when there are [`MAX_REASONS`] younger ones.

use alloc::collections::BTreeMap;
use alloc::string::String;

use blkback_core::backend::VbdId;
use xen_proto::Nanos;

use super::paths;

/// Notes that are kept at most: they count against the domain's quota of nodes.
pub const MAX_REASONS: usize = 64;
/// How long a note is kept.
pub const REASON_LIFE: Nanos = Nanos::from_millis(600_000);
/// The longest note, in bytes.
const MAX_REASON: usize = 512;

/// The notes that stand in xenstore, with when they were written.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    notes: BTreeMap<VbdId, Nanos>,
}

impl Reasons {
    /// Takes down that a note is written. Returns the note that must go for it, if any.
    pub(super) fn add(&mut self, now: Nanos, id: VbdId) -> Option<VbdId> {
        self.notes.insert(id, now);
        if self.notes.len() <= MAX_REASONS {
            return None;
        }
        let others = self.notes.iter().filter(|(other, _)| **other != id);
        others.min_by_key(|(_, written)| **written).map(|(oldest, _)| *oldest)
    }

    /// Takes down that a note goes. Returns the path to be removed, if there was a note: with the last one of a guest, and with
    /// the last of all, goes what is above it, lest empty directories pile up.
    pub(super) fn remove(&mut self, id: VbdId) -> Option<String> {
        self.notes.remove(&id)?;
        let of_guest = VbdId { device: 0, ..id }..=VbdId { device: u32::MAX, ..id };
        Some(if self.notes.is_empty() {
            paths::REASONS.into()
        } else if self.notes.range(of_guest).next().is_none() {
            paths::reasons(id.domain)
        } else {
            paths::reason(id)
        })
    }

    /// A note that is too old.
    pub(super) fn expired(&self, now: Nanos) -> Option<VbdId> {
        self.oldest().filter(|(_, written)| *written + REASON_LIFE <= now).map(|(id, _)| id)
    }

    /// When the next note gets too old.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.oldest().map(|(_, written)| written + REASON_LIFE)
    }

    /// There are at most [`MAX_REASONS`] to look at.
    fn oldest(&self) -> Option<(VbdId, Nanos)> {
        self.notes.iter().map(|(id, written)| (*id, *written)).min_by_key(|(_, written)| *written)
    }
}

/// A reason as it is written.
pub(super) fn shortened(reason: &str) -> &str {
    let end = (0..=MAX_REASON.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}

/// What to say when a quota of xenstored stands in the way.
pub(super) fn quota(what: &str) -> String {
    alloc::format!("xenstored's quota for this domain is used up ({what}): raise it, e.g. xenstored -E 100000 -W 10000")
}

#[cfg(test)]
mod tests {
    use xen_proto::DomId;

    use super::*;

    fn id(domain: u16, device: u32) -> VbdId {
        VbdId { domain: DomId(domain), device }
    }

    #[test]
    fn the_last_note_takes_the_directories_above_it_with_it() {
        let mut reasons = Reasons::default();
        for (now, note) in [(1, id(5, 1)), (2, id(5, 2)), (3, id(6, 1))] {
            assert_eq!(reasons.add(Nanos(now), note), None);
        }
        assert_eq!(reasons.remove(id(5, 1)).as_deref(), Some("error/backend/vbd/5/1"));
        assert_eq!(reasons.remove(id(5, 1)), None);
        assert_eq!(reasons.remove(id(5, 2)).as_deref(), Some("error/backend/vbd/5"));
        assert_eq!(reasons.remove(id(6, 1)).as_deref(), Some("error/backend"));
    }

    #[test]
    fn notes_are_few_and_go_with_time() {
        let mut reasons = Reasons::default();
        for device in 0..64 {
            assert_eq!(reasons.add(Nanos(u64::from(device)), id(5, device)), None);
        }
        assert_eq!(reasons.add(Nanos(64), id(5, 64)), Some(id(5, 0)));
        reasons.remove(id(5, 0));
        assert_eq!(reasons.next_deadline(), Some(Nanos(1) + REASON_LIFE));
        assert_eq!(reasons.expired(REASON_LIFE), None);
        assert_eq!(reasons.expired(Nanos(1) + REASON_LIFE), Some(id(5, 1)));
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ä".repeat(300);
        assert_eq!(shortened(&long).len(), 512);
        let odd = alloc::format!("x{long}");
        assert_eq!(shortened(&odd).len(), 511);
    }
}
