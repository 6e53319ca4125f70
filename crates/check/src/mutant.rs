//! Planted bugs. A checker that has never failed proves nothing: each mutant breaks one duty of the protocol, of its
//! host or of its messages, without touching the engine, and the suite must notice.

use hiroba_base::{NodeId, PageId, PageSet};
use hiroba_protocol::Effect;
use hiroba_wire::{Limits, Message};

use crate::memory::{Merge, TwinAfter};

pub mod aurc;
pub mod aurc_moves;
pub mod claims;
pub mod erc;
pub mod first_touch;
mod hlrc;
pub mod leaving;
pub mod lrc;
pub mod mapping;
pub mod moves;
pub mod sc;
pub mod supplies;
mod wrongs;

pub use self::hlrc::Mutant;

/// Where a mutant may meddle. Every method's default is the right thing.
pub trait Mutation {
    /// How many threads a node's team has.
    fn on_team(&mut self, threads: u32) -> u32 {
        threads
    }

    /// An effect is about to be carried out: what is really done.
    fn on_effect(&mut self, _node: NodeId, effect: Effect) -> Vec<Effect> {
        vec![effect]
    }

    /// The host has found out which granules were written.
    fn on_collect(&mut self, granules: PageSet) -> PageSet {
        granules
    }

    /// The host looks whether a granule was unwritten when it lost its access.
    fn on_unwritten(&mut self, was_unwritten: bool) -> bool {
        was_unwritten
    }

    /// The host has found out in a lull which granules were written.
    fn on_collect_in_lull(&mut self, granules: PageSet) -> PageSet {
        granules
    }

    /// Whether the host begins to note anew only after it has looked at all granules.
    fn clears_late(&mut self) -> bool {
        false
    }

    /// A twin was made.
    fn on_twin(&mut self, _node: NodeId, _page: PageId, _twin: &mut Vec<u8>) {}

    /// A diff was made.
    fn on_diff(&mut self, _frame: &[u8], _twin: &[u8], runs: Vec<u8>) -> Vec<u8> {
        runs
    }

    /// A diff was made: what becomes of the twin.
    fn on_settle(&mut self, after: TwinAfter) -> TwinAfter {
        after
    }

    /// A diff was made in a lull.
    fn on_early_diff(&mut self, runs: Vec<u8>) -> Vec<u8> {
        runs
    }

    /// The same: what becomes of the twin.
    fn on_settle_early(&mut self, after: TwinAfter) -> TwinAfter {
        after
    }

    /// A page comes in that must be merged.
    fn on_merge(&mut self) -> Merge {
        Merge::FrameAndTwin
    }

    /// A page was merged: whether it differed from its twin before.
    fn on_merged(&mut self, dirty: bool) -> bool {
        dirty
    }

    /// Another node's diff is applied: to the twin too?
    fn on_apply(&mut self) -> bool {
        true
    }

    /// A word is patched: into the twin too?
    fn on_patch(&mut self) -> bool {
        true
    }

    /// A home takes announcements: which ones it hears of now.
    fn on_announced(&mut self, _home: NodeId, pages: Vec<PageId>) -> Vec<PageId> {
        pages
    }

    /// A node reads pages from their home's frames: how it goes about it.
    fn on_read(&mut self) -> Reading {
        Reading::default()
    }

    /// A home sends a page's content.
    fn on_content(&mut self, _page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        content.map(<[u8]>::to_vec)
    }

    /// A thread stores into another node's frame: whether the store arrives there only when the node touches memory again.
    fn store_lingers(&mut self) -> bool {
        false
    }

    /// A block is freed behind a publication that the engine keeps back: does it wait as well?
    fn keeps_back(&mut self) -> bool {
        true
    }

    /// A message leaves: what goes out before it, and to whom.
    fn sends_before(&mut self, _from: NodeId, _bytes: &[u8], _limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        Vec::new()
    }

    /// A message leaves: what becomes of it.
    fn on_message(&mut self, _from: NodeId, _to: NodeId, _message: &Message<'_>, _limits: &Limits) -> Fate {
        Fate::Sent
    }

    /// The same for its bytes: what really goes out, and whether it goes astray (out of its link's order).
    /// What cannot be decoded goes as it is.
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

/// What becomes of a message that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes as it is.
    Sent,
    /// It leaves its link's order.
    Astray,
    /// It goes twice.
    Twice {
        /// The second time out of its link's order.
        late: bool,
    },
    /// These go in its place, in this order.
    Replaced(Vec<Vec<u8>>),
}

impl Fate {
    /// Nothing goes.
    pub const LOST: Fate = Fate::Replaced(Vec::new());

    /// Another goes in its place.
    pub fn altered(message: &Message<'_>) -> Fate {
        Fate::Replaced(vec![message.encode()])
    }
}

/// Which of its duties a node neglects when it reads from another's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// It does not look at what the home has published.
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
