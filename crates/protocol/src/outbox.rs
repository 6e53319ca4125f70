//! What an engine has to say: to its host, to other nodes, and to itself.

use std::collections::VecDeque;

use hiroba_base::{NodeId, PageRange};
use hiroba_wire::Message;

use crate::{Effect, Outcome, ProtocolError, Waiter};

/// Effects that the host has yet to poll, and messages to this node itself.
#[derive(Debug)]
pub struct Outbox {
    me: NodeId,
    effects: VecDeque<Effect>,
    /// As encoded bytes, so that they take the same path as others; messages of others that were kept back stand here too.
    loopback: VecDeque<(NodeId, Vec<u8>)>,
    /// With debug assertions: the pages that the event which is being handled has touched.
    touched: Vec<PageRange>,
}

impl Outbox {
    /// Node `me` has nothing to say yet.
    pub fn new(me: NodeId) -> Outbox {
        Outbox { me, effects: VecDeque::new(), loopback: VecDeque::new(), touched: Vec::new() }
    }

    /// The host shall do this.
    pub fn push(&mut self, effect: Effect) {
        if let Some(pages) = effect.touches() {
            self.note_touched(pages);
        }
        self.effects.push_back(effect);
    }

    /// The host shall do these.
    pub fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        effects.into_iter().for_each(|effect| self.push(effect));
    }

    /// With debug assertions: the event that is being handled has touched these pages.
    pub(crate) fn note_touched(&mut self, pages: PageRange) {
        if cfg!(debug_assertions) {
            self.touched.push(pages);
        }
    }

    /// The pages that the event has touched: none without debug assertions.
    pub(crate) fn take_touched(&mut self) -> Vec<PageRange> {
        std::mem::take(&mut self.touched)
    }

    /// Sends a message, to this node too.
    pub fn send(&mut self, to: NodeId, message: &Message<'_>) {
        let message = message.encode();
        if to == self.me {
            self.loopback.push_back((self.me, message));
        } else {
            self.push(Effect::Send { to, message });
        }
    }

    /// What the host has yet to do, and now will do only when it is said again ([`extend`](Self::extend)): behind what is said first.
    pub fn put_off(&mut self) -> impl IntoIterator<Item = Effect> + use<> {
        std::mem::take(&mut self.effects)
    }

    /// Lets a thread go on.
    pub fn wake(&mut self, waiter: Waiter, outcome: Outcome) {
        self.push(Effect::Wake { waiter, outcome });
    }

    /// Ends the job with a sentence for the user.
    pub fn end_job(&mut self, sentence: String) {
        self.push(Effect::Fatal { sentence });
    }

    /// Ends the job: what a node said to itself, or said before and was kept, breaks the protocol.
    pub fn refuse(&mut self, from: NodeId, error: &ProtocolError) {
        self.end_job(format!("a message from node {from} breaks the protocol: {error}"));
    }

    /// Keeps messages that came to this node to be handled like those that it sends to itself.
    pub fn keep(&mut self, messages: impl IntoIterator<Item = (NodeId, Vec<u8>)>) {
        self.loopback.extend(messages);
    }

    /// The messages that wait to be handled.
    pub fn kept(&self) -> impl Iterator<Item = &(NodeId, Vec<u8>)> {
        self.loopback.iter()
    }

    /// The next of them. One at a time: what it starts (a release, say) is finished before the next.
    pub fn next_kept(&mut self) -> Option<(NodeId, Vec<u8>)> {
        if self.effects.is_empty() { self.loopback.pop_front() } else { None }
    }

    /// The next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}
