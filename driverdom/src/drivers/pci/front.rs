//! The front's side of the handshake with PCI's back in xenstore, without effects (contract: io/pciif.h and the order of
//! states that Linux's pciback keeps).
//!
//! ```text
//! back 2, 3 ─► we open a channel, write it, 3 ─► back 4 ─► devices attached, 4
//! back 7    ─► devices marked 5 are detached, 7 ─► back 8 ─► new devices attached, 4 ─► back 4
//! back 5, 6, or the directory gone ─► all devices detached, 6
//! ```
//! `xl` waits for each of these answers, also when it destroys us (ten seconds a step), so they are given while we drain, too.
//!
//! The caller watches [`WATCHED`] at the start and tells of every event of it or of a path that [`Action::Watch`] named with
//! [`Input::Changed`]. Without a PCI device nothing ever happens here.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use xen_proto::xenbus::{State, parse_number};
use xen_proto::{DomId, GrantRef, Port};

use super::Address;

/// What to watch from the start, relative to our own directory in xenstore: a device may come later.
pub const WATCHED: &str = "device/pci";

/// Our directory of the only PCI bus, relative to our own directory.
const OWN: &str = "device/pci/0";
/// `XEN_PCI_MAGIC`, pciif.h.
const MAGIC: &str = "7";
/// No more devices than this are looked at: a bus has that many slots.
const MAX_DEVICES: u64 = 32;

/// What the front learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A watch fired; which one does not matter.
    Changed,
    /// The values of the nodes that [`Action::Read`] named, in its order; `None` for a node that is missing or unreadable.
    Values(Vec<Option<Vec<u8>>>),
    /// The channel that [`Action::OpenChannel`] asked for.
    ChannelOpen {
        /// The shared page.
        gref: GrantRef,
        /// The event channel.
        port: Port,
    },
    /// No channel could be made: the front closes.
    ChannelFailed,
}

/// What the front wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Watch this path.
    Watch(String),
    /// Stop watching this path.
    Unwatch(String),
    /// Read these nodes, then give [`Input::Values`]. At most one such action is open at a time.
    Read(Vec<String>),
    /// Write these nodes, in this order and without a transaction.
    Write(Vec<(String, String)>),
    /// Grant a page and offer an event channel to this domain, then give [`Input::ChannelOpen`].
    OpenChannel(DomId),
    /// The channel is of no more use.
    CloseChannel,
    /// A device is there: start its driver.
    Attach(Address),
    /// A device is being taken away: stop it and fail what depends on it, before the next action.
    Detach(Address),
}

/// PCI's back, as our directory names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Back {
    domain: DomId,
    path: String,
}

/// How far we are with the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing written yet.
    Fresh,
    /// A channel is being opened.
    Opening,
    /// Our state is 3.
    Initialised,
    /// Our state is 4.
    Connected,
    /// Our state is 7.
    Reconfiguring,
    /// Our state is 6.
    Closed,
}

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Nothing,
    Own,
    Back,
    Devices(State),
}

/// The front.
#[derive(Debug)]
pub struct Front {
    back: Option<Back>,
    phase: Phase,
    reading: Reading,
    /// Something changed after the last reading began.
    stale: bool,
    attached: Vec<Address>,
}

impl Default for Front {
    fn default() -> Self {
        Self::new()
    }
}

impl Front {
    /// A front that knows nothing yet; its first step reads what is there.
    #[must_use]
    pub const fn new() -> Self {
        Self { back: None, phase: Phase::Fresh, reading: Reading::Nothing, stale: true, attached: Vec::new() }
    }

