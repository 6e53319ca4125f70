//! `dynamic` and `guided` without a queue of the whole team. A node claims batches of chunks from the team's
//! word, which shrink towards the loop's end; its threads take chunks from the node's own word. A node with
//! none left steals the rear half of what another one has.
//!
//! A word of a node holds which chunks it has: the first in the upper half, the end in the lower. It is empty
//! where they are equal. A chunk is in one word at a time, so that a word with chunks never has the same
//! value again, and an empty one may be filled by whoever finds it so. Chunks that find the word filled stay
//! with the thread that claimed them.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::shared::{Slots, Team, take};

/// A node claims this part of its share of what is left.
const PART: u64 = 2;
/// As many chunks as this for each node at least, or every claim would be one chunk.
const CHUNKS_MIN: u64 = 4;

/// How the chunks of a loop are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// How many units there are: chunks, or iterations of `guided`.
    pub(crate) units: u64,
    /// The fewest units that are taken at once.
    pub(crate) least: u64,
    pub(crate) is_guided: bool,
    /// Threads may go back in the loop, so that nodes may steal.
    pub(crate) may_steal: bool,
}

impl Batches {
    /// How many units are in batches. Where threads may go back, the last one is given out when no others are
    /// left, to a thread that takes none after it: compilers copy the values of `lastprivate` variables from
    /// what the thread with the last iteration has at the end.
    fn batched(self) -> u64 {
        if self.may_steal { self.units - self.least.min(self.units) } else { self.units }
    }
}

/// Units: first and end.
pub(crate) type Units = (u64, u64);

/// What a thread knows of the units that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    /// Units that it keeps for itself.
    held: Units,
    /// The end of those that it had last.
    past: u64,
}

fn pack((first, end): Units) -> u64 {
    first << 32 | end
}

fn unpack(word: u64) -> Units {
    (word >> 32, word & u64::from(u32::MAX))
}

impl Batches {
    /// Returns true if nodes shall claim batches. All threads of a team find the same.
    pub(crate) fn are_worth_it(self, team: Team, slots: Slots) -> bool {
        let nodes = team.nodes();
        let many = self.units / self.least >= u64::from(nodes) * CHUNKS_MIN;
        nodes > 1 && nodes <= slots.nodes() && many && self.units <= u64::from(u32::MAX)
    }

    /// The units that the calling thread takes next.
    pub(crate) fn next(self, team: Team, next: &AtomicU64, slots: Slots, own: &mut Own) -> Option<Units> {
        let units = self.another(team, next, slots, own)?;
        own.past = units.1;
        Some(units)
    }

    fn another(self, team: Team, next: &AtomicU64, slots: Slots, own: &mut Own) -> Option<Units> {
        let of_node = slots.of(team.node())?;
        // Chunks that were on their way between two nodes may have come to a word since.
        if own.past >= self.units {
            return None;
        }
        loop {
            if own.held.0 < own.held.1 {
                let (first, end) = own.held;
                own.held.0 = first + self.piece(own.held, team);
                return Some((first, own.held.0.min(end)));
            }
            let word = of_node.load(Acquire);
            let (first, end) = unpack(word);
            // A thread that may not go back leaves earlier units to those that had still earlier ones:
            // whoever put them there is one of them.
            if first < end && (self.may_steal || first >= own.past) {
                let middle = first + self.piece((first, end), team);
                if of_node.compare_exchange(word, pack((middle, end)), AcqRel, Acquire).is_ok() {
                    return Some((first, middle));
                }
                continue;
            }
            let claimed = self.claim(u64::from(team.nodes()), next);
            let Some(batch) = claimed.or_else(|| self.steal(team, slots)) else {
                return take(next, self.units, |_| self.units);
            };
            let middle = batch.0 + self.piece(batch, team);
            let rest = (middle, batch.1);
            let is_put = first >= end && of_node.compare_exchange(word, pack(rest), AcqRel, Acquire).is_ok();
            if !is_put {
                own.held = rest;
            }
            return Some((batch.0, middle));
        }
    }

    /// How many of a node's units one of its threads takes.
    fn piece(self, (first, end): Units, team: Team) -> u64 {
        let left = end - first;
        let part = if self.is_guided { left.div_ceil(u64::from(team.per_node)) } else { 1 };
        part.max(self.least).min(left)
    }

    /// Takes a batch from the team's word.
    fn claim(self, nodes: u64, next: &AtomicU64) -> Option<Units> {
        let units = self.batched();
        take(next, units, |first| ((units - first) / (PART * nodes)).max(self.least))
    }

    /// Takes the rear half of what another node has.
    fn steal(self, team: Team, slots: Slots) -> Option<Units> {
        let (own, nodes) = (team.node(), team.nodes());
        if !self.may_steal {
            return None;
        }
        (1..nodes).filter_map(|distance| slots.of((own + distance) % nodes)).find_map(|victim| {
            let mut word = victim.load(Acquire);
            loop {
                let (first, end) = unpack(word);
                if first >= end {
                    return None;
                }
                let left = end - first;
                let middle = end - left.div_ceil(2).max(self.least).min(left);
                match victim.compare_exchange(word, pack((first, middle)), AcqRel, Acquire) {
                    Ok(_) => return Some((middle, end)),
                    Err(now) => word = now,
                }
            }
        })
    }
}
