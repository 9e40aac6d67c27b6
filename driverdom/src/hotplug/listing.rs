//! Devices that are there before we are. The watch comes first and the listing after, so that none falls between.

use alloc::collections::VecDeque;

use xen_proto::DomId;

/// Guests listed at once: a listing can be long, and the queue of requests is not.
const MAX_LISTINGS: usize = 4;

/// How far the first look at what is there has come.
#[derive(Debug, Default)]
pub(super) struct Listing {
    guests: VecDeque<DomId>,
    under_way: usize,
    complete: Completion,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Completion {
    #[default]
    Unknown,
    GuestsKnown,
    Told,
}

impl Listing {
    /// The guests with devices are these.
    pub(super) fn found_guests(&mut self, guests: impl Iterator<Item = DomId>) {
        self.guests.extend(guests);
        self.complete = Completion::GuestsKnown;
    }

    /// The next guest to be listed, if it is time.
    pub(super) fn next(&mut self) -> Option<DomId> {
        if self.under_way == MAX_LISTINGS {
            return None;
        }
        let guest = self.guests.pop_front()?;
        self.under_way += 1;
        Some(guest)
    }

    /// A guest was listed.
    pub(super) fn listed_guest(&mut self) {
        self.under_way -= 1;
    }

    /// Whether all is listed; says so once.
    pub(super) fn just_completed(&mut self) -> bool {
        let now = self.complete == Completion::GuestsKnown && self.guests.is_empty() && self.under_way == 0;
        if now {
            self.complete = Completion::Told;
        }
        now
    }
}
