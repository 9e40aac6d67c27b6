//! The shipped `turn` under a deterministic simulation: fake frontends with real ring bytes, and fakes of grants, events and disks
//! that are stricter than the real ones. A failing seed is named, and fails again.

mod cases;
mod disk;
mod fairness;
mod flicker;
mod guest;
mod hostile;
mod rng;
mod soak;
mod world;