    /// Whether nothing is left to wait for before the devices present at the start are attached: there is no PCI device, or
    /// the handshake is through (or has failed).
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let idle = self.reading == Reading::Nothing && !self.stale;
        idle && (self.back.is_none() || matches!(self.phase, Phase::Connected | Phase::Reconfiguring | Phase::Closed))
    }

    /// Takes what was learned and says what to do.
    pub fn step(&mut self, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Changed => self.stale = true,
            Input::Values(values) => self.values(&values, &mut actions),
            Input::ChannelOpen { gref, port } => self.offer(gref, port, &mut actions),
            Input::ChannelFailed => self.close(&mut actions),
        }
        // Nothing is read while a channel is opened: it would be read before our state is written, and look like a new directory.
        if self.stale && self.reading == Reading::Nothing && self.phase != Phase::Opening {
            self.stale = false;
            self.reading = Reading::Own;
            actions.push(Action::Read(["backend", "backend-id", "state"].map(own).to_vec()));
        }
        actions
    }

    fn values(&mut self, values: &[Option<Vec<u8>>], actions: &mut Vec<Action>) {
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_deref().unwrap_or_default()).collect();
        match (mem::replace(&mut self.reading, Reading::Nothing), values.as_slice()) {
            (Reading::Own, [path, domain, state]) => self.own(named(path, domain), State::parse(state), actions),
            (Reading::Back, [state, count]) => self.back(State::parse(state), parse_number(count), actions),
            (Reading::Devices(state), pairs) => self.devices(state, pairs, actions),
            _ => self.stale = true,
        }
    }

    /// Our own directory was read: which back it names, and our state there.
    fn own(&mut self, back: Option<Back>, state: State, actions: &mut Vec<Action>) {
        // A directory in state 1 after we have written to it is a new one: we missed how the old one went.
        let renewed = state == State::INITIALISING && !matches!(self.phase, Phase::Fresh | Phase::Opening);
        if back != self.back || renewed {
            self.lose(actions);
            if let Some(Back { path, .. }) = self.back.take() {
                actions.push(Action::Unwatch(format!("{path}/state")));
            }
            self.phase = Phase::Fresh;
            if let Some(Back { path, .. }) = &back {
                actions.push(Action::Watch(format!("{path}/state")));
            }
            self.back = back;
        }
        if let Some(Back { path, .. }) = &self.back {
            self.reading = Reading::Back;
            actions.push(Action::Read(vec![format!("{path}/state"), format!("{path}/num_devs")]));
        }
    }

    /// The back's state and count of devices were read.
    fn back(&mut self, state: State, count: Option<u64>, actions: &mut Vec<Action>) {
        let Some(Back { domain, path }) = &self.back else { return };
        match (state, self.phase) {
            (State::INITIALISED, Phase::Fresh) => {
                self.phase = Phase::Opening;
                actions.push(Action::OpenChannel(*domain));
            }
            (State::CONNECTED, Phase::Initialised)
            | (State::RECONFIGURING, Phase::Connected)
            | (State::RECONFIGURED, Phase::Reconfiguring) => {
                let node = |n: u64| [format!("{path}/vdev-{n}"), format!("{path}/state-{n}")];
                let nodes: Vec<String> = (0..count.unwrap_or(0).min(MAX_DEVICES)).flat_map(node).collect();
                if nodes.is_empty() {
                    self.devices(state, &[], actions);
                } else {
                    self.reading = Reading::Devices(state);
                    actions.push(Action::Read(nodes));
                }
            }
            (State::CLOSING | State::CLOSED, Phase::Initialised | Phase::Connected | Phase::Reconfiguring) => {
                self.close(actions);
            }
            _ => {}
        }
    }

    /// The back's devices were read, because the back is in this state.
    fn devices(&mut self, state: State, values: &[&[u8]], actions: &mut Vec<Action>) {
        for pair in values.chunks_exact(2) {
            let Some(address) = text(pair[0]).and_then(Address::parse) else { continue };
            let closing = matches!(State::parse(pair[1]), State::CLOSING | State::CLOSED);
            let known = self.attached.iter().position(|known| *known == address);
            match (closing, known) {
                (true, Some(index)) => {
                    self.attached.remove(index);
                    actions.push(Action::Detach(address));
                }
                (false, None) if state != State::RECONFIGURING => {
                    self.attached.push(address);
                    actions.push(Action::Attach(address));
                }
                _ => {}
            }
        }
        if state == State::RECONFIGURING {
            self.enter(Phase::Reconfiguring, State::RECONFIGURING, actions);
        } else {
            self.enter(Phase::Connected, State::CONNECTED, actions);
        }
    }

    /// The channel exists: the back may have it.
    fn offer(&mut self, gref: GrantRef, port: Port, actions: &mut Vec<Action>) {
        if self.phase != Phase::Opening {
            // The back went away while the channel was opened.
            actions.push(Action::CloseChannel);
            return;
        }
        let nodes =
            [("pci-op-ref", gref.to_string()), ("event-channel", port.to_string()), ("magic", MAGIC.to_owned())];
        actions.push(Action::Write(nodes.map(|(name, value)| (own(name), value)).to_vec()));
        self.enter(Phase::Initialised, State::INITIALISED, actions);
    }

    fn close(&mut self, actions: &mut Vec<Action>) {
        self.lose(actions);
        self.enter(Phase::Closed, State::CLOSED, actions);
    }

    /// Gives up all devices and the channel.
    fn lose(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.attached.drain(..).map(Action::Detach));
        if matches!(self.phase, Phase::Initialised | Phase::Connected | Phase::Reconfiguring) {
            actions.push(Action::CloseChannel);
        }
    }

    fn enter(&mut self, phase: Phase, state: State, actions: &mut Vec<Action>) {
        self.phase = phase;
        // The back may have moved on before our state was written; its next state would then have been ignored.
        self.stale = true;
        actions.push(Action::Write(vec![(own("state"), state.to_string())]));
    }
}

/// The back that these two nodes name.
fn named(path: &[u8], domain: &[u8]) -> Option<Back> {
    let path = text(path).filter(|path| !path.is_empty())?.to_owned();
    let domain = parse_number(domain).and_then(|id| u16::try_from(id).ok())?;
    Some(Back { domain: DomId(domain), path })
}

fn text(value: &[u8]) -> Option<&str> {
    core::str::from_utf8(value).ok()
}

fn own(name: &str) -> String {
    format!("{OWN}/{name}")
}

#[cfg(test)]
mod tests;
