//! Memory, grants and events, stricter than Xen: whatever is not allowed panics. Ending a mapping twice, reaching a page that is
//! not mapped, writing a page that is mapped read-only, leaving a page: each is a bug of the backend.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{
    Access, CopyDirection, DeviceMap, DeviceMapping, EventError, Events, GNTST_BAD_GNTREF, GNTST_NO_DEVICE_SPACE,
    GrantCopy, GrantStatus, Grants, PageBytes, Pages, SharedRing,
};
use xen_proto::ring::RSP_PROD;
use xen_proto::{DomId, GrantRef, MachineAddr, Mfn, Port};

use crate::rng::Rng;

pub(crate) type Page = [u8; PAGE_SIZE];

/// What everybody shares; cloning gives another handle on the same world.
#[derive(Clone)]
pub(crate) struct World(Rc<RefCell<State>>);

struct State {
    /// Pages that guests granted.
    granted: BTreeMap<(DomId, GrantRef), (Page, Access)>,
    /// Our own pages.
    own: BTreeMap<Mfn, Page>,
    next_frame: u64,
    /// Live mappings by handle; the device address is the handle's.
    mapped: BTreeMap<u32, ((DomId, GrantRef), Access)>,
    next_handle: u32,
    /// How often each page is mapped, if it is.
    pins: BTreeMap<(DomId, GrantRef), usize>,
    /// Each guest's pages that were mapped when answers to it were last published: it can take pages back at that moment.
    pinned_at_publish: BTreeMap<DomId, BTreeSet<GrantRef>>,
    /// Ports with an event that nobody has looked at.
    events: BTreeSet<Port>,
    rng: Rng,
    /// Mapping fails once in so many times.
    map_fault: Option<u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State {
            granted: BTreeMap::new(),
            own: BTreeMap::new(),
            next_frame: 0x1000,
            mapped: BTreeMap::new(),
            next_handle: 1,
            pins: BTreeMap::new(),
            pinned_at_publish: BTreeMap::new(),
            events: BTreeSet::new(),
            rng: Rng::new(seed),
            map_fault: None,
        })))
    }

    /// Makes one mapping in `n` fail as if Xen had no handles left.
    pub(crate) fn fail_maps(&self, one_in: u64) {
        self.0.borrow_mut().map_fault = Some(one_in);
    }

    /// A guest grants a page.
    pub(crate) fn grant(&self, domain: DomId, gref: GrantRef, page: Page, access: Access) {
        assert!(self.0.borrow_mut().granted.insert((domain, gref), (page, access)).is_none());
    }

    /// A guest takes a granted page back, which the backend must not hold any more.
    pub(crate) fn revoke(&self, domain: DomId, gref: GrantRef) -> Page {
        let mut state = self.0.borrow_mut();
        let key = (domain, gref);
        let pinned = state.pinned_at_publish.get(&domain).is_some_and(|pinned| pinned.contains(&gref));
        assert!(!pinned && !state.pins.contains_key(&key), "a page was answered for and is still mapped");
        state.granted.remove(&key).expect("the guest granted it").0
    }

    pub(crate) fn mappings(&self) -> usize {
        self.0.borrow().mapped.len()
    }

    fn published(&self, domain: DomId) {
        let mut state = self.0.borrow_mut();
        let pinned = state.pins.keys().filter(|(owner, _)| *owner == domain).map(|(_, gref)| *gref).collect();
        state.pinned_at_publish.insert(domain, pinned);
    }

    /// Whether there is an event on a frontend's port; it is consumed.
    pub(crate) fn take_event(&self, port: Port) -> bool {
        self.0.borrow_mut().events.remove(&port)
    }

    /// A device reads memory.
    pub(crate) fn dma_read(&self, addr: MachineAddr, into: &mut [u8]) {
        let state = self.0.borrow();
        let (key, _, offset) = state.mapping(addr, into.len());
        into.copy_from_slice(&state.granted[&key].0[offset..][..into.len()]);
    }

    /// A device writes memory.
    pub(crate) fn dma_write(&self, addr: MachineAddr, from: &[u8]) {
        let mut state = self.0.borrow_mut();
        let (key, access, offset) = state.mapping(addr, from.len());
        assert_eq!(access, Access::ReadWrite, "a device writes a page that is mapped read-only");
        state.granted.get_mut(&key).unwrap().0[offset..][..from.len()].copy_from_slice(from);
    }

    /// Fails if a device could not reach this memory.
    pub(crate) fn check_reachable(&self, addr: MachineAddr, len: u32) {
        self.0.borrow().mapping(addr, len as usize);
    }
}

impl State {
    fn mapping(&self, addr: MachineAddr, len: usize) -> ((DomId, GrantRef), Access, usize) {
        let handle = u32::try_from(addr.0 >> 12).unwrap();
        let offset = usize::try_from(addr.0 & 0xfff).unwrap();
        assert!(offset + len <= PAGE_SIZE, "a segment crosses its page");
        let (key, access) = self.mapped.get(&handle).expect("a device reaches memory that is not mapped");
        (*key, *access, offset)
    }

