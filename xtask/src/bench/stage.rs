//! The nested system as a bench finds it: booted, with the guests' files.

use nested_tests::artifacts::{Artifacts, RunDir};
use nested_tests::progress::Progress;
use nested_tests::qemu::{Accel, Console, Lifetime};
use nested_tests::world::{Boot, World, machine};

use crate::project::Project;
use crate::{build, image, setup};

/// Builds what is needed and boots.
pub(super) fn boot(project: &Project, accel: Accel, progress: Progress) -> anyhow::Result<World> {
    let artifacts = artifacts(project)?;
    start(project, &artifacts, accel, progress)
}

/// Builds what every bench needs.
pub(super) fn artifacts(project: &Project) -> anyhow::Result<Artifacts> {
    setup::ensure_installed()?;
    let mut artifacts = image::ensure_made(project)?;
    artifacts.guests.extend(build::build_all(project)?.into_iter().map(|guest| guest.stripped));
    Ok(artifacts)
}

/// Boots.
pub(super) fn start(
    project: &Project,
    artifacts: &Artifacts,
    accel: Accel,
    progress: Progress,
) -> anyhow::Result<World> {
    let run = RunDir::create(&project.target.join("nested/bench"))?;
    let machine = machine(Boot::TwoCpus, accel, Console::Log, &run);
    World::start(&machine, artifacts, run, Lifetime::Owned, progress)
}
