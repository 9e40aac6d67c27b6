//! A request under way, and how it is cut into the commands that a disk takes.

use alloc::vec::Vec;

use xen_proto::MachineAddr;
use xen_proto::blkif::Status;

use crate::disk::{Command, DmaSegment, Geometry, Limits, Outcome, SECTOR_BYTES};
use crate::owed::Owed;
use crate::pool::{Chain, Mapped, Pool};
use crate::request::Action;
use crate::vbd::VbdIndex;

/// A request under way. Its numbers were checked: it stays on its volume and in its pages.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) owed: Owed,
    /// Whose it is.
    pub(crate) vbd: VbdIndex,
    pub(crate) action: Action,
    /// First sector on the disk.
    pub(crate) sector: u64,
    /// Its sectors in all.
    pub(crate) sectors: u64,
    /// Its segments.
    pub(crate) chain: Chain,
    /// How many they are.
    pub(crate) segments: usize,
    pub(crate) progress: Progress,
}

/// How far a request is.
#[derive(Debug)]
pub(crate) struct Progress {
    stage: Stage,
    /// Commands at the disk.
    commands: usize,
    /// The worst outcome so far.
    outcome: Outcome,
}

/// What is to be submitted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Flush,
    /// Nothing until the flush is done; then the transfer.
    AwaitFlush,
    /// The sectors from this one of the request on.
    Transfer(u64),
    Nothing,
}

/// What a completed command means for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing: others of its commands are under way or still to be submitted.
    Wait,
    /// It has more to submit now.
    Submit,
    /// It is over.
    Answer(Outcome),
}

impl Progress {
    pub(crate) const fn start(action: Action) -> Self {
        let stage = match action {
            Action::Flush => Stage::Flush,
            Action::Read | Action::Write => Stage::Transfer(0),
        };
        Self { stage, commands: 0, outcome: Outcome::Done }
    }
}

impl Flight {
    /// The next command, with its segments in `dma`, or `None` if there is nothing to submit now.
    pub(crate) fn next_command(
        &mut self,
        pool: &Pool,
        geometry: &Geometry,
        limits: &Limits,
        dma: &mut Vec<DmaSegment>,
    ) -> Option<Command> {
        dma.clear();
        let command = match self.progress.stage {
            Stage::Flush => {
                self.progress.stage = if self.segments > 0 { Stage::AwaitFlush } else { Stage::Nothing };
                Command::Flush
            }
            Stage::Transfer(from) => {
                let till = from + gather(pool.iter(self.chain), from, limits.segments, geometry, dma);
                self.progress.stage = if till < self.sectors { Stage::Transfer(till) } else { Stage::Nothing };
                let sector = self.sector + from;
                if self.action == Action::Read { Command::Read(sector) } else { Command::Write(sector) }
            }
            Stage::AwaitFlush | Stage::Nothing => return None,
        };
        self.progress.commands += 1;
        Some(command)
    }

    /// Whether [`Flight::next_command`] has one.
    pub(crate) fn has_more(&self) -> bool {
        matches!(self.progress.stage, Stage::Flush | Stage::Transfer(_))
    }

    /// A command of it ended. A disk without a write cache need not know flushes: what it completed is durable.
    pub(crate) fn completed(&mut self, outcome: Outcome, geometry: &Geometry) -> After {
        let progress = &mut self.progress;
        let flushed = self.action == Action::Flush && (self.segments == 0 || progress.stage == Stage::AwaitFlush);
        let outcome = match outcome {
            Outcome::Unsupported if flushed && !geometry.write_cache => Outcome::Done,
            outcome => outcome,
        };
        progress.commands -= 1;
        if progress.outcome == Outcome::Done {
            progress.outcome = outcome;
        }
        match (progress.stage, progress.outcome) {
            _ if progress.commands > 0 => After::Wait,
            (Stage::AwaitFlush, Outcome::Done) => {
                progress.stage = Stage::Transfer(0);
                After::Submit
            }
            (Stage::AwaitFlush | Stage::Nothing, outcome) => After::Answer(outcome),
            (Stage::Flush | Stage::Transfer(_), _) => After::Wait,
        }
    }
}

/// What to answer.
pub(crate) fn status(action: Action, outcome: Outcome) -> Status {
    match (outcome, action) {
        (Outcome::Done, _) => Status::Okay,
        (Outcome::Unsupported, Action::Flush) => Status::NotSupported,
        (Outcome::Unsupported | Outcome::Failed, _) => Status::Error,
    }
}

/// Puts the sectors from `from` on into `dma`, as many as `limit` segments and whole logical blocks allow; returns how many.
/// It is at least one block, because [`crate::Backend::add_disk`] insists on a limit of a block's sectors.
fn gather(
    segments: impl Iterator<Item = Mapped>,
    from: u64,
    limit: usize,
    geometry: &Geometry,
    dma: &mut Vec<DmaSegment>,
) -> u64 {
    let mut skip = from;
    let mut bytes = 0;
    for mapped in segments {
        let sectors = u64::from(mapped.run.sectors);
        if skip >= sectors {
            skip -= sectors;
        } else if dma.len() < limit {
            let segment = dma_segment(mapped, skip);
            bytes += segment.len;
            dma.push(segment);
            skip = 0;
        } else {
            break;
        }
    }
    let surplus = bytes % geometry.logical_block;
    cut(dma, surplus);
    u64::from(bytes - surplus) / SECTOR_BYTES
}

/// The memory of a segment without its first `skip` sectors.
fn dma_segment(mapped: Mapped, skip: u64) -> DmaSegment {
    let start = (u64::from(mapped.run.first) + skip) * SECTOR_BYTES;
    let bytes = (u64::from(mapped.run.sectors) - skip) * SECTOR_BYTES;
    DmaSegment { addr: MachineAddr(mapped.mapping.addr.0 + start), len: u32::try_from(bytes).expect("at most a page") }
}

/// Takes the last `surplus` bytes off.
fn cut(dma: &mut Vec<DmaSegment>, mut surplus: u32) {
    while surplus > 0
        && let Some(last) = dma.last_mut()
    {
        let less = surplus.min(last.len);
        last.len -= less;
        surplus -= less;
        if last.len == 0 {
            dma.pop();
        }
    }
}
