//! What the toolstack asks of the domain itself, in `control/shutdown` (xenstore-paths).

use super::Shutdown;

/// What is asked for; nothing if the node is empty, or asks what we do not do (`suspend`: the toolstack gives up by itself).
pub(super) fn parse(value: &[u8]) -> Option<Shutdown> {
    match value {
        b"" => None,
        b"poweroff" => Some(Shutdown::PowerOff),
        b"reboot" => Some(Shutdown::Reboot),
        b"halt" => Some(Shutdown::Halt),
        _ => {
            log::warn!("control/shutdown asks for what a driver domain does not do; ignored");
            None
        }
    }
}
