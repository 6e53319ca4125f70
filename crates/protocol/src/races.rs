//! Data races between nodes: concurrent intervals of two nodes that touch the same bytes, at least one of
//! them by storing.
//!
//! Every interval carries the vector timestamp of its end; interval *i* of node *p* happened before interval
//! *j* of node *q* when *j*'s timestamp covers *i* (Keleher, Cox, Zwaenepoel, ISCA 1992). Two intervals
//! neither of which happened before the other are concurrent. If both changed a byte, or one changed it and
//! the other loaded it, there is a race: on one machine, too, the byte's value would depend on timing
//! (compare Perković, Keleher, *Online Data-Race Detection via Coherency Guarantees*, OSDI 1996).
//!
//! While races are looked for, acquires end intervals as well, so that an interval is a stretch of one node's
//! work between two synchronisations. Each has a number of its own, even one that changed nothing.
//!
//! **Stores** are seen byte by byte, by the diffs of an interval. A diff of another node may arrive for bytes
//! that this node has stored to and not sent yet: frame and twin then contain the other node's bytes, and the
//! own stores show in no diff. So the host compares before it changes a frame that has a twin
//! ([`OpenInterval::note_written`]).
//!
//! **Loads** are seen where they fault, which shows one byte of each: the first load of an interval from a
//! page, since the end of an interval takes all access away. Other loads do not fault. Nothing is guessed:
//! bytes that a load touched besides that one, and loads without a fault, are not compared with anything, so
//! false sharing of a page is never reported.
//!
//! The home of a page gets all of these reports and compares them with the earlier ones. Not seen are other
//! loads, stores of the value that the byte already had, atomic operations, and races between threads of one
//! node.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{IntervalSeq, NodeId, PageId, VectorTimestamp};

use crate::diff;

/// The number of a page's latest writes that are remembered, and of its latest loads.
pub const REMEMBERED_PER_PAGE_MAX: usize = 64;

/// The number of collectives after which an access is forgotten. A collective orders everything before it
/// before everything after it, but another node's report of the time before may come late, after reports of
/// third nodes of the time since.
pub const EPOCHS_KEPT: u64 = 8;

/// The maximum number of loads of one page that are noted in an interval. Each of a node's threads may be the
/// first to load from it.
const LOADS_PER_INTERVAL_MAX: usize = 16;

/// An interval that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The node.
    pub node: NodeId,
    /// Its number.
    pub seq: IntervalSeq,
    /// The intervals that the node had seen at its end, including this one.
    pub timestamp: VectorTimestamp,
    /// The number of collectives that the node had completed.
    pub epoch: u64,
}

impl Interval {
    fn is_concurrent_with(&self, other: &Interval) -> bool {
        self.node != other.node
            && other.timestamp.get(self.node) < self.seq
            && self.timestamp.get(other.node) < other.seq
    }
}

/// An interval's accesses to a page. `Site` shows the reader of a report where an access came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched<Site> {
    /// The page.
    pub page: PageId,
    /// The bytes that it changed, ascending and disjoint.
    pub written: Vec<Range<u32>>,
    /// The first store to the page that faulted.
    pub first_store: Option<Site>,
    /// Loads that faulted: one byte of each.
    pub loads: Vec<(u32, Option<Site>)>,
}

/// The accesses of a node's open interval so far, as far as its host has seen them.
#[derive(Debug)]
pub struct OpenInterval<Site> {
    pages: BTreeMap<PageId, Touched<Site>>,
}

impl<Site> Default for OpenInterval<Site> {
    fn default() -> OpenInterval<Site> {
        OpenInterval { pages: BTreeMap::new() }
    }
}

impl<Site> OpenInterval<Site> {
    fn page(&mut self, page: PageId) -> &mut Touched<Site> {
        let new = || Touched { page, written: Vec::new(), first_store: None, loads: Vec::new() };
        self.pages.entry(page).or_insert_with(new)
    }

