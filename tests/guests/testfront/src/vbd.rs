//! One vbd as its frontend sees it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::DomId;

use crate::Fallible;
use crate::link::{Link, form_of};
use crate::platform::Platform;
use crate::request::DIRECT_SEGMENTS;
use crate::script::{Form, Naming, Shape};

/// The states of a device (`enum xenbus_state`, io/xenbus.h) that testfront itself writes or looks for.
pub(crate) mod state {
    pub(crate) const INITIALISING: u32 = 1;
    pub(crate) const INIT_WAIT: u32 = 2;
    pub(crate) const INITIALISED: u32 = 3;
    pub(crate) const CONNECTED: u32 = 4;
    pub(crate) const CLOSING: u32 = 5;
    pub(crate) const CLOSED: u32 = 6;
}

/// What testfront does when a backend closes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Closes too.
    Follow,
    /// Goes on.
    Ignore,
}

/// Who is closing the vbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Nobody.
    No,
    /// A step of the script.
    Script,
    /// We, because the backend did: requests in flight are waited for.
    Drain,
    /// The same; now for the backend's 6.
    AwaitClosed,
}

/// What the backend says of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `sectors`, in units of 512 bytes.
    pub sectors: u64,
    /// `sector-size`: the logical block.
    pub sector_size: u32,
    /// `info`: `VDISK_*`.
    pub info: u32,
    /// `feature-max-indirect-segments`; 0: none.
    pub indirect_segments: u16,
    /// `feature-discard`.
    pub discard: u32,
}

impl Facts {
    /// The nodes of the backend's directory that say it.
    pub(crate) const NODES: [&str; 5] =
        ["sectors", "sector-size", "info", "feature-max-indirect-segments", "feature-discard"];

    /// Reads the nodes' values.
    pub(crate) fn parse(values: &[Option<String>]) -> Fallible<Self> {
        let number = |at: usize| -> Fallible<u64> {
            let Some(Some(value)) = values.get(at) else { return Ok(0) };
            value.parse().map_err(|_| format!("the backend's {} is '{value}'", Self::NODES[at]))
        };
        let facts = Self {
            sectors: number(0)?,
            sector_size: narrow(number(1)?),
            info: narrow(number(2)?),
            indirect_segments: u16::try_from(number(3)?).unwrap_or(u16::MAX),
            discard: narrow(number(4)?),
        };
        match facts {
            Self { sectors: 0, .. } => Err("the backend says no sectors".into()),
            Self { sector_size: 0, .. } => Err("the backend says no sector-size".into()),
            _ => Ok(facts),
        }
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// One vbd.
pub(crate) struct Vbd<P: Platform> {
    /// Its directory, relative to our home.
    pub front: String,
    /// The backend's directory.
    pub back: String,
    pub domain: DomId,
    /// The backend's state; `None`: its directory is gone.
    pub backend: Option<u32>,
    /// The state that we wrote last.
    pub own: u32,
    pub facts: Facts,
    pub link: Option<Link<P>>,
    pub manners: Manners,
    pub leaving: Leaving,
}

impl<P: Platform> Vbd<P> {
    pub(crate) fn new(number: u32, back: String, domain: DomId) -> Self {
        Self {
            front: front(number),
            back,
            domain,
            backend: None,
            own: state::INITIALISING,
            facts: Facts::default(),
            link: None,
            manners: Manners::Follow,
            leaving: Leaving::No,
        }
    }

    /// Its ring, if it is connected and nobody is closing it.
    pub(crate) fn serving(&mut self) -> Fallible<&mut Link<P>> {
        match (self.own, self.leaving, &mut self.link) {
            (state::CONNECTED, Leaving::No, Some(link)) => Ok(link),
            (own, ..) => Err(format!("not connected (own state {own}, backend {:?})", self.backend)),
        }
    }

    /// The most sectors of such a request.
    pub(crate) fn most_sectors(&self, shape: Shape, operation: u8) -> u64 {
        let segments = match form_of(shape, operation) {
            Form::Direct => DIRECT_SEGMENTS as u64,
            Form::Indirect => u64::from(self.facts.indirect_segments),
        };
        segments * u64::from(shape.segment)
    }

    /// The nodes that publish a ring, and a state with them.
    pub(crate) fn publication(&self, link: &Link<P>, state: Option<u32>) -> Vec<(String, String)> {
        let shape = link.shape();
        let mut nodes = Vec::new();
        let mut node = |key: &str, value: String| nodes.push((format!("{}/{key}", self.front), value));
        match shape.naming {
            Naming::Single => link.ring_grefs().iter().for_each(|gref| node("ring-ref", format!("{gref}"))),
            Naming::Numbered => {
                node("ring-page-order", format!("{}", shape.order));
                link.ring_grefs()
                    .iter()
                    .enumerate()
                    .for_each(|(at, gref)| node(&format!("ring-ref{at}"), format!("{gref}")));
            }
        }
        node("event-channel", format!("{}", link.port()));
        node("protocol", shape.abi.protocol().into());
        if let Some(state) = state {
            node("state", format!("{state}"));
        }
        nodes
    }

    /// Nodes that an earlier publication may have left and that would mislead the backend about this one.
    pub(crate) fn stale_nodes(&self, naming: Naming) -> Vec<String> {
        let keys: &[&str] = match naming {
            Naming::Single => &["ring-page-order", "ring-ref0"],
            Naming::Numbered => &["ring-ref"],
        };
        keys.iter().map(|key| format!("{}/{key}", self.front)).collect()
    }
}

/// A frontend's directory, relative to our home.
pub(crate) fn front(number: u32) -> String {
    format!("device/vbd/{number}")
}
