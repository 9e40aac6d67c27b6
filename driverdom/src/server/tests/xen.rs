//! Grants, event channels and pages, stricter than Xen: what is not allowed panics. A mapping is ended once, memory is reached
//! only while it is mapped, and a guest that takes back a page finds it unmapped.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blkback_core::backend::VbdId;
use xen_proto::ids::PAGE_SIZE;
use xen_proto::platform::{
    Access, CopyDirection, DeviceMap, DeviceMapping, EventError, Events, GNTST_BAD_GNTREF, GrantCopy, GrantStatus,
    Grants, PageBytes, Pages, SharedRing,
};
use xen_proto::{DomId, GrantRef, MachineAddr, Mfn, Port};

pub(super) type Page = [u8; PAGE_SIZE];

/// The hypervisor; a clone is another handle on the same one.
#[derive(Clone, Debug)]
pub(super) struct Xen(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    granted: BTreeMap<(DomId, GrantRef), Granted>,
    /// Live mappings by handle; a mapping's device address is its handle's.
    mapped: BTreeMap<u32, ((DomId, GrantRef), Access)>,
    next_handle: u32,
    /// How often each page is mapped, if it is.
    pins: BTreeMap<(DomId, GrantRef), usize>,
    rings: BTreeSet<VbdId>,
    /// Event channels that frontends offer.
    offered: BTreeMap<(DomId, u32), VbdId>,
    bound: BTreeMap<Port, VbdId>,
    channels: BTreeMap<VbdId, Port>,
    /// Rings or event channels are others than at the last check.
    pairs_changed: bool,
    next_port: u32,
    /// Ports of ours with an event.
    pending: BTreeSet<Port>,
    /// Frontends with an event.
    notified: BTreeSet<VbdId>,
    own: BTreeMap<Mfn, Page>,
    next_frame: u64,
    free_pages: usize,
}

#[derive(Debug)]
struct Granted {
    /// Whose it is.
    vbd: VbdId,
    what: What,
}

#[derive(Debug)]
enum What {
    Data(Box<Page>, Access),
    /// A page of a ring, by its place in it.
    Ring(RingMemory, usize),
}

impl Xen {
    pub(super) fn new(free_pages: usize) -> Self {
        Self(Rc::new(RefCell::new(State {
            granted: BTreeMap::new(),
            mapped: BTreeMap::new(),
            next_handle: 1,
            pins: BTreeMap::new(),
            rings: BTreeSet::new(),
            offered: BTreeMap::new(),
            bound: BTreeMap::new(),
            channels: BTreeMap::new(),
            pairs_changed: false,
            next_port: 10,
            pending: BTreeSet::new(),
            notified: BTreeSet::new(),
            own: BTreeMap::new(),
            next_frame: 0x1000,
            free_pages,
        })))
    }

    /// A frontend grants a page of data.
    pub(super) fn grant(&self, vbd: VbdId, gref: GrantRef, page: Page, access: Access) {
        let granted = Granted { vbd, what: What::Data(Box::new(page), access) };
        assert!(self.0.borrow_mut().granted.insert((vbd.domain, gref), granted).is_none(), "it is granted already");
    }

    /// A frontend grants the pages of its ring.
    pub(super) fn grant_ring(&self, vbd: VbdId, grefs: &[GrantRef], ring: &RingMemory) {
        for (index, gref) in grefs.iter().enumerate() {
            let granted = Granted { vbd, what: What::Ring(ring.clone(), index) };
            assert!(
                self.0.borrow_mut().granted.insert((vbd.domain, *gref), granted).is_none(),
                "it is granted already"
            );
        }
    }

    /// A frontend takes a page back, which we must not hold any more.
    pub(super) fn revoke(&self, vbd: VbdId, gref: GrantRef) -> Page {
        let mut state = self.0.borrow_mut();
        let key = (vbd.domain, gref);
        assert!(!state.pins.contains_key(&key), "{vbd:?}: a page is still mapped");
        match state.granted.remove(&key).expect("it was granted").what {
            What::Data(page, _) => *page,
            What::Ring(..) => {
                assert!(!state.rings.contains(&vbd), "{vbd:?}: its ring is still mapped");
                [0; PAGE_SIZE]
            }
        }
    }

