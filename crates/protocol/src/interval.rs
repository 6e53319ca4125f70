//! The log of intervals: the write notices that a node can pass on to nodes that acquire from it.
//!
//! TreadMarks keeps every interval record until a global collection. If pages have homes, that is not needed:
//! a fetch brings the whole page at its home's present version, so of all notices of one writer for one page
//! only the **latest** matters. The log therefore moves a page from its writer's older interval to the newer
//! one and forgets intervals that become empty. It never has more than one entry for each pair of writer and
//! page, however many locks change hands between two barriers. A barrier, after which all nodes have seen all
//! intervals, empties it, except for intervals that ended while their node waited there.

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VectorTimestamp};
use hiroba_wire::IntervalNotice;
use rustc_hash::FxHashMap;

/// Write notices by writer and interval.
#[derive(Debug)]
pub struct IntervalLog {
    writers: Vec<WriterLog>,
}

#[derive(Debug, Default)]
struct WriterLog {
    intervals: BTreeMap<IntervalSeq, PageSet>,
    latest: FxHashMap<PageId, IntervalSeq>,
}

impl IntervalLog {
    /// Returns an empty log of a job of `nodes` nodes.
    pub fn new(nodes: u16) -> IntervalLog {
        IntervalLog { writers: NodeId::all(nodes).map(|_| WriterLog::default()).collect() }
    }

    /// Notes that `pages` changed in interval `seq` of `node`.
    pub fn record(&mut self, node: NodeId, seq: IntervalSeq, pages: &PageSet) {
        assert!(seq > 0, "intervals are numbered from 1");
        assert!(node.index() < self.writers.len(), "node {node}: expected one of {}", self.writers.len());
        let writer = &mut self.writers[node.index()];
        let mut moved = PageSet::new();
        for page in pages.iter() {
            match writer.latest.insert(page, seq) {
                Some(older) if older > seq => {
                    writer.latest.insert(page, older);
                }
                Some(older) if older < seq => {
                    writer.forget(page, older);
                    moved.insert(page);
                }
                Some(_) => {}
                None => {
                    moved.insert(page);
                }
            }
        }
        if moved.is_empty() {
            return;
        }
        let interval = writer.intervals.entry(seq).or_default();
        if interval.is_empty() {
            *interval = moved;
        } else {
            moved.iter().for_each(|page| {
                interval.insert(page);
            });
        }
    }

    /// Returns the notices that a node that has seen `timestamp` lacks.
    pub fn beyond(&self, timestamp: &VectorTimestamp) -> Vec<IntervalNotice> {
        assert_eq!(timestamp.nodes(), self.writers.len(), "a timestamp speaks of all nodes");
        let mut notices = Vec::new();
        for (index, writer) in self.writers.iter().enumerate() {
            let node = NodeId(index as u16);
            for (seq, pages) in writer.intervals.range(timestamp.get(node) + 1..) {
                notices.push(IntervalNotice { node, seq: *seq, pages: pages.clone() });
            }
        }
        notices
    }

    /// Returns the notices of one writer.
    pub fn of(&self, node: NodeId) -> Vec<IntervalNotice> {
        let intervals = &self.writers[node.index()].intervals;
        intervals
            .iter()
            .map(|(seq, pages)| IntervalNotice { node, seq: *seq, pages: pages.clone() })
            .collect()
    }

    /// Returns the latest interval of a writer in the log that has changed the page.
    pub fn latest(&self, node: NodeId, page: PageId) -> Option<IntervalSeq> {
        self.writers[node.index()].latest.get(&page).copied()
    }

    /// Forgets the intervals that all nodes have seen: those up to `timestamp`.
    pub fn forget_through(&mut self, timestamp: &VectorTimestamp) {
        assert_eq!(timestamp.nodes(), self.writers.len(), "a timestamp speaks of all nodes");
        for (index, writer) in self.writers.iter_mut().enumerate() {
            let seen = timestamp.get(NodeId(index as u16));
            writer.intervals = writer.intervals.split_off(&(seen + 1));
            if writer.intervals.is_empty() {
                writer.latest.clear();
            } else {
                writer.latest.retain(|_, seq| *seq > seen);
            }
        }
    }

    /// Returns the number of pairs of writer and page in the log.
    pub fn len(&self) -> usize {
        self.writers.iter().map(|writer| writer.latest.len()).sum()
    }

    /// Returns true if the log is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl WriterLog {
    fn forget(&mut self, page: PageId, seq: IntervalSeq) {
        let interval = self.intervals.get_mut(&seq).expect("the interval of a page's latest notice is kept");
        let was_there = interval.remove(page);
        assert!(was_there, "{page}: its latest notice is in its interval");
        if interval.is_empty() {
            self.intervals.remove(&seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(numbers: &[u64]) -> PageSet {
        numbers.iter().copied().map(PageId).collect()
    }

    #[test]
    fn only_the_latest_interval_of_a_page_is_kept() {
        let mut log = IntervalLog::new(2);
        log.record(NodeId(1), 1, &pages(&[1, 2]));
        log.record(NodeId(1), 2, &pages(&[2, 3]));
        let seen_nothing = log.beyond(&VectorTimestamp::new(2));
        assert_eq!(
            seen_nothing,
            [
                IntervalNotice { node: NodeId(1), seq: 1, pages: pages(&[1]) },
                IntervalNotice { node: NodeId(1), seq: 2, pages: pages(&[2, 3]) },
            ]
        );
        let mut seen_first = VectorTimestamp::new(2);
        seen_first.advance(NodeId(1), 1);
        assert_eq!(log.beyond(&seen_first).len(), 1);
    }

    #[test]
    fn a_million_hand_overs_of_one_page_do_not_grow_the_log() {
        let mut log = IntervalLog::new(4);
        for seq in 1..=1_000_000 {
            log.record(NodeId((seq % 4) as u16), seq, &pages(&[7]));
        }
        assert_eq!(log.len(), 4);
        assert_eq!(log.beyond(&VectorTimestamp::new(4)).len(), 4);
    }
}
