//! Planted bugs of eager release consistency.

use hiroba_base::{NodeId, PageId, PageSet};
use hiroba_protocol::{Effect, Outcome, Waiter};
use hiroba_wire::{Limits, Message, Ticket};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wrongs::{self, FirstContents, Rights};
use super::{Fate, Mutation};
use crate::memory::Merge;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A copy is not invalidated, but counted as invalidated.
    SkipInvalidation,
    /// A copy is not updated, but counted as updated.
    SkipUpdate,
    /// One reader gets none of what a home tells several.
    ForgetOneReader,
    /// A home tells the writer that its diffs are performed before readers have answered.
    PerformBeforeAnswers,
    /// A release ends before its diffs are performed.
    ReleaseBeforePerformed,
    /// A node says that it has given its copy up, but keeps it.
    KeepCopy,
    /// A node says that it has left the copyset, but continues to read.
    LeaveWhileReading,
    /// An update goes into the frame, not into the twin, so that the next diff sends it again.
    UpdateFrameOnly,
    /// Diffs and updates are not applied.
    SkipApply,
    /// Updates leave their link's order.
    UpdatesAstray,
    /// The last diff of a message arrives empty.
    DropRuns,
    /// Diffs arrive twice.
    DiffsTwice,
    /// Two changed runs are sent as one, with the unchanged bytes between them.
    JoinRuns,
    /// The twin is all zero instead of a copy.
    ZeroTwin,
    /// A page that arrives for a dirty, invalidated copy overwrites unsent writes.
    LoseTwin,
    /// Such a page is merged into the frame, not into the twin.
    MergeFrameOnly,
    /// A release leaves its pages writable.
    KeepWritingAfterRelease,
    /// The home stops writing an exclusive page only after it has sent it.
    ShareBeforeProtecting,
    /// The home continues to write an exclusive page after it has sent it.
    KeepWritingWhenSharing,
    /// The home sends the content that the page had when it was first requested.
    StaleContent,
    /// Of a long page only the first granule is installed.
    TruncateInstall,
    /// Atomic additions are carried out twice.
    AtomicTwice,
    /// The new home does not learn of one of the nodes with copies.
    ForgetReaderWhenMoving,
    /// The base does not learn of the new home.
    LoseNewsOfMove,
    /// A diff that reaches a former home is dropped.
    DropDiffAtFormerHome,
    /// A former home forwards diffs as its own.
    PassDiffsOnAsOwn,
    /// A waiting thread that is woken before its diffs are performed misses it.
    MissWakeDuringRelease,
    /// A waiting thread that is woken continues without taking its lock again.
    WakeWithoutLock,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 28] = [
        Mutant::SkipInvalidation,
        Mutant::SkipUpdate,
        Mutant::ForgetOneReader,
        Mutant::PerformBeforeAnswers,
        Mutant::ReleaseBeforePerformed,
        Mutant::KeepCopy,
        Mutant::LeaveWhileReading,
        Mutant::UpdateFrameOnly,
        Mutant::SkipApply,
        Mutant::UpdatesAstray,
        Mutant::DropRuns,
        Mutant::DiffsTwice,
        Mutant::JoinRuns,
        Mutant::ZeroTwin,
        Mutant::LoseTwin,
        Mutant::MergeFrameOnly,
        Mutant::KeepWritingAfterRelease,
        Mutant::ShareBeforeProtecting,
        Mutant::KeepWritingWhenSharing,
        Mutant::StaleContent,
        Mutant::TruncateInstall,
        Mutant::AtomicTwice,
        Mutant::ForgetReaderWhenMoving,
        Mutant::LoseNewsOfMove,
        Mutant::DropDiffAtFormerHome,
        Mutant::PassDiffsOnAsOwn,
        Mutant::MissWakeDuringRelease,
        Mutant::WakeWithoutLock,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            rights: Rights::default(),
            lowered: FxHashMap::default(),
            contents: FirstContents::default(),
            told: FxHashMap::default(),
            unperformed: FxHashMap::default(),
            woken: FxHashSet::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    rights: Rights,
    /// Losses of write access that each node is about to carry out; the effect after them shows the reason.
    lowered: FxHashMap<NodeId, Vec<Effect>>,
    contents: FirstContents,
    /// How many readers each home has told of a transaction.
    told: FxHashMap<(NodeId, u64), usize>,
    /// How many diffs of each node have yet to be performed.
    unperformed: FxHashMap<NodeId, usize>,
    /// Threads that wait for a condition variable and have been woken.
    woken: FxHashSet<(NodeId, Ticket)>,
}

