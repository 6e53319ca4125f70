//! Data races between nodes: concurrent intervals of two nodes that touch the same bytes, one of them at least by storing.
//!
//! Every interval carries the vector timestamp of its end; interval *i* of node *p* happened before interval *j* of node *q* when *j*'s
//! timestamp covers *i* (Keleher, Cox, Zwaenepoel, ISCA 1992). Two intervals neither of which happened before the
//! other are concurrent, and a byte that both changed, or that one changed and the other loaded, was raced for: on one machine,
//! too, its value would depend on luck (compare Perković, Keleher, *Online Data-Race Detection via Coherency Guarantees*, OSDI 1996).
//!
//! For an interval to be a stretch of one node's work between two synchronisations, acquires end intervals as well while races are
//! looked for, and each has a number of its own, also one that changed nothing.
//!
//! **Stores** are seen byte by byte, by the diffs of an interval. A diff of another node may come for bytes that this node has stored to
//! and not sent yet: frame and twin hold the other's bytes then, and its own stores show in no diff. So the host looks before
//! it changes a frame that has a twin ([`OpenInterval::note_written`]).
//!
//! **Loads** are seen where they fault, which tells one byte of each: the first that an interval makes from a page, since the end of an
//! interval takes all access away. Others run free. Nothing is guessed: what a load touched besides that byte, and what no fault
//! told of, is not held against anything, so that false sharing of a page is never reported.
//!
//! The home of a page is told of all that and holds it against what it was told before. Not seen: other loads, stores that wrote the
//! value that was there already, atomic operations, and races between threads of one node.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{IntervalSeq, NodeId, PageId, VectorTimestamp};

use crate::diff;

/// So many of a page's latest writes are remembered, and so many of its loads.
pub const HELD_PER_PAGE_MAX: usize = 64;

/// What is older than so many collectives is forgotten. A collective orders everything before it before everything after it, but what
/// another node tells of the time before may come late, after what third nodes have done since.
pub const EPOCHS_KEPT: u64 = 8;

/// So many loads of one page are noted in an interval. Each of a node's threads may be the first to load from it.
const LOADS_PER_INTERVAL_MAX: usize = 16;

/// An interval that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Whose it was.
    pub node: NodeId,
    /// Its number.
    pub seq: IntervalSeq,
    /// What the node had seen when it ended, that interval included.
    pub timestamp: VectorTimestamp,
    /// How many collectives the node had completed.
    pub epoch: u64,
}

impl Interval {
    fn is_concurrent_with(&self, other: &Interval) -> bool {
        self.node != other.node
            && other.timestamp.get(self.node) < self.seq
            && self.timestamp.get(other.node) < other.seq
    }
}

/// What an interval did to a page. `Site` says to whoever reads a report where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched<Site> {
    /// The page.
    pub page: PageId,
    /// The bytes that it changed, ascending and disjoint.
    pub written: Vec<Range<u32>>,
    /// The first store to the page that faulted.
    pub first_store: Option<Site>,
    /// Loads that faulted: a byte of each.
    pub loads: Vec<(u32, Option<Site>)>,
}

/// What the open interval of a node has done so far, as far as its host has seen.
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

    /// A store to the page faulted. What it changes shows at the end of the interval.
    pub fn note_store(&mut self, page: PageId, site: Option<Site>) {
        let page = self.page(page);
        page.first_store = page.first_store.take().or(site);
    }

    /// A load from this byte of the page faulted.
    pub fn note_load(&mut self, page: PageId, offset: u32, site: Option<Site>) {
        let loads = &mut self.page(page).loads;
        if loads.len() < LOADS_PER_INTERVAL_MAX && loads.iter().all(|(known, _)| *known != offset) {
            loads.push((offset, site));
        }
    }

    /// The program has stored to these bytes of the page: as a diff shows, or the bytes where a frame differs from its twin that are
    /// about to be changed in both.
    pub fn note_written(&mut self, page: PageId, bytes: impl IntoIterator<Item = Range<u32>>) {
        let mut bytes = bytes.into_iter().peekable();
        if bytes.peek().is_some() {
            self.page(page).written.extend(bytes);
        }
    }

    /// The interval has ended: what it did, and the next one begins.
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

/// Which of these bytes of a page, that are about to be changed in frame and twin alike, the program has stored to since the twin was made.
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

/// How a node touched bytes.
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
    /// Who.
    pub node: NodeId,
    /// What it did.
    pub touch: Touch,
    /// Where it came from.
    pub origin: Origin,
}

/// Bytes that two concurrent intervals touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race<Origin> {
    /// The first stretch of bytes in the page that both touched.
    pub bytes: Range<u32>,
    /// Both, the one heard of first in front.
    pub sides: [Side<Origin>; 2],
}

