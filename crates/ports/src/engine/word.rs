//! Reports to other nodes about their messages: those that are in queues here, and those that were taken.
//!
//! Reports precede the content of their packet, so that they arrive in the order in which they were made. No
//! thread waits for them, except that a port leaves its node only when all messages with rights to it are
//! answered. So the next packet to the node carries them. They are sent alone when one has waited too long,
//! or when they cover so many messages that the other node might have to wait.

use hiroba_base::{Instant, NodeId};

use crate::id::PortId;
use crate::wire::{Acceptance, Answered, FlowKey, Packet, WORDS_MAX, Word};

use super::Engine;

/// Reports for one node.
#[derive(Debug, Default)]
struct Kept {
    word: Word,
    /// The first message that each acceptance covers.
    firsts: Vec<u64>,
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.word.queued.is_empty() && self.word.accepted.is_empty()
    }
}

/// Reports for all nodes.
#[derive(Debug)]
pub(super) struct Words {
    kept: Vec<Kept>,
    /// The number of nodes for which there are some.
    nodes: usize,
    due: Option<Instant>,
}

impl Words {
    pub(super) fn new(nodes: u16) -> Words {
        Words { kept: NodeId::all(nodes).map(|_| Kept::default()).collect(), nodes: 0, due: None }
    }

    /// Returns the time at which the oldest report must be sent.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Changes the reports kept for a node.
    fn change(&mut self, to: NodeId, due: Instant, change: impl FnOnce(&mut Kept)) {
        let kept = &mut self.kept[to.index()];
        let was_empty = kept.is_empty();
        change(kept);
        match (was_empty, kept.is_empty()) {
            (true, false) => self.nodes += 1,
            (false, true) => self.nodes -= 1,
            _ => {}
        }
        self.due = if self.nodes == 0 { None } else { Some(self.due.unwrap_or(due)) };
    }

    /// Takes the reports that a node gets with the next packet. [`give_back`](Words::give_back) returns their
    /// buffers.
    pub(super) fn take(&mut self, to: NodeId) -> Word {
        let kept = &mut self.kept[to.index()];
        if kept.is_empty() {
            return Word::default();
        }
        kept.firsts.clear();
        self.nodes -= 1;
        if self.nodes == 0 {
            self.due = None;
        }
        core::mem::take(&mut kept.word)
    }

    pub(super) fn give_back(&mut self, to: NodeId, mut word: Word) {
        let room = &mut self.kept[to.index()].word;
        if room.queued.capacity() + room.accepted.capacity() == 0 {
            word.queued.clear();
            word.accepted.clear();
            *room = word;
        }
    }

    /// Forgets the reports for a node, which is dead.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        self.take(node);
    }

    /// Forgets the reports about messages of a port, which is dead.
    pub(super) fn forget_port(&mut self, port: PortId) {
        for node in 0..self.kept.len() {
            let Kept { word, firsts } = &self.kept[node];
            let Some(at) = word.accepted.iter().position(|accepted| accepted.port == port) else { continue };
            debug_assert_eq!(firsts.len(), word.accepted.len());
            self.change(NodeId(node as u16), Instant::ORIGIN, |kept| {
                kept.word.accepted.swap_remove(at);
                kept.firsts.swap_remove(at);
            });
        }
    }
}

impl Engine {
    /// Reports that a request's message is in the queue.
    pub(super) fn answer_queued(&mut self, to: NodeId, flow: FlowKey, number: u64) {
        if self.is_gone(to) {
            return;
        }
        let moves = self.moves_of(flow.port());
        let due = self.now + self.config.word_delay;
        // Part of the requests that the sender may have out, and part of what fits into a packet.
        let most = (self.config.requests_max / 2).clamp(1, WORDS_MAX);
        let mut goes = false;
        self.words.change(to, due, |kept| {
            kept.word.queued.push(Answered { flow, number, moves });
            goes = kept.word.queued.len() >= most;
        });
        if goes {
            self.send(to, Packet::WordAlone);
        }
    }

    /// Reports that messages of `origin` through `sequence` were taken off the queue, or lost (section 5.4).
    pub(super) fn accept(&mut self, origin: NodeId, port: PortId, sequence: u64, is_urgent: bool) {
        if self.is_gone(origin) {
            return;
        }
        // The room in the sender's copy of the queue.
        let most = u64::from(self.config.queue_limit / 2).max(1);
        let mut goes = is_urgent || origin == self.me;
        self.words.change(origin, self.now + self.config.word_delay, |kept| {
            let accepted = &mut kept.word.accepted;
            let at = accepted.iter().position(|accepted| accepted.port == port).unwrap_or_else(|| {
                accepted.push(Acceptance { port, through: sequence });
                kept.firsts.push(sequence);
                accepted.len() - 1
            });
            accepted[at].through = accepted[at].through.max(sequence);
            goes |= accepted[at].through - kept.firsts[at].min(sequence) + 1 >= most;
            goes |= accepted.len() >= WORDS_MAX;
        });
        if goes {
            self.send(origin, Packet::WordAlone);
        }
    }

    /// Sends all reports, if the oldest has waited long enough.
    pub(super) fn send_due_word(&mut self) {
        if self.words.due.is_none_or(|due| due > self.now) {
            return;
        }
        for node in NodeId::all(self.nodes) {
            if self.is_gone(node) {
                self.words.forget_node(node);
            } else if !self.words.kept[node.index()].is_empty() {
                self.send(node, Packet::WordAlone);
            }
        }
    }
}
