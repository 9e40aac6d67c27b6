//! Scheduling, timers and the end (sched.h, vcpu.h).

/// `SCHEDOP_yield`
pub const SCHEDOP_YIELD: usize = 0;
/// `SCHEDOP_block`
pub const SCHEDOP_BLOCK: usize = 1;
/// `SCHEDOP_shutdown`
pub const SCHEDOP_SHUTDOWN: usize = 2;
/// `SCHEDOP_poll`
pub const SCHEDOP_POLL: usize = 3;

/// `SHUTDOWN_poweroff`
pub const SHUTDOWN_POWEROFF: u32 = 0;
/// `SHUTDOWN_reboot`
pub const SHUTDOWN_REBOOT: u32 = 1;
/// `SHUTDOWN_crash`
pub const SHUTDOWN_CRASH: u32 = 3;

/// `VCPUOP_stop_periodic_timer`
pub const VCPUOP_STOP_PERIODIC_TIMER: usize = 7;

/// `struct sched_shutdown`
#[repr(C)]
#[derive(Debug)]
pub struct SchedShutdown {
    /// `SHUTDOWN_*`.
    pub reason: u32,
}

/// `struct sched_poll`
#[repr(C)]
#[derive(Debug)]
pub struct SchedPoll {
    /// Where the ports are.
    pub ports: *const u32,
    /// How many.
    pub nr_ports: u32,
    /// Absolute system time in ns; 0: none.
    pub timeout: u64,
}

const _: () = assert!(size_of::<SchedPoll>() == 24);
