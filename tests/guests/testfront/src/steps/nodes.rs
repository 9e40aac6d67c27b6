//! Steps that only look at or change xenstore.

use alloc::format;
use alloc::string::String;

use crate::Fallible;
use crate::platform::Platform;
use crate::vbd::front;
use crate::world::World;

/// Writes or removes a node of the frontend's directory.
pub(super) fn set<P: Platform>(world: &mut World<P>, number: u32, key: &str, value: Option<&str>) -> Fallible<String> {
    let path = format!("{}/{key}", front(number));
    match value {
        Some(value) => world.store.write(&mut world.platform, &path, value)?,
        None => world.store.remove(&mut world.platform, &path)?,
    }
    Ok(String::new())
}

/// Compares a node of the backend's directory.
pub(super) fn check<P: Platform>(
    world: &mut World<P>,
    number: u32,
    key: &str,
    value: Option<&str>,
) -> Fallible<String> {
    let path = format!("{}/{key}", world.vbd(number)?.back);
    let found = world.store.read(&mut world.platform, &path)?;
    if found.as_deref() != value {
        return Err(format!("{key} is {found:?}, not {value:?}"));
    }
    Ok(format!("{key}={}", found.as_deref().unwrap_or("(none)")))
}

/// What is known of each vbd.
pub(crate) fn list<P: Platform>(world: &mut World<P>) -> Fallible<String> {
    world.refresh()?;
    let mut said = format!("vbds={}", world.vbds.len());
    for (number, vbd) in &world.vbds {
        let in_flight = vbd.link.as_ref().map_or(0, |link| link.in_flight());
        let (own, backend) = (vbd.own, vbd.backend.map_or_else(|| "gone".into(), |state| format!("{state}")));
        said += &format!("; {number} own={own} backend={backend} sectors={} in-flight={in_flight}", vbd.facts.sectors);
    }
    Ok(said)
}
