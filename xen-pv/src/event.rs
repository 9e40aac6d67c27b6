//! Event channels by the two-level ABI (xen.h, `struct shared_info`), always masked: taken by polling, waited for by sleep.

use core::sync::atomic::Ordering;

use xen_proto::platform::{EventError, Events};
use xen_proto::{DomId, Nanos, Port};

use crate::abi::event::{AllocUnbound, BindInterdomain, BindPirq, BindVirq, Close, Send, VIRQ_TIMER};
use crate::abi::shared_info::{EVENT_WORDS, SharedInfo};
use crate::clock::Clock;
use crate::hypercall::{self, Errno, EventArgument, event_channel_op};
use crate::sleep;

/// Ports in a word of the bitmaps, and words that a word selects.
const WORD_BITS: u32 = u64::BITS;

/// The domain's event channels. Ports are unmasked from when they are bound until they are closed, unless
/// [`EventChannels::mask`] says otherwise.
#[derive(Debug)]
pub struct EventChannels {
    shared: &'static SharedInfo,
    /// Words of the bitmap that Xen told us to look at and that may still hold events.
    selected: u64,
    timer: Port,
    /// Ports that we bound and have not closed.
    open: usize,
}

impl EventChannels {
    /// Masks every port and binds the timer's. [`sleep::register_upcall`] must have succeeded, else sleeping kills us.
    pub(crate) fn new(shared: &'static SharedInfo) -> Result<Self, Errno> {
        for word in &shared.evtchn_mask {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        hypercall::stop_periodic_timer();
        let mut virq = BindVirq { virq: VIRQ_TIMER, vcpu: 0, port: 0 };
        event_channel_op(&mut virq)?;
        let mut events = Self { shared, selected: 0, timer: Port(virq.port), open: 1 };
        events.unmask(events.timer);
        Ok(events)
    }

    pub(crate) const fn shared_info(&self) -> &'static SharedInfo {
        self.shared
    }

    /// Makes a port that `remote` may bind to.
    ///
    /// # Errors
    /// Xen's errno: no free port.
    pub fn alloc_unbound(&mut self, remote: DomId) -> Result<Port, EventError> {
        self.bound(AllocUnbound::for_domain(remote), |argument| argument.port)
    }

    /// Binds a port to a physical interrupt, e.g. one of the `vector`s that pciback returned for MSI-X. Those are edges and
    /// want no acknowledgement.
    ///
    /// # Errors
    /// Xen's errno: not our interrupt, or bound already.
    pub fn bind_pirq(&mut self, pirq: u32) -> Result<Port, EventError> {
        self.bound(BindPirq { pirq, flags: 0, port: 0 }, |argument| argument.port)
    }

    fn bound<A: EventArgument>(&mut self, mut argument: A, port: impl Fn(&A) -> u32) -> Result<Port, EventError> {
        event_channel_op(&mut argument).map_err(|Errno(errno)| EventError(errno))?;
        let port = Port(port(&argument));
        self.open += 1;
        self.unmask(port);
        Ok(port)
    }

    /// Ports that we bound and have not closed, the timer's among them; those of xenstore and the console are not.
    #[must_use]
    pub const fn open(&self) -> usize {
        self.open
    }

    /// Takes all pending events in one pass: each pending, unmasked port is cleared, then reported once.
    pub fn take_pending(&mut self, mut report: impl FnMut(Port)) {
        self.collect_selected();
        while self.selected != 0 {
            let word = self.selected.trailing_zeros();
            self.selected &= self.selected - 1;
            let mut ready = self.ready(word);
            self.shared.evtchn_pending[word as usize].fetch_and(!ready, Ordering::AcqRel);
            while ready != 0 {
                let port = Port(word * WORD_BITS + ready.trailing_zeros());
                ready &= ready - 1;
                if port != self.timer {
                    report(port);
                }
            }
        }
    }

    /// Sleeps until an event is pending or the clock has reached `until`; does not sleep at all if that is so already.
    /// The events are then there for [`EventChannels::take_pending`]. Costs nothing while it sleeps.
    pub fn sleep(&mut self, clock: &Clock, until: Option<Nanos>) {
        loop {
            clear_pending(self.shared, self.timer);
            if self.any_ready() || until.is_some_and(|until| clock.now() >= until) {
                return;
            }
            if let Some(until) = until {
                // Armed anew each time round: Xen may fire up to 50 us early (timer_slop).
                hypercall::set_timer(until);
            }
            // SAFETY: `new` demands a registered upcall, and the mask is that of our only virtual CPU.
            unsafe { sleep::block(&self.shared.vcpu_info[0].evtchn_upcall_mask) };
        }
    }

    /// Lets a port's events wait unseen, e.g. those of a device that cannot take more.
    pub fn mask(&mut self, port: Port) {
        let (word, bit) = place(port);
        self.shared.evtchn_mask[word].fetch_or(bit, Ordering::AcqRel);
    }

