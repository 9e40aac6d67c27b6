//! The script: what testfront is told to do. The grammar is described in the crate's documentation.

mod parse;

use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::Nanos;

use crate::malformed::Case;
use crate::request::{Abi, Status};

pub use parse::{BadScript, parse_steps};

/// Where the steps come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Script {
    /// The command line itself.
    Steps(Vec<Step>),
    /// The node `data/script` of testfront's own home, read once.
    Xenstore,
    /// The node `data/step`, run each time it changes.
    Watch,
}

/// One step and how it has to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How it has to end.
    pub aim: Aim,
    /// What it does.
    pub deed: Deed,
}

/// How a step has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// It succeeds.
    Success,
    /// It fails: the step was written with `fails` before it.
    Failure,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// Something with one or more vbds, one after the other unless the action says otherwise.
    On(Which, Action),
    /// Prints what is known of each vbd.
    List,
    /// Succeeds with this text.
    Echo(String),
    /// Lets time pass, serving what the backends want.
    Sleep(Nanos),
    /// Ends the domain at once, with `depth` requests of each connected vbd in flight.
    Vanish {
        /// How.
        how: Ending,
        /// Requests started on each connected vbd before; their answers are not awaited.
        depth: u32,
    },
    /// Announces the result.
    End(Ending),
}

/// What becomes of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It stays and goes on serving what the backends want.
    Stay,
    /// `SHUTDOWN_poweroff`
    Poweroff,
    /// `SHUTDOWN_reboot`
    Reboot,
    /// `SHUTDOWN_crash`
    Crash,
}

/// Which vbds are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every one under `device/vbd`.
    All,
    /// These, by number.
    These(Vec<u32>),
}

/// What is done with a vbd.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Publishes a ring and an event channel, nothing else.
    Publish(Shape),
    /// Publishes, goes to 3, waits for the backend's 4, goes to 4.
    Connect(Connect),
    /// From closed: goes to 1, waits for the backend's 2, connects.
    Reconnect(Connect),
    /// Reads, writes or another request, as many as it takes.
    Transfer(Transfer),
    /// Keeps many requests in flight for a while; all vbds at the same time.
    Load(Load),
    /// Writes a state, whatever it is.
    State(u32),
    /// Writes a node of the frontend's directory, or removes it.
    Set {
        /// The node's name below the frontend's directory.
        key: String,
        /// Its value; `None` removes it.
        value: Option<String>,
    },
    /// Looks at a node of the backend's directory.
    Check {
        /// The node's name below the backend's directory.
        key: String,
        /// Its value; `None`: it must not be there.
        value: Option<String>,
    },
    /// Closes.
    Close(Farewell, Nanos),
    /// Closes and reconnects so many times, with all the handshakes.
    Toggle(u32),
    /// Writes states so many times, waiting for nothing, and ends closed.
    Storm(u32),
    /// Waits for the backend.
    Wait(Awaited, Nanos),
    /// Sends malformed requests, each of which has its answer; an ordinary read follows each.
    Malformed(Cases),
    /// From now on ignores that the backend closes.
    NeverClose,
}

/// How a vbd is connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connect {
    /// What is published.
    pub shape: Shape,
    /// When.
    pub haste: Haste,
    /// How long the backend may take for each of its states.
    pub limit: Nanos,
}

/// When a frontend publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// When the backend is at 2.
    Patient,
    /// At once, whatever the backend's state.
    Early,
}

/// The ring that is published, and the requests that go over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The layout.
    pub abi: Abi,
    /// Base-2 logarithm of the ring's pages.
    pub order: u32,
    /// How the pages are named in xenstore.
    pub naming: Naming,
    /// Where the ring's indices start: near the end of 32 bits they wrap soon.
    pub start: u32,
    /// Where the segments stand.
    pub form: Form,
    /// The sector of its page at which each segment starts, 0..8.
    pub skew: u8,
    /// Sectors of each segment, 1..=8 - skew.
    pub segment: u8,
}

/// How a ring's pages are named in xenstore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// One page: `ring-ref`.
    Single,
    /// `ring-page-order` and `ring-ref0`, `ring-ref1`, ...
    Numbered,
}

/// Where a request's segments stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In the request.
    Direct,
    /// In pages of their own.
    Indirect,
}

/// Requests over a run of sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What is asked for.
    pub purpose: Purpose,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub count: u64,
    /// The answer that each request must get.
    pub expect: Status,
}

/// What a transfer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reads; says the CRC-32 of what it read.
    Read,
    /// Reads, and checks for the pattern of this seed.
    Verify(u64),
    /// Writes the pattern of this seed.
    Write(u64),
    /// The same as a barrier.
    Barrier(u64),
    /// Makes what was written durable.
    Flush,
    /// Gives sectors back.
    Discard,
}

/// Many requests in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests in flight on each vbd.
    pub depth: u32,
    /// When it ends.
    pub until: Until,
    /// What it does.
    pub mix: Mix,
    /// Sectors of a request.
    pub size: u64,
    /// First sector of the area.
    pub sector: u64,
    /// Sectors of the area; `None`: what 256 requests cover, or the whole vbd if it is smaller.
    pub count: Option<u64>,
    /// The first seed.
    pub seed: u64,
}

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this time.
    Elapsed(Nanos),
    /// After this many requests on each vbd.
    Requests(u64),
}

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Writes from one end to the other, again and again; all is read and checked at the end.
    Writes,
    /// Writes and checked reads in a random order; all is read and checked at the end.
    Both,
    /// Reads only, of whatever is there.
    Reads,
}

/// How a frontend closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// State 5, waits for the backend's 5 or 6, state 6.
    Polite,
    /// State 6 at once.
    Abrupt,
}

/// What is awaited of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// This state.
    State(u32),
    /// Its directory goes away.
    Gone,
}

/// Which malformed requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cases {
    /// Every one that the vbd allows.
    All,
    /// This one.
    One(&'static Case),
}
