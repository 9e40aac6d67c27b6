//! The machine, by `xen-pv`.

use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::{Ordering, fence};

use testfront::platform::{Platform, StillMapped};
use testfront::script::Ending;
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{Access, Events, SharedRing};
use xen_proto::xenstore::{Client, Event};
use xen_proto::{DomId, GrantRef, Nanos, Port};
use xen_pv::shutdown::shut_down;
use xen_pv::{DmaPage, Machine, Shutdown, console};

/// Bytes moved to or from xenstored at a time: what its ring holds.
const STORE_BYTES: usize = 1024;

/// testfront's machine.
pub(crate) struct Guest {
    machine: Machine,
    /// Requests to xenstored that its ring had no room for.
    unsent: Vec<u8>,
}

impl Guest {
    pub(crate) const fn new(machine: Machine) -> Self {
        Self { machine, unsent: Vec::new() }
    }
}

impl Platform for Guest {
    type Page = DmaPage;
    type Ring = OwnRing;

    fn now(&self) -> Nanos {
        self.machine.clock.now()
    }

    fn sleep(&mut self, until: Nanos) {
        self.machine.events.sleep(&self.machine.clock, Some(until));
        // Whose they are does not matter: everything is looked at before the next sleep.
        self.machine.events.take_pending(|_| ());
    }

    fn exchange(&mut self, client: &mut Client, events: &mut Vec<Event>) {
        let mut bytes = [0; STORE_BYTES];
        loop {
            let count = self.machine.store.read(&mut bytes);
            let mut input = &bytes[..count];
            while !input.is_empty() {
                match client.input(&mut input) {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => (),
                    Err(error) => panic!("xenstored broke its protocol: {error:?}"),
                }
            }
            let sent = self.send(client);
            if count == 0 && sent == 0 {
                return;
            }
        }
    }

    fn take_page(&mut self) -> Option<DmaPage> {
        self.machine.memory.dma_page()
    }

    fn free_pages(&self) -> usize {
        self.machine.memory.statistics().free_pages
    }

    fn write_page(&mut self, page: &mut DmaPage, offset: usize, from: &[u8]) {
        page.write(offset, from);
    }

    fn read_page(&self, page: &DmaPage, offset: usize, into: &mut [u8]) {
        page.read(offset, into);
    }

    fn grant(&mut self, domain: DomId, page: &DmaPage, access: Access) -> Option<GrantRef> {
        self.machine.grants.grant(domain, page.mfn(), access).ok()
    }

    fn end_grant(&mut self, gref: GrantRef) -> Result<(), StillMapped> {
        self.machine.grants.end(gref).map_err(|_| StillMapped)
    }

    fn take_ring(&mut self, domain: DomId, pages: usize) -> Option<(OwnRing, Vec<GrantRef>)> {
        let mut ring = Vec::new();
        let mut grefs = Vec::new();
        for _ in 0..pages {
            let page = self.take_page();
            let gref = page.as_ref().and_then(|page| self.grant(domain, page, Access::ReadWrite));
            let (Some(page), Some(gref)) = (page, gref) else {
                // Nobody knows of them yet, so they are not mapped.
                let _ = self.give_ring(OwnRing::new(ring), grefs);
                return None;
            };
            ring.push(page);
            grefs.push(gref);
        }
        Some((OwnRing::new(ring), grefs))
    }

    fn give_ring(&mut self, ring: OwnRing, grefs: Vec<GrantRef>) -> Result<(), StillMapped> {
        let mut result = Ok(());
        for (page, gref) in ring.pages.into_inner().into_iter().zip(grefs) {
            if self.end_grant(gref).is_err() {
                core::mem::forget(page);
                result = Err(StillMapped);
            }
        }
        result
    }

    fn offer_port(&mut self, domain: DomId) -> Option<Port> {
        self.machine.events.alloc_unbound(domain).ok()
    }

    fn close_port(&mut self, port: Port) {
        self.machine.events.close(port);
    }

    fn notify(&mut self, port: Port) {
        self.machine.events.notify(port);
    }

    fn say(&mut self, line: &str) {
        // A verdict must not be dropped: there is room for it once all before has been read.
        console::drain();
        log::info!(target: "testfront", "{line}");
    }

    fn shut_down(&mut self, how: Ending) -> ! {
        shut_down(match how {
            Ending::Poweroff | Ending::Stay => Shutdown::Poweroff,
            Ending::Reboot => Shutdown::Reboot,
            Ending::Crash => Shutdown::Crash,
        })
    }
}

impl Guest {
    /// Sends what fits; how many bytes.
    fn send(&mut self, client: &mut Client) -> usize {
        if self.unsent.is_empty() {
            let mut bytes = [0; STORE_BYTES];
            let count = client.output(&mut bytes);
            self.unsent.extend_from_slice(&bytes[..count]);
        }
        let count = self.machine.store.write(&self.unsent);
        self.unsent.drain(..count);
        count
    }
}

/// A ring in pages of ours, which lie anywhere. Words and the reads and writes of slots are cut at the pages' ends.
pub(crate) struct OwnRing {
    pages: RefCell<Vec<DmaPage>>,
}

impl OwnRing {
    const fn new(pages: Vec<DmaPage>) -> Self {
        Self { pages: RefCell::new(pages) }
    }

    /// Calls `access` with each part of `offset..offset + len` that lies in one page: the page, the offset in it, the part's
    /// range of the whole.
    fn parts(&self, offset: usize, len: usize, mut access: impl FnMut(&mut DmaPage, usize, core::ops::Range<usize>)) {
        let mut pages = self.pages.borrow_mut();
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let within = at % PAGE_SIZE;
            let count = (PAGE_SIZE - within).min(len - done);
            access(&mut pages[at / PAGE_SIZE], within, done..done + count);
            done += count;
        }
    }
}

impl SharedRing for OwnRing {
    fn len(&self) -> usize {
        self.pages.borrow().len() * PAGE_SIZE
    }

    fn load(&self, offset: usize) -> u32 {
        let word = self.pages.borrow()[offset / PAGE_SIZE].read_u32(offset % PAGE_SIZE);
        fence(Ordering::Acquire);
        word
    }

    fn store(&self, offset: usize, value: u32) {
        fence(Ordering::Release);
        self.pages.borrow_mut()[offset / PAGE_SIZE].write_u32(offset % PAGE_SIZE, value);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.parts(offset, into.len(), |page, within, part| page.read(within, &mut into[part]));
    }

    fn write(&self, offset: usize, from: &[u8]) {
        self.parts(offset, from.len(), |page, within, part| page.write(within, &from[part]));
    }
}
