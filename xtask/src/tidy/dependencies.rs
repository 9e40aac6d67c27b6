//! Who may depend on whom, by `cargo metadata`.

use anyhow::Context;
use serde_json::Value;

/// The project's own crates, and those of them that each may depend on. A crate that is not here is a fault.
const ALLOWED: &[(&str, &[&str])] = &[
    ("xen-proto", &[]),
    ("xen-pv", &["xen-proto"]),
    ("blkback-core", &["xen-proto"]),
    ("netback-core", &["xen-proto"]),
    ("driverdom", &["xen-proto", "xen-pv", "blkback-core", "netback-core"]),
    ("dom0-tools", &["xen-proto"]),
    ("testfront", &["xen-proto", "xen-pv"]),
    ("nested-tests", &["testfront"]),
    ("xtask", &["nested-tests"]),
];

/// Faults in the answer of `cargo metadata --no-deps`.
pub(super) fn check(metadata: &Value) -> anyhow::Result<Vec<String>> {
    let mut faults = vec![];
    for package in metadata["packages"].as_array().context("no packages in cargo's metadata")? {
        let name = package["name"].as_str().context("a package without a name")?;
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            faults.push(format!("crate {name} has no rule: add it to tidy/dependencies.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            // Only for its tests may a crate look further.
            let ours = ALLOWED.iter().any(|(known, _)| *known == other) && dependency["kind"] != "dev";
            if ours && !allowed.contains(&other) {
                faults.push(format!("{name} may not depend on {other}"));
            }
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(name: &str, dependencies: &Value) -> usize {
        check(&json!({"packages": [{"name": name, "dependencies": dependencies}]})).expect("metadata").len()
    }

    #[test]
    fn directions() {
        assert_eq!(faults("driverdom", &json!([{"name": "xen-pv", "kind": null}, {"name": "log", "kind": null}])), 0);
        assert_eq!(faults("blkback-core", &json!([{"name": "xen-pv", "kind": null}])), 1);
        assert_eq!(faults("xen-proto", &json!([{"name": "blkback-core", "kind": null}])), 1);
        assert_eq!(faults("xen-proto", &json!([{"name": "blkback-core", "kind": "dev"}])), 0);
        assert_eq!(faults("stranger", &json!([])), 1);
    }
}
