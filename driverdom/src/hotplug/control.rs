//! What the toolstack asks of the domain itself, in its directory `control` (xenstore-paths).

use super::{Action, Shutdown, paths};

/// A node in which something may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Control {
    /// `xl shutdown`, `xl reboot`.
    Shutdown,
    /// `xl sysrq`.
    Sysrq,
}

impl Control {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Shutdown => paths::SHUTDOWN,
            Self::Sysrq => paths::SYSRQ,
        }
    }

    /// What is asked for; nothing if the node is empty, or asks what we do not do (`suspend`: the toolstack gives up by itself).
    pub(super) fn parse(self, value: &[u8]) -> Option<Action> {
        match (self, value) {
            (_, b"") => None,
            (Self::Shutdown, b"poweroff") => Some(Action::Shutdown(Shutdown::PowerOff)),
            (Self::Shutdown, b"reboot") => Some(Action::Shutdown(Shutdown::Reboot)),
            (Self::Shutdown, b"halt") => Some(Action::Shutdown(Shutdown::Halt)),
            (Self::Sysrq, b"c") => Some(Action::Crash),
            _ => {
                log::warn!("{} asks for what a driver domain does not do; ignored", self.path());
                None
            }
        }
    }
}
