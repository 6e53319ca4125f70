//! The host's part in looking for data races, as in `hiroba run --races`, with exactly what a real host sees.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{Access, NodeId, PageId};
use hiroba_protocol::races::{Interval, OpenInterval, RaceLog, Touch, Touched, stored_to};
use hiroba_protocol::{Effect, Engine, NewContent, diff};
use hiroba_wire::{Message, TouchedPage};

use super::Cluster;
use crate::program::Address;

/// A bug of the host by which it misses races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaceBug {
    /// No bug.
    None,
    /// It does not examine what the program has stored to bytes that another node's diff, or an incoming
    /// page, is about to change.
    ForgetsOverwritten,
    /// It reports what its node has seen only after all effects are carried out, when the node may have left
    /// a collective.
    TellsLate,
}

/// A race that a home has found: page, bytes, and the two touches, by ascending node.
pub type FoundRace = (PageId, Range<u32>, Sides);

/// The two touches.
type Sides = [(NodeId, Touch); 2];

/// What the host of one node knows.
#[derive(Debug)]
pub(super) struct RaceWatch {
    bug: RaceBug,
    open: OpenInterval<()>,
    log: RaceLog<()>,
    pub(super) found: BTreeSet<(PageId, u32, u32, Sides)>,
    /// What intervals have done that ended within the effects that are being carried out, with
    /// [`RaceBug::TellsLate`].
    late: Vec<Touched<()>>,
}

impl RaceWatch {
    pub(super) fn new(bug: RaceBug) -> RaceWatch {
        let (open, log) = (OpenInterval::default(), RaceLog::default());
        RaceWatch { bug, open, log, found: BTreeSet::new(), late: Vec::new() }
    }

    fn record(&mut self, interval: &Arc<Interval>, touched: Touched<()>) {
        let page = touched.page;
        for race in self.log.record(interval, touched, |_| ()) {
            let mut sides = race.sides.map(|side| (side.node, side.touch));
            sides.sort();
            self.found.insert((page, race.bytes.start, race.bytes.end, sides));
        }
    }
}

impl<E: Engine> Cluster<E> {
    /// Returns the races that homes have found so far.
    pub fn races(&self) -> Vec<FoundRace> {
        let found = self.nodes.iter().filter_map(|node| node.races.as_ref()).flat_map(|races| &races.found);
        found.map(|(page, start, end, sides)| (*page, *start..*end, *sides)).collect()
    }

    /// Records a fault of a thread of the node.
    pub(super) fn note_fault(&mut self, id: NodeId, at: Address, wanted: Access) {
        let node = &mut self.nodes[id.index()];
        let (Some(races), Some(page)) = (&mut node.races, node.engine.page_of(at.granule)) else { return };
        match wanted {
            Access::Read => races.open.note_load(page, at.position() as u32 - position(page), None),
            Access::Write => races.open.note_store(page, None),
            Access::None => {}
        }
    }

    /// Records what an effect that is about to be carried out will overwrite in frame and twin.
    pub(super) fn note_overwritten(&mut self, id: NodeId, effect: &Effect) {
        let node = &mut self.nodes[id.index()];
        let Some(races) = node.races.as_mut().filter(|races| races.bug != RaceBug::ForgetsOverwritten) else {
            return;
        };
        let page = match effect {
            Effect::Apply { page, .. } | Effect::Patch { page, .. } | Effect::Atomic { page, .. } => *page,
            Effect::Install { pages, merge: true, .. } => pages.first,
            _ => return,
        };
        let Ok((frame, twin)) = node.memory.with_twin(page) else { return };
        let changed = match effect {
            Effect::Apply { runs, .. } => diff::ranges(runs),
            Effect::Patch { offset, .. } | Effect::Atomic { offset, .. } => {
                std::iter::once(*offset..*offset + 8).collect()
            }
            Effect::Install { content, .. } => {
                let zeros = vec![0; twin.len()];
                let content = match content {
                    NewContent::Zero => &zeros[..],
                    NewContent::Received(range) => &node.received[range.clone()],
                    NewContent::Kept(bytes, range) => &bytes[range.clone()],
                };
                let mut changed = Vec::new();
                diff::for_each_difference(content, twin, |start, end| changed.push(start as u32..end as u32));
                changed
            }
            _ => Vec::new(),
        };
        races.open.note_written(page, stored_to(frame, twin, changed));
    }

    /// Records what the program has stored, from a diff of the interval that is being closed.
    pub(super) fn note_diff(&mut self, id: NodeId, page: PageId, runs: &[u8]) {
        if let Some(races) = &mut self.nodes[id.index()].races {
            races.open.note_written(page, diff::ranges(runs));
        }
    }

    pub(super) fn end_interval(&mut self, id: NodeId, interval: Interval) {
        let Some(races) = &mut self.nodes[id.index()].races else { return };
        let touched = races.open.end();
        if races.bug == RaceBug::TellsLate {
            races.late.extend(touched);
        } else {
            self.tell_touched(id, interval, touched);
        }
    }

    /// Sends delayed reports when all effects are carried out.
    pub(super) fn tell_late(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        let late = node.races.as_mut().map(|races| std::mem::take(&mut races.late)).unwrap_or_default();
        if !late.is_empty() {
            let (timestamp, epoch) = node.engine.seen();
            let (timestamp, seq) = (timestamp.clone(), timestamp.get(id));
            self.tell_touched(id, Interval { node: id, seq, timestamp, epoch }, late);
        }
    }

    fn tell_touched(&mut self, id: NodeId, interval: Interval, touched: Vec<Touched<()>>) {
        let interval = Arc::new(interval);
        for touched in touched {
            let home = self.nodes[id.index()].engine.home_of(touched.page).unwrap_or(id);
            if home == id {
                self.look_for_races(id, &interval, touched);
                continue;
            }
            let Touched { page, written, loads, .. } = touched;
            let loads = loads.into_iter().map(|(offset, _)| (offset, None)).collect();
            let message = Message::TouchedPages {
                seq: interval.seq,
                timestamp: interval.timestamp.clone(),
                epoch: interval.epoch,
                interval_end: None,
                pages: vec![TouchedPage { page, written, first_store: None, loads }],
            };
            self.send(id, home, message.encode());
        }
    }

    /// Returns true if the message was for the host.
    pub(super) fn hear_touched(&mut self, from: NodeId, to: NodeId, message: &Message<'_>) -> bool {
        let Message::TouchedPages { seq, timestamp, epoch, pages, .. } = message else { return false };
        let interval = Interval { node: from, seq: *seq, timestamp: timestamp.clone(), epoch: *epoch };
        let interval = Arc::new(interval);
        for TouchedPage { page, written, loads, .. } in pages.clone() {
            let loads = loads.into_iter().map(|(offset, _)| (offset, None)).collect();
            self.look_for_races(to, &interval, Touched { page, written, first_store: None, loads });
        }
        true
    }

    fn look_for_races(&mut self, id: NodeId, interval: &Arc<Interval>, touched: Touched<()>) {
        if let Some(races) = &mut self.nodes[id.index()].races {
            races.record(interval, touched);
        }
    }
}

fn position(page: PageId) -> u32 {
    Address::in_page(page, 0).position() as u32
}
