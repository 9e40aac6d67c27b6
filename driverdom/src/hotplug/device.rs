//! One device: what we hold for it, what we know of it, and what is under way.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use blkback_core::volume::Mode;
use xen_proto::Nanos;
use xen_proto::blkif::{VDISK_CDROM, VDISK_READONLY};
use xen_proto::xenbus::{MAX_REMOVAL_DWELL, MIN_REMOVAL_DWELL, Phase, Seen, State, Times};

use super::Properties;
use super::guest::{Guest, Removal};
use super::task::Task;

/// The longest target that is looked at, in bytes.
const MAX_TARGET: usize = 256;

/// A device of the toolstack's, from the first sight of its directory until that is gone and nothing is held.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) phase: Phase,
    pub(super) activity: Activity,
    /// Its nodes may have changed since they were last read.
    pub(super) changed: bool,
    /// As last read; none before the first time.
    pub(super) seen: Option<Seen>,
    /// As last read; none once it has been used.
    pub(super) config: Option<Config>,
    pub(super) verdict: Option<Verdict>,
    /// What is in `info`, once the volume is open.
    pub(super) info: u32,
    /// While a volume is held.
    pub(super) properties: Option<Properties>,
    /// The device turned out not to flush: the frontend is still to be told.
    pub(super) flush_withdrawn: bool,
    /// When its directory was first seen.
    pub(super) found_at: Nanos,
    /// When its frontend was first seen ready to connect, since it last began.
    pub(super) frontend_ready_at: Option<Nanos>,
    /// Since when its volume is being drained for somebody else.
    pub(super) waiting_since: Option<Nanos>,
    /// Until when `InitWait` is held for dom0 to see.
    pub(super) hold_until: Nanos,
    /// The toolstack removes it; counted in its guest.
    pub(super) closing: Option<Removal>,
    /// When it was first seen that it does.
    pub(super) asked_at: Nanos,
    /// When it was closed for good.
    pub(super) closed_at: Option<Nanos>,
    /// When its nodes were last asked for.
    pub(super) refresh_began: Nanos,
    /// When it is to be looked at without an event.
    pub(super) timer: Option<Nanos>,
    /// Transactions that failed in a row by others' changes.
    pub(super) conflicts: u32,
}

/// What is under way for a device.
#[derive(Debug)]
pub(super) enum Activity {
    /// Nothing.
    Idle,
    /// It waits in the queue.
    Queued,
    /// It has one of the places for tasks; no task between two of them.
    Running(Option<Task>),
    /// An action's answer is awaited.
    Asked(Question),
}

/// Which answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Open,
    Connect,
    Disconnect,
}

/// What overrides the table.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The device cannot be served: its directory goes, so that the toolstack fails at once.
    Refuse(String),
    /// The frontend made a mistake: `Closing`, and it may try again.
    Fail(String),
}

/// How the device was configured, as it stands in xenstore.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) params: Vec<u8>,
    pub(super) mode: Vec<u8>,
    pub(super) device_type: Vec<u8>,
}

impl Config {
    /// The target and the mode.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub(super) fn parse(&self) -> Result<(String, Mode), String> {
        let target = match core::str::from_utf8(&self.params) {
            Ok("") => return Err("the disk has no target".to_string()),
            Ok(target) if target.len() <= MAX_TARGET => target.to_string(),
            Ok(target) => return Err(format!("the target has {} bytes, more than {MAX_TARGET}", target.len())),
            Err(_) => return Err("the target is not UTF-8".to_string()),
        };
        let mode = match self.mode.as_slice() {
            b"r" => Mode::ReadOnly,
            b"w" => Mode::ReadWrite,
            _ => return Err("the mode is neither r nor w".to_string()),
        };
        Ok((target, mode))
    }

    /// The flags of the key `info` (blkif.h).
    pub(super) fn info(&self) -> u32 {
        let cdrom = if self.device_type == b"cdrom" { VDISK_CDROM } else { 0 };
        let read_only = if self.mode == b"w" { 0 } else { VDISK_READONLY };
        cdrom | read_only
    }
}

