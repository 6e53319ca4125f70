//! The first pass over a run: collects what nodes have done by which others are checked.

use std::collections::{BTreeMap, BTreeSet};

use hiroba_base::{IntervalSeq, LockId, NodeId, PageId, PageSet};
use hiroba_trace::{Activity, Event, MessageKind, Record, ThreadNumber};
use rustc_hash::FxHashMap;

use crate::execution::Run;

/// The latest interval seen of each node.
pub(super) type Timestamp = Vec<IntervalSeq>;

/// The place of a record in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// Its index among the node's records.
    pub record: usize,
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {} record {}", self.node, self.record)
    }
}

/// An interval that was closed.
pub(super) struct Interval<'a> {
    pub(super) seq: IntervalSeq,
    pub(super) record: usize,
    /// A very large set of pages is recorded in several pieces.
    pub(super) pages: Vec<&'a PageSet>,
}

/// A message as one end recorded it.
#[derive(Clone, Copy)]
pub(super) struct Parcel {
    pub(super) record: usize,
    pub(super) kind: MessageKind,
    pub(super) bytes: u32,
}

/// A diff that a home has applied.
pub(super) struct Applied {
    pub(super) record: usize,
    pub(super) seq: IntervalSeq,
    pub(super) bytes: u32,
}

#[derive(Default)]
pub(super) struct NodeDigest<'a> {
    /// In ascending order, if the node numbers them correctly.
    pub(super) intervals: Vec<Interval<'a>>,
    /// Lengths of the nonempty diffs of each interval; several diffs of one page are added up.
    pub(super) diffs: FxHashMap<(PageId, IntervalSeq), u32>,
    /// By page and writer, in the order of the records.
    pub(super) applied: FxHashMap<(PageId, NodeId), Vec<Applied>>,
    /// Messages by receiver.
    pub(super) sent: FxHashMap<NodeId, Vec<Parcel>>,
    /// The number of messages received, by sender.
    pub(super) received: FxHashMap<NodeId, usize>,
    /// The records of moves of a page. All nodes record the same moves in the same order.
    moves: FxHashMap<PageId, Vec<usize>>,
    /// By epoch: what the node had seen when it arrived there.
    pub(super) arrivals: BTreeMap<u64, Timestamp>,
}

impl<'a> NodeDigest<'a> {
    fn close(&mut self, seq: IntervalSeq, record: usize, pages: &'a PageSet) {
        match self.intervals.last_mut().filter(|interval| interval.seq == seq) {
            Some(interval) => interval.pages.push(pages),
            None => self.intervals.push(Interval { seq, record, pages: vec![pages] }),
        }
    }

    pub(super) fn last_interval(&self) -> IntervalSeq {
        self.intervals.last().map_or(0, |interval| interval.seq)
    }

    /// Returns the latest interval that was closed before one of the node's records; 0 if none was.
    pub(super) fn last_interval_before(&self, record: usize) -> IntervalSeq {
        let end = self.intervals.partition_point(|interval| interval.record < record);
        end.checked_sub(1).map_or(0, |last| self.intervals[last].seq)
    }

    pub(super) fn interval(&self, seq: IntervalSeq) -> Option<&Interval<'_>> {
        let found = self.intervals.binary_search_by_key(&seq, |interval| interval.seq).ok()?;
        Some(&self.intervals[found])
    }

    /// Returns how many times a page had moved when the node wrote this record, as far as it knew.
    pub(super) fn moves_before(&self, page: PageId, record: usize) -> usize {
        self.moves.get(&page).map_or(0, |moves| moves.partition_point(|other| *other < record))
    }

    /// Returns the intervals after `from` through `through`.
    pub(super) fn between(&self, from: IntervalSeq, through: IntervalSeq) -> &[Interval<'_>] {
        let first = self.intervals.partition_point(|interval| interval.seq <= from);
        let end = self.intervals.partition_point(|interval| interval.seq <= through);
        &self.intervals[first..end.max(first)]
    }
}

/// What a run's nodes recorded about themselves.
pub(super) struct Digest<'a> {
    pub(super) nodes: Vec<NodeDigest<'a>>,
    pub(super) acquired: FxHashMap<(LockId, u64), Place>,
    /// Where each hold ended, and what its node made known with it.
    pub(super) released: FxHashMap<(LockId, u64), (Place, Option<Timestamp>)>,
    /// By sender, receiver and number.
    pub(super) published: FxHashMap<(NodeId, NodeId, u64), Timestamp>,
    /// By sender and number: what the sender's node had seen when a message to a port was sent.
    pub(super) posted: FxHashMap<(NodeId, u64), Timestamp>,
    /// Holds that were acquired or released twice.
    pub(super) repeated: Vec<(Place, &'static str, LockId, u64)>,
    regions: BTreeMap<PageId, &'a Event>,
    /// The nodes that pages have moved to, according to any node.
    moved: FxHashMap<PageId, BTreeSet<NodeId>>,
    granule_bytes: u32,
}

