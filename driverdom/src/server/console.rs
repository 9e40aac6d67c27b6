//! A person at the console: a key asks for a report, which is printed as fast as it is read. Nobody can make us print without
//! end: there is one report at a time, few in a second, and what is typed meanwhile is not kept.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use blkback_core::backend::VbdId;
use xen_proto::Nanos;

use super::platform::Platform;
use super::report::Key;

/// Bytes typed that a turn takes at most.
const BYTES: usize = 64;
/// Time between two reports.
pub(super) const PAUSE: Nanos = Nanos::from_millis(200);

/// What is still to be printed.
#[derive(Debug, Default)]
pub(super) struct Console {
    lines: VecDeque<String>,
    /// The last device of the last report, if that did not show all.
    shown: Option<VbdId>,
    not_before: Nanos,
}

impl Console {
    /// Takes what was typed: the last key that asks for anything, unless it is too soon for a report; and whether there may be
    /// more.
    pub(super) fn key<P: Platform>(&mut self, now: Nanos, platform: &mut P) -> (Option<Key>, bool) {
        let mut bytes = [0; BYTES];
        let count = platform.console_read(&mut bytes);
        let typed = bytes.iter().take(count).rev().find_map(|byte| Key::parse(*byte));
        let key = typed.filter(|_| self.lines.is_empty() && now >= self.not_before);
        if key.is_some() {
            self.not_before = now + PAUSE;
        }
        (key, count == bytes.len())
    }

    /// After which device the next report on devices begins; from the first if none.
    pub(super) const fn shown(&self) -> Option<VbdId> {
        self.shown
    }

    /// Takes a report on devices up to this one to be printed; none if it showed all.
    pub(super) fn report_up_to(&mut self, shown: Option<VbdId>, lines: Vec<String>) {
        self.shown = shown;
        self.report(lines);
    }

    /// Takes a report to be printed.
    pub(super) fn report(&mut self, lines: Vec<String>) {
        self.lines = lines.into();
    }

    /// Prints what there is room for. An event comes when there is more.
    pub(super) fn print<P: Platform>(&mut self, platform: &mut P) {
        while let Some(line) = self.lines.front()
            && platform.console_print(line).is_ok()
        {
            self.lines.pop_front();
        }
    }
}