impl Device {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            phase: Phase::Fresh,
            activity: Activity::Idle,
            changed: true,
            seen: None,
            config: None,
            verdict: None,
            info: 0,
            properties: None,
            flush_withdrawn: false,
            found_at: now,
            frontend_ready_at: None,
            waiting_since: None,
            hold_until: Nanos(0),
            closing: None,
            asked_at: now,
            closed_at: None,
            refresh_began: now,
            timer: None,
            conflicts: 0,
        }
    }

    /// Whether a volume is held.
    pub(super) fn holds_volume(&self) -> bool {
        self.phase != Phase::Fresh
    }

    /// Takes in what was read, and what follows for the device's times. `look` is how long looks take.
    pub(super) fn update(
        &mut self,
        now: Nanos,
        own: Option<State>,
        online: bool,
        frontend: Option<State>,
        guest: &mut Guest,
        look: Nanos,
    ) {
        let frontend_before = self.seen.and_then(|seen| seen.frontend);
        self.seen = Some(Seen { own, online, frontend, frontend_before });
        let removed = !online && matches!(own, Some(State::CLOSING | State::CLOSED));
        if removed && self.closing.is_none() {
            // A guest may have taken its directory away itself, before: then the toolstack asks for this device alone.
            let taken_away = frontend.is_none() && frontend_before.is_some();
            let removal = if taken_away { Removal::Forced } else { Removal::Asked };
            (self.closing, self.asked_at) = (Some(removal), now);
            guest.begin_closing(now, removal, look);
        } else if own == Some(State::INITIALISING) && self.closing.is_some() {
            // Removed and made anew before we looked.
            self.closing = None;
            self.closed_at = None;
            guest.end_closing();
        }
        self.note_closed(now);
        match frontend {
            Some(State::INITIALISED | State::CONNECTED) => {
                self.frontend_ready_at = self.frontend_ready_at.or(Some(now));
            }
            _ => self.frontend_ready_at = None,
        }
    }

    /// Our state is now this, by our own hand.
    pub(super) fn wrote(&mut self, now: Nanos, state: State) {
        if let Some(seen) = &mut self.seen {
            seen.own = Some(state);
        }
        self.note_closed(now);
    }

    /// We removed the directory.
    pub(super) fn removed(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.own = None;
        }
    }

    fn note_closed(&mut self, now: Nanos) {
        let closed = self.seen.is_some_and(|seen| seen.own == Some(State::CLOSED) && !seen.online);
        if closed && self.closed_at.is_none() {
            self.closed_at = Some(now);
        }
    }

    /// The moments that the table needs.
    pub(super) fn times(&self, now: Nanos, guest: &Guest, drain_until: Option<Nanos>) -> Times {
        let closed_at = self.closed_at.unwrap_or(now);
        let remove_at = guest.remove_at(self.asked_at).max(closed_at + MIN_REMOVAL_DWELL);
        // Devices that are detached side by side are waited for by different commands, each for 10 s. A destroy waits for no
        // device before it has asked for all.
        let remove_at = match self.closing {
            Some(Removal::Forced) => remove_at,
            _ => remove_at.min(closed_at + MAX_REMOVAL_DWELL),
        };
        Times { now, hold_until: self.hold_until, remove_at, drain_until: drain_until.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations() {
        let config =
            |params: &[u8], mode: &[u8]| Config { params: params.to_vec(), mode: mode.to_vec(), device_type: vec![] };
        for (params, mode, parsed) in [
            (&b"disk0"[..], &b"w"[..], Ok(("disk0".to_string(), Mode::ReadWrite))),
            (b"gpt:a b:c", b"r", Ok(("gpt:a b:c".to_string(), Mode::ReadOnly))),
            (b"", b"w", Err("no target")),
            (&[b'x'; MAX_TARGET + 1], b"w", Err("257 bytes")),
            (b"\xff", b"w", Err("UTF-8")),
            (b"disk0", b"", Err("mode")),
            (b"disk0", b"w!", Err("mode")),
        ] {
            match (config(params, mode).parse(), parsed) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(reason), Err(word)) => assert!(reason.contains(word), "{reason}"),
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn info_has_the_flags_of_the_protocol() {
        for (device_type, mode, info) in
            [("disk", "w", 0), ("disk", "r", 4), ("cdrom", "r", 5), ("cdrom", "w", 1), ("", "w", 0)]
        {
            let config = Config { params: vec![], mode: mode.into(), device_type: device_type.into() };
            assert_eq!(config.info(), info, "{device_type} {mode}");
        }
    }
}
