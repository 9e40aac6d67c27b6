//! Many guests, honest and hostile, on two disks and in RAM, with faults, reconnects and disks that stall.

use blkback_core::Backend;
use blkback_core::backend::{Capacity, Platform, Progress, Report, VbdId};
use blkback_core::disk::{DiskId, Geometry, Limits};
use blkback_core::ram::RamVolume;
use blkback_core::volume::{Extent, Mode, Volume};
use xen_proto::blkif::Abi;
use xen_proto::{DomId, Port};

use crate::disk::FakeDisk;
use crate::guest::{Character, Guest};
use crate::hostile::Hostile;
use crate::rng::Rng;
use crate::world::{Ring, World};

/// What the world does to honest guests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    None,
    Some,
}

struct Soak {
    world: World,
    backend: Backend<Ring>,
    disks: Vec<FakeDisk>,
    guests: Vec<Guest>,
    hostile: Vec<Hostile>,
    /// Volumes of guests that are not connected, by guest.
    detached: Vec<Option<Volume>>,
    rng: Rng,
    reconnects: usize,
    broken: usize,
}

/// A vbd's volume.
const SECTORS: u64 = 2000;
/// Steps of one run; a guest acts in each.
const STEPS: usize = 1500;

fn geometry(logical_block: u32) -> Geometry {
    Geometry { sectors: 16_000, logical_block, physical_block: 4096, writable: true, write_cache: true }
}

fn extent(disk: u16, place: u64) -> Volume {
    Volume::Disk(Extent { disk: DiskId(disk), start: place * SECTORS, sectors: SECTORS })
}

