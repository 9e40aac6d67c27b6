//! All vbds, and the turn that serves them while a step waits.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::{DomId, Nanos};

use crate::Fallible;
use crate::platform::Platform;
use crate::script::{Ending, Which};
use crate::store::{Changed, Store, token};
use crate::vbd::{Leaving, Manners, Vbd, front, state};

/// The vbds by number.
pub(crate) type Vbds<P> = BTreeMap<u32, Vbd<P>>;

/// Everything a step works with.
pub(crate) struct World<P: Platform> {
    pub platform: P,
    pub store: Store,
    pub vbds: Vbds<P>,
    /// What backends did wrong, to be laid to the step during which it was seen.
    pub faults: Vec<String>,
    /// Whether `data/step` has changed since somebody looked at it.
    pub step_waits: bool,
    /// Parents of the backends' directories that are watched: one watch for all vbds of a backend.
    watched: BTreeSet<String>,
}

impl<P: Platform> World<P> {
    pub(crate) fn new(platform: P) -> Self {
        let (vbds, watched) = (BTreeMap::new(), BTreeSet::new());
        Self { platform, store: Store::default(), vbds, faults: Vec::new(), step_waits: false, watched }
    }

    /// Learns which vbds there are.
    pub(crate) fn refresh(&mut self) -> Fallible<()> {
        let names = self.store.list(&mut self.platform, "device/vbd")?;
        let numbers: BTreeSet<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        // Those that have a ring are known; the others may have been detached and attached again, elsewhere.
        self.vbds.retain(|number, vbd| vbd.link.is_some() || numbers.contains(number));
        let loose: Vec<u32> =
            numbers.into_iter().filter(|number| self.vbds.get(number).is_none_or(|vbd| vbd.link.is_none())).collect();
        let paths: Vec<String> = loose
            .iter()
            .flat_map(|&number| ["backend", "backend-id"].map(|key| format!("{}/{key}", front(number))))
            .collect();
        let values = self.store.read_all(&mut self.platform, &paths)?;
        for (&number, values) in loose.iter().zip(values.chunks(2)) {
            let [Some(back), Some(domain)] = values else { continue };
            let domain = domain.parse().map(DomId).map_err(|_| format!("vbd {number}: backend-id is '{domain}'"))?;
            let known = self.vbds.get(&number).is_some_and(|vbd| vbd.back == *back && vbd.domain == domain);
            if !known {
                self.watch_backend(back)?;
                self.vbds.insert(number, Vbd::new(number, back.clone(), domain));
            }
        }
        self.read_states(&loose)
    }

    fn watch_backend(&mut self, back: &str) -> Fallible<()> {
        let parent = back.rsplit_once('/').map_or(back, |(parent, _)| parent);
        if self.watched.insert(parent.into()) {
            self.store.watch(&mut self.platform, parent, token::BACKEND)?;
        }
        Ok(())
    }

    /// The numbers that a step means.
    pub(crate) fn numbers(&mut self, which: &Which) -> Fallible<Vec<u32>> {
        self.refresh()?;
        match which {
            Which::All => Ok(self.vbds.keys().copied().collect()),
            Which::These(numbers) => match numbers.iter().find(|number| !self.vbds.contains_key(number)) {
                None => Ok(numbers.clone()),
                Some(number) => Err(format!("vbd {number}: there is none")),
            },
        }
    }

    /// A vbd that [`World::numbers`] found.
    pub(crate) fn vbd(&mut self, number: u32) -> Fallible<&mut Vbd<P>> {
        self.vbds.get_mut(&number).ok_or_else(|| format!("vbd {number}: it is gone"))
    }

    /// Reads backends' states anew.
    fn read_states(&mut self, numbers: &[u32]) -> Fallible<()> {
        let known = |number: &u32| self.vbds.get(number).map(|vbd| (*number, format!("{}/state", vbd.back)));
        let (numbers, paths): (Vec<u32>, Vec<String>) = numbers.iter().filter_map(known).unzip();
        let states = self.store.read_all(&mut self.platform, &paths)?;
        for (number, state) in numbers.into_iter().zip(states) {
            if let Some(vbd) = self.vbds.get_mut(&number) {
                vbd.backend = state.and_then(|state| state.parse().ok());
            }
        }
        Ok(())
    }

