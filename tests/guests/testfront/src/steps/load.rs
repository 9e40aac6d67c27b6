//! Many requests in flight on many vbds at once.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xen_proto::Nanos;

use super::transfer::{PATIENCE, check};
use crate::Fallible;
use crate::link::{Done, Order, What};
use crate::load::{Job, Plan, SLOTS, Task, Went};
use crate::platform::Platform;
use crate::request::{Status, op};
use crate::script::{Load, Mix, Until};
use crate::vbd::Vbd;
use crate::world::{Vbds, World};

/// One vbd's part of a load.
struct Stream {
    plan: Plan,
    size: u64,
    depth: usize,
    open: BTreeMap<u64, Job>,
    started: u64,
    answered: u64,
    most: u64,
    next_tag: u64,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Requests are made.
    Running,
    /// No further ones.
    Ended,
    /// The backend has closed the vbd.
    Closed,
}

/// Runs a load on all vbds at the same time; then checks what was written.
pub(super) fn run<P: Platform>(world: &mut World<P>, numbers: &[u32], load: &Load) -> Fallible<String> {
    let mut streams = BTreeMap::new();
    for &number in numbers {
        let vbd = world.vbd(number)?;
        streams.insert(number, Stream::new(vbd, load).map_err(|why| format!("vbd {number}: {why}"))?);
    }
    let begin = world.platform.now();
    let end = match load.until {
        Until::Elapsed(span) => begin + span,
        Until::Requests(_) => Nanos(u64::MAX),
    };
    drive(world, &mut streams, end)?;
    let elapsed = world.platform.now().since(begin);
    let said = summary(&streams, load.size, elapsed);
    if load.mix != Mix::Reads {
        streams.values_mut().for_each(Stream::begin_check);
        drive(world, &mut streams, Nanos(u64::MAX)).map_err(|why| format!("afterwards: {why}"))?;
    }
    Ok(said)
}

/// Keeps requests in flight until every stream has ended and nothing is open.
fn drive<P: Platform>(world: &mut World<P>, streams: &mut BTreeMap<u32, Stream>, end: Nanos) -> Fallible<()> {
    let mut patience = world.after(PATIENCE);
    loop {
        fill(world, streams);
        if streams.values().all(|stream| stream.open.is_empty() && stream.standing != Standing::Running) {
            return Ok(());
        }
        let answers = world.wait(patience.min(end), |_, vbds| collect(vbds, streams))?;
        let now = world.platform.now();
        if now >= end {
            streams.values_mut().for_each(Stream::end);
        }
        match answers {
            Some(answers) => {
                patience = now + PATIENCE;
                settle(streams, answers)?;
            }
            None if now >= patience => return Err(late(streams)),
            None => (),
        }
    }
}

/// Makes requests, one to each vbd in turn, until no vbd takes another.
fn fill<P: Platform>(world: &mut World<P>, streams: &mut BTreeMap<u32, Stream>) {
    let World { platform, vbds, .. } = world;
    let mut progress = true;
    while progress {
        progress = false;
        for (number, stream) in streams.iter_mut() {
            let link = vbds.get_mut(number).and_then(|vbd| vbd.serving().ok());
            let Some(link) = link else {
                stream.standing = Standing::Closed;
                continue;
            };
            let room = link.free_slots() > 0 && platform.free_pages() >= link.pages_of(stream.size);
            let Some((tag, job)) = stream.next_job(room) else { continue };
            let order = Order { tag, what: what(job, stream.size) };
            let went = link.submit(platform, order);
            stream.started(tag, job, went.is_ok());
            progress |= went.is_ok();
        }
    }
    for number in streams.keys() {
        if let Some(link) = vbds.get_mut(number).and_then(|vbd| vbd.link.as_mut()) {
            link.publish(platform);
        }
    }
}

fn what(job: Job, sectors: u64) -> What {
    let sector = job.sector;
    match job.task {
        Task::Write(seed) => What::Write { operation: op::WRITE, sector, sectors, seed },
        Task::Verify(seed) => What::Read { sector, sectors, seed: Some(seed) },
        Task::Read => What::Read { sector, sectors, seed: None },
    }
}

