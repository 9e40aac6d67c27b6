//! The scenarios: one file a topic, one table of all.
//!
//! A scenario starts on a machine without guests, with freshly laid out data disks, and need not clean up behind itself.

mod bad_input;
mod data;
mod direct;
pub mod footprint;
mod frontend_hotplug;
mod frontend_load;
mod frontend_malformed;
mod frontend_shapes;
mod frontend_states;
mod frontend_vanish;
mod host_bytes;
mod hotplug;
mod lifecycle;
mod oxenstored;
mod ready;
mod refusals;
mod removal;
mod restart;
mod seen;
mod toolstack;
pub(crate) mod vbd;
mod volumes;

use crate::world::{Boot, World};

/// Something that must hold in the nested system.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Unique, in kebab-case; `--filter` searches it.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// The boot that it needs.
    pub boot: Boot,
    /// Its course; an error is what did not hold.
    pub run: fn(&mut World) -> anyhow::Result<()>,
}

/// All scenarios, in the order in which they run within a boot.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [
        toolstack::SCENARIOS,
        ready::SCENARIOS,
        seen::SCENARIOS,
        volumes::SCENARIOS,
        data::SCENARIOS,
        direct::SCENARIOS,
        refusals::SCENARIOS,
        hotplug::SCENARIOS,
        removal::SCENARIOS,
        lifecycle::SCENARIOS,
        restart::SCENARIOS,
        bad_input::SCENARIOS,
        frontend_shapes::SCENARIOS,
        frontend_malformed::SCENARIOS,
        frontend_states::SCENARIOS,
        frontend_hotplug::SCENARIOS,
        frontend_vanish::SCENARIOS,
        frontend_load::SCENARIOS,
        oxenstored::SCENARIOS,
    ]
    .concat()
}

/// Whether `name` contains one of `parts`, which are separated by commas; none ask for everything.
#[must_use]
pub fn wanted(name: &str, parts: Option<&str>) -> bool {
    parts.is_none_or(|parts| parts.split(',').any(|part| name.contains(part)))
}

/// Those that are [`wanted`].
#[must_use]
pub fn matching(parts: Option<&str>) -> Vec<Scenario> {
    all().into_iter().filter(|scenario| wanted(scenario.name, parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_kebab_case() {
        let mut names: Vec<_> = all().iter().map(|scenario| scenario.name).collect();
        assert!(
            names.iter().all(|name| name.bytes().all(|b| b == b'-' || b.is_ascii_lowercase() || b.is_ascii_digit()))
        );
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
