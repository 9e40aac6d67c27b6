//! The machine on which a bench runs.

use nested_tests::artifacts::RunDir;
use nested_tests::progress::Progress;
use nested_tests::qemu::{Accel, Console, Lifetime};
use nested_tests::world::{Boot, World, machine};

use crate::project::Project;
use crate::{build, image, setup};

/// Builds what it needs, and boots it; the guests and the tools for dom0 are in its `/guests`.
pub(super) fn start(project: &Project, accel: Accel, progress: Progress) -> anyhow::Result<World> {
    setup::ensure_installed()?;
    let mut artifacts = image::ensure_made(project)?;
    artifacts.guests.extend(build::build_all(project)?.into_iter().map(|guest| guest.stripped));
    artifacts.guests.push(build::dom0_tools(project)?);
    let run = RunDir::create(&project.target.join("nested/bench"))?;
    let machine = machine(Boot::Default, accel, Console::Log, &run);
    let world = World::start(&machine, &artifacts, run, Lifetime::Owned, progress)?;
    world.dom0.check("chmod +x /guests/dom0-tools; mkdir -p /run/bench", 60)?;
    Ok(world)
}