    /// Notes that a store to the page faulted. The end of the interval shows its changes.
    pub fn note_store(&mut self, page: PageId, site: Option<Site>) {
        let page = self.page(page);
        page.first_store = page.first_store.take().or(site);
    }

    /// Notes that a load from this byte of the page faulted.
    pub fn note_load(&mut self, page: PageId, offset: u32, site: Option<Site>) {
        let loads = &mut self.page(page).loads;
        if loads.len() < LOADS_PER_INTERVAL_MAX && loads.iter().all(|(known, _)| *known != offset) {
            loads.push((offset, site));
        }
    }

    /// Notes that the program has stored to these bytes of the page: as a diff shows, or because a frame
    /// differs from its twin in bytes that are about to be changed in both.
    pub fn note_written(&mut self, page: PageId, bytes: impl IntoIterator<Item = Range<u32>>) {
        let mut bytes = bytes.into_iter().peekable();
        if bytes.peek().is_some() {
            self.page(page).written.extend(bytes);
        }
    }

    /// Ends the interval and begins the next one. Returns the accesses.
    pub fn end(&mut self) -> Vec<Touched<Site>> {
        let mut touched: Vec<_> = std::mem::take(&mut self.pages).into_values().collect();
        touched.retain_mut(|page| {
            assert!(
                page.loads.len() <= LOADS_PER_INTERVAL_MAX,
                "{}: no more loads are noted than may be",
                page.page
            );
            join(&mut page.written);
            !page.written.is_empty() || !page.loads.is_empty()
        });
        touched
    }
}

/// Returns those of the bytes, which are about to be changed in frame and twin alike, that the program has
/// stored to since the twin was made.
pub fn stored_to(frame: &[u8], twin: &[u8], bytes: impl IntoIterator<Item = Range<u32>>) -> Vec<Range<u32>> {
    let mut stored = Vec::new();
    for Range { start, end } in bytes {
        let within = start as usize..end as usize;
        if let (Some(frame), Some(twin)) = (frame.get(within.clone()), twin.get(within)) {
            diff::for_each_difference(frame, twin, |from, to| {
                stored.push(start + from as u32..start + to as u32);
            });
        }
    }
    stored
}

/// Makes ranges ascending and disjoint.
fn join(ranges: &mut Vec<Range<u32>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let joins = next.start <= range.end;
        if joins {
            range.end = range.end.max(next.end);
        }
        joins
    });
}

/// The kind of access to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Touch {
    /// It stored to them.
    Wrote,
    /// It loaded from them.
    Read,
}

/// One of the two sides of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side<Origin> {
    /// The node.
    pub node: NodeId,
    /// The kind of its access.
    pub touch: Touch,
    /// The origin of the access.
    pub origin: Origin,
}

/// Bytes that two concurrent intervals touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race<Origin> {
    /// The first stretch of bytes in the page that both touched.
    pub bytes: Range<u32>,
    /// Both sides, the one reported first in front.
    pub sides: [Side<Origin>; 2],
}

/// Bytes that an interval touched in one way.
#[derive(Debug)]
struct Remembered<Origin> {
    interval: Arc<Interval>,
    bytes: Vec<Range<u32>>,
    origin: Origin,
}

#[derive(Debug)]
struct PageLog<Origin> {
    writes: VecDeque<Remembered<Origin>>,
    loads: VecDeque<Remembered<Origin>>,
    /// The latest reported epoch.
    epoch: u64,
}

/// The numbers of reports that a home has compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// The number of times that an interval changed a page.
    pub writes: u64,
    /// The number of loads that were reported to it.
    pub loads: u64,
    /// The number of accesses that were forgotten, or came too late, before they had been compared with all
    /// that they may race with.
    pub forgotten: u64,
}

/// The remembered accesses to pages homed on one node.
#[derive(Debug)]
pub struct RaceLog<Origin> {
    pages: BTreeMap<PageId, PageLog<Origin>>,
    /// The intervals that each node had seen at the end of its latest reported interval.
    seen: BTreeMap<NodeId, VectorTimestamp>,
    looked: Looked,
}