/// A call that makes something known, and what its node had seen then. Intervals that the call's own thread
/// closes meanwhile belong to the call.
struct Call {
    activity: Activity,
    seen: Timestamp,
    ends: Vec<End>,
}

/// What a call does in the end.
enum End {
    Released(LockId, u64, usize),
    Met(u64),
    Published(NodeId, u64),
}

impl End {
    fn fits(&self, activity: Activity) -> bool {
        match self {
            End::Released(lock, ..) => {
                matches!(activity, Activity::Release(other) | Activity::Wait(_, other) if other == *lock)
            }
            End::Met(_) => matches!(activity, Activity::Barrier | Activity::Collective),
            End::Published(to, _) => matches!(activity, Activity::Publish(other) if other == *to),
        }
    }
}

fn makes_known(activity: Activity) -> bool {
    matches!(
        activity,
        Activity::Release(_)
            | Activity::Wait(..)
            | Activity::Barrier
            | Activity::Collective
            | Activity::Publish(_)
    )
}

/// A thread's calls, the innermost last, and the last one that ended.
#[derive(Default)]
struct Calls {
    open: Vec<Call>,
    last: Option<Call>,
    /// What the node had seen when the thread came to a barrier whose departure it then delayed: the call has
    /// ended, and another one ends the barrier.
    arrived: Option<Timestamp>,
    /// What the node had seen when that one ended.
    seen_then: Timestamp,
}

impl Calls {
    /// Returns what the thread knows surely: what its node had seen when it last made that known, or when its
    /// last call ended.
    fn known(&self) -> &Timestamp {
        let publication = self.last.as_ref().filter(|call| matches!(call.activity, Activity::Publish(_)));
        publication.map_or(&self.seen_then, |call| &call.seen)
    }
}

