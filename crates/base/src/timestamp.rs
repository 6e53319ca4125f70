//! Vector timestamps (Keleher, Cox, Zwaenepoel, ISCA 1992): the latest interval seen of every node.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::{IntervalSeq, NodeId};

/// The number of entries that a vector timestamp stores inline. Timestamps are copied with every message and
/// interval, and those of few nodes need no allocation.
const ENTRIES_WITHIN: usize = 8;

/// The same for a version: most pages have one or two writers.
const VERSION_ENTRIES_WITHIN: usize = 2;

/// The latest interval of each node whose effects must be visible here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VectorTimestamp {
    entries: SmallVec<[IntervalSeq; ENTRIES_WITHIN]>,
}

impl VectorTimestamp {
    /// Returns the timestamp of the start of a job: no interval seen.
    pub fn new(nodes: u16) -> VectorTimestamp {
        VectorTimestamp { entries: smallvec![0; usize::from(nodes)] }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.entries.len()
    }

    /// Returns the latest interval seen of `node`.
    pub fn get(&self, node: NodeId) -> IntervalSeq {
        self.entries[node.index()]
    }

    /// Records that intervals of `node` up to `seq` are seen. An entry never decreases.
    pub fn advance(&mut self, node: NodeId, seq: IntervalSeq) {
        let entry = &mut self.entries[node.index()];
        *entry = (*entry).max(seq);
    }

    /// Replaces it by the least upper bound of both.
    pub fn merge(&mut self, other: &VectorTimestamp) {
        for (mine, theirs) in self.entries.iter_mut().zip(&other.entries) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Replaces it by the greatest lower bound of both.
    pub fn meet(&mut self, other: &VectorTimestamp) {
        for (mine, theirs) in self.entries.iter_mut().zip(&other.entries) {
            *mine = (*mine).min(*theirs);
        }
    }

    /// Returns true if everything that `other` has seen is seen here too.
    pub fn covers(&self, other: &VectorTimestamp) -> bool {
        self.entries.iter().zip(&other.entries).all(|(mine, theirs)| mine >= theirs)
    }
}

/// A vector timestamp with few entries: the intervals that a page's copy contains, or must contain.
///
/// A page has few writers, whatever the number of nodes; nodes that never wrote it take no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionVector {
    /// Sorted by node, one entry per node, none of them zero.
    entries: SmallVec<[(NodeId, IntervalSeq); VERSION_ENTRIES_WITHIN]>,
}

impl VersionVector {
    /// Returns the version of a page that has never been written.
    pub fn new() -> VersionVector {
        VersionVector::default()
    }

    /// Returns true if it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entries by ascending node.
    pub fn entries(&self) -> &[(NodeId, IntervalSeq)] {
        &self.entries
    }

    /// Returns the latest interval of `node`, 0 if there is none.
    pub fn get(&self, node: NodeId) -> IntervalSeq {
        match self.entries.binary_search_by_key(&node, |entry| entry.0) {
            Ok(at) => self.entries[at].1,
            Err(_) => 0,
        }
    }

    /// Raises the entry of `node` to at least `seq`.
    pub fn advance(&mut self, node: NodeId, seq: IntervalSeq) {
        match self.entries.binary_search_by_key(&node, |entry| entry.0) {
            Ok(at) => self.entries[at].1 = self.entries[at].1.max(seq),
            Err(at) if seq > 0 => self.entries.insert(at, (node, seq)),
            Err(_) => {}
        }
    }

    /// Returns true if this version contains everything that `needed` requires.
    pub fn covers(&self, needed: &VersionVector) -> bool {
        needed.entries.iter().all(|(node, seq)| self.get(*node) >= *seq)
    }

    /// Removes what `held` already satisfies.
    pub fn retain_beyond(&mut self, held: &VersionVector) {
        self.entries.retain(|entry| held.get(entry.0) < entry.1);
    }

    /// Returns true if nodes are ascending and below `nodes` and no entry is zero, which must be checked for
    /// bytes from the network.
    pub fn is_well_formed(&self, nodes: u16) -> bool {
        let ascending = self.entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        ascending && self.entries.iter().all(|(node, seq)| node.0 < nodes && *seq > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timestamp(entries: &[u64]) -> VectorTimestamp {
        VectorTimestamp { entries: SmallVec::from_slice(entries) }
    }

    proptest! {
        #[test]
        fn merge_is_the_least_upper_bound(a in proptest::collection::vec(0u64..9, 5), b in proptest::collection::vec(0u64..9, 5)) {
            let (a, b) = (timestamp(&a), timestamp(&b));
            let mut joined = a.clone();
            joined.merge(&b);
            prop_assert!(joined.covers(&a) && joined.covers(&b));
            let mut met = a.clone();
            met.meet(&b);
            prop_assert!(a.covers(&met) && b.covers(&met));
            for node in NodeId::all(5) {
                prop_assert!(met.get(node) == a.get(node) || met.get(node) == b.get(node));
            }
            for node in NodeId::all(5) {
                prop_assert!(joined.get(node) == a.get(node) || joined.get(node) == b.get(node));
            }
        }

        #[test]
        fn merge_and_meet_are_a_lattice(a in proptest::collection::vec(0u64..4, 4), b in proptest::collection::vec(0u64..4, 4), c in proptest::collection::vec(0u64..4, 4)) {
            let (a, b, c) = (timestamp(&a), timestamp(&b), timestamp(&c));
            let merged = |one: &VectorTimestamp, other: &VectorTimestamp| { let mut one = one.clone(); one.merge(other); one };
            let met = |one: &VectorTimestamp, other: &VectorTimestamp| { let mut one = one.clone(); one.meet(other); one };
            prop_assert_eq!((merged(&a, &a), met(&a, &a)), (a.clone(), a.clone()));
            prop_assert_eq!((merged(&a, &b), met(&a, &b)), (merged(&b, &a), met(&b, &a)));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(met(&met(&a, &b), &c), met(&a, &met(&b, &c)));
            prop_assert_eq!((merged(&a, &met(&a, &b)), met(&a, &merged(&a, &b))), (a.clone(), a.clone()));
            prop_assert_eq!(a.covers(&b), merged(&a, &b) == a);
            prop_assert!(!(a.covers(&b) && b.covers(&c)) || a.covers(&c));
        }

        #[test]
        fn version_vector_agrees_with_a_dense_one(advances in proptest::collection::vec((0u16..6, 0u64..9), 0..40), held in proptest::collection::vec((0u16..6, 1u64..9), 0..9)) {
            let mut sparse = VersionVector::new();
            let mut dense = VectorTimestamp::new(6);
            for (node, seq) in advances {
                sparse.advance(NodeId(node), seq);
                dense.advance(NodeId(node), seq);
                prop_assert!(sparse.is_well_formed(6));
            }
            for node in NodeId::all(6) {
                prop_assert_eq!(sparse.get(node), dense.get(node));
            }
            let mut held_version = VersionVector::new();
            for (node, seq) in held {
                held_version.advance(NodeId(node), seq);
            }
            let mut beyond = sparse.clone();
            beyond.retain_beyond(&held_version);
            prop_assert_eq!(beyond.is_empty(), held_version.covers(&sparse));
        }
    }
}