impl Soak {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut world = World::new(seed);
        let mut backend = Backend::new(&mut world).unwrap();
        let limits = [Limits { segments: 5, depth: 8 }, Limits { segments: 126, depth: 4 }];
        let capacity = Capacity { requests: 12, segments: 300 };
        let mut disks = Vec::new();
        for (limits, block) in limits.into_iter().zip([512, 4096]) {
            backend.add_disk(geometry(block), limits, capacity);
            let mut disk = FakeDisk::new(&world, geometry(block), limits, seed + u64::from(block));
            disk.fault = (faults == Faults::Some).then_some(30);
            disks.push(disk);
        }
        if faults == Faults::Some {
            world.fail_maps(200);
        }
        let mut soak = Self {
            world,
            backend,
            disks,
            guests: Vec::new(),
            hostile: Vec::new(),
            detached: Vec::new(),
            rng: Rng::new(seed),
            reconnects: 0,
            broken: 0,
        };
        for place in 0..4 {
            soak.add_guest(extent(0, place), 1, faults);
            soak.add_guest(extent(1, place), 8, faults);
            let ram = RamVolume::create(SECTORS * 512, &mut soak.world).unwrap();
            soak.add_guest(Volume::Ram(ram), 1, faults);
            soak.add_hostile(extent(0, 4 + place));
            soak.add_hostile(extent(1, 4 + place));
            let ram = RamVolume::create(SECTORS * 512, &mut soak.world).unwrap();
            soak.add_hostile(Volume::Ram(ram));
        }
        soak
    }

    /// The next free name; two devices a domain.
    fn id(&self) -> (VbdId, Port, Abi) {
        let n = u16::try_from(self.guests.len() + self.hostile.len()).unwrap();
        let abi = if n.is_multiple_of(3) { Abi::X86_32 } else { Abi::X86_64 };
        (VbdId { domain: DomId(n), device: 51712 }, Port(u32::from(n) + 100), abi)
    }

    fn add_guest(&mut self, volume: Volume, block: u64, faults: Faults) {
        let (id, port, abi) = self.id();
        let character = Character {
            id,
            port,
            abi,
            ring_pages: 1 << self.rng.below(5),
            mode: Mode::ReadWrite,
            block,
            sectors: SECTORS / 8 * 8,
            depth: 1 + self.rng.index(40),
            faults: faults == Faults::Some,
        };
        let guest = Guest::new(&self.world, character, self.rng.next());
        self.backend.connect(guest.connection(volume));
        self.guests.push(guest);
        self.detached.push(None);
    }

    fn add_hostile(&mut self, volume: Volume) {
        let (id, port, abi) = self.id();
        let hostile = Hostile::new(&self.world, id, port, abi, self.rng.next());
        self.backend.connect(hostile.connection(volume));
        self.hostile.push(hostile);
    }

    fn turn(&mut self) -> Progress {
        let progress = self.backend.turn(&mut Platform {
            grants: &mut self.world.clone(),
            events: &mut self.world.clone(),
            memory: &self.world,
            disks: &mut self.disks,
        });
        while let Some(report) = self.backend.next_report() {
            self.report(report);
        }
        for guest in &mut self.guests {
            if self.world.take_event(guest.character.port) {
                guest.poll();
            }
        }
        for hostile in &mut self.hostile {
            if self.world.take_event(hostile.port) {
                hostile.poll();
            }
        }
        progress
    }

    fn report(&mut self, report: Report<Ring>) {
        match report {
            Report::Broken(id) => {
                let hostile = self.hostile.iter().find(|hostile| hostile.id == id);
                assert!(hostile.is_some_and(|hostile| hostile.broke_its_ring), "an honest ring is called broken");
                self.backend.disconnect(id);
                self.broken += 1;
            }
            Report::FlushUnsupported(id) => panic!("{id:?}: all disks know flushes"),
            Report::Drained(drained) => {
                let at = self.guests.iter().position(|guest| guest.character.id == drained.id);
                if let Some(at) = at {
                    self.guests[at].detached();
                    self.detached[at] = Some(drained.volume);
                } else if let Volume::Ram(ram) = drained.volume {
                    ram.release(&mut self.world);
                }
            }
        }
    }

    fn step(&mut self) {
        let at = self.rng.index(self.guests.len());
        if let Some(volume) = self.detached[at].take() {
            self.backend.connect(self.guests[at].connection(volume));
            self.reconnects += 1;
        } else if self.rng.one_in(200) {
            self.guests[at].leaving = true;
            self.backend.disconnect(self.guests[at].character.id);
        } else {
            self.guests[at].issue(&mut self.backend);
        }
        let at = self.rng.index(self.hostile.len());
        if self.rng.one_in(150) {
            self.hostile[at].break_ring(&mut self.backend);
        } else {
            self.hostile[at].issue(&mut self.backend);
        }
        for disk in &mut self.disks {
            disk.allowance = self.rng.index(6);
        }
        let _ = self.turn();
    }

    /// Lets everything finish without any new request or event.
    fn settle(&mut self) {
        for _ in 0..5000 {
            self.disks.iter_mut().for_each(|disk| disk.allowance = 3);
            let progress = self.turn();
            let idle = self.guests.iter().all(Guest::is_idle) && self.hostile.iter().all(Hostile::is_idle);
            if idle && progress == Progress::Sleep && self.disks.iter().all(|disk| disk.under_way() == 0) {
                return;
            }
        }
        panic!("requests are left and nobody will do anything about them");
    }

    fn finish(mut self) {
        self.settle();
        assert_eq!(self.world.mappings(), 0, "nothing is mapped when nothing is under way");
        for at in 0..self.guests.len() {
            self.guests[at].leaving = true;
            self.backend.disconnect(self.guests[at].character.id);
        }
        let hostile: Vec<_> = self.hostile.iter().map(|hostile| hostile.id).collect();
        hostile.into_iter().for_each(|id| self.backend.disconnect(id));
        self.settle();
        self.compare();
    }

    fn compare(&mut self) {
        let mut written = 0;
        for (guest, volume) in self.guests.iter().zip(&mut self.detached) {
            assert!(!self.backend.is_known(guest.character.id));
            match volume.take().expect("all are detached") {
                Volume::Disk(extent) => {
                    let content = &self.disks[usize::from(extent.disk.0)].content;
                    written += guest.compare(&content[usize::try_from(extent.start).unwrap() * 512..]);
                }
                Volume::Ram(ram) => ram.release(&mut self.world),
            }
        }
        // The run was worth something.
        let answered: u64 = self.guests.iter().map(|guest| guest.answered).sum();
        let refused: u64 = self.hostile.iter().map(|hostile| hostile.refused).sum();
        let served = self.hostile.iter().map(|hostile| hostile.answered).sum::<u64>() - refused;
        assert!(answered > 1500 && refused > 200 && served > 50, "{answered} {refused} {served}");
        assert!(written > 500, "{written}");
        assert!(self.reconnects > 0 && self.broken > 0, "{} {}", self.reconnects, self.broken);
    }
}

fn soak(seed: u64, faults: Faults) {
    println!("seed {seed}");
    let mut soak = Soak::new(seed, faults);
    for _ in 0..STEPS {
        soak.step();
    }
    soak.finish();
}

#[test]
fn nothing_is_lost_among_hostile_guests() {
    (1..=2).for_each(|seed| soak(seed, Faults::None));
}

#[test]
fn faults_hurt_only_their_requests() {
    (11..=12).for_each(|seed| soak(seed, Faults::Some));
}
