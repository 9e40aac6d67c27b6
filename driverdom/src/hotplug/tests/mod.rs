//! Hotplug end to end: through the client's bytes, against a fake xenstored, toolstack, guests and block backend.

mod frontends;
mod random;
mod rules;
mod scale;
mod trouble;
mod world;