    fn map(&mut self, domain: DomId, gref: GrantRef, access: Access) -> Result<DeviceMapping, GrantStatus> {
        if self.map_fault.is_some_and(|one_in| self.rng.one_in(one_in)) {
            return Err(GNTST_NO_DEVICE_SPACE);
        }
        match self.granted.get(&(domain, gref)) {
            Some((_, Access::ReadWrite)) => {}
            Some((_, Access::ReadOnly)) if access == Access::ReadOnly => {}
            _ => return Err(GNTST_BAD_GNTREF),
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.mapped.insert(handle, ((domain, gref), access));
        *self.pins.entry((domain, gref)).or_default() += 1;
        Ok(DeviceMapping { handle, addr: MachineAddr(u64::from(handle) << 12) })
    }

    fn unpin(&mut self, page: (DomId, GrantRef)) {
        let pins = self.pins.get_mut(&page).expect("what is mapped is pinned");
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&page);
        }
    }

    fn copy(&mut self, copy: &GrantCopy) -> Result<(), GrantStatus> {
        let (own, guest) = (usize::from(copy.offset), usize::from(copy.guest_offset));
        let len = usize::from(copy.len);
        assert!(len > 0 && own + len <= PAGE_SIZE && guest + len <= PAGE_SIZE, "a copy leaves its page: {copy:?}");
        let ours = self.own.get_mut(&copy.frame).expect("a copy to or from a page of ours");
        let key = (copy.domain, copy.gref);
        let (theirs, access) = self.granted.get_mut(&key).ok_or(GNTST_BAD_GNTREF)?;
        match copy.direction {
            CopyDirection::FromGuest => ours[own..][..len].copy_from_slice(&theirs[guest..][..len]),
            CopyDirection::ToGuest if *access == Access::ReadOnly => return Err(GNTST_BAD_GNTREF),
            CopyDirection::ToGuest => theirs[guest..][..len].copy_from_slice(&ours[own..][..len]),
        }
        Ok(())
    }
}

impl Grants for World {
    type Ring = Ring;

    fn map_ring(&mut self, _: DomId, _: &[GrantRef]) -> Result<Ring, GrantStatus> {
        unreachable!("rings come mapped")
    }

    fn unmap_ring(&mut self, _: Ring) {}

    fn map_for_device(&mut self, domain: DomId, maps: &mut [DeviceMap]) {
        assert!(!maps.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        for map in maps {
            map.result = state.map(domain, map.gref, map.access);
        }
    }

    fn unmap_for_device(&mut self, mappings: &[DeviceMapping]) {
        assert!(!mappings.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        for mapping in mappings {
            let ended = state.mapped.remove(&mapping.handle);
            let (page, _) = ended.expect("a mapping is ended once, and only if it is one");
            assert_eq!(mapping.addr.0, u64::from(mapping.handle) << 12, "what is unmapped is what was mapped");
            state.unpin(page);
        }
    }

    fn copy(&mut self, copies: &mut [GrantCopy]) {
        assert!(!copies.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        for copy in copies {
            copy.result = state.copy(copy);
        }
    }
}

impl Events for World {
    fn bind(&mut self, _: DomId, _: u32) -> Result<Port, EventError> {
        unreachable!("ports come bound")
    }

    fn close(&mut self, _: Port) {}

    fn notify(&mut self, port: Port) {
        self.0.borrow_mut().events.insert(port);
    }
}

impl Pages for World {
    fn take_page(&mut self) -> Option<Mfn> {
        let mut state = self.0.borrow_mut();
        let frame = Mfn(state.next_frame);
        // Never neighbours, as in a PV guest.
        state.next_frame += 7;
        // What its last owner left.
        state.own.insert(frame, [0xa5; PAGE_SIZE]);
        Some(frame)
    }

    fn give_page(&mut self, page: Mfn) {
        assert!(self.0.borrow_mut().own.remove(&page).is_some(), "a page is given back once");
    }
}

impl PageBytes for World {
    fn zero_page(&self, page: Mfn) {
        self.0.borrow_mut().own.insert(page, [0; PAGE_SIZE]).expect("a page of ours");
    }

    fn read_page(&self, page: Mfn, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow().own[&page][offset..][..into.len()]);
    }
}

/// A guest's ring in memory that both sides see.
#[derive(Clone)]
pub(crate) struct Ring {
    bytes: Rc<RefCell<Vec<u8>>>,
    world: World,
    domain: DomId,
}

impl Ring {
    pub(crate) fn new(world: &World, domain: DomId, pages: usize) -> Self {
        let bytes = Rc::new(RefCell::new(vec![0; pages * PAGE_SIZE]));
        Self { bytes, world: world.clone(), domain }
    }
}

impl SharedRing for Ring {
    fn len(&self) -> usize {
        self.bytes.borrow().len()
    }
    fn load(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        u32::from_le_bytes(word)
    }
    fn store(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
        if offset == RSP_PROD {
            self.world.published(self.domain);
        }
    }
    fn fence(&self) {}
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.borrow()[offset..][..into.len()]);
    }
    fn write(&self, offset: usize, from: &[u8]) {
        self.bytes.borrow_mut()[offset..][..from.len()].copy_from_slice(from);
    }
}
