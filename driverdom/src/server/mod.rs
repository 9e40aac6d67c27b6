//! The server: one bounded turn after the other moves everything there is to move, and says when the next one is due.
//!
//! [`Server`] joins the parts that know nothing of each other: xenstore's client, [`Hotplug`], the block backend, the
//! volumes, and the disks that come by PCI. It has no effects but through [`Platform`] and reads no clock, so that the same
//! turn runs in the guest and, under a virtual clock, in tests.

mod console;
mod counters;
mod disks;
pub mod platform;
mod report;
mod scan;
mod snapshot;
#[cfg(test)]
mod tests;
mod vbds;
mod volumes;

use blkback_core::Backend;
use blkback_core::backend::{Platform as BackendParts, Progress, Report, VbdId};
use blkback_core::stats::Stats;
use xen_proto::xenstore::{Client, Event};
use xen_proto::{Nanos, Port};

use crate::drivers::pci::{Handshake, Task};
use crate::hotplug::{Action, Answer, Claim, Hotplug, Shutdown};
use console::Console;
use counters::Counters;
use disks::Disks;
use platform::{Parts, Platform};
use report::Key;
use snapshot::{Attaches, Io, Resources, Snapshot};
use vbds::{Ring, Vbds};
use volumes::Volumes;

/// Bytes of xenstore's stream that a turn takes at most: its ring holds 1 KiB a direction (io/xs_wire.h).
const STORE_BYTES: usize = 1024;
/// Actions of hotplug that a turn carries out at most.
const ACTIONS: usize = 64;

/// How long a shutdown waits for guests' requests, and then for disks' last flushes. A disk that has not answered by then is
/// reset as it is, lest it reach for memory that is no longer ours when the toolstack loses patience and destroys us.
pub const DISK_PATIENCE: Nanos = Nanos::from_millis(30_000);

/// What is to be done after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another turn, at once.
    Again,
    /// Wait for an event, or until this moment.
    Sleep(Option<Nanos>),
    /// All disks are flushed and reset: end the domain.
    End(Shutdown),
}

/// The course of the domain's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Devices that were passed to us are being found; no guest is served yet.
    Starting,
    /// Guests are served.
    Serving,
    /// Guests are being disconnected.
    Draining(Shutdown),
    /// Disks are being flushed.
    Flushing(Shutdown),
    /// Nothing is left.
    Ended(Shutdown),
}

/// The whole driver domain but its machine.
pub struct Server<P: Platform> {
    stage: Stage,
    /// During a shutdown: when disks that do not answer are reset.
    reset_at: Option<Nanos>,
    client: Client,
    pci: Handshake,
    /// From [`Stage::Serving`] on: the ready node is its business, so it begins when the volumes are known.
    hotplug: Option<Hotplug>,
    disks: Disks<P::Disk>,
    volumes: Volumes,
    vbds: Vbds,
    backend: Backend<Ring<P>>,
    /// What all vbds did, as of the last turn.
    totals: Stats,
    counters: Counters,
    console: Console,
    outgoing: Outgoing,
}

/// Bytes for xenstored that its ring had no room for.
#[derive(Debug)]
struct Outgoing {
    bytes: [u8; STORE_BYTES],
    from: usize,
    to: usize,
}

impl<P: Platform> Server<P> {
    /// A server that has done nothing yet; `None` if there is not enough memory.
    pub fn new(platform: &mut P) -> Option<Self> {
        Some(Self {
            stage: Stage::Starting,
            reset_at: None,
            client: Client::new(),
            pci: Handshake::new(),
            hotplug: None,
            disks: Disks::default(),
            volumes: Volumes::default(),
            vbds: Vbds::default(),
            backend: Backend::new(platform.parts().memory)?,
            totals: Stats::default(),
            counters: Counters::default(),
            console: Console::default(),
            outgoing: Outgoing { bytes: [0; STORE_BYTES], from: 0, to: 0 },
        })
    }

    /// An event came for this port. Those of xenstore and of disks need no more than the turn that follows.
    pub fn event(&mut self, port: Port) {
        self.backend.event(port);
    }

