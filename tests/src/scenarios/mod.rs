//! The scenarios: one file a topic, one table of all.
//!
//! A scenario starts on a machine without guests, with freshly laid out data disks, and need not clean up behind itself.

mod toolstack;

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
    [toolstack::SCENARIOS].concat()
}

/// Those whose name contains `part`.
#[must_use]
pub fn matching(part: Option<&str>) -> Vec<Scenario> {
    all().into_iter().filter(|scenario| part.is_none_or(|part| scenario.name.contains(part))).collect()
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
