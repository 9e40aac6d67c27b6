//! The channel to pciback (io/pciif.h): one shared page, one event channel, one request at a time. The handshake through
//! xenstore and what the requests mean is the driver's.

use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};

use xen_proto::platform::{Access, EventError, Events};
use xen_proto::{DomId, GrantRef, Nanos, Port};

use crate::abi::pciif::{MsixEntry, PciOp, SH_INFO_MAX_VEC, SharedPage, XEN_PCI_ERR_SUCCESS, XEN_PCIF_ACTIVE};
use crate::abi::shared_info::SharedInfo;
use crate::clock::Clock;
use crate::event::{self, EventChannels};
use crate::grant::{GrantError, GrantTable};
use crate::hypercall;
use crate::memory::{DmaPage, Memory};

/// How long pciback may take for a request; as long as Linux's frontend gives it.
pub const CALL_TIMEOUT: Nanos = Nanos::from_millis(2000);

/// A channel that pciback can connect to.
#[derive(Debug)]
pub struct Channel {
    page: DmaPage,
    gref: GrantRef,
    port: Port,
    clock: Clock,
    shared: &'static SharedInfo,
}

/// Why a channel could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// No page left.
    NoMemory,
    /// The page could not be granted.
    Grant(GrantError),
    /// No event channel left.
    Event(EventError),
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// pciback did not answer within [`CALL_TIMEOUT`].
    TimedOut,
    /// An earlier request is still unanswered: the page is pciback's.
    Busy,
    /// pciback's answer: one of `XEN_PCI_ERR_*`, or an errno of Linux.
    Refused(i32),
}

impl Channel {
    /// Makes the page and the port for `backend`, which is told of both through xenstore. The port stays masked: answers
    /// are waited for in [`Channel::call`].
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn new(
        backend: DomId,
        memory: &mut Memory,
        grants: &mut GrantTable,
        events: &mut EventChannels,
        clock: Clock,
    ) -> Result<Self, ChannelError> {
        let page = memory.dma_page().ok_or(ChannelError::NoMemory)?;
        let gref = grants.grant(backend, page.mfn(), Access::ReadWrite).map_err(ChannelError::Grant)?;
        let port = match events.alloc_unbound(backend) {
            Ok(port) => port,
            Err(error) => {
                // Nobody has been told of the grant, so nobody has it mapped.
                let _ = grants.end(gref);
                return Err(ChannelError::Event(error));
            }
        };
        events.mask(port);
        Ok(Self { page, gref, port, clock, shared: events.shared_info() })
    }

    /// The grant of the page (`pci-op-ref`).
    #[must_use]
    pub const fn gref(&self) -> GrantRef {
        self.gref
    }

    /// The port (`event-channel`).
    #[must_use]
    pub const fn port(&self) -> Port {
        self.port
    }

    /// Lets pciback do one operation, waiting for it; `op` then holds the answer, also beside [`CallError::Refused`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&mut self, op: &mut PciOp) -> Result<(), CallError> {
        if self.is_active() {
            return Err(CallError::Busy);
        }
        self.write_request(op);
        fence(Ordering::SeqCst);
        let flags = self.page.read_u32(offset_of!(SharedPage, flags));
        self.page.write_u32(offset_of!(SharedPage, flags), flags | XEN_PCIF_ACTIVE);
        fence(Ordering::SeqCst);
        event::notify(self.port);
        self.wait()?;
        fence(Ordering::SeqCst);
        self.read_answer(op);
        if op.err == XEN_PCI_ERR_SUCCESS { Ok(()) } else { Err(CallError::Refused(op.err)) }
    }

    /// Ends the channel, after pciback has let go of it.
    ///
    /// # Errors
    /// pciback has the page mapped: the channel, to be closed later.
    pub fn close(self, grants: &mut GrantTable, events: &mut EventChannels) -> Result<(), Self> {
        if grants.end(self.gref).is_err() {
            return Err(self);
        }
        events.close(self.port);
        Ok(())
    }

    fn is_active(&self) -> bool {
        self.page.read_u32(offset_of!(SharedPage, flags)) & XEN_PCIF_ACTIVE != 0
    }

    fn wait(&self) -> Result<(), CallError> {
        let deadline = self.clock.now() + CALL_TIMEOUT;
        loop {
            event::clear_pending(self.shared, self.port);
            if !self.is_active() {
                return Ok(());
            }
            if self.clock.now() >= deadline {
                return Err(CallError::TimedOut);
            }
            hypercall::poll(self.port.0, deadline);
        }
    }

    fn write_request(&mut self, op: &PciOp) {
        let words = [
            (offset_of!(PciOp, cmd), op.cmd),
            (offset_of!(PciOp, err), op.err.cast_unsigned()),
            (offset_of!(PciOp, domain), op.domain),
            (offset_of!(PciOp, bus), op.bus),
            (offset_of!(PciOp, devfn), op.devfn),
            (offset_of!(PciOp, offset), op.offset.cast_unsigned()),
            (offset_of!(PciOp, size), op.size.cast_unsigned()),
            (offset_of!(PciOp, value), op.value),
            (offset_of!(PciOp, info), op.info),
        ];
        for (offset, word) in words {
            self.page.write_u32(offset_of!(SharedPage, op) + offset, word);
        }
        for (index, entry) in op.msix_entries.iter().enumerate() {
            let at = msix_entry(index);
            self.page.write_u16(at + offset_of!(MsixEntry, vector), entry.vector);
            self.page.write_u16(at + offset_of!(MsixEntry, entry), entry.entry);
        }
    }

    fn read_answer(&self, op: &mut PciOp) {
        let word = |offset: usize| self.page.read_u32(offset_of!(SharedPage, op) + offset);
        op.err = word(offset_of!(PciOp, err)).cast_signed();
        op.value = word(offset_of!(PciOp, value));
        op.info = word(offset_of!(PciOp, info));
        for (index, entry) in op.msix_entries.iter_mut().enumerate() {
            entry.vector = self.page.read_u16(msix_entry(index) + offset_of!(MsixEntry, vector));
        }
    }
}

/// Where an entry is in the page.
fn msix_entry(index: usize) -> usize {
    offset_of!(SharedPage, op) + offset_of!(PciOp, msix_entries) + index * size_of::<MsixEntry>()
}

impl PciOp {
    /// An operation on the device that pciback shows at `bus` and `devfn` of segment `domain`, all else 0.
    #[must_use]
    pub const fn new(cmd: u32, domain: u32, bus: u32, devfn: u32) -> Self {
        let msix_entries = [MsixEntry { vector: 0, entry: 0 }; SH_INFO_MAX_VEC];
        Self { cmd, err: 0, domain, bus, devfn, offset: 0, size: 0, value: 0, info: 0, msix_entries }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => write!(f, "pciback did not answer within {} ms", CALL_TIMEOUT.as_millis()),
            Self::Busy => write!(f, "pciback has not answered an earlier request"),
            Self::Refused(error) => write!(f, "pciback refused: error {error}"),
        }
    }
}
