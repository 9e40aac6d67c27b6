//! Sends malformed requests and sees whether they are answered as they must be.

use alloc::format;
use alloc::string::String;

use xen_proto::Nanos;
use xen_proto::platform::Access;

use super::connection::{close, reconnect};
use super::transfer::{PATIENCE, await_done, check, submit};
use crate::Fallible;
use crate::link::{Order, What, write_table};
use crate::malformed::{CASES, Case, Fault, Forged, Needs, Scene};
use crate::platform::Platform;
use crate::request::Status;
use crate::script::{Cases, Connect, Farewell, Haste};
use crate::vbd::Facts;
use crate::world::World;

/// How long a broken ring is watched for the answer that must not come.
const SILENCE: Nanos = Nanos::from_millis(500);
/// `VDISK_READONLY` (blkif.h).
const READ_ONLY: u32 = 4;

/// Runs one case or all.
pub(super) fn run<P: Platform>(world: &mut World<P>, number: u32, cases: Cases) -> Fallible<String> {
    let facts = world.vbd(number)?.facts;
    match cases {
        Cases::One(case) if !applies(case, &facts) => Err(format!("{} does not apply: {:?}", case.name, case.needs)),
        Cases::One(case) => run_case(world, number, case),
        Cases::All => {
            let (mut count, mut wrong) = (0, String::new());
            for case in CASES.iter().filter(|case| applies(case, &facts)) {
                count += 1;
                if let Err(why) = run_case(world, number, case) {
                    wrong += &format!("; {why}");
                }
            }
            if wrong.is_empty() { Ok(format!("cases={count}")) } else { Err(format!("of {count} cases{wrong}")) }
        }
    }
}

fn applies(case: &Case, facts: &Facts) -> bool {
    match case.needs {
        Needs::Nothing => true,
        Needs::Indirect => facts.indirect_segments > 0,
        Needs::ReadOnly => facts.info & READ_ONLY != 0,
        Needs::NoDiscard => facts.discard == 0,
        Needs::LargeBlocks => facts.sector_size > 512,
    }
}

fn run_case<P: Platform>(world: &mut World<P>, number: u32, case: &Case) -> Fallible<String> {
    let outcome = match case.fault {
        Fault::Request(forge) => send_forged(world, number, case, forge),
        Fault::RequestProducer => break_ring(world, number),
    };
    let outcome = outcome.and_then(|()| ordinary_read(world, number).map_err(|why| format!("afterwards: {why}")));
    outcome.map(|()| String::from(case.name)).map_err(|why| format!("{}: {why}", case.name))
}

fn send_forged<P: Platform>(
    world: &mut World<P>,
    number: u32,
    case: &Case,
    forge: fn(&Scene) -> Forged,
) -> Fallible<()> {
    let World { platform, vbds, .. } = world;
    let vbd = vbds.get_mut(&number).ok_or("it is gone")?;
    let facts = vbd.facts;
    let link = vbd.serving()?;
    let lent = [Access::ReadWrite, Access::ReadOnly, Access::ReadOnly, Access::ReadOnly]
        .map(|access| link.lend(platform, access));
    let [Some(page), Some(read_only), Some(mut table), Some(ended)] = lent else { return Err("no memory".into()) };
    let scene = Scene {
        sectors: facts.sectors,
        indirect_segments: facts.indirect_segments,
        page: page.1.0,
        read_only_page: read_only.1.0,
        table_page: table.1.0,
        no_page: ended.1.0,
    };
    // Only now, so that no later grant gets the reference again.
    link.unlend(platform, ended.0, ended.1);
    let forged = forge(&scene);
    write_table(platform, &mut table.0, &forged.table);
    link.submit_forged(0, &forged).map_err(|shortage| format!("{shortage:?}"))?;
    link.publish(platform);
    let answers = await_done(world, number, PATIENCE);
    let World { platform, vbds, .. } = world;
    if let Some(link) = vbds.get_mut(&number).and_then(|vbd| vbd.link.as_mut()) {
        for (page, gref) in [page, read_only, table] {
            link.unlend(platform, page, gref);
        }
    }
    match (answers?.as_slice(), case.answer) {
        ([done], answer) if answer.allows(done.status) => Ok(()),
        ([done], answer) => Err(format!("answered {:?}, not {answer:?}", done.status)),
        (answers, _) => Err(format!("{} answers", answers.len())),
    }
}

/// Claims impossible requests. There must be no answer, and the vbd must come back when it is closed and connected again.
fn break_ring<P: Platform>(world: &mut World<P>, number: u32) -> Fallible<()> {
    let World { platform, vbds, .. } = world;
    let link = vbds.get_mut(&number).ok_or("it is gone")?.serving()?;
    let shape = link.shape();
    let what = What::Read { sector: 0, sectors: 8, seed: None };
    link.submit(platform, Order { tag: 0, what }).map_err(|shortage| format!("{shortage:?}"))?;
    link.break_request_producer(platform);
    let answered = await_done(world, number, SILENCE).is_ok();
    let connect = Connect { shape, haste: Haste::Patient, limit: PATIENCE };
    close(world, &[number], Farewell::Polite, PATIENCE)?;
    reconnect(world, &[number], &connect)?;
    if answered { Err("answered, though the ring is broken".into()) } else { Ok(()) }
}

/// The ring still serves.
fn ordinary_read<P: Platform>(world: &mut World<P>, number: u32) -> Fallible<()> {
    let what = What::Read { sector: 0, sectors: 8, seed: None };
    submit(world, number, Order { tag: 0, what })?.map_err(|shortage| format!("{shortage:?}"))?;
    await_done(world, number, PATIENCE)?.iter().try_for_each(|done| check(done, Status::Okay))
}