    /// One bounded turn.
    pub fn turn(&mut self, now: Nanos, platform: &mut P) -> Next {
        self.disks.time_scans(now);
        let mut more = self.take_from_store(now, platform);
        more |= self.shake_hands(platform);
        more |= self.advance(now, platform);
        if let Some(hotplug) = &mut self.hotplug {
            hotplug.tick(now, &mut self.client);
        }
        more |= self.carry_out(now, platform);
        more |= self.move_requests(now, platform);
        more |= self.listen(now, platform);
        let known = snapshot(self.hotplug.as_ref(), &self.vbds, self.totals, platform);
        self.counters.write(now, &mut self.client, known);
        self.give_to_store(platform);
        match (self.stage, more) {
            (Stage::Ended(how), _) => Next::End(how),
            (_, true) => Next::Again,
            (_, false) => {
                let hotplug = self.hotplug.as_ref().and_then(Hotplug::next_deadline);
                let scans = self.disks.scan_deadline();
                Next::Sleep([hotplug, self.counters.due(), self.reset_at, scans].into_iter().flatten().min())
            }
        }
    }

    /// Takes what xenstored sent; whether there may be more.
    fn take_from_store(&mut self, now: Nanos, platform: &mut P) -> bool {
        let mut bytes = [0; STORE_BYTES];
        let count = platform.store_read(&mut bytes);
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            match self.client.input(&mut rest) {
                Ok(Some(event)) => self.store_event(now, event),
                Ok(None) => {}
                // dom0 is trusted, so this is a fault of ours; without xenstore there is nothing to be done.
                Err(error) => panic!("xenstore's stream is broken: {error:?}"),
            }
        }
        count == bytes.len()
    }

    fn store_event(&mut self, now: Nanos, event: Event) {
        let Some(event) = self.counters.store_event(event) else { return };
        let Err(event) = self.pci.event(event) else { return };
        if let Some(hotplug) = &mut self.hotplug {
            self.counters.mark();
            // What is nobody's is the reply to a write of the handshake, or a watch that was just given up.
            hotplug.store_event(now, event, &mut self.client);
        }
    }

    /// Does what the PCI handshake asks for; whether a disk was started, which waits, so that `now` is past.
    fn shake_hands(&mut self, platform: &mut P) -> bool {
        let mut started = false;
        while let Some(task) = self.pci.next(&mut self.client) {
            match task {
                Task::OpenChannel(back) => {
                    let opened = platform.open_pci_channel(back);
                    self.pci.channel(
                        opened.inspect_err(|reason| log::error!("PCI: no channel to domain {back}: {reason}")).ok(),
                    );
                }
                Task::CloseChannel => platform.close_pci_channel(),
                Task::Attach(address) => {
                    self.disks.attach(address, platform);
                    started = true;
                }
                Task::Detach(address) => self.disks.detach(address, &mut self.volumes, platform),
            }
        }
        started
    }

    /// Moves on to the next stage when its time has come; whether anything changed.
    fn advance(&mut self, now: Nanos, platform: &mut P) -> bool {
        if self.reset_at.take_if(|at| *at <= now).is_some() {
            self.disks.reset_busy(&self.backend, platform);
        }
        self.disks.poll_scans(now, &mut self.volumes, &mut self.backend, platform);
        let drained = self.hotplug.as_ref().is_some_and(Hotplug::is_drained);
        let next = match self.stage {
            Stage::Starting if self.pci.is_settled() && !self.disks.is_scanning() => {
                self.volumes.describe().for_each(|line| log::info!("{line}"));
                self.hotplug = Some(Hotplug::new(&mut self.client));
                Stage::Serving
            }
            Stage::Draining(how) if drained => {
                self.disks.start_flush();
                self.reset_at = Some(now + DISK_PATIENCE);
                Stage::Flushing(how)
            }
            Stage::Flushing(how) if self.disks.poll_flush() => {
                self.disks.stop(platform);
                Stage::Ended(how)
            }
            stage => stage,
        };
        let changed = next != self.stage;
        self.stage = next;
        changed
    }

    /// Carries out what hotplug decided; whether there may be more.
    fn carry_out(&mut self, now: Nanos, platform: &mut P) -> bool {
        for _ in 0..ACTIONS {
            let Some(action) = self.hotplug.as_mut().and_then(Hotplug::next_action) else { return false };
            self.counters.mark();
            match action {
                Action::Open { device, target, mode } => {
                    let answer = self.vbds.open(device, &target, mode, &mut self.volumes, platform);
                    self.answer(now, device, answer);
                }
                Action::Connect { device, rings } => {
                    self.volumes.keep(device);
                    let answer = self.vbds.connect(device, &rings, &mut self.backend, platform);
                    self.answer(now, device, answer);
                }
                Action::Disconnect { device, claim } => {
                    if claim == Claim::Draining {
                        self.volumes.drain(device);
                    }
                    self.backend.disconnect(device);
                }
                Action::Close { device } => {
                    self.vbds.close(device, &mut self.volumes, platform);
                    if let Some(hotplug) = &mut self.hotplug {
                        hotplug.volume_released(now, &mut self.client);
                    }
                }
                Action::Shutdown(how) => self.shut_down(now, how),
                Action::Crash => panic!("crashed, as asked for in control/sysrq"),
                Action::Unusable(reason) => panic!("driverdom cannot serve: {reason}"),
            }
        }
        true
    }

    fn answer(&mut self, now: Nanos, device: VbdId, answer: Answer) {
        if let Some(hotplug) = &mut self.hotplug {
            hotplug.done(now, device, answer, &mut self.client);
        }
    }

    fn shut_down(&mut self, now: Nanos, how: Shutdown) {
        if let (Stage::Serving, Some(hotplug)) = (self.stage, &mut self.hotplug) {
            log::info!("{how:?}: disconnecting {} vbds", self.vbds.len());
            hotplug.drain(now, &mut self.client);
            self.stage = Stage::Draining(how);
            self.reset_at = Some(now + DISK_PATIENCE);
        }
    }

    /// The block backend's turn and what it reports; whether there may be more.
    fn move_requests(&mut self, now: Nanos, platform: &mut P) -> bool {
        if !matches!(self.stage, Stage::Serving | Stage::Draining(_)) {
            return false;
        }
        let Parts { grants, events, memory } = platform.parts();
        let disks = self.disks.served();
        let progress = self.backend.turn(&mut BackendParts { grants, events, memory: &*memory, disks });
        let mut reported = false;
        while let Some(report) = self.backend.next_report() {
            reported = true;
            self.counters.mark();
            self.report(now, report, platform);
        }
        let totals = self.backend.totals();
        if core::mem::replace(&mut self.totals, totals) != totals {
            self.counters.mark();
        }
        reported || progress == Progress::More
    }

    /// Does what a key on the console asks for; whether more may have been typed.
    fn listen(&mut self, now: Nanos, platform: &mut P) -> bool {
        let (key, more) = self.console.key(now, platform);
        match key {
            Some(Key::Help) => self.console.report(report::help()),
            Some(Key::Summary) => {
                let known = snapshot(self.hotplug.as_ref(), &self.vbds, self.totals, platform)();
                self.console.report(report::summary(&known));
            }
            Some(Key::Devices) => self.report_devices(),
            None => {}
        }
        self.console.print(platform);
        more
    }

    fn report_devices(&mut self) {
        let after = self.console.shown().filter(|shown| self.vbds.after(Some(*shown)).next().is_some());
        let row = |(id, volume, mode)| report::Row { id, volume, mode, stats: self.backend.stats(id) };
        let last = self.vbds.after(after).take(report::DEVICES).last().map(|(id, ..)| id);
        let following = self.vbds.after(last).count();
        let lines = report::devices(self.vbds.after(after).map(row), following);
        self.console.report_up_to(last.filter(|_| following > 0), lines);
    }

    fn report(&mut self, now: Nanos, report: Report<Ring<P>>, platform: &mut P) {
        match report {
            Report::Broken(device) => {
                if let Some(hotplug) = &mut self.hotplug {
                    hotplug.frontend_failed(now, device, "impossible indices in its ring".into(), &mut self.client);
                }
            }
            Report::FlushUnsupported(device) => {
                if let Some(hotplug) = &mut self.hotplug {
                    hotplug.flush_unsupported(now, device, &mut self.client);
                }
            }
            Report::Drained(drained) => {
                let device = drained.id;
                self.vbds.drained(drained, platform);
                self.answer(now, device, Answer::Disconnected);
            }
        }
    }

    /// Gives xenstored what it takes. What it does not take now goes when it tells us that it has made room.
    fn give_to_store(&mut self, platform: &mut P) {
        loop {
            let out = &mut self.outgoing;
            if out.from == out.to {
                out.from = 0;
                out.to = self.client.output(&mut out.bytes);
                if out.to == 0 {
                    return;
                }
            }
            let taken = platform.store_write(&out.bytes[out.from..out.to]);
            if taken == 0 {
                return;
            }
            out.from += taken;
        }
    }
}

/// What is known now, put together only when it is asked for.
fn snapshot<P: Platform>(
    hotplug: Option<&Hotplug>,
    vbds: &Vbds,
    stats: Stats,
    platform: &P,
) -> impl FnOnce() -> Snapshot {
    move || {
        let statistics = hotplug.map(Hotplug::statistics);
        let (devices, connected) = statistics.map_or((0, 0), |statistics| (statistics.devices, statistics.connected));
        Snapshot {
            resources: Some(Resources { devices, vbds: vbds.len(), connected, usage: platform.usage() }),
            attaches: statistics.as_ref().map(Attaches::from),
            io: Some(Io { stats, peaks: platform.peaks() }),
        }
    }
}
