//! Data races between nodes: diffs of concurrent intervals that change the same bytes.
//!
//! Every interval carries the vector timestamp of its end; interval *i* of node *p* happened before interval *j* of node *q* when *j*'s
//! timestamp covers *i* (Keleher, Cox, Zwaenepoel, ISCA 1992). Two intervals neither of which happened before the
//! other are concurrent, and a byte that both changed was raced for: on one machine, too, its value would depend on
//! luck (compare Perković, Keleher, *Online Data-Race Detection via Coherency Guarantees*, OSDI 1996).
//!
//! The home of a page sees all its diffs and holds each against those before it. What it cannot see: stores that
//! wrote the value that was there already, reads, and races between threads of one node. For an interval to be a
//! stretch of one node's work between two synchronisations, acquires end intervals as well while races are looked for.

use std::collections::VecDeque;
use std::ops::Range;

use hiroba_base::{IntervalSeq, NodeId, PageId, VectorTimestamp};
use rustc_hash::FxHashMap;

/// So many of a page's latest writes are remembered; races with earlier ones go unnoticed.
pub const WRITES_PER_PAGE_MAX: usize = 64;

/// What one interval changed of a page. `origin` says to whoever reads the report where the interval came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<Origin> {
    /// The writer.
    pub node: NodeId,
    /// Its interval.
    pub seq: IntervalSeq,
    /// What the writer had seen when the interval ended, that interval included.
    pub timestamp: VectorTimestamp,
    /// How many collectives the writer had completed.
    pub epoch: u64,
    /// The changed bytes, ascending and disjoint.
    pub ranges: Vec<Range<u32>>,
    /// Where it came from.
    pub origin: Origin,
}

/// Bytes that two concurrent intervals changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race<Origin> {
    /// The first stretch of bytes in the page that both changed.
    pub bytes: Range<u32>,
    /// The writers, the one heard of first in front.
    pub writers: [(NodeId, Origin); 2],
}

/// What is remembered of the pages homed on one node.
#[derive(Debug)]
pub struct RaceLog<Origin> {
    pages: FxHashMap<PageId, VecDeque<Written<Origin>>>,
}

impl<Origin> Default for RaceLog<Origin> {
    fn default() -> RaceLog<Origin> {
        RaceLog { pages: FxHashMap::default() }
    }
}

impl<Origin: Clone> RaceLog<Origin> {
    /// Remembers a write, and says with which remembered ones it races.
    pub fn record(&mut self, page: PageId, written: Written<Origin>) -> Vec<Race<Origin>> {
        let others = self.pages.entry(page).or_default();
        // A collective orders everything before it before everything after it; a writer may be one collective ahead of another.
        others.retain(|other| other.epoch + 1 >= written.epoch);
        let mut races = Vec::new();
        for other in others.iter().filter(|other| are_concurrent(other, &written)) {
            if let Some(bytes) = first_common(&other.ranges, &written.ranges) {
                let writers = [(other.node, other.origin.clone()), (written.node, written.origin.clone())];
                races.push(Race { bytes, writers });
            }
        }
        if others.len() == WRITES_PER_PAGE_MAX {
            others.pop_front();
        }
        others.push_back(written);
        races
    }
}

fn are_concurrent<Origin>(a: &Written<Origin>, b: &Written<Origin>) -> bool {
    a.node != b.node && b.timestamp.get(a.node) < a.seq && a.timestamp.get(b.node) < b.seq
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

    fn written(node: u16, seq: u64, seen: [u64; 3], ranges: &[(u32, u32)]) -> Written<&'static str> {
        let mut timestamp = VectorTimestamp::new(3);
        (0..3).for_each(|of| timestamp.advance(NodeId(of), seen[usize::from(of)]));
        timestamp.advance(NodeId(node), seq);
        Written {
            node: NodeId(node),
            seq,
            timestamp,
            epoch: 0,
            ranges: ranges.iter().map(|range| range.0..range.1).collect(),
            origin: "here",
        }
    }

    #[test]
    fn only_concurrent_writes_of_the_same_bytes_race() {
        let mut log = RaceLog::default();
        let page = PageId(7);
        assert!(log.record(page, written(0, 1, [0; 3], &[(0, 8), (20, 24)])).is_empty());
        assert!(log.record(page, written(1, 1, [0; 3], &[(8, 20)])).is_empty(), "neighbouring bytes");
        assert!(
            log.record(page, written(1, 2, [1, 0, 0], &[(0, 8)])).is_empty(),
            "ordered by synchronisation"
        );
        let races = log.record(page, written(2, 1, [1, 0, 0], &[(2, 4), (30, 31)]));
        assert_eq!(races.len(), 1, "ordered after node 0, concurrent with node 1");
        assert_eq!((races[0].bytes.clone(), races[0].writers[0].0), (2..4, NodeId(1)));
        assert!(log.record(PageId(8), written(2, 2, [0; 3], &[(0, 8)])).is_empty(), "another page");
    }

    #[test]
    fn what_collectives_have_ordered_is_forgotten_and_the_rest_is_bounded() {
        let mut log = RaceLog::default();
        let page = PageId(0);
        log.record(page, written(0, 1, [0; 3], &[(0, 8)]));
        let later = Written { epoch: 2, ..written(1, 1, [1, 0, 0], &[(0, 8)]) };
        assert!(log.record(page, later).is_empty());
        assert_eq!(log.pages[&page].len(), 1);
        for seq in 2..1000 {
            log.record(page, Written { epoch: 2, ..written(1, seq, [1, 0, 0], &[(0, 8)]) });
        }
        assert_eq!(log.pages[&page].len(), WRITES_PER_PAGE_MAX);
    }
}
