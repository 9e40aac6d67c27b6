//! `cargo xtask image`: the nested system's images, made by `tests/images/*/make` and cached by the content of their recipes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use nested_tests::artifacts::Artifacts;
use sha2::{Digest, Sha256};

use crate::host_command::{run as run_command, search_path, sudo};
use crate::options::Answer;
use crate::project::Project;
use crate::{build, setup};

/// Makes the images of the nested system, unless the cache has them
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

/// A set of files that one recipe makes.
struct Set {
    /// Directory of the recipe in `tests/images`, and first part of the cache entry's name.
    name: &'static str,
    /// Files outside that directory which the recipe reads.
    shared: &'static [&'static str],
}

const DEBIAN: Set = Set { name: "debian", shared: &[] };
const DOM0: Set = Set { name: "dom0", shared: &["initramfs.bash", "serve-console"] };
const GUEST: Set = Set { name: "guest", shared: &["initramfs.bash", "serve-console"] };

/// Runs the subcommand.
pub(crate) fn run(project: &Project, _: &Arguments) -> anyhow::Result<Answer> {
    setup::ensure_installed()?;
    let artifacts = ensure_made(project)?;
    println!("image: Xen {}", artifacts.xen.display());
    println!("image: dom0 {} and {}", artifacts.dom0_image.display(), artifacts.dom0_initrd.display());
    println!("image: Linux guest {}", artifacts.guests[0].display());
    Ok(Answer::Held)
}

/// Makes what the cache does not have; the artifacts' guests are then the Linux guest's initramfs alone.
pub(crate) fn ensure_made(project: &Project) -> anyhow::Result<Artifacts> {
    let cache = Cache { directory: &project.cache, recipes: project.root.join("tests/images") };
    fs::create_dir_all(cache.directory).with_context(|| cache.directory.display().to_string())?;
    let lock = File::create(cache.directory.join("lock"))?;
    lock.lock().context("the cache's lock")?;
    let debian = cache.entry(&DEBIAN, None)?;
    let dom0 = cache.entry(&DOM0, Some(&debian))?;
    let guest = cache.entry(&GUEST, Some(&debian))?;
    Ok(Artifacts {
        xen: debian.join("xen"),
        dom0_kernel: debian.join("vmlinuz"),
        dom0_initrd: dom0.join("initrd.gz"),
        dom0_image: dom0.join("dom0.img"),
        dom0_tools: build::dom0_tools(project)?,
        guests: vec![guest.join("initramfs.gz")],
    })
}

struct Cache<'a> {
    directory: &'a Path,
    recipes: PathBuf,
}

impl Cache<'_> {
    /// The directory with what `set`'s recipe makes, made now if it is not there. It appears complete or not at all.
    fn entry(&self, set: &Set, debian: Option<&Path>) -> anyhow::Result<PathBuf> {
        let entry = self.directory.join(format!("{}-{}", set.name, self.key(set, debian)?));
        if entry.is_dir() {
            return Ok(entry);
        }
        println!("image: making {} (kept in {})", set.name, self.directory.display());
        let building = self.directory.join(format!("{}.building", set.name));
        remove_built(&building)?;
        fs::create_dir(&building)?;
        let mut make = Command::new(self.recipes.join(set.name).join("make"));
        make.current_dir(&building).env("SUDO", sudo()).env("PATH", search_path());
        if let Some(debian) = debian {
            make.env("DEBIAN", debian);
        }
        run_command(&mut make)?;
        fs::rename(&building, &entry)?;
        Ok(entry)
    }

    /// Sixteen hexadecimal digits of the recipe's files, and of what it builds on.
    fn key(&self, set: &Set, debian: Option<&Path>) -> anyhow::Result<String> {
        let mut files = files_under(&self.recipes.join(set.name))?;
        files.extend(set.shared.iter().map(|name| self.recipes.join(name)));
        if let Some(debian) = debian {
            files.push(debian.join("version"));
        }
        let mut hash = Sha256::new();
        for file in files {
            let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
            let name = file.strip_prefix(&self.recipes).unwrap_or(Path::new("version"));
            hash.update(format!("{} {}\n", name.display(), bytes.len()));
            hash.update(bytes);
        }
        if let Some(name) = debian.and_then(Path::file_name) {
            hash.update(name.as_encoded_bytes());
        }
        Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A build that was broken off may hold files of root's.
fn remove_built(building: &Path) -> anyhow::Result<()> {
    if !building.exists() {
        return Ok(());
    }
    let words = [sudo(), "rm", "-rf", "--one-file-system"];
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    run_command(Command::new(words[0]).args(&words[1..]).arg(building))
}

/// All files below `directory`, sorted.
fn files_under(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_under(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}