    /// A frontend offers an event channel.
    pub(super) fn offer(&self, vbd: VbdId, channel: u32) {
        self.0.borrow_mut().offered.insert((vbd.domain, channel), vbd);
    }

    /// A frontend sends an event on its channel, which gets lost unless we have bound it.
    pub(super) fn send(&self, vbd: VbdId) {
        let mut state = self.0.borrow_mut();
        let port = state.channels.get(&vbd).copied();
        state.pending.extend(port);
    }

    /// Ports of ours with an event; they are consumed.
    pub(super) fn take_pending(&self) -> BTreeSet<Port> {
        std::mem::take(&mut self.0.borrow_mut().pending)
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.0.borrow().pending.is_empty()
    }

    /// Frontends with an event; they are consumed.
    pub(super) fn take_notified(&self) -> BTreeSet<VbdId> {
        std::mem::take(&mut self.0.borrow_mut().notified)
    }

    /// A guest is gone. What we still have mapped of it stays until we unmap it.
    pub(super) fn bury(&self, domain: DomId) {
        let state = &mut *self.0.borrow_mut();
        state.granted.retain(|key, granted| {
            key.0 != domain || state.pins.contains_key(key) || state.rings.contains(&granted.vbd)
        });
        state.offered.retain(|(owner, _), _| *owner != domain);
    }

    /// A detached disk's guest has forgotten it. We hold nothing of it.
    pub(super) fn forget(&self, vbd: VbdId) {
        assert_eq!(self.held_of(vbd), (0, 0, 0));
        self.0.borrow_mut().granted.retain(|_, granted| granted.vbd != vbd);
    }

    /// What we hold of a frontend's: its ring, its event channel, and pages.
    pub(super) fn held_of(&self, vbd: VbdId) -> (usize, usize, usize) {
        let state = self.0.borrow();
        let of = |key| state.granted.get(key).is_some_and(|granted| granted.vbd == vbd);
        (
            usize::from(state.rings.contains(&vbd)),
            usize::from(state.channels.contains_key(&vbd)),
            state.mapped.values().filter(|(key, _)| of(key)).count(),
        )
    }

    /// Live mappings.
    pub(super) fn mappings(&self) -> usize {
        self.0.borrow().mapped.len()
    }

    /// Vbds whose ring is mapped.
    pub(super) fn connected(&self) -> usize {
        self.0.borrow().rings.len()
    }

    /// Each ring has an event channel, and each event channel a ring.
    pub(super) fn check_pairs(&self) {
        let state = &mut *self.0.borrow_mut();
        if std::mem::take(&mut state.pairs_changed) {
            assert!(state.channels.keys().eq(&state.rings), "{:?} {:?}", state.channels, state.rings);
        }
    }

    pub(super) fn free_pages(&self) -> usize {
        self.0.borrow().free_pages
    }

    /// A device reads memory.
    pub(super) fn dma_read(&self, addr: MachineAddr, into: &mut [u8]) {
        let state = self.0.borrow();
        let (key, _, offset) = state.mapping(addr, into.len());
        into.copy_from_slice(&state.data(key).0[offset..][..into.len()]);
    }

    /// A device writes memory.
    pub(super) fn dma_write(&self, addr: MachineAddr, from: &[u8]) {
        let mut state = self.0.borrow_mut();
        let (key, access, offset) = state.mapping(addr, from.len());
        assert_eq!(access, Access::ReadWrite, "a device writes a page that is mapped read-only");
        state.data_mut(key)[offset..][..from.len()].copy_from_slice(from);
    }

    /// Fails if a device could not reach this memory.
    pub(super) fn check_reachable(&self, addr: MachineAddr, len: u32) {
        self.0.borrow().mapping(addr, len as usize);
    }
}

impl State {
    fn mapping(&self, addr: MachineAddr, len: usize) -> ((DomId, GrantRef), Access, usize) {
        let handle = u32::try_from(addr.0 >> 12).expect("a device address of a mapping");
        let offset = usize::try_from(addr.0 & 0xfff).expect("it is small");
        assert!(offset + len <= PAGE_SIZE, "a segment crosses its page");
        let (key, access) = self.mapped.get(&handle).expect("a device reaches memory that is not mapped");
        (*key, *access, offset)
    }

