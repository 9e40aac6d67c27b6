//! The states by which the two ends of a device find each other (io/xenbus.h), and what a backend has to do next.

mod backend;
#[cfg(test)]
mod model_tests;
mod state;
#[cfg(test)]
mod table_tests;

pub use backend::{
    Destroy, HOLD_INIT_WAIT, MAX_REMOVAL_DWELL, MIN_REMOVAL_DWELL, Phase, REMOVAL_DWELL_PER_DEVICE, Seen, Step, Times,
    next_step, next_step_draining, removal_dwell,
};
pub use state::{State, parse_number};
