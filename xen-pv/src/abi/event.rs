//! Arguments of event-channel operations (event_channel.h).

use xen_proto::DomId;

/// `EVTCHNOP_bind_interdomain`
pub const EVTCHNOP_BIND_INTERDOMAIN: usize = 0;
/// `EVTCHNOP_bind_virq`
pub const EVTCHNOP_BIND_VIRQ: usize = 1;
/// `EVTCHNOP_bind_pirq`
pub const EVTCHNOP_BIND_PIRQ: usize = 2;
/// `EVTCHNOP_close`
pub const EVTCHNOP_CLOSE: usize = 3;
/// `EVTCHNOP_send`
pub const EVTCHNOP_SEND: usize = 4;
/// `EVTCHNOP_alloc_unbound`
pub const EVTCHNOP_ALLOC_UNBOUND: usize = 6;

/// `VIRQ_TIMER`
pub const VIRQ_TIMER: u32 = 0;

/// `struct evtchn_alloc_unbound`
#[repr(C)]
#[derive(Debug)]
pub struct AllocUnbound {
    /// In: whose end this is.
    pub dom: u16,
    /// In: who may bind to it.
    pub remote_dom: u16,
    /// Out.
    pub port: u32,
}

/// `struct evtchn_bind_interdomain`
#[repr(C)]
#[derive(Debug)]
pub struct BindInterdomain {
    /// In: the other domain.
    pub remote_dom: u16,
    /// In: the port that it offered.
    pub remote_port: u32,
    /// Out.
    pub local_port: u32,
}

/// `struct evtchn_bind_virq`
#[repr(C)]
#[derive(Debug)]
pub struct BindVirq {
    /// In: `VIRQ_*`.
    pub virq: u32,
    /// In.
    pub vcpu: u32,
    /// Out.
    pub port: u32,
}

/// `struct evtchn_bind_pirq`
#[repr(C)]
#[derive(Debug)]
pub struct BindPirq {
    /// In: the physical interrupt.
    pub pirq: u32,
    /// In: `BIND_PIRQ__*`.
    pub flags: u32,
    /// Out.
    pub port: u32,
}

/// `struct evtchn_close`
#[repr(C)]
#[derive(Debug)]
pub struct Close {
    /// In.
    pub port: u32,
}

/// `struct evtchn_send`
#[repr(C)]
#[derive(Debug)]
pub struct Send {
    /// In.
    pub port: u32,
}

impl AllocUnbound {
    /// A port of ours for `remote` to bind to.
    #[must_use]
    pub const fn for_domain(remote: DomId) -> Self {
        Self { dom: super::DOMID_SELF.0, remote_dom: remote.0, port: 0 }
    }
}

const _: () = assert!(size_of::<AllocUnbound>() == 8);
const _: () = assert!(size_of::<BindInterdomain>() == 12);
