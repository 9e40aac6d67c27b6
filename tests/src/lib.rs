//! The nested system (Xen in QEMU, with the ordinary toolstack and ordinary guests) and the scenarios that run on it.
//!
//! From the outside in: [`qemu`] builds the command line and owns the process, [`boot`] takes it through its stages,
//! [`dom0`] and [`guest`] run commands in it, [`world`] is what a scenario gets, [`runner`] runs them and [`verdict`] judges.
//! [`peer`] has the backends that benches measure driverdom against.
//! [`image`], [`gpt`] and [`writelog`] are the host's own eyes on the data disk: they trust nothing that a guest said.

pub mod artifacts;
pub mod boot;
pub mod dom0;
pub mod driverdom;
pub mod gpt;
pub mod guest;
pub mod image;
pub mod infrastructure;
pub mod link;
pub mod peer;
pub mod progress;
pub mod qemu;
pub mod qmp;
pub mod runner;
pub mod scenarios;
pub mod selfcheck;
pub mod serial;
pub mod testfront;
pub mod verdict;
pub mod world;
pub mod writelog;
