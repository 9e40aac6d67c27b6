//! The end of the domain.

use crate::abi::sched;
use crate::{console, hypercall, mmio};

/// How a domain ends; what then happens is said by `on_poweroff`, `on_reboot` and `on_crash` in its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// It is done.
    Poweroff,
    /// It wants to be started again.
    Reboot,
    /// It has failed.
    Crash,
}

/// Stops the devices that asked for it ([`Mmio::reset_on_panic`](crate::Mmio::reset_on_panic)), gives the console's reader a
/// moment to read the last lines, and ends the domain.
pub fn shut_down(how: Shutdown) -> ! {
    mmio::stop_devices();
    console::drain();
    hypercall::shutdown(match how {
        Shutdown::Poweroff => sched::SHUTDOWN_POWEROFF,
        Shutdown::Reboot => sched::SHUTDOWN_REBOOT,
        Shutdown::Crash => sched::SHUTDOWN_CRASH,
    })
}