/// The answers that are there, and the streams whose vbd is gone with all its requests.
fn collect<P: Platform>(vbds: &mut Vbds<P>, streams: &mut BTreeMap<u32, Stream>) -> Option<Vec<(u32, Done)>> {
    let mut answers = Vec::new();
    let mut lost = false;
    for (number, stream) in streams.iter_mut() {
        match vbds.get_mut(number).and_then(|vbd| vbd.link.as_mut()) {
            Some(link) => answers.extend(link.take_done().into_iter().map(|done| (*number, done))),
            None => lost |= stream.lose(),
        }
    }
    (lost || !answers.is_empty()).then_some(answers)
}

fn settle(streams: &mut BTreeMap<u32, Stream>, answers: Vec<(u32, Done)>) -> Fallible<()> {
    for (number, done) in answers {
        let Some(stream) = streams.get_mut(&number) else { continue };
        let sector = stream.answered(&done);
        check(&Done { tag: sector, ..done }, Status::Okay).map_err(|why| format!("vbd {number}: {why}"))?;
    }
    Ok(())
}

fn late(streams: &BTreeMap<u32, Stream>) -> String {
    let open: usize = streams.values().map(|stream| stream.open.len()).sum();
    format!("{open} requests are not answered in {} s", PATIENCE.as_millis() / 1000)
}

fn summary(streams: &BTreeMap<u32, Stream>, size: u64, elapsed: Nanos) -> String {
    let counts = || streams.values().map(|stream| stream.answered);
    let (all, least, most) = (counts().sum::<u64>(), counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let closed = streams.values().filter(|stream| stream.standing == Standing::Closed).count();
    let mut said = format!("requests={all} sectors={} ms={}", all * size, elapsed.as_millis());
    if streams.len() > 1 {
        said += &format!(" vbds={} least={least} most={most}", streams.len());
    }
    if closed > 0 {
        said += &format!(" closed={closed}");
    }
    said
}

impl Stream {
    fn new<P: Platform>(vbd: &mut Vbd<P>, load: &Load) -> Fallible<Self> {
        let shape = vbd.serving()?.shape();
        let (fits, disk) = (vbd.most_sectors(shape, op::WRITE), vbd.facts.sectors);
        if load.size > fits {
            return Err(format!("a request has at most {fits} sectors here"));
        }
        let beyond = disk.saturating_sub(load.sector);
        let area = load.count.unwrap_or(load.size.saturating_mul(SLOTS)).min(beyond);
        let plan = Plan::new(load.mix, load.seed, load.sector, area, load.size);
        let most = match load.until {
            Until::Requests(most) => most,
            Until::Elapsed(_) => u64::MAX,
        };
        Ok(Self {
            plan: plan.ok_or("the area has no room for a request")?,
            size: load.size,
            depth: load.depth as usize,
            open: BTreeMap::new(),
            started: 0,
            answered: 0,
            most,
            next_tag: 0,
            standing: Standing::Running,
        })
    }

    /// The next request, if one is due and there is room for it.
    fn next_job(&mut self, room: bool) -> Option<(u64, Job)> {
        if self.started >= self.most {
            self.end();
        }
        if self.standing != Standing::Running || self.open.len() >= self.depth || !room {
            return None;
        }
        let job = self.plan.next_job();
        if job.is_none() && self.open.is_empty() {
            // Every slot is free, and yet there is no request left: all is checked.
            self.end();
        }
        self.next_tag += 1;
        job.map(|job| (self.next_tag, job))
    }

    fn started(&mut self, tag: u64, job: Job, went: bool) {
        if went {
            self.started += 1;
            self.open.insert(tag, job);
        } else {
            self.plan.done(job, Went::Wrong);
        }
    }

    /// Takes an answer in; the request's sector.
    fn answered(&mut self, done: &Done) -> u64 {
        let Some(job) = self.open.remove(&done.tag) else { return done.tag };
        self.answered += 1;
        self.plan.done(job, if done.status == Status::Okay { Went::Well } else { Went::Wrong });
        job.sector
    }

    fn end(&mut self) {
        if self.standing == Standing::Running {
            self.standing = Standing::Ended;
        }
    }

    /// The vbd is gone: what was open has no answer any more. Whether this is news.
    fn lose(&mut self) -> bool {
        let news = self.standing == Standing::Running || !self.open.is_empty();
        self.standing = Standing::Closed;
        self.open.clear();
        news
    }

    fn begin_check(&mut self) {
        if self.standing == Standing::Ended {
            self.plan.check_all();
            self.standing = Standing::Running;
            (self.started, self.most) = (0, u64::MAX);
        }
    }
}
