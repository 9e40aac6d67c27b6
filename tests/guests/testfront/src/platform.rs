//! What testfront asks of the machine. The guest binary implements it with `xen-pv`; nothing below knows more of Xen than this.

use alloc::vec::Vec;

use xen_proto::platform::{Access, SharedRing};
use xen_proto::xenstore::{Client, Event};
use xen_proto::{DomId, GrantRef, Nanos, Port};

use crate::script::Ending;

/// A grant could not be ended: the other domain still has the page mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillMapped;

/// The machine.
pub trait Platform {
    /// A page of ours; its drop gives it back, which must not happen while somebody else can reach it.
    type Page;
    /// A ring in pages of ours.
    type Ring: SharedRing;

    /// The time now.
    fn now(&self) -> Nanos;
    /// Sleeps until an event comes or the time has come; may return earlier.
    fn sleep(&mut self, until: Nanos);
    /// Moves bytes between the client and xenstored, as many as there are, and collects what they mean.
    fn exchange(&mut self, client: &mut Client, events: &mut Vec<Event>);

    /// Takes a page, whatever it holds; `None` when all are in use.
    fn take_page(&mut self) -> Option<Self::Page>;
    /// Pages that can still be taken.
    fn free_pages(&self) -> usize;
    /// Copies into a page, which the backend may be reading.
    fn write_page(&mut self, page: &mut Self::Page, offset: usize, from: &[u8]);
    /// Copies out of a page, which the backend may be writing.
    fn read_page(&self, page: &Self::Page, offset: usize, into: &mut [u8]);

    /// Grants a page to a domain; `None` when no reference is free.
    fn grant(&mut self, domain: DomId, page: &Self::Page, access: Access) -> Option<GrantRef>;
    /// Ends a grant.
    ///
    /// # Errors
    /// It stays, because the page is still mapped.
    fn end_grant(&mut self, gref: GrantRef) -> Result<(), StillMapped>;

    /// Makes a ring of so many pages; `None` when memory is used up.
    fn take_ring(&mut self, domain: DomId, pages: usize) -> Option<(Self::Ring, Vec<GrantRef>)>;
    /// Ends a ring and the grants of its pages.
    ///
    /// # Errors
    /// A page is still mapped; such pages are lost.
    fn give_ring(&mut self, ring: Self::Ring, grefs: Vec<GrantRef>) -> Result<(), StillMapped>;

    /// Makes a port that the domain can bind to; `None` when there is none.
    fn offer_port(&mut self, domain: DomId) -> Option<Port>;
    /// Closes a port.
    fn close_port(&mut self, port: Port);
    /// Sends an event.
    fn notify(&mut self, port: Port);

    /// Prints a line.
    fn say(&mut self, line: &str);
    /// Ends the domain; [`Ending::Stay`] does not get here.
    fn shut_down(&mut self, how: Ending) -> !;
}
