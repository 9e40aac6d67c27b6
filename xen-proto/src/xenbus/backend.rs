//! The backend's half of the handshake as a pure table: from what we hold and what xenstore says follows one step.
//!
//! The table is driven by *states*, not by events: whoever drives it reads the nodes again after any watch event, at the latest
//! when the step under way is done, and asks for the next step until it says [`Step::Rest`]. Missed and merged events therefore
//! do no harm. Before a step writes, it reads our `state` again in its own transaction and gives up if that is not the one the
//! decision was made on.

use super::State;
use crate::Nanos;

/// How long a device that was just attached stays at `InitWait`. libxl must *see* 2: finding 4 it waits on and fails after
/// 10 s. A hot-attached frontend answers in a millisecond; dom0 may be slow to look. A reconnecting frontend is not held.
pub const HOLD_INIT_WAIT: Nanos = Nanos::from_millis(500);
/// How long at least a closed device stays for dom0 to see 6; gone before, its removal fails ("wanted state 6 but it was
/// removed").
pub const MIN_REMOVAL_DWELL: Nanos = Nanos::from_millis(500);
/// What each closing device of a guest adds to the dwell of all: libxl writes 5 to each before it looks at any answer.
pub const REMOVAL_DWELL_PER_DEVICE: Nanos = Nanos::from_millis(10);
/// How long at most a closed device stays, however many more close after it: dom0 gives up 10 s after it has seen 6.
pub const MAX_REMOVAL_DWELL: Nanos = Nanos::from_millis(8_000);

/// How long the closed devices of a guest stay, counted from the toolstack's last `Closing` to any of them.
#[must_use]
pub fn removal_dwell(closing_devices: usize) -> Nanos {
    let devices = u64::try_from(closing_devices).unwrap_or(u64::MAX);
    Nanos(REMOVAL_DWELL_PER_DEVICE.0.saturating_mul(devices)).max(MIN_REMOVAL_DWELL).min(MAX_REMOVAL_DWELL)
}

/// libxl may pause between its last `Closing` and its first look: each device stays for this fraction of the time the asking took.
const PAUSE_FRACTION: u64 = 3;

/// When the toolstack asked for the devices of a guest that it destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destroy {
    first_asked: Nanos,
    last_asked: Nanos,
}

impl Destroy {
    /// It asks for the first device.
    #[must_use]
    pub const fn begin(now: Nanos) -> Self {
        Self { first_asked: now, last_asked: now }
    }

    /// It asks for one more.
    pub const fn ask(&mut self, now: Nanos) {
        self.last_asked = now;
    }

    /// When the device may be removed that it asked for at `asked_at`.
    #[must_use]
    pub fn remove_at(&self, asked_at: Nanos) -> Nanos {
        let since = |at: Nanos| at.since(self.first_asked);
        self.last_asked + destroy_dwell(since(asked_at), since(self.last_asked))
    }
}

/// How long a device of a destroyed guest stays after the toolstack's last `Closing` to any of them, if that device was asked for
/// `asked_after` the first was, and all within `asked_for`. libxl asks for all, looks at the answers in the same order, which took
/// it 0.35 to 0.44 of that time, and ends them one by one, about as slowly as it asked. So each stays as long as its place in the
/// order took, two and a half times as long as libxl needs to look; in steps of [`MIN_REMOVAL_DWELL`], for directories to be
/// removed together, and up to [`MAX_REMOVAL_DWELL`].
pub(super) fn destroy_dwell(asked_after: Nanos, asked_for: Nanos) -> Nanos {
    let steps = asked_after.0.div_ceil(MIN_REMOVAL_DWELL.0).max(1);
    let place = Nanos(MIN_REMOVAL_DWELL.0.saturating_mul(steps));
    place.max(Nanos(asked_for.0 / PAUSE_FRACTION)).min(MAX_REMOVAL_DWELL)
}

/// How far we are with a device: what we hold for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Fresh,
    /// The volume, not yet offered to the frontend.
    Opened,
    /// The volume, offered; no rings.
    Ready,
    /// The volume and the rings; `Connected` is not written yet.
    Linked,
    /// The volume and the rings, in use.
    Connected,
}

/// What xenstore says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Our `state`; none: the directory is gone.
    pub own: Option<State>,
    /// Our `online`: 0 once the toolstack wants the device gone for good.
    pub online: bool,
    /// The frontend's `state`; none if it cannot be read, for whatever reason: its directory may be gone.
    pub frontend: Option<State>,
    /// The frontend's `state` when the last step was decided.
    pub frontend_before: Option<State>,
}

/// The moments that matter to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Now.
    pub now: Nanos,
    /// Until when `InitWait` is held.
    pub hold_until: Nanos,
    /// From when on the closed device may be removed.
    pub remove_at: Nanos,
    /// When draining: until when frontends may take to close by themselves.
    pub drain_until: Nanos,
}

/// What is to be done with a device next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until something changes.
    Rest,
    /// Nothing until then, or until something changes.
    Wait(Nanos),
    /// Claim the volume.
    Open,
    /// Publish the features and write `InitWait`.
    Offer,
    /// Read the frontend's rings and map them.
    Connect,
    /// Publish the volume's properties and write `Connected`.
    Announce,
    /// Write this state.
    Switch(State),
    /// The frontend is in a state that it must not be in: say so in `error/` and write `Closing`.
    Fail(State),
    /// Finish what is under way, unmap the rings, close the event channel.
    Disconnect,
    /// Give up the claim on the volume.
    Close,
    /// Remove our directory.
    Remove,
    /// The directory is gone and nothing is held: forget the device.
    Forget,
}