    fn data(&self, key: (DomId, GrantRef)) -> (&Page, Access) {
        match &self.granted[&key].what {
            What::Data(page, access) => (page, *access),
            What::Ring(..) => panic!("a device works on a ring"),
        }
    }

    fn data_mut(&mut self, key: (DomId, GrantRef)) -> &mut Page {
        match &mut self.granted.get_mut(&key).expect("mapped pages are granted").what {
            What::Data(page, _) => page,
            What::Ring(..) => panic!("a device works on a ring"),
        }
    }

    fn map(&mut self, domain: DomId, gref: GrantRef, access: Access) -> Result<DeviceMapping, GrantStatus> {
        match self.granted.get(&(domain, gref)) {
            Some(Granted { what: What::Data(_, Access::ReadWrite), .. }) => {}
            Some(Granted { what: What::Data(_, Access::ReadOnly), .. }) if access == Access::ReadOnly => {}
            _ => return Err(GNTST_BAD_GNTREF),
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.mapped.insert(handle, ((domain, gref), access));
        *self.pins.entry((domain, gref)).or_default() += 1;
        Ok(DeviceMapping { handle, addr: MachineAddr(u64::from(handle) << 12) })
    }

    fn copy(&mut self, copy: &GrantCopy) -> Result<(), GrantStatus> {
        let (own, guest) = (usize::from(copy.offset), usize::from(copy.guest_offset));
        let len = usize::from(copy.len);
        assert!(len > 0 && own + len <= PAGE_SIZE && guest + len <= PAGE_SIZE, "a copy leaves its page: {copy:?}");
        let ours = self.own.get_mut(&copy.frame).expect("a copy to or from a page of ours");
        let granted = self.granted.get_mut(&(copy.domain, copy.gref)).ok_or(GNTST_BAD_GNTREF)?;
        let What::Data(theirs, access) = &mut granted.what else { return Err(GNTST_BAD_GNTREF) };
        match copy.direction {
            CopyDirection::FromGuest => ours[own..][..len].copy_from_slice(&theirs[guest..][..len]),
            CopyDirection::ToGuest if *access == Access::ReadOnly => return Err(GNTST_BAD_GNTREF),
            CopyDirection::ToGuest => theirs[guest..][..len].copy_from_slice(&ours[own..][..len]),
        }
        Ok(())
    }
}

/// A ring as we have it mapped.
#[derive(Debug)]
pub(super) struct MappedRing {
    memory: RingMemory,
    vbd: VbdId,
}

impl Grants for Xen {
    type Ring = MappedRing;

    fn map_ring(&mut self, domain: DomId, grefs: &[GrantRef]) -> Result<MappedRing, GrantStatus> {
        let mut state = self.0.borrow_mut();
        let mut found: Option<(RingMemory, VbdId)> = None;
        for (at, gref) in grefs.iter().enumerate() {
            match state.granted.get(&(domain, *gref)) {
                Some(Granted { vbd, what: What::Ring(memory, index) }) if *index == at => {
                    found = Some((memory.clone(), *vbd));
                }
                _ => return Err(GNTST_BAD_GNTREF),
            }
        }
        let (memory, vbd) =
            found.filter(|(memory, _)| memory.len() == grefs.len() * PAGE_SIZE).ok_or(GNTST_BAD_GNTREF)?;
        assert!(state.rings.insert(vbd), "{vbd:?}: its ring is mapped twice");
        state.pairs_changed = true;
        Ok(MappedRing { memory, vbd })
    }

    fn unmap_ring(&mut self, ring: MappedRing) {
        let mut state = self.0.borrow_mut();
        assert!(state.rings.remove(&ring.vbd), "a ring is unmapped once");
        state.pairs_changed = true;
    }

