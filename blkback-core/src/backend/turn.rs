//! The steps of a turn.

use xen_proto::blkif::Status;
use xen_proto::platform::{Grants, PageBytes, SharedRing};

use super::{Backend, Platform, Report};
use crate::disk::{Disk, DiskId};
use crate::flight::{Flight, Progress};
use crate::intake::{BATCH_SEGMENTS, Batch, Checked, End, Taken};
use crate::lane::{Finished, Room};
use crate::pool::Mapped;
use crate::request::Action;
use crate::vbd::{Intake, Load, VbdIndex};
use crate::volume::Volume;

/// Segments copied from and to RAM volumes in one turn, 4 MiB of data.
const RAM_SEGMENTS_PER_TURN: usize = 2 * BATCH_SEGMENTS;

impl<R: SharedRing> Backend<R> {
    /// Takes what the disks completed, gives them what waited for that, and answers the requests that are over, whose
    /// mappings end first.
    pub(super) fn complete<G: Grants, E, M, D: Disk>(&mut self, platform: &mut Platform<'_, G, E, M, D>) {
        for (id, disk) in (0..=u16::MAX).map(DiskId).zip(platform.disks.iter_mut()) {
            let Self { lanes, finished, mappings, .. } = self;
            let lane = lanes.get_mut(usize::from(id.0)).expect("a disk has a lane");
            lane.complete(disk, finished, mappings);
            lane.submit(disk);
            self.end_mappings(platform.grants);
            let mut finished = core::mem::take(&mut self.finished);
            finished.drain(..).for_each(|finished| self.answer(finished));
            self.finished = finished;
        }
    }

    fn answer(&mut self, finished: Finished) {
        let Finished { owed, vbd: index, action, sectors, load, status } = finished;
        let vbd = self.vbds.get_mut(index);
        vbd.load = vbd.load - load;
        vbd.answer(owed, action, sectors, status);
        if (action, status) == (Action::Flush, Status::NotSupported)
            && !core::mem::replace(&mut vbd.flush_unsupported, true)
        {
            self.reports.push_back(Report::FlushUnsupported(vbd.id));
        }
        let over_share = vbd.intake == Intake::OverShare;
        self.vbds.mark(index);
        if over_share {
            self.enqueue(index);
        } else {
            self.recount(index);
        }
    }

    /// Ends the mappings of requests that are over or never started.
    pub(super) fn end_mappings(&mut self, grants: &mut impl Grants) {
        if !self.mappings.is_empty() {
            grants.unmap_for_device(&self.mappings);
            self.mappings.clear();
        }
    }

    /// Visits each queued vbd of each disk at most once, while the disk takes more.
    pub(super) fn serve_disks<G: Grants, E, M: PageBytes, D: Disk>(&mut self, platform: &mut Platform<'_, G, E, M, D>) {
        for (id, disk) in (0..=u16::MAX).map(DiskId).zip(platform.disks.iter_mut()) {
            for _ in 0..self.lane(id).queue.len() {
                let lane = self.lane_mut(id);
                if !lane.may_take() {
                    break;
                }
                let Some(index) = lane.queue.pop_front() else {
                    break;
                };
                let end = self.take_for_disk(id, index, platform.grants, platform.memory);
                self.end_mappings(platform.grants);
                self.lane_mut(id).submit(disk);
                self.visited(index, end);
            }
        }
    }

