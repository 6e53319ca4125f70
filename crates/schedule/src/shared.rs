//! What the threads of a team share of a loop.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::site::Site;

/// Who asks for a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Team {
    /// The calling thread's number.
    pub number: u32,
    /// How many threads the team has.
    pub threads: u32,
    /// How many of them each node has, as long as they last.
    pub per_node: u32,
}

impl Team {
    /// The node of the calling thread, among those of the team.
    pub(crate) fn node(self) -> u32 {
        self.number / self.per_node.max(1)
    }

    /// How many nodes the team has threads on.
    pub(crate) fn nodes(self) -> u32 {
        self.threads.div_ceil(self.per_node.max(1))
    }
}

/// A word of each node, in memory that the node has for itself as long as no other one steals.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// All nodes' memory, `stride` words of each.
    pub words: &'a [AtomicU64],
    /// How many words a node has.
    pub stride: usize,
    /// Which of them belongs to the loop.
    pub place: usize,
}

impl<'a> Slots<'a> {
    /// The word of a node; `None` if it has none.
    pub(crate) fn of(self, node: u32) -> Option<&'a AtomicU64> {
        self.words.get(node as usize * self.stride + self.place)
    }

    /// How many nodes have a word.
    pub(crate) fn nodes(self) -> u32 {
        (self.words.len() / self.stride.max(1)) as u32
    }

    /// Empties the words of all nodes, after a loop that was cancelled. No thread is at the loop.
    pub fn clear(self) {
        (0..self.nodes()).filter_map(|node| self.of(node)).for_each(|word| {
            word.store(0, std::sync::atomic::Ordering::Release);
        });
    }
}

/// What the threads of a team share of a loop.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// The next iteration or chunk that nobody has taken; 0 at first, or what [`Site::prepare`] says.
    pub next: &'a AtomicU64,
    /// The nodes' words; `None` where the team takes chunks from `next` only.
    pub slots: Option<Slots<'a>>,
    /// What the loop keeps of its threads' speeds, and how it does in this execution.
    pub plan: Option<(Site<'a>, u64)>,
}

/// Takes up to `size` of `count` units from a word that says which is next: first and end.
pub(crate) fn take(next: &AtomicU64, count: u64, size: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
    // Reading first spares the write when nothing is left.
    let mut first = next.load(Acquire);
    loop {
        if first >= count {
            return None;
        }
        let end = first.saturating_add(size(first)).min(count);
        match next.compare_exchange(first, end, AcqRel, Acquire) {
            Ok(_) => return Some((first, end)),
            Err(now) => first = now,
        }
    }
}
