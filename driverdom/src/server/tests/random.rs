//! All of it at once, in random order, many times: the world checks its rules at every turn.

use xen_proto::{DomId, Nanos};

use super::blkfront::Manner;
use super::disk::Latency;
use super::hostile::Hostile;
use super::pciback::PciBack;
use super::rng::Rng;
use super::world::{World, id};
use crate::fake::{Flavour, Force, Outcome};
use crate::server::platform::OwnedDisk;

const PARTS: &[(&str, u64)] = &[("a", 128), ("b", 256), ("c", 64)];
const NAMES: [&str; 9] = ["gpt:x", "gpt:a", "gpt:b", "gpt:c", "disk0", "disk1", "disk0/gpt:a", "ram:64K", "gpt:none"];
const SEEDS: u64 = 200;
const ACTS: usize = 50;

struct Run {
    world: World,
    rng: Rng,
    answered: usize,
    /// The second disk was taken away.
    taken_away: bool,
    /// Guests that run.
    guests: Vec<u16>,
    next_domain: u16,
}

impl Run {
    fn new(seed: u64) -> Self {
        let guests = vec![5, 6, 7];
        let mut world = World::asleep(guests.clone(), &[PARTS, &[("x", 64)], &[("prey", 64)]]);
        let mut rng = Rng::new(seed);
        world.reseed(rng.next());
        if rng.one_in(2) {
            world.store.flavour = Flavour::Oxenstored;
        }
        world.truth("gpt:prey").forget();
        world.pass(100);
        Self { world, rng, answered: 0, taken_away: false, guests, next_domain: 8 }
    }

    /// A disk of a guest that runs, if there is one of that number.
    fn some(&mut self) -> Option<blkback_core::backend::VbdId> {
        let at = self.rng.index(self.world.fronts.len().max(1));
        let front = self.world.fronts.values().nth(at).filter(|front| front.alive)?;
        Some(front.id())
    }

    fn act(&mut self) {
        let disk = self.some();
        match (self.rng.below(32), disk) {
            (0..5, _) => self.attach(),
            (20.., Some(disk)) => {
                let requests = self.rng.index(100);
                self.world.work(disk, requests);
            }
            (5, Some(disk)) => self.world.detach(disk, Force::Off),
            (6, Some(disk)) => self.destroy(disk.domain.0),
            (7, Some(disk)) if self.world.own(disk) == "4" => {
                let state = 5 + u32::from(self.rng.one_in(2));
                self.world.close(disk, state);
            }
            (8, Some(disk))
                if ["4", "6"].contains(&self.world.own(disk).as_str()) && self.world.front(disk).is_settled() =>
            {
                self.world.reconnect(disk);
            }
            (9, _) => {
                let latency = match self.rng.below(4) {
                    0 => Latency::Stuck,
                    1 => Latency::Fixed(Nanos::from_millis(self.rng.below(3_000))),
                    _ => Latency::UpTo(Nanos(self.rng.below(1_000_000))),
                };
                let number = self.rng.index(2);
                self.world.disks[number].set_latency(latency);
            }
            (10, _) => self.world.store_delay = Nanos(self.rng.below(3) * 1_000_000),
            (11, _) => self.world.store.conflicts_to_come = self.rng.index(12),
            (12, _) => self.world.toolstack.look_every = Nanos::from_millis(self.rng.below(3) * 150),
            (13, _) => self.hostile(),
            (14, _) => {
                let break_one = self.rng.one_in(8);
                for hostile in self.world.hostile.values_mut() {
                    hostile.issue();
                    if break_one {
                        hostile.break_ring();
                    }
                }
            }
            (16, _) if self.rng.one_in(3) => self.pass_disk(),
            (17, _) => self.world.disks[1].inner().fault = Some(1 + self.rng.below(40)),
            (15, _) => {
                for _ in 0..self.rng.index(80) {
                    self.world.step();
                }
            }
            _ => {
                let millis = self.rng.below(900);
                self.world.pass(millis);
            }
        }
    }

    fn attach(&mut self) {
        let domain = self.guests[self.rng.index(self.guests.len())];
        let disk = id(domain, u32::try_from(self.rng.below(3)).expect("few"));
        if self.world.own(disk) != "-" || self.world.xen.held_of(disk) != (0, 0, 0) {
            return;
        }
        let name = NAMES[self.rng.index(NAMES.len())];
        let mode = if self.rng.one_in(3) { "r" } else { "w" };
        let manner = [Manner::Linux, Manner::Hasty, Manner::Holding, Manner::Stubborn, Manner::Idle][self.rng.index(5)];
        self.answered += self.world.fronts.get(&disk).map_or(0, |front| front.answered);
        self.world.attach(disk, name, mode, manner);
        self.world.front(disk).bad_disk = name.contains("disk1") || name.contains(":x");
    }

    /// The second disk is taken away, or passed in again.
    fn pass_disk(&mut self) {
        let World { pci: Some(pci), store, clock, disks, .. } = &mut self.world else { return };
        if !pci.is_settled() {
            return;
        }
        let change = if self.taken_away { PciBack::attach } else { PciBack::detach };
        change(pci, store, clock.get(), disks[1].address());
        self.taken_away = !self.taken_away;
    }

    fn new_domain(&mut self) -> u16 {
        let domain = self.next_domain;
        self.next_domain += 1;
        self.world.store.make_domain(DomId(domain));
        domain
    }

    fn hostile(&mut self) {
        let disk = id(self.new_domain(), 1);
        self.world.toolstack.attach(&mut self.world.store, self.world.clock.get(), disk, "gpt:prey", "w");
        let hostile = Hostile::new(disk, &self.world.xen, &mut self.world.store, self.rng.next());
        self.world.hostile.insert(disk, hostile);
    }

    /// A guest is destroyed and another created.
    fn destroy(&mut self, domain: u16) {
        self.world.destroy(domain);
        self.guests.retain(|guest| *guest != domain);
        let domain = self.new_domain();
        self.guests.push(domain);
    }

    /// All is well again, and all guests go.
    fn finish(mut self) -> usize {
        let world = &mut self.world;
        world.store.conflicts_to_come = 0;
        world.store_delay = Nanos(0);
        world.disks[1].inner().fault = None;
        world.toolstack.look_every = Nanos(0);
        world.disks.iter().for_each(|disk| disk.set_latency(Latency::UpTo(Nanos(1_000))));
        // Whatever the toolstack waits for has come or has timed out.
        world.pass(11_000);
        assert!(world.fronts.values().all(|front| front.under_way() == 0 || !front.is_connected()));
        for domain in 5..self.next_domain {
            world.destroy(domain);
        }
        world.pass(1_600);
        for front in world.fronts.values() {
            assert_eq!(world.outcome(front.id()), Some(Outcome::Removed), "{:?}", front.id());
            self.answered += front.answered;
        }
        for domain in 5..self.next_domain {
            world.bury(domain);
        }
        world.assert_nothing_left();
        if self.taken_away {
            // It took with it what was not flushed.
            world.disks[1].inner().dirty = false;
        }
        assert!(world.shut_down("poweroff", 100).is_some());
        world.assert_ended_well();
        self.answered
    }
}

#[test]
fn no_order_of_events_breaks_a_rule() {
    let mut answered = 0;
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..ACTS {
            run.act();
        }
        answered += run.finish();
    }
    assert!(answered > 50 * usize::try_from(SEEDS).expect("few"), "{answered} requests answered");
}