impl<'a> Digest<'a> {
    pub(super) fn of(run: &'a Run, granule_bytes: u32) -> Digest<'a> {
        let mut digest = Digest {
            nodes: run.nodes.iter().map(|_| NodeDigest::default()).collect(),
            acquired: FxHashMap::default(),
            released: FxHashMap::default(),
            published: FxHashMap::default(),
            posted: FxHashMap::default(),
            repeated: Vec::new(),
            regions: BTreeMap::new(),
            moved: FxHashMap::default(),
            granule_bytes: granule_bytes.max(1),
        };
        for (node, records) in run.ids().zip(&run.nodes) {
            digest.read(node, &records.records);
        }
        digest
    }

    fn read(&mut self, node: NodeId, records: &'a [Record]) {
        let mut seen: Timestamp = vec![0; self.nodes.len()];
        let mut calls: FxHashMap<ThreadNumber, Calls> = FxHashMap::default();
        let mut diffs: Vec<(PageId, u32)> = Vec::new();
        for (record, Record { thread, event, .. }) in records.iter().enumerate() {
            self.note_message(node, record, event);
            let digest = &mut self.nodes[node.index()];
            let calls = calls.entry(*thread).or_default();
            match event {
                Event::Enter(activity) => {
                    let seen = if makes_known(*activity) { seen.clone() } else { Vec::new() };
                    calls.open.push(Call { activity: *activity, seen, ends: Vec::new() });
                }
                Event::Leave => {
                    if let Some(call) = calls.open.pop() {
                        self.finish(node, &call.ends, &call.seen);
                        if call.ends.is_empty() && End::Met(0).fits(call.activity) {
                            calls.arrived = Some(call.seen.clone());
                        }
                        calls.last = Some(call);
                        calls.seen_then.clone_from(&seen);
                    }
                }
                Event::Seen { grown } => {
                    for (writer, seq) in grown.iter().filter(|(writer, _)| *writer != node) {
                        raise(&mut seen, *writer, *seq);
                    }
                }
                Event::Diffed { page, bytes } if *bytes > 0 => diffs.push((*page, *bytes)),
                Event::Applied { page, writer, seq, bytes } => {
                    let applied = digest.applied.entry((*page, *writer)).or_default();
                    applied.push(Applied { record, seq: *seq, bytes: *bytes });
                }
                Event::Closed { seq, pages } => {
                    raise(&mut seen, node, *seq);
                    for (page, bytes) in diffs.drain(..) {
                        *digest.diffs.entry((page, *seq)).or_default() += bytes;
                    }
                    digest.close(*seq, record, pages);
                    // Intervals that the thread closes after this was made known, for homes that move, do not
                    // belong to it.
                    let has_yet_to_end =
                        |call: &&mut Call| makes_known(call.activity) && call.ends.is_empty();
                    if let Some(call) = calls.open.last_mut().filter(has_yet_to_end) {
                        call.seen.clone_from(&seen);
                    }
                }
                Event::Acquired { lock, turn } => {
                    let place = Place { node, record };
                    if self.acquired.insert((*lock, *turn), place).is_some() {
                        self.repeated.push((place, "acquired", *lock, *turn));
                    }
                }
                Event::Released { lock, turn } => self.end(node, calls, End::Released(*lock, *turn, record)),
                Event::Met { epoch } => self.end(node, calls, End::Met(*epoch)),
                Event::Published { to, count } => self.end(node, calls, End::Published(*to, *count)),
                Event::Posted { number } => {
                    self.posted.insert((node, *number), calls.known().clone());
                }
                Event::Moved { pages, to } => {
                    for page in pages.iter() {
                        self.moved.entry(page).or_default().insert(*to);
                        digest.moves.entry(page).or_default().push(record);
                    }
                }
                Event::Region { granules, .. } => _ = self.regions.insert(granules.first, event),
                _ => {}
            }
        }
        // The diff belongs to an interval that never ended.
        let open = self.nodes[node.index()].last_interval() + 1;
        for (page, bytes) in diffs {
            *self.nodes[node.index()].diffs.entry((page, open)).or_default() += bytes;
        }
        let unfinished = calls.into_values().flat_map(|calls| calls.open);
        unfinished.for_each(|call| self.finish(node, &call.ends, &call.seen));
    }

    fn note_message(&mut self, node: NodeId, record: usize, event: &Event) {
        let digest = &mut self.nodes[node.index()];
        match event {
            Event::Sent { to, kind, bytes } => {
                let parcel = Parcel { record, kind: *kind, bytes: *bytes };
                digest.sent.entry(*to).or_default().push(parcel);
            }
            Event::Received { from, .. } => *digest.received.entry(*from).or_default() += 1,
            _ => {}
        }
    }

    /// Handles an event that ends a call, now or a moment ago.
    fn end(&mut self, node: NodeId, calls: &mut Calls, end: End) {
        let arrived = if matches!(end, End::Met(_)) { calls.arrived.take() } else { None };
        if let Some(call) = calls.open.iter_mut().rev().find(|call| end.fits(call.activity)) {
            call.ends.push(end);
        } else {
            let seen = calls.last.as_ref().filter(|call| end.fits(call.activity));
            let seen = seen.map(|call| call.seen.clone()).or(arrived);
            self.finish(node, &[end], &seen.unwrap_or_default());
        }
    }

    fn finish(&mut self, node: NodeId, ends: &[End], seen: &Timestamp) {
        let known = (!seen.is_empty()).then(|| seen.clone());
        for end in ends {
            match *end {
                End::Released(lock, turn, record) => {
                    let place = Place { node, record };
                    if self.released.insert((lock, turn), (place, known.clone())).is_some() {
                        self.repeated.push((place, "released", lock, turn));
                    }
                }
                End::Met(epoch) => {
                    let nodes = self.nodes.len();
                    let arrived = self.nodes[node.index()].arrivals.entry(epoch).or_default();
                    arrived.resize(nodes, 0);
                    arrived.iter_mut().zip(seen).for_each(|(mine, seen)| *mine = (*mine).max(*seen));
                }
                End::Published(to, count) => {
                    self.published.insert((node, to, count), seen.clone());
                }
            }
        }
    }

    /// Returns true if the page had several homes.
    pub(super) fn has_moved(&self, page: PageId) -> bool {
        self.moved.contains_key(&page)
    }

    /// Returns all homes that a page had, the first one first.
    pub(super) fn homes_of(&self, page: PageId) -> impl Iterator<Item = NodeId> + '_ {
        let first = self.home_of(page).map(|(home, _)| home);
        first.into_iter().chain(self.moved.get(&page).into_iter().flatten().copied())
    }

    /// Returns true if a protocol other than the run's, with other axioms, keeps the page coherent.
    pub(super) fn is_under_another(&self, page: PageId) -> bool {
        let region = self.regions.range(..=page).next_back();
        region.is_some_and(
            |(_, region)| matches!(region, Event::Region { protocol, .. } if !protocol.is_empty()),
        )
    }

    /// Returns the first home of a page and its number of granules, if it was allocated under the run's
    /// protocol.
    pub(super) fn home_of(&self, page: PageId) -> Option<(NodeId, u64)> {
        let (_, region) = self.regions.range(..=page).next_back()?;
        let Event::Region { page_size, protocol, .. } = region else { return None };
        if !protocol.is_empty() {
            return None;
        }
        let (_, home) = region.home_of(page, self.granule_bytes)?;
        Some((home, page_size.bytes() as u64 / u64::from(self.granule_bytes)))
    }
}

/// Raises a node's entry. The check itself reports a node that does not exist.
pub(super) fn raise(seen: &mut Timestamp, node: NodeId, seq: IntervalSeq) {
    if let Some(entry) = seen.get_mut(node.index()) {
        *entry = seq.max(*entry);
    }
}