impl<Origin> Default for RaceLog<Origin> {
    fn default() -> RaceLog<Origin> {
        RaceLog { pages: BTreeMap::new(), seen: BTreeMap::new(), looked: Looked::default() }
    }
}

impl<Origin: Clone> RaceLog<Origin> {
    /// Remembers an interval's accesses to a page. Returns the remembered accesses with which they race. A
    /// node reports its intervals in order.
    ///
    /// Calls `origin` for what is remembered or found to race: a first store, or a load.
    pub fn record<Site>(
        &mut self,
        interval: &Arc<Interval>,
        touched: Touched<Site>,
        origin: impl Fn(Option<Site>) -> Origin,
    ) -> Vec<Race<Origin>> {
        let Touched { page, written, first_store, loads } = touched;
        self.seen.insert(interval.node, interval.timestamp.clone());
        let (seen, looked) = (&self.seen, &mut self.looked);
        let log = self.pages.entry(page).or_insert_with(|| PageLog {
            writes: VecDeque::new(),
            loads: VecDeque::new(),
            epoch: 0,
        });
        log.epoch = log.epoch.max(interval.epoch);
        looked.forgotten += u64::from(interval.epoch + EPOCHS_KEPT < log.epoch);
        let may_race = |of: &Remembered<Origin>| {
            of.interval.epoch + EPOCHS_KEPT >= log.epoch && !all_have_seen(seen, &of.interval)
        };
        log.writes.retain(&may_race);
        log.loads.retain(&may_race);
        let mut races = Vec::new();
        if !written.is_empty() {
            looked.writes += 1;
            let new = Remembered { interval: interval.clone(), bytes: written, origin: origin(first_store) };
            races.extend(meets(&log.writes, Touch::Wrote, &new, Touch::Wrote));
            races.extend(meets(&log.loads, Touch::Read, &new, Touch::Wrote));
            looked.forgotten += remember(&mut log.writes, new);
        }
        for (offset, site) in loads {
            looked.loads += 1;
            let bytes = std::iter::once(offset..offset.saturating_add(1)).collect();
            let new = Remembered { interval: interval.clone(), bytes, origin: origin(site) };
            races.extend(meets(&log.writes, Touch::Wrote, &new, Touch::Read));
            looked.forgotten += remember(&mut log.loads, new);
        }
        races
    }

    /// Returns the numbers of reports compared so far.
    pub fn looked(&self) -> Looked {
        self.looked
    }
}

/// Returns true if no interval that has not been reported yet can be concurrent with this one.
fn all_have_seen(seen: &BTreeMap<NodeId, VectorTimestamp>, interval: &Interval) -> bool {
    seen.len() == interval.timestamp.nodes()
        && seen.iter().all(|(node, seen)| *node == interval.node || seen.get(interval.node) >= interval.seq)
}

/// Remembers `new`, replacing the oldest if necessary. Returns how many were forgotten for it.
fn remember<Origin>(log: &mut VecDeque<Remembered<Origin>>, new: Remembered<Origin>) -> u64 {
    assert!(log.len() <= REMEMBERED_PER_PAGE_MAX, "no more is remembered of a page than may be");
    let is_full = log.len() == REMEMBERED_PER_PAGE_MAX;
    if is_full {
        log.pop_front();
    }
    log.push_back(new);
    u64::from(is_full)
}

fn meets<Origin: Clone>(
    log: &VecDeque<Remembered<Origin>>,
    was: Touch,
    new: &Remembered<Origin>,
    is: Touch,
) -> impl Iterator<Item = Race<Origin>> {
    let concurrent = log.iter().filter(|other| other.interval.is_concurrent_with(&new.interval));
    concurrent.filter_map(move |other| {
        let bytes = first_common(&other.bytes, &new.bytes)?;
        let side = |of: &Remembered<Origin>, touch| Side {
            node: of.interval.node,
            touch,
            origin: of.origin.clone(),
        };
        Some(Race { bytes, sides: [side(other, was), side(new, is)] })
    })
}