    /// Takes in all that has happened: changed states, backends that close, answers. Afterwards nothing is known to be left, so
    /// the next event wakes a sleep.
    pub(crate) fn turn(&mut self) -> Fallible<()> {
        loop {
            self.store.exchange(&mut self.platform);
            let changed = self.store.take_changed();
            let idle = changed.is_empty();
            self.take_in(changed)?;
            self.absorb();
            let followed = self.follow_backends();
            // Requests to xenstored take in events while they wait: only a round without any leaves nothing behind.
            if idle && followed == 0 {
                return Ok(());
            }
        }
    }

    fn take_in(&mut self, changed: Changed) -> Fallible<()> {
        if changed.control {
            self.obey_control()?;
        }
        self.step_waits |= changed.step;
        if changed.vbds {
            self.refresh()?;
        }
        let mut dirty: Vec<u32> = changed.backends.into_iter().collect();
        if changed.every_backend {
            dirty = self.vbds.keys().copied().collect();
        }
        self.read_states(&dirty)
    }

    /// Takes in answers.
    fn absorb(&mut self) {
        for (number, vbd) in &mut self.vbds {
            let Some(link) = &mut vbd.link else { continue };
            link.absorb(&mut self.platform);
            self.faults.extend(link.take_faults().into_iter().map(|fault| format!("vbd {number}: {fault}")));
        }
    }

    /// Waits until `done` says something, at most until `deadline`. `done` may look at the vbds only: what it would wait for
    /// itself could take events that this wait needs.
    pub(crate) fn wait<T>(
        &mut self,
        deadline: Nanos,
        mut done: impl FnMut(&mut P, &mut Vbds<P>) -> Option<T>,
    ) -> Fallible<Option<T>> {
        loop {
            self.turn()?;
            if let Some(result) = done(&mut self.platform, &mut self.vbds) {
                return Ok(Some(result));
            }
            if self.platform.now() >= deadline {
                return Ok(None);
            }
            self.platform.sleep(deadline);
        }
    }

    /// A deadline from now.
    pub(crate) fn after(&self, limit: Nanos) -> Nanos {
        self.platform.now() + limit
    }

    /// Writes our state of a vbd.
    pub(crate) fn write_state(&mut self, number: u32, state: u32) -> Fallible<()> {
        let path = format!("{}/state", front(number));
        self.store.write(&mut self.platform, &path, &format!("{state}"))?;
        if let Some(vbd) = self.vbds.get_mut(&number) {
            vbd.own = state;
        }
        Ok(())
    }

    /// Ends a vbd's ring, now that the backend has said 6 or is gone.
    pub(crate) fn release(&mut self, number: u32) {
        let Some(vbd) = self.vbds.get_mut(&number) else { return };
        vbd.leaving = Leaving::No;
        let Some(link) = vbd.link.take() else { return };
        let faults = link.release(&mut self.platform);
        self.faults.extend(faults.into_iter().map(|fault| format!("vbd {number}: {fault}")));
    }

    /// Closes, step by step, each vbd whose backend has closed by itself; the number of steps made.
    fn follow_backends(&mut self) -> usize {
        let mut steps = 0;
        let linked = |(number, vbd): (&u32, &Vbd<P>)| vbd.link.as_ref().map(|link| (*number, link.in_flight()));
        let linked: Vec<(u32, usize)> = self.vbds.iter().filter_map(linked).collect();
        for (number, in_flight) in linked {
            let Some(vbd) = self.vbds.get_mut(&number) else { continue };
            let ended = matches!(vbd.backend, None | Some(state::CLOSED));
            let closing = ended || vbd.backend == Some(state::CLOSING);
            if vbd.leaving == Leaving::No && vbd.manners == Manners::Follow && closing {
                vbd.leaving = Leaving::Drain;
            }
            match vbd.leaving {
                Leaving::Drain if in_flight == 0 || ended => {
                    vbd.leaving = Leaving::AwaitClosed;
                    // The directory may be gone already: then there is nobody to tell.
                    let _ =
                        self.write_state(number, state::CLOSING).and_then(|()| self.write_state(number, state::CLOSED));
                }
                Leaving::AwaitClosed if ended => self.release(number),
                _ => continue,
            }
            steps += 1;
        }
        steps
    }

    /// Does as `xl shutdown` says.
    fn obey_control(&mut self) -> Fallible<()> {
        let how = match self.store.read(&mut self.platform, "control/shutdown")?.as_deref() {
            Some("poweroff" | "halt") => Ending::Poweroff,
            Some("reboot") => Ending::Reboot,
            _ => return Ok(()),
        };
        self.store.write(&mut self.platform, "control/shutdown", "")?;
        self.platform.shut_down(how)
    }
}
