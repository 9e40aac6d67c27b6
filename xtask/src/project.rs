//! Where things are: the checkout, the build's directory, and the cache outside the checkout.

use std::path::{Path, PathBuf};

/// Paths of this checkout.
#[derive(Debug)]
pub(crate) struct Project {
    /// The workspace.
    pub root: PathBuf,
    /// What may be deleted at any time and belongs to this checkout.
    pub target: PathBuf,
    /// Images, keyed by content and shared by all checkouts.
    pub cache: PathBuf,
}

impl Project {
    /// The checkout that this program was built from.
    pub(crate) fn locate() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let target = variable("CARGO_TARGET_DIR").unwrap_or_else(|| root.join("target"));
        let cache = variable("DRIVERDOM_CACHE").unwrap_or_else(|| {
            let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
            base.unwrap_or_else(std::env::temp_dir).join("driverdom")
        });
        Self { root, target, cache }
    }
}
