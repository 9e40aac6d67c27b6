//! Reads, writes and the other requests, over a run of sectors.

use alloc::format;
use alloc::string::String;

use xen_proto::Nanos;

use crate::Fallible;
use crate::link::{Done, Order, Shortage, What};
use crate::platform::Platform;
use crate::request::{Status, op};
use crate::script::{Purpose, Transfer};
use crate::world::World;

/// How long a request may go unanswered.
pub(super) const PATIENCE: Nanos = Nanos::from_millis(30_000);
/// Requests of a transfer in flight at once.
const DEPTH: usize = 16;

/// Makes as many requests as the sectors take, and checks each answer.
pub(super) fn run<P: Platform>(world: &mut World<P>, number: u32, transfer: &Transfer) -> Fallible<String> {
    let vbd = world.vbd(number)?;
    let shape = vbd.serving()?.shape();
    let operation = if matches!(transfer.purpose, Purpose::Barrier(_)) { op::WRITE_BARRIER } else { op::WRITE };
    let most = vbd.most_sectors(shape, operation);
    vbd.serving()?.take_checksum();
    // The checksum is of the sectors in their order, so their reads must not overtake each other.
    let depth = if transfer.purpose == Purpose::Read { 1 } else { DEPTH };
    let size = match transfer.purpose {
        Purpose::Flush | Purpose::Discard => u64::MAX,
        _ => most.max(1),
    };
    let (mut at, end) = (transfer.sector, transfer.sector + transfer.count);
    let (mut requests, mut open) = (0, 0);
    let mut more = true;
    while more || open > 0 {
        while more && open < depth {
            let sectors = size.min(end - at);
            let order = Order { tag: at, what: what(transfer.purpose, at, sectors) };
            match submit(world, number, order)? {
                Ok(()) => (requests, open, at) = (requests + 1, open + 1, at + sectors),
                Err(Shortage::Slots | Shortage::Pages) if open > 0 => break,
                Err(shortage) => return Err(format!("a request of {sectors} sectors does not fit: {shortage:?}")),
            }
            more = at < end;
        }
        for done in await_done(world, number, PATIENCE)? {
            open -= 1;
            check(&done, transfer.expect)?;
        }
    }
    let checksum = world.vbd(number)?.serving().map(|link| link.take_checksum());
    Ok(match (transfer.purpose, transfer.expect, checksum) {
        (Purpose::Read, Status::Okay, Ok(checksum)) => format!("requests={requests} crc32={checksum:08x}"),
        _ => format!("requests={requests}"),
    })
}

fn what(purpose: Purpose, sector: u64, sectors: u64) -> What {
    match purpose {
        Purpose::Read => What::Read { sector, sectors, seed: None },
        Purpose::Verify(seed) => What::Read { sector, sectors, seed: Some(seed) },
        Purpose::Write(seed) => What::Write { operation: op::WRITE, sector, sectors, seed },
        Purpose::Barrier(seed) => What::Write { operation: op::WRITE_BARRIER, sector, sectors, seed },
        Purpose::Flush => What::Bare { operation: op::FLUSH, sector, sectors: 0 },
        Purpose::Discard => What::Bare { operation: op::DISCARD, sector, sectors },
    }
}

/// Puts one request into a vbd's ring and shows it to the backend.
pub(super) fn submit<P: Platform>(world: &mut World<P>, number: u32, order: Order) -> Fallible<Result<(), Shortage>> {
    let World { platform, vbds, .. } = world;
    let vbd = vbds.get_mut(&number).ok_or("it is gone")?;
    let link = vbd.serving()?;
    let result = link.submit(platform, order);
    link.publish(platform);
    Ok(result)
}

/// Waits for at least one answer.
pub(super) fn await_done<P: Platform>(
    world: &mut World<P>,
    number: u32,
    limit: Nanos,
) -> Fallible<alloc::vec::Vec<Done>> {
    let deadline = world.after(limit);
    let done = world.wait(deadline, |_, vbds| match vbds.get_mut(&number).and_then(|vbd| vbd.link.as_mut()) {
        None => Some(Err(String::from("it was closed with requests in flight"))),
        Some(link) => Some(link.take_done()).filter(|done| !done.is_empty()).map(Ok),
    })?;
    done.unwrap_or_else(|| Err(format!("no answer in {} s", limit.as_millis() / 1000)))
}

/// Whether an answer is the one that was expected, with the right data.
pub(super) fn check(done: &Done, expect: Status) -> Fallible<()> {
    if done.status != expect {
        return Err(format!("the request at sector {} was answered {:?}, not {expect:?}", done.tag, done.status));
    }
    done.found.map_err(|mismatch| format!("{mismatch}"))
}

/// Starts up to `depth` writes on every connected vbd and waits for none.
pub(crate) fn launch<P: Platform>(world: &mut World<P>, depth: u32) -> usize {
    let World { platform, vbds, .. } = world;
    let mut started = 0;
    for vbd in vbds.values_mut() {
        let Ok(shape) = vbd.serving().map(|link| link.shape()) else { continue };
        let (most, end) = (vbd.most_sectors(shape, op::WRITE).max(1), vbd.facts.sectors);
        let sectors = (0..end).step_by(usize::try_from(most).unwrap_or(usize::MAX)).take(depth as usize);
        let Ok(link) = vbd.serving() else { continue };
        for sector in sectors {
            let sectors = most.min(end - sector);
            let what = What::Write { operation: op::WRITE, sector, sectors, seed: VANISHED };
            started += usize::from(link.submit(platform, Order { tag: sector, what }).is_ok());
        }
        link.publish(platform);
    }
    started
}

/// The seed of writes that nobody waits for.
const VANISHED: u64 = 0xdead;