    fn map_for_device(&mut self, domain: DomId, maps: &mut [DeviceMap]) {
        assert!(!maps.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        maps.iter_mut().for_each(|map| map.result = state.map(domain, map.gref, map.access));
    }

    fn unmap_for_device(&mut self, mappings: &[DeviceMapping]) {
        assert!(!mappings.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        for mapping in mappings {
            let (key, _) = state.mapped.remove(&mapping.handle).expect("a mapping is ended once");
            let pins = state.pins.get_mut(&key).expect("what is mapped is pinned");
            *pins -= 1;
            if *pins == 0 {
                state.pins.remove(&key);
            }
            assert_eq!(mapping.addr.0, u64::from(mapping.handle) << 12, "what is unmapped is what was mapped");
        }
    }

    fn copy(&mut self, copies: &mut [GrantCopy]) {
        assert!(!copies.is_empty(), "an empty batch is a wasted hypercall");
        let mut state = self.0.borrow_mut();
        copies.iter_mut().for_each(|copy| copy.result = state.copy(copy));
    }
}

impl Events for Xen {
    fn bind(&mut self, domain: DomId, remote: u32) -> Result<Port, EventError> {
        let mut state = self.0.borrow_mut();
        // -EINVAL: nothing is offered there.
        let vbd = *state.offered.get(&(domain, remote)).ok_or(EventError(-22))?;
        let port = Port(state.next_port);
        state.next_port += 1;
        state.bound.insert(port, vbd);
        assert_eq!(state.channels.insert(vbd, port), None, "an event channel is bound once");
        state.pairs_changed = true;
        // As Xen does: a fresh interdomain channel begins with an event.
        state.pending.insert(port);
        Ok(port)
    }

    fn close(&mut self, port: Port) {
        let mut state = self.0.borrow_mut();
        let vbd = state.bound.remove(&port).expect("a port is closed once");
        state.channels.remove(&vbd);
        state.pairs_changed = true;
        state.pending.remove(&port);
    }

    fn notify(&mut self, port: Port) {
        let mut state = self.0.borrow_mut();
        let vbd = *state.bound.get(&port).expect("only bound ports are notified");
        state.notified.insert(vbd);
    }
}

impl Pages for Xen {
    fn take_page(&mut self) -> Option<Mfn> {
        let mut state = self.0.borrow_mut();
        state.free_pages = state.free_pages.checked_sub(1)?;
        let frame = Mfn(state.next_frame);
        // Never neighbours, as in a PV guest.
        state.next_frame += 7;
        // What its last owner left.
        state.own.insert(frame, [0xa5; PAGE_SIZE]);
        Some(frame)
    }

    fn give_page(&mut self, page: Mfn) {
        let mut state = self.0.borrow_mut();
        assert!(state.own.remove(&page).is_some(), "a page is given back once");
        state.free_pages += 1;
    }
}

impl PageBytes for Xen {
    fn zero_page(&self, page: Mfn) {
        self.0.borrow_mut().own.insert(page, [0; PAGE_SIZE]).expect("a page of ours");
    }

    fn read_page(&self, page: Mfn, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow().own[&page][offset..][..into.len()]);
    }
}

/// A ring in memory that both sides see.
#[derive(Clone, Debug)]
pub(super) struct RingMemory(Rc<RefCell<Vec<u8>>>);

impl RingMemory {
    pub(super) fn new(pages: usize) -> Self {
        Self(Rc::new(RefCell::new(vec![0; pages * PAGE_SIZE])))
    }
}

impl SharedRing for RingMemory {
    fn len(&self) -> usize {
        self.0.borrow().len()
    }
    fn load(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        u32::from_le_bytes(word)
    }
    fn store(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }
    fn fence(&self) {}
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..][..into.len()]);
    }
    fn write(&self, offset: usize, from: &[u8]) {
        self.0.borrow_mut()[offset..][..from.len()].copy_from_slice(from);
    }
}

impl SharedRing for MappedRing {
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn load(&self, offset: usize) -> u32 {
        self.memory.load(offset)
    }
    fn store(&self, offset: usize, value: u32) {
        self.memory.store(offset, value);
    }
    fn fence(&self) {}
    fn read(&self, offset: usize, into: &mut [u8]) {
        self.memory.read(offset, into);
    }
    fn write(&self, offset: usize, from: &[u8]) {
        self.memory.write(offset, from);
    }
}