/// The next step of a device.
#[must_use]
pub fn next_step(phase: Phase, seen: Seen, times: Times) -> Step {
    match (seen.own, phase) {
        (None | Some(State::INITIALISING), Phase::Linked | Phase::Connected) => Step::Disconnect,
        (Some(State::INITIALISING), Phase::Opened) => Step::Offer,
        // Gone, or gone and made anew before we looked: only the toolstack writes 1, and only once.
        (None, Phase::Opened) | (None | Some(State::INITIALISING), Phase::Ready) => Step::Close,
        (None, Phase::Fresh) => Step::Forget,
        (Some(State::INITIALISING), Phase::Fresh) => Step::Open,
        (Some(own), Phase::Fresh) => step_fresh(own, seen, times),
        (Some(own), Phase::Opened) => step_opened(own, seen),
        (Some(own), Phase::Ready) => step_ready(own, seen, times),
        (Some(own), Phase::Linked) => step_linked(own, seen),
        (Some(own), Phase::Connected) => step_connected(own, seen),
    }
}

fn step_fresh(own: State, seen: Seen, times: Times) -> Step {
    match (own, seen.online, seen.frontend) {
        (State::CLOSED, false, _) => wait_or(times.remove_at, times, Step::Remove),
        (State::CLOSED, true, Some(State::INITIALISING)) => Step::Open,
        (State::CLOSED, true, _) => Step::Rest,
        (State::CLOSING, _, _) | (_, false, _) => Step::Switch(State::CLOSED),
        (_, true, _) => Step::Open,
    }
}

fn step_opened(own: State, seen: Seen) -> Step {
    if seen.online && own != State::CLOSING { Step::Offer } else { Step::Close }
}

fn step_ready(own: State, seen: Seen, times: Times) -> Step {
    if !seen.online {
        // Nothing is served, so nothing is cut off, whatever the frontend says; the claim goes before 6 is written.
        return Step::Close;
    }
    let step = match (own, seen.frontend) {
        (State::INIT_WAIT, Some(State::INITIALISING)) => Step::Rest,
        (_, Some(State::INITIALISING)) => Step::Switch(State::INIT_WAIT),
        // After a failure the frontend must close first; else we would fail again and again.
        (State::CLOSING, Some(State::INITIALISED | State::CONNECTED)) => Step::Rest,
        (_, Some(State::INITIALISED | State::CONNECTED)) => Step::Connect,
        (State::CLOSED, _) => Step::Rest,
        (_, None | Some(State::CLOSED)) => Step::Switch(State::CLOSED),
        (State::CLOSING, _) => Step::Rest,
        (_, Some(State::CLOSING)) => Step::Switch(State::CLOSING),
        (_, Some(garbage)) => Step::Fail(garbage),
    };
    if own == State::INIT_WAIT && step != Step::Rest { wait_or(times.hold_until, times, step) } else { step }
}

fn step_linked(own: State, seen: Seen) -> Step {
    match (own, seen.frontend) {
        (State::CLOSING, _) => Step::Disconnect,
        (State::CLOSED, _) if !seen.online => Step::Disconnect,
        (_, Some(State::INITIALISED | State::CONNECTED)) => Step::Announce,
        _ => Step::Disconnect,
    }
}

fn step_connected(own: State, seen: Seen) -> Step {
    if (seen.frontend_before, seen.frontend) == (Some(State::CONNECTED), Some(State::INITIALISED)) {
        // It began anew without closing (a resume, a kexec): the rings it publishes now are others.
        return Step::Disconnect;
    }
    match (own, seen.frontend) {
        (State::CLOSED, _) => Step::Disconnect,
        (_, Some(State::INITIALISED | State::CONNECTED)) => Step::Rest,
        // Asked to close by the toolstack, frontends that hold the disk open (Linux before 5.15, FreeBSD) go to 5 and use it
        // on; cutting them off would hang them. They go to 6 when they are done.
        (State::CLOSING, Some(State::CLOSING)) => Step::Rest,
        _ => Step::Disconnect,
    }
}

/// The next step of a device while the whole driver domain goes away: frontends are asked to close and served until they do or
/// [`Times::drain_until`] has come; nothing new is taken. [`Step::Open`] is to be answered by refusing the device.
#[must_use]
pub fn next_step_draining(phase: Phase, seen: Seen, times: Times) -> Step {
    match (phase, seen.own, seen.frontend) {
        (Phase::Fresh, Some(State::CLOSED), _) if seen.online => Step::Rest,
        (Phase::Fresh, None | Some(State::INITIALISING | State::CLOSED), _) => next_step(phase, seen, times),
        (Phase::Fresh, Some(_), _) => Step::Switch(State::CLOSED),
        (Phase::Opened | Phase::Ready, _, _) => Step::Close,
        (Phase::Linked, _, _) | (_, None | Some(State::INITIALISING | State::CLOSED), _) => Step::Disconnect,
        (Phase::Connected, Some(State::CLOSING), Some(State::INITIALISED | State::CONNECTED | State::CLOSING)) => {
            wait_or(times.drain_until, times, Step::Disconnect)
        }
        (Phase::Connected, Some(_), Some(State::INITIALISED | State::CONNECTED)) => Step::Switch(State::CLOSING),
        (Phase::Connected, Some(_), _) => Step::Disconnect,
    }
}

fn wait_or(until: Nanos, times: Times, step: Step) -> Step {
    if times.now < until { Step::Wait(until) } else { step }
}
