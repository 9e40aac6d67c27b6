//! testfront: a tiny PV guest that drives vbds as a script tells it, to show what no ordinary guest shows: both x86 ABIs, any
//! ring order and request form, states in odd orders, malformed requests, a frontend that never closes or vanishes.
//!
//! # The script
//! Steps, separated by `;` or line ends, on the domain's command line (1024 bytes at most). Instead of steps the command line may
//! say `script=xenstore` (the steps stand in `data/script` of the domain's own home) or `script=watch`: then each
//! `NUMBER STEP` that dom0 writes to `data/step` is run when its number is new, and `NUMBER ok ...` or `NUMBER failed: ...`
//! appears in `data/result`. A leading `log=LEVEL` is left to the platform.
//!
//! | step | |
//! |---|---|
//! | `connect vbd=V [abi=64\|32] [order=0..4] [numbered] [start=N] [form=direct\|indirect] [skew=0..7] [segment=1..8] [early]` | waits for the backend's 2 (`early`: for the vbd to be there, no more), publishes, goes to 3, waits for 4, goes to 4 |
//! | `publish vbd=V ...` | only publishes the ring, with the words of `connect` |
//! | `reconnect vbd=V ...` | goes from closed to 1, then as `connect` |
//! | `write vbd=V [sector=N] [count=N] pattern=SEED` | writes the [`pattern`]; `barrier` does it by write barriers |
//! | `verify vbd=V [sector=N] [count=N] pattern=SEED` | reads and checks it, says the first bad sector and what is there |
//! | `read vbd=V [sector=N] [count=N]` | reads in order, says the CRC-32 |
//! | `flush vbd=V`, `discard vbd=V [sector=N] [count=N]` | |
//! | `load vbd=V seconds=N\|requests=N [depth=N] [mix\|reads] [size=N] [sector=N] [count=N] [pattern=SEED]` | keeps requests in flight on all these vbds at once, then reads everything back and checks it |
//! | `malformed vbd=V [kind=K\|all]` | sends [malformed requests](malformed::CASES), each with the answer it must get and an ordinary read after it |
//! | `close vbd=V`, `close6 vbd=V` | 5, waits, 6, waits; or 6 at once. The backend must have let go of every page |
//! | `toggle vbd=V n=N` | closes and reconnects so many times |
//! | `storm vbd=V n=N` | writes so many states without waiting, ends closed |
//! | `state vbd=V N` | writes any state |
//! | `set vbd=V key=K [value=X]` | writes a node of the frontend's directory, or removes it |
//! | `check vbd=V key=K [value=X]` | compares a node of the backend's directory; without `value` it must be absent |
//! | `wait vbd=V [state=N\|gone]` | waits for the backend's state; the vbd may appear or vanish meanwhile |
//! | `never-close vbd=V` | from now on ignores that the backend closes; otherwise testfront closes too |
//! | `vanish [how=crash\|poweroff\|reboot] [depth=N]` | ends the domain with so many writes on each vbd in flight |
//! | `list`, `echo WORDS`, `sleep ms=N` | |
//! | `end [poweroff\|stay\|reboot\|crash]` | ends the script; without it the domain powers off after its last step |
//!
//! `V` is `all` or numbers with commas between (51712 is xvda). Requests take `expect=ok|error|unsupported`: what each of them
//! must be answered. Steps that wait take `seconds=N` (30). `fails` before a step turns its outcome round.
//!
//! Each step prints `testfront: step N ok ...` or `testfront: step N FAILED ...`, the end `testfront: DONE ok=N failed=N`.
//! What a backend does wrong while nobody asks (an answer to nothing, a page still mapped after its answer, bytes written beside
//! a segment) fails the step during which it is seen.
//!
//! # The parts
//! Pure: [`script`], [`pattern`] and [`request`], [`malformed`], [`load`], [`report`]. Above them the steps' effects, written
//! against [`platform::Platform`], which the binary implements with `xen-pv`. The host uses the same patterns to check a disk's
//! image: `testfront::pattern::verify(seed, first_sector, bytes)`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod link;
pub mod load;
pub mod malformed;
pub mod pattern;
pub mod platform;
pub mod report;
pub mod request;
mod run;
pub mod script;
mod steps;
mod store;
mod vbd;
mod world;

pub use run::run;

/// What a step does, or why it could not.
type Fallible<T> = Result<T, alloc::string::String>;
