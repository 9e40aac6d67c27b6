//! The guest: takes the machine, then turns the server for ever.
#![no_std]
#![no_main]

extern crate alloc;

mod glue;

use driverdom::server::{Next, Server};
use glue::Guest;
use xen_pv::{Machine, Shutdown};

xen_pv::entry!(main);

fn main(machine: Machine) -> Shutdown {
    log::info!("driverdom {}", env!("CARGO_PKG_VERSION"));
    let mut guest = Guest::new(machine);
    let Some(mut server) = Server::new(&mut guest) else {
        log::error!("too little memory to start: raise memory= in driverdom's configuration (8 is enough)");
        return Shutdown::Poweroff;
    };
    loop {
        guest.take_events(|port| server.event(port));
        match server.turn(guest.now(), &mut guest) {
            Next::Again => {}
            Next::Sleep(until) => guest.sleep(until),
            Next::End(how) => return glue::shutdown(how),
        }
    }
}
