//! The shipped server under a virtual clock: its turn drives a fake machine, xenstored, toolstack, PCI's back and frontends.
//!
//! [`world`] has the rules that are checked at every turn; the other files without tests are the fakes.

mod blkfront;
mod disk;
mod hostile;
mod image;
mod life;
mod logged;
mod machine;
mod pciback;
mod random;
mod removal;
mod rng;
mod scale;
mod scanning;
mod seen;
mod trouble;
mod truth;
mod volumes;
mod world;
mod xen;
