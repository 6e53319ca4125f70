//! An engine's output: effects for its host, and messages to other nodes and to itself.

use std::collections::{BTreeSet, VecDeque};

use hiroba_base::{NodeId, PageRange};
use hiroba_wire::Message;

use crate::subject::Subject;
use crate::{Effect, Outcome, ProtocolError, Waiter};

/// Effects that the host has not polled, and messages to this node itself.
#[derive(Debug)]
pub struct Outbox {
    me: NodeId,
    effects: VecDeque<Effect>,
    /// Encoded bytes, so that they take the same path as other messages. Messages of other nodes that were
    /// kept back are here too.
    loopback: VecDeque<(NodeId, Vec<u8>)>,
    /// Homes that this node has sent diffs to, and that will get the notices of their interval by the
    /// departure, or when this node informs anyone before.
    owed: BTreeSet<NodeId>,
    /// True if a message for a home has followed the diffs there: it waits behind them.
    owes_urgently: bool,
    /// With debug assertions: the pages that the current event has touched.
    touched: Vec<PageRange>,
}

impl Outbox {
    /// Returns the empty outbox of node `me`.
    pub fn new(me: NodeId) -> Outbox {
        Outbox {
            me,
            effects: VecDeque::new(),
            loopback: VecDeque::new(),
            owed: BTreeSet::new(),
            owes_urgently: false,
            touched: Vec::new(),
        }
    }

    /// Notes that the home has got diffs without the notices of their interval, which has ended.
    pub(crate) fn owe(&mut self, home: NodeId) {
        self.owed.insert(home);
    }

    /// Returns true if a home has diffs without notices.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Returns true if a message waits at a home behind diffs without notices.
    pub(crate) fn owes_urgently(&self) -> bool {
        self.owes_urgently && self.owes()
    }

    /// Takes the homes that have diffs without notices.
    pub(crate) fn take_owed(&mut self) -> BTreeSet<NodeId> {
        self.owes_urgently = false;
        std::mem::take(&mut self.owed)
    }

    /// Adds an effect for the host.
    pub fn push(&mut self, effect: Effect) {
        if let Some(pages) = effect.touches() {
            self.note_touched(pages);
        }
        self.effects.push_back(effect);
    }

    /// Adds effects for the host.
    pub fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        effects.into_iter().for_each(|effect| self.push(effect));
    }

    /// Notes, with debug assertions, that the current event has touched these pages.
    pub(crate) fn note_touched(&mut self, pages: PageRange) {
        if cfg!(debug_assertions) {
            self.touched.push(pages);
        }
    }

    /// Takes the pages that the event has touched; none without debug assertions.
    pub(crate) fn take_touched(&mut self) -> Vec<PageRange> {
        std::mem::take(&mut self.touched)
    }

    /// Sends a message, to this node too.
    pub fn send(&mut self, to: NodeId, message: &Message<'_>) {
        if self.owed.contains(&to) {
            self.owes_urgently |= Subject::of(message, |_| true).is_some_and(|subject| subject.is_for_home);
        }
        let message = message.encode();
        if to == self.me {
            self.loopback.push_back((self.me, message));
        } else {
            self.push(Effect::Send { to, message });
        }
    }

    /// Resumes a thread.
    pub fn wake(&mut self, waiter: Waiter, outcome: Outcome) {
        self.push(Effect::Wake { waiter, outcome });
    }

    /// Ends the job with a sentence for the user.
    pub fn end_job(&mut self, sentence: String) {
        self.push(Effect::Fatal { sentence });
    }

    /// Ends the job because a message breaks the protocol that a node sent to itself, or that was kept.
    pub fn refuse(&mut self, from: NodeId, error: &ProtocolError) {
        self.end_job(format!("a message from node {from} breaks the protocol: {error}"));
    }

    /// Keeps received messages to be handled like those that the node sends to itself.
    pub fn keep(&mut self, messages: impl IntoIterator<Item = (NodeId, Vec<u8>)>) {
        self.loopback.extend(messages);
    }

    /// Returns the messages that wait to be handled.
    pub fn kept(&self) -> impl Iterator<Item = &(NodeId, Vec<u8>)> {
        self.loopback.iter()
    }

    /// Takes the next of them. One at a time: what it starts (a release, for example) is finished before the
    /// next.
    pub fn next_kept(&mut self) -> Option<(NodeId, Vec<u8>)> {
        if self.effects.is_empty() { self.loopback.pop_front() } else { None }
    }

    /// Returns true if the host has polled all effects. Messages may wait to be handled.
    pub fn is_polled(&self) -> bool {
        self.effects.is_empty()
    }

    /// Takes the next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}