    /// Takes a batch from a vbd on a disk, maps its pages with one call and starts what could be mapped.
    fn take_for_disk(&mut self, id: DiskId, index: VbdIndex, grants: &mut impl Grants, memory: &impl PageBytes) -> End {
        let Self { vbds, lanes, batch, mappings, .. } = self;
        let vbd = vbds.get_mut(index);
        let lane = lanes.get_mut(usize::from(id.0)).expect("volumes are on known disks");
        let load = vbd.load;
        let end = batch.take(vbd, |pending, new| lane.room(load, pending, new));
        batch.resolve(vbd.id.domain, &vbd.bounds, grants, memory);
        if !batch.maps.is_empty() {
            grants.map_for_device(vbd.id.domain, &mut batch.maps);
        }
        let Batch { taken, maps, runs, .. } = batch;
        let mut first = 0;
        for Taken { owed, request, checked } in taken.drain(..) {
            let segments = checked.map_or(0, |checked| checked.segments);
            let pages = first..first + segments;
            first = pages.end;
            let maps = maps.get(pages.clone()).unwrap_or_default();
            let runs = runs.get(pages).unwrap_or_default();
            let sectors = match checked {
                Ok(checked) if maps.iter().all(|map| map.result.is_ok()) => checked.sectors,
                refused => {
                    mappings.extend(maps.iter().filter_map(|map| map.result.ok()));
                    vbd.answer_refused(owed, refused.err().unwrap_or(Status::Error));
                    continue;
                }
            };
            let mapped =
                maps.iter().zip(runs).filter_map(|(map, run)| Some(Mapped { mapping: map.result.ok()?, run: *run }));
            vbd.load = vbd.load + Load { requests: 1, segments };
            let chain = lane.pool.keep(mapped);
            lane.start(Flight {
                owed,
                vbd: index,
                action: request.action,
                sector: vbd.disk_start() + request.sector,
                sectors,
                chain,
                segments,
                progress: Progress::start(request.action),
            });
        }
        end
    }

    /// Visits each queued vbd on a RAM volume at most once, while the turn's budget lasts.
    pub(super) fn serve_ram<G: Grants, E, M: PageBytes, D>(&mut self, platform: &mut Platform<'_, G, E, M, D>) {
        let mut left = RAM_SEGMENTS_PER_TURN;
        for _ in 0..self.ram_queue.len() {
            let Some(index) = self.ram_queue.pop_front() else {
                break;
            };
            let end = self.take_for_ram(index, &mut left, platform.grants, platform.memory);
            if end == End::Full {
                self.ram_queue.push_front(index);
                break;
            }
            self.visited(index, end);
        }
    }

    /// Takes a batch from a vbd on a RAM volume, copies and answers all of it.
    fn take_for_ram(
        &mut self,
        index: VbdIndex,
        left: &mut usize,
        grants: &mut impl Grants,
        memory: &impl PageBytes,
    ) -> End {
        let Self { vbds, batch, copier, .. } = self;
        let vbd = vbds.get_mut(index);
        let budget = *left;
        let end =
            batch.take(vbd, |pending, new| if (pending + new).segments <= budget { Room::Fits } else { Room::Full });
        batch.resolve(vbd.id.domain, &vbd.bounds, grants, memory);
        *left -= batch.maps.len();
        let Volume::Ram(volume) = &mut vbd.volume else { panic!("only RAM volumes are in this queue") };
        copier.copy(vbd.id.domain, volume, batch, grants, memory);
        for (Taken { owed, request, checked }, copied) in batch.taken.drain(..).zip(copier.results()) {
            match checked {
                Ok(Checked { sectors, .. }) => vbd.answer(owed, request.action, sectors, copied),
                Err(status) => vbd.answer_refused(owed, status),
            }
        }
        vbds.mark(index);
        end
    }

    /// A visit of a vbd, taken from the head of its queue, is over: decides when the next one is.
    fn visited(&mut self, index: VbdIndex, end: End) {
        self.vbds.mark(index);
        let lane_is_idle = self.lane_of(index).is_none_or(|lane| lane.is_idle());
        let vbd = self.vbds.get_mut(index);
        match end {
            End::Dry => vbd.intake = Intake::Armed,
            End::Broken => {
                vbd.intake = Intake::Broken;
                self.reports.push_back(Report::Broken(vbd.id));
            }
            // Something under way will end and call again...
            End::OverShare if vbd.load.requests > 0 => vbd.intake = Intake::OverShare,
            End::Full if !lane_is_idle => {
                let lane = self.lane_of(index).expect("a vbd with a lane");
                lane.full = true;
                lane.queue.push_front(index);
            }
            // ...unless all that made it full has failed meanwhile.
            End::Quantum | End::OverShare | End::Full => return self.enqueue(index),
        }
        self.recount(index);
    }
}
