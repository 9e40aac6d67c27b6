//! The nested system as a bench finds it: booted, with the guests' files and the program for dom0.

use nested_tests::artifacts::RunDir;
use nested_tests::peer::Floor;
use nested_tests::progress::Progress;
use nested_tests::qemu::{Accel, Console, Lifetime};
use nested_tests::world::{Boot, World, machine};

use crate::project::Project;
use crate::{build, image, setup};

/// Builds what is needed and boots.
pub(super) fn boot(project: &Project, accel: Accel, progress: Progress) -> anyhow::Result<World> {
    setup::ensure_installed()?;
    let mut artifacts = image::ensure_made(project)?;
    artifacts.guests.extend(build::build_all(project)?.into_iter().map(|guest| guest.stripped));
    let tools = build::dom0_tools(project)?;
    let run = RunDir::create(&project.target.join("nested/bench"))?;
    let machine = machine(Boot::Default, accel, Console::Log, &run);
    let world = World::start(&machine, &artifacts, run, Lifetime::Owned, progress)?;
    Floor::put_tools(&world.dom0, &tools)?;
    Ok(world)
}