impl Planted {
    /// Decides what happens to losses of write access and the effect after them.
    fn lower(&self, lowered: Vec<Effect>, next: Effect) -> Vec<Effect> {
        match (self.mutant, &next) {
            (Mutant::KeepWritingAfterRelease, Effect::Diff { .. })
            | (Mutant::KeepWritingWhenSharing, Effect::SendPages { .. }) => vec![next],
            (Mutant::ShareBeforeProtecting, Effect::SendPages { .. }) => [vec![next], lowered].concat(),
            _ => [lowered, vec![next]].concat(),
        }
    }

    /// Wakes threads with the next effect of their node; the engine's own wakes have no effect.
    fn wake_at_once(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let theirs: Vec<Ticket> =
            self.woken.iter().filter(|(at, _)| *at == node).map(|(_, ticket)| *ticket).collect();
        let mut effects = vec![effect];
        for ticket in theirs {
            self.woken.remove(&(node, ticket));
            effects.insert(0, Effect::Wake { waiter: Waiter(ticket), outcome: Outcome::Done });
        }
        effects
    }

    /// Returns true if the node has diffs that have yet to be performed; records what the message tells of
    /// them.
    fn awaits_diffs(&mut self, from: NodeId, to: NodeId, message: &Message<'_>) -> bool {
        match message {
            Message::EagerDiffs { writer, diffs } if *writer == from => {
                *self.unperformed.entry(from).or_default() += diffs.len();
            }
            Message::DiffsPerformed { count, .. } => {
                let left = self.unperformed.entry(to).or_default();
                *left = left.saturating_sub(*count as usize);
            }
            _ => {}
        }
        self.unperformed.get(&to).is_some_and(|left| *left > 0)
    }

    fn is_about_lowering(&self) -> bool {
        matches!(
            self.mutant,
            Mutant::KeepWritingAfterRelease | Mutant::KeepWritingWhenSharing | Mutant::ShareBeforeProtecting
        )
    }