fn first_common(a: &[Range<u32>], b: &[Range<u32>]) -> Option<Range<u32>> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(first), Some(second)) = (a.peek(), b.peek()) {
        let common = first.start.max(second.start)..first.end.min(second.end);
        if !common.is_empty() {
            return Some(common);
        }
        if first.end <= second.end {
            a.next();
        } else {
            b.next();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId(7);

    fn interval(node: u16, seq: u64, seen: [u64; 3]) -> Interval {
        let mut timestamp = VectorTimestamp::new(3);
        (0..3).for_each(|of| timestamp.advance(NodeId(of), seen[usize::from(of)]));
        timestamp.advance(NodeId(node), seq);
        Interval { node: NodeId(node), seq, timestamp, epoch: 0 }
    }

    fn wrote(page: PageId, ranges: &[(u32, u32)]) -> Touched<&'static str> {
        let mut open = OpenInterval::default();
        open.note_store(page, Some("a store"));
        open.note_written(page, ranges.iter().map(|range| range.0..range.1));
        open.end().pop().expect("it has touched a page")
    }

    fn read(page: PageId, offset: u32) -> Touched<&'static str> {
        let mut open = OpenInterval::default();
        open.note_load(page, offset, Some("a load"));
        open.end().pop().expect("it has touched a page")
    }

    /// An access: the node, its kind, and its origin.
    type Told = (u16, Touch, &'static str);

    /// Records accesses. Returns the races, with both sides of each.
    fn record(
        log: &mut RaceLog<Option<&'static str>>,
        interval: Interval,
        touched: Touched<&'static str>,
    ) -> Vec<(Range<u32>, [Told; 2])> {
        let races = log.record(&Arc::new(interval), touched, |site| site);
        let side = |side: Side<Option<&'static str>>| (side.node.0, side.touch, side.origin.unwrap());
        races.into_iter().map(|race| (race.bytes, race.sides.map(side))).collect()
    }

    #[test]
    fn only_concurrent_writes_of_the_same_bytes_race() {
        let log = &mut RaceLog::default();
        assert_eq!(record(log, interval(0, 1, [0; 3]), wrote(PAGE, &[(0, 8), (20, 24)])), []);
        assert_eq!(record(log, interval(1, 1, [0; 3]), wrote(PAGE, &[(8, 20)])), [], "neighbouring bytes");
        let ordered = record(log, interval(1, 2, [1, 0, 0]), wrote(PAGE, &[(0, 8)]));
        assert_eq!(ordered, [], "ordered by synchronisation");
        let races = record(log, interval(2, 1, [1, 0, 0]), wrote(PAGE, &[(2, 4), (30, 31)]));
        let sides = [(1, Touch::Wrote, "a store"), (2, Touch::Wrote, "a store")];
        assert_eq!(races, [(2..4, sides)], "ordered after node 0, concurrent with node 1");
        let elsewhere = record(log, interval(2, 2, [0; 3]), wrote(PageId(8), &[(0, 8)]));
        assert_eq!(elsewhere, [], "another page");
        assert_eq!(log.looked(), Looked { writes: 5, loads: 0, forgotten: 0 });
    }

    #[test]
    fn a_load_races_with_concurrent_writes_of_its_byte_whichever_is_told_of_first() {
        let log = &mut RaceLog::default();
        assert_eq!(record(log, interval(1, 1, [0; 3]), read(PAGE, 6)), []);
        assert_eq!(record(log, interval(2, 1, [0; 3]), read(PAGE, 6)), [], "loads do not race");
        let races = record(log, interval(0, 1, [0, 1, 0]), wrote(PAGE, &[(4, 8)]));
        let sides = [(2, Touch::Read, "a load"), (0, Touch::Wrote, "a store")];
        assert_eq!(races, [(6..7, sides)], "node 1 loaded before, and told node 0");
        assert_eq!(record(log, interval(1, 2, [0; 3]), read(PAGE, 3)), [], "another byte of the page");
        assert_eq!(record(log, interval(1, 3, [1, 0, 0]), read(PAGE, 5)), [], "it has been told");
        let races = record(log, interval(2, 2, [0; 3]), read(PAGE, 5));
        assert_eq!(races, [(5..6, [(0, Touch::Wrote, "a store"), (2, Touch::Read, "a load")])]);
        assert_eq!(log.looked(), Looked { writes: 1, loads: 5, forgotten: 0 });
    }

    #[test]
    fn bytes_that_are_overwritten_before_they_show_are_the_intervals_all_the_same() {
        let mut open: OpenInterval<()> = OpenInterval::default();
        open.note_written(PAGE, [4..6, 9..10]);
        open.note_written(PAGE, [0..2, 5..9]);
        open.note_load(PAGE, 3, None);
        open.note_load(PAGE, 3, None);
        open.note_store(PageId(8), None);
        open.note_written(PageId(9), []);
        let touched = open.end();
        assert_eq!(touched.len(), 1, "nothing shows of the other pages");
        assert_eq!((&touched[0].written[..], &touched[0].loads[..]), (&[0..2, 4..10][..], &[(3, None)][..]));
        assert_eq!(open.end(), [], "another interval has begun");
    }

    #[test]
    fn only_what_differs_from_the_twin_was_stored() {
        let (frame, twin) = ([0, 1, 2, 3, 9, 9, 6, 9], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(stored_to(&frame, &twin, [0..5, 7..8]), [4..5, 7..8]);
        assert_eq!(
            stored_to(&frame, &twin, [5..7, 6..9, 7..8]),
            [5..6, 7..8],
            "a range beyond the page is none"
        );
    }

    #[test]
    fn what_all_have_seen_is_forgotten_and_the_rest_is_bounded_and_counted() {
        let log = &mut RaceLog::default();
        record(log, interval(0, 1, [0; 3]), wrote(PAGE, &[(0, 8)]));
        record(log, interval(1, 1, [1, 0, 0]), wrote(PAGE, &[(0, 8)]));
        assert_eq!(log.pages[&PAGE].writes.len(), 2, "node 2 may have written without having seen it");
        record(log, interval(2, 1, [1, 1, 0]), wrote(PAGE, &[(0, 8)]));
        assert_eq!(log.pages[&PAGE].writes.len(), 2, "all have seen the first, and not the second");
        for seq in 2..100 {
            record(log, interval(0, seq, [0, 1, 1]), wrote(PAGE, &[(0, 8)]));
        }
        assert_eq!(log.pages[&PAGE].writes.len(), REMEMBERED_PER_PAGE_MAX);
        assert_eq!(log.looked(), Looked { writes: 101, loads: 0, forgotten: 101 - 2 - 64 });
    }

    #[test]
    fn what_comes_late_is_compared_with_what_others_did_in_its_time() {
        let log = &mut RaceLog::default();
        record(log, interval(0, 1, [0; 3]), wrote(PAGE, &[(0, 8)]));
        let much_later = Interval { epoch: EPOCHS_KEPT, ..interval(1, 2, [2, 0, 1]) };
        record(log, much_later, wrote(PAGE, &[(0, 8)]));
        let late = record(log, interval(2, 1, [0; 3]), wrote(PAGE, &[(0, 1)]));
        assert_eq!(late.len(), 1, "the other's diff of that epoch is still known");
        let too_late = Interval { epoch: EPOCHS_KEPT + 1, ..interval(1, 3, [2, 0, 1]) };
        record(log, too_late, wrote(PAGE, &[(0, 8)]));
        assert_eq!(record(log, interval(0, 2, [0; 3]), wrote(PAGE, &[(0, 1)])), []);
        assert_eq!(log.looked().forgotten, 1, "which is said");
    }
}