    /// Lets a port's events be seen again, one that came meanwhile too.
    pub fn unmask(&mut self, port: Port) {
        let (word, bit) = place(port);
        self.shared.evtchn_mask[word].fetch_and(!bit, Ordering::AcqRel);
        if self.shared.evtchn_pending[word].load(Ordering::Acquire) & bit != 0 {
            self.selected |= 1 << word;
        }
    }

    /// Moves Xen's selector into ours. An event that comes after has the selector, and so the pending byte, set again.
    fn collect_selected(&mut self) {
        let vcpu = &self.shared.vcpu_info[0];
        vcpu.evtchn_upcall_pending.swap(0, Ordering::AcqRel);
        self.selected |= vcpu.evtchn_pending_sel.swap(0, Ordering::AcqRel);
    }

    fn any_ready(&mut self) -> bool {
        self.collect_selected();
        while self.selected != 0 {
            if self.ready(self.selected.trailing_zeros()) != 0 {
                return true;
            }
            self.selected &= self.selected - 1;
        }
        false
    }

    /// Pending and unmasked ports of a word.
    fn ready(&self, word: u32) -> u64 {
        let word = word as usize;
        self.shared.evtchn_pending[word].load(Ordering::Acquire)
            & !self.shared.evtchn_mask[word].load(Ordering::Acquire)
    }
}

impl Events for EventChannels {
    fn bind(&mut self, domain: DomId, remote: u32) -> Result<Port, EventError> {
        let argument = BindInterdomain { remote_dom: domain.0, remote_port: remote, local_port: 0 };
        self.bound(argument, |argument| argument.local_port)
    }

    fn close(&mut self, port: Port) {
        self.mask(port);
        // Xen refuses only ports that are not ours or not open: closing such a one has no effect, as it should.
        self.open -= usize::from(event_channel_op(&mut Close { port: port.0 }).is_ok());
        clear_pending(self.shared, port);
    }

    fn notify(&mut self, port: Port) {
        notify(port);
    }
}

/// Sends an event. An error means that the other side has gone, and it knows that itself.
pub(crate) fn notify(port: Port) {
    let _ = event_channel_op(&mut Send { port: port.0 });
}

/// Forgets an event that came.
pub(crate) fn clear_pending(shared: &SharedInfo, port: Port) {
    let (word, bit) = place(port);
    shared.evtchn_pending[word].fetch_and(!bit, Ordering::AcqRel);
}

/// The word and bit of a port in the bitmaps.
fn place(port: Port) -> (usize, u64) {
    let word = (port.0 / WORD_BITS) as usize;
    assert!(word < EVENT_WORDS, "port {port} is beyond the two-level bitmaps");
    (word, 1 << (port.0 % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER: Port = Port(1);

    fn fixture() -> EventChannels {
        // SAFETY: all fields of the structure are integers and atomics of integers, for which zero is valid.
        let shared: &'static SharedInfo = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
        EventChannels { shared, selected: 0, timer: TIMER, open: 1 }
    }

    /// What Xen does (`evtchn_2l_set_pending`): pending bit, then, if unmasked, selector and pending byte.
    fn send(events: &EventChannels, port: Port) {
        let (word, bit) = place(port);
        events.shared.evtchn_pending[word].fetch_or(bit, Ordering::AcqRel);
        if events.shared.evtchn_mask[word].load(Ordering::Acquire) & bit == 0 {
            events.shared.vcpu_info[0].evtchn_pending_sel.fetch_or(1 << word, Ordering::AcqRel);
            events.shared.vcpu_info[0].evtchn_upcall_pending.store(1, Ordering::Release);
        }
    }

    fn taken(events: &mut EventChannels) -> Vec<u32> {
        let mut ports = Vec::new();
        events.take_pending(|port| ports.push(port.0));
        ports
    }

    #[test]
    fn each_event_is_taken_once_and_the_timer_never() {
        let mut events = fixture();
        for port in [5, 0, 63, 64, 4095, 5, TIMER.0] {
            send(&events, Port(port));
        }
        assert!(events.any_ready());
        assert_eq!(taken(&mut events), [0, 5, 63, 64, 4095]);
        assert!(!events.any_ready());
        assert_eq!(taken(&mut events), [0; 0]);
    }

    #[test]
    fn looking_for_events_loses_none() {
        let mut events = fixture();
        send(&events, Port(70));
        assert!(events.any_ready());
        assert!(events.any_ready());
        send(&events, Port(200));
        assert_eq!(taken(&mut events), [70, 200]);
    }

    #[test]
    fn a_masked_port_waits_for_its_unmasking() {
        let mut events = fixture();
        events.mask(Port(9));
        send(&events, Port(9));
        assert!(!events.any_ready());
        events.unmask(Port(9));
        assert_eq!(taken(&mut events), [9]);
        send(&events, Port(9));
        events.mask(Port(9));
        assert_eq!(taken(&mut events), [0; 0]);
        events.unmask(Port(9));
        assert_eq!(taken(&mut events), [9]);
    }
}