/// Bytes that an interval touched in one way.
#[derive(Debug)]
struct Held<Origin> {
    interval: Arc<Interval>,
    bytes: Vec<Range<u32>>,
    origin: Origin,
}

#[derive(Debug)]
struct PageLog<Origin> {
    writes: VecDeque<Held<Origin>>,
    loads: VecDeque<Held<Origin>>,
    /// The latest epoch of which was told.
    epoch: u64,
}

/// What a home has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// How often an interval changed a page.
    pub writes: u64,
    /// How many loads it was told of.
    pub loads: u64,
    /// What was forgotten, or came too late, before it had been held against all that it may race with.
    pub forgotten: u64,
}

/// What is remembered of the pages homed on one node.
#[derive(Debug)]
pub struct RaceLog<Origin> {
    pages: BTreeMap<PageId, PageLog<Origin>>,
    /// What each node had seen at the end of its latest interval of which was told.
    seen: BTreeMap<NodeId, VectorTimestamp>,
    looked: Looked,
}

impl<Origin> Default for RaceLog<Origin> {
    fn default() -> RaceLog<Origin> {
        RaceLog { pages: BTreeMap::new(), seen: BTreeMap::new(), looked: Looked::default() }
    }
}

impl<Origin: Clone> RaceLog<Origin> {
    /// Remembers what an interval did to a page, and says with what of the remembered it races. A node tells of its intervals in order.
    ///
    /// `origin` is asked of what was found to race, and remembered: of the first store, or of a load.
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
        let may_race = |held: &Held<Origin>| {
            held.interval.epoch + EPOCHS_KEPT >= log.epoch && !all_have_seen(seen, &held.interval)
        };
        log.writes.retain(&may_race);
        log.loads.retain(&may_race);
        let mut races = Vec::new();
        if !written.is_empty() {
            looked.writes += 1;
            let new = Held { interval: interval.clone(), bytes: written, origin: origin(first_store) };
            races.extend(meets(&log.writes, Touch::Wrote, &new, Touch::Wrote));
            races.extend(meets(&log.loads, Touch::Read, &new, Touch::Wrote));
            looked.forgotten += hold(&mut log.writes, new);
        }
        for (offset, site) in loads {
            looked.loads += 1;
            let bytes = std::iter::once(offset..offset.saturating_add(1)).collect();
            let new = Held { interval: interval.clone(), bytes, origin: origin(site) };
            races.extend(meets(&log.writes, Touch::Wrote, &new, Touch::Read));
            looked.forgotten += hold(&mut log.loads, new);
        }
        races
    }

    /// What it has looked at so far.
    pub fn looked(&self) -> Looked {
        self.looked
    }
}

/// Whether no interval that is yet to be told of can be concurrent with this one.
fn all_have_seen(seen: &BTreeMap<NodeId, VectorTimestamp>, interval: &Interval) -> bool {
    seen.len() == interval.timestamp.nodes()
        && seen.iter().all(|(node, seen)| *node == interval.node || seen.get(interval.node) >= interval.seq)
}

/// Remembers it, in place of the oldest if need be: how many were forgotten for it.
fn hold<Origin>(held: &mut VecDeque<Held<Origin>>, new: Held<Origin>) -> u64 {
    assert!(held.len() <= HELD_PER_PAGE_MAX, "no more is remembered of a page than may be");
    let is_full = held.len() == HELD_PER_PAGE_MAX;
    if is_full {
        held.pop_front();
    }
    held.push_back(new);
    u64::from(is_full)
}

fn meets<Origin: Clone>(
    held: &VecDeque<Held<Origin>>,
    was: Touch,
    new: &Held<Origin>,
    is: Touch,
) -> impl Iterator<Item = Race<Origin>> {
    let concurrent = held.iter().filter(|other| other.interval.is_concurrent_with(&new.interval));
    concurrent.filter_map(move |other| {
        let bytes = first_common(&other.bytes, &new.bytes)?;
        let side =
            |of: &Held<Origin>, touch| Side { node: of.interval.node, touch, origin: of.origin.clone() };
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

    /// Who did what, and where.
    type Told = (u16, Touch, &'static str);

    /// The races, and both sides of each.
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
        assert_eq!(log.pages[&PAGE].writes.len(), HELD_PER_PAGE_MAX);
        assert_eq!(log.looked(), Looked { writes: 101, loads: 0, forgotten: 101 - 2 - 64 });
    }

    #[test]
    fn what_comes_late_is_held_against_what_others_did_in_its_time() {
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