    fn counts_as_settled(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        match (self.mutant, message) {
            (Mutant::SkipInvalidation, Message::InvalidateCopies { .. })
            | (Mutant::SkipUpdate, Message::UpdateCopies { .. })
            | (
                Mutant::PerformBeforeAnswers,
                Message::InvalidateCopies { .. } | Message::UpdateCopies { .. },
            ) => true,
            (
                Mutant::ForgetOneReader,
                Message::InvalidateCopies { transaction, .. } | Message::UpdateCopies { transaction, .. },
            ) => self.told.get(&(from, *transaction)) == Some(&1),
            _ => false,
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        if self.is_about_lowering() {
            if self.rights.lowers(node, &effect) {
                self.lowered.entry(node).or_default().push(effect);
                return Vec::new();
            }
            let lowered = self.lowered.remove(&node).unwrap_or_default();
            return self.lower(lowered, effect);
        }
        if self.mutant == Mutant::WakeWithoutLock {
            return self.wake_at_once(node, effect);
        }
        match (self.mutant, effect) {
            (Mutant::KeepCopy, Effect::Invalidate { .. }) | (Mutant::SkipApply, Effect::Apply { .. }) => {
                Vec::new()
            }
            (Mutant::TruncateInstall, effect @ Effect::Install { merge: false, .. }) => {
                vec![wrongs::truncate_install(effect)]
            }
            (Mutant::AtomicTwice, effect) => vec![wrongs::add_twice(effect)],
            (_, effect) => vec![effect],
        }
    }

    fn on_twin(&mut self, _node: NodeId, _page: PageId, twin: &mut Vec<u8>) {
        if self.mutant == Mutant::ZeroTwin {
            twin.fill(0);
        }
    }

    fn on_diff(&mut self, frame: &[u8], twin: &[u8], runs: Vec<u8>) -> Vec<u8> {
        if self.mutant == Mutant::JoinRuns { wrongs::joined(frame, twin) } else { runs }
    }

    fn on_merge(&mut self) -> Merge {
        match self.mutant {
            Mutant::LoseTwin => Merge::Overwrite,
            Mutant::MergeFrameOnly => Merge::FrameOnly,
            _ => Merge::FrameAndTwin,
        }
    }

    fn on_apply(&mut self) -> bool {
        self.mutant != Mutant::UpdateFrameOnly
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        match self.mutant {
            Mutant::StaleContent => self.contents.instead_of(page, content),
            _ => content.map(<[u8]>::to_vec),
        }
    }

    fn sends_before(&mut self, from: NodeId, bytes: &[u8], limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        let Ok(message) = Message::decode(bytes, limits) else { return Vec::new() };
        if let Message::InvalidateCopies { transaction, .. } | Message::UpdateCopies { transaction, .. } =
            &message
        {
            *self.told.entry((from, *transaction)).or_default() += 1;
        }
        let settled = |page: Option<PageId>, transaction: u64| {
            let page = page.expect("a home tells of pages");
            (from, Message::CopiesSettled { page, transaction, left: PageSet::new() }.encode())
        };
        let counts_as_settled = self.counts_as_settled(from, &message);
        match (self.mutant, message) {
            (_, Message::InvalidateCopies { transaction, pages }) if counts_as_settled => {
                vec![settled(pages.iter().next(), transaction)]
            }
            (_, Message::UpdateCopies { transaction, diffs }) if counts_as_settled => {
                vec![settled(diffs.first().map(|diff| diff.page), transaction)]
            }
            (Mutant::ReleaseBeforePerformed, Message::EagerDiffs { writer, diffs }) if writer == from => {
                let (page, count) = (diffs[0].page, diffs.len() as u32);
                vec![(from, Message::DiffsPerformed { page, count }.encode())]
            }
            _ => Vec::new(),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        let awaits_diffs = self.awaits_diffs(from, to, message);
        if let Message::CondWake { ticket } = message {
            self.woken.insert((to, *ticket));
        }
        let is_lost = match (self.mutant, message) {
            (Mutant::MissWakeDuringRelease, Message::CondWake { .. }) => awaits_diffs,
            (Mutant::PerformBeforeAnswers, Message::CopiesSettled { .. })
            | (Mutant::ReleaseBeforePerformed, Message::DiffsPerformed { .. }) => from != to,
            (Mutant::PerformBeforeAnswers, _) => false,
            (Mutant::LoseNewsOfMove, Message::HomeMoved { .. }) => true,
            (Mutant::DropDiffAtFormerHome, Message::EagerDiffs { writer, .. }) => *writer != from,
            _ => self.counts_as_settled(from, message),
        };
        if is_lost {
            return Fate::LOST;
        }
        match (self.mutant, message.clone()) {
            (Mutant::UpdatesAstray, Message::UpdateCopies { .. }) => Fate::Astray,
            (Mutant::DiffsTwice, Message::EagerDiffs { .. }) => Fate::Twice { late: false },
            (Mutant::DropRuns, Message::EagerDiffs { writer, mut diffs }) => {
                diffs.last_mut().expect("a flush has a diff").runs = &[];
                Fate::altered(&Message::EagerDiffs { writer, diffs })
            }
            (Mutant::PassDiffsOnAsOwn, Message::EagerDiffs { diffs, .. }) => {
                Fate::altered(&Message::EagerDiffs { writer: from, diffs })
            }
            (Mutant::LeaveWhileReading, Message::CopiesSettled { page, transaction, .. }) => {
                let left = [page].into_iter().collect();
                Fate::altered(&Message::CopiesSettled { page, transaction, left })
            }
            (Mutant::ForgetReaderWhenMoving, Message::HomeTransfer { page, moves, mut copyset, turns }) => {
                copyset.pop();
                Fate::altered(&Message::HomeTransfer { page, moves, copyset, turns })
            }
            _ => Fate::Sent,
        }
    }
}
