//! Mutants: planted bugs that test the checkers. Each mutant breaks one duty of the protocol, of its host or
//! of its messages, without changing the engine, and the suite must catch it.

use hiroba_base::{LockId, NodeId, PageId, PageSet};
use hiroba_protocol::lease::{Leases, Taken};
use hiroba_protocol::{Effect, Waiter};
use hiroba_wire::{Limits, Message};

use crate::memory::{Merge, TwinAfter};

pub mod aurc;
pub mod aurc_moves;
pub mod claims;
pub mod contributions;
pub mod converting;
pub mod erc;
pub mod first_touch;
mod hlrc;
pub mod leases;
pub mod leaving;
pub mod lending;
pub mod lrc;
pub mod mapping;
pub mod moves;
pub mod moving_in_order;
pub mod order;
pub mod ordered;
pub mod posts;
pub mod sc;
mod wrongs;

pub use self::hlrc::Mutant;

/// The points where a mutant may interfere. The default of every method is correct.
pub trait Mutation {
    /// Returns how many threads a node's team has.
    fn on_team(&mut self, threads: u32) -> u32 {
        threads
    }

    /// Replaces an effect that is about to be carried out.
    fn on_effect(&mut self, _node: NodeId, effect: Effect) -> Vec<Effect> {
        vec![effect]
    }

    /// Changes the set of written granules that the host has found.
    fn on_collect(&mut self, granules: PageSet) -> PageSet {
        granules
    }

    /// Changes the host's answer whether a granule was unwritten when it lost its access.
    fn on_unwritten(&mut self, was_unwritten: bool) -> bool {
        was_unwritten
    }

    /// Changes the set of written granules that the host has found in a lull.
    fn on_collect_in_lull(&mut self, granules: PageSet) -> PageSet {
        granules
    }

    /// Returns true if the host restarts recording only after it has examined all granules.
    fn clears_late(&mut self) -> bool {
        false
    }

    /// Changes a twin that was made.
    fn on_twin(&mut self, _node: NodeId, _page: PageId, _twin: &mut Vec<u8>) {}

    /// Changes a diff that was made.
    fn on_diff(&mut self, _frame: &[u8], _twin: &[u8], runs: Vec<u8>) -> Vec<u8> {
        runs
    }

    /// Changes what happens to the twin after a diff.
    fn on_settle(&mut self, after: TwinAfter) -> TwinAfter {
        after
    }

    /// Changes a diff that was made in a lull.
    fn on_early_diff(&mut self, runs: Vec<u8>) -> Vec<u8> {
        runs
    }

    /// Changes what happens to the twin after a diff in a lull.
    fn on_settle_early(&mut self, after: TwinAfter) -> TwinAfter {
        after
    }

    /// Changes how an incoming page is merged.
    fn on_merge(&mut self) -> Merge {
        Merge::FrameAndTwin
    }

    /// Changes the answer whether a merged page differed from its twin before.
    fn on_merged(&mut self, dirty: bool) -> bool {
        dirty
    }

    /// Returns true if another node's diff is also applied to the twin.
    fn on_apply(&mut self) -> bool {
        true
    }

    /// Returns true if a word is also patched in the twin.
    fn on_patch(&mut self) -> bool {
        true
    }

    /// Changes which announcements a home sees now.
    fn on_announced(&mut self, _home: NodeId, pages: Vec<PageId>) -> Vec<PageId> {
        pages
    }

    /// Changes how a node reads pages from their home's frames.
    fn on_read(&mut self) -> Reading {
        Reading::default()
    }

    /// Changes a page's content that a home sends.
    fn on_content(&mut self, _page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        content.map(<[u8]>::to_vec)
    }

    /// Returns true if a thread's store into another node's frame arrives there only when the node touches
    /// memory again.
    fn store_lingers(&mut self) -> bool {
        false
    }

    /// Returns true if a block that is freed after a publication waits as long as the engine defers the
    /// publication.
    fn keeps_back(&mut self) -> bool {
        true
    }

    /// Returns true if a node informs a port's node before one of its threads posts a message.
    fn releases_before_post(&mut self) -> bool {
        true
    }

    /// Returns true if a node hears what another one makes known to it. `has_passed` is true if one
    /// of its threads has posted a receive right.
    fn hears_publications(&mut self, _has_passed: bool) -> bool {
        true
    }

    /// Returns true if a node informs the next one of a message that it forwards before it does so.
    fn releases_before_forward(&mut self) -> bool {
        true
    }

    /// Returns true if packets stay behind one to the same node that waits until that node is informed.
    fn keeps_order_behind_forward(&mut self) -> bool {
        true
    }

    /// Changes what nodes have contributed to a barrier, by node, before it is used.
    fn on_contributions(&mut self, contributions: Vec<(NodeId, Vec<u8>)>) -> Vec<(NodeId, Vec<u8>)> {
        contributions
    }

    /// Returns true if a thread of node 0 lets all nodes depart before it uses what they have contributed.
    fn concludes_before_visit(&mut self) -> bool {
        false
    }

    /// Returns messages that are sent before this one, and their receivers.
    fn sends_before(&mut self, _from: NodeId, _bytes: &[u8], _limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        Vec::new()
    }

    /// Changes the answer to a thread that takes a lock by its lease.
    fn on_take(&mut self, _node: NodeId, _lock: LockId, taken: Taken) -> Taken {
        taken
    }

    /// Gives back a lock by its lease. Returns false if the engine must do it.
    fn give_back(&mut self, leases: &Leases, lock: LockId, waiter: Waiter) -> bool {
        leases.give_back(lock, waiter)
    }

    /// Decides what happens to a message that is sent.
    fn on_message(&mut self, _from: NodeId, _to: NodeId, _message: &Message<'_>, _limits: &Limits) -> Fate {
        Fate::Sent
    }

    /// Does the same for its bytes: returns what is really sent, and whether it goes astray (out of its
    /// link's order). Bytes that cannot be decoded are sent unchanged.
    fn on_send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>, limits: &Limits) -> Vec<(Vec<u8>, bool)> {
        let fate = match Message::decode(&bytes, limits) {
            Ok(message) => self.on_message(from, to, &message, limits),
            Err(_) => Fate::Sent,
        };
        match fate {
            Fate::Sent => vec![(bytes, false)],
            Fate::Astray => vec![(bytes, true)],
            Fate::Twice { late } => vec![(bytes.clone(), false), (bytes, late)],
            Fate::Replaced(messages) => messages.into_iter().map(|bytes| (bytes, false)).collect(),
        }
    }
}

/// What happens to a message that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is sent unchanged.
    Sent,
    /// It leaves its link's order.
    Astray,
    /// It is sent twice.
    Twice {
        /// Whether the second one leaves its link's order.
        late: bool,
    },
    /// These are sent instead, in this order.
    Replaced(Vec<Vec<u8>>),
}

impl Fate {
    /// Nothing is sent.
    pub const LOST: Fate = Fate::Replaced(Vec::new());

    /// Sends another message instead.
    pub fn altered(message: &Message<'_>) -> Fate {
        Fate::Replaced(vec![message.encode()])
    }
}

/// The duties that a node neglects when it reads from another's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// It does not check what the home has published.
    pub looks_away: bool,
    /// It announces the page only after it has copied it.
    pub announces_late: bool,
    /// It does not announce the page at all.
    pub announces_never: bool,
}

/// No bug.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faithful;

impl Mutation for Faithful {}
