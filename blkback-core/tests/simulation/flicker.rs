//! A frontend that takes its index back whenever it is not looked at.

use std::cell::Cell;

use blkback_core::Backend;
use blkback_core::backend::{Connection, Platform, Progress, Report, VbdId};
use blkback_core::ram::RamVolume;
use blkback_core::volume::{Mode, Volume};
use xen_proto::blkif::Abi;
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::SharedRing;
use xen_proto::ring::REQ_PROD;
use xen_proto::{DomId, Port};

use crate::disk::FakeDisk;
use crate::world::World;

const ID: VbdId = VbdId { domain: DomId(5), device: 51712 };

/// A ring whose `req_prod` is 0 and 1 in turn.
struct Flicker(Cell<u32>);

impl SharedRing for Flicker {
    fn len(&self) -> usize {
        PAGE_SIZE
    }
    fn load(&self, offset: usize) -> u32 {
        if offset != REQ_PROD {
            return 0;
        }
        let looks = self.0.replace(self.0.get() + 1);
        assert!(looks < 100, "it is looked at for ever");
        looks % 2
    }
    fn store(&self, _: usize, _: u32) {}
    fn fence(&self) {}
    fn read(&self, _: usize, into: &mut [u8]) {
        into.fill(0);
    }
    fn write(&self, _: usize, _: &[u8]) {}
}

#[test]
fn an_index_that_comes_and_goes_breaks_the_ring_and_holds_nobody_up() {
    let mut world = World::new(1);
    let mut backend = Backend::new(&mut world).unwrap();
    let volume = Volume::Ram(RamVolume::create(1 << 16, &mut world).unwrap());
    let (ring, mode) = (Flicker(Cell::new(0)), Mode::ReadWrite);
    backend.connect(Connection { id: ID, ring, port: Port(9), abi: Abi::X86_64, volume, mode });
    let disks: &mut [FakeDisk] = &mut [];
    let (grants, events) = (&mut world.clone(), &mut world.clone());
    let progress = backend.turn(&mut Platform { grants, events, memory: &world, disks });
    assert_eq!(progress, Progress::Sleep);
    assert!(matches!(backend.next_report(), Some(Report::Broken(ID))));
}
