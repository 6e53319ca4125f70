//! Planted bugs of lazy release consistency without homes.

use hiroba_base::{NodeId, PageId, VersionVector};
use hiroba_protocol::{Effect, PageToSend};
use hiroba_wire::{Limits, Message};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wrongs::{FirstContents, Rights, Unapplied, add_twice, without_last_page};
use super::{Fate, Mutation};
use crate::memory::TwinAfter;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A lock's grant forgets its last write notice.
    DropNoticeOfGrant,
    /// A barrier's departure forgets its last write notice.
    DropNoticeOfBarrier,
    /// An invalidation is not carried out.
    LoseInvalidation,
    /// A release leaves its pages writable.
    SkipProtectAtRelease,
    /// Diffs are applied in the reverse order.
    ReverseOrder,
    /// Diffs do not name the version that they build on.
    ForgetVersions,
    /// A writer answers as if it had changed nothing.
    LeaveWriterOut,
    /// The last run of diffs of an answer is lost.
    DropRuns,
    /// A reader also requests what it already has.
    AskFromTheBeginning,
    /// A reader requests one interval less than it needs.
    AskForTooLittle,
    /// The diff of an interval that has ended is made after others' diffs have been applied.
    OwnDiffLate,
    /// Others' diffs are applied to the frame, not to the twin.
    ApplyFrameOnly,
    /// A twin stays when its diff is made.
    TwinStays,
    /// The twin is all zero instead of a copy.
    ZeroTwin,
    /// A node that requests a copy of a page that is being written gets it as it is.
    SendFrame,
    /// The home's copy is always the first that it sent.
    StaleCopy,
    /// The home's copy claims an interval more than it contains.
    ClaimTooMuch,
    /// The home says that it has the requested intervals before it does.
    CollectEarly,
    /// A writer that has forgotten its diffs answers as if it had changed nothing.
    ForgetSilently,
    /// Atomic additions are carried out twice at the home.
    AtomicTwice,
    /// The home does not update its copy before it operates.
    OperateOnStaleWord,
    /// The operating node does not learn of the operation's interval.
    ForgetOperation,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 22] = [
        Mutant::DropNoticeOfGrant,
        Mutant::DropNoticeOfBarrier,
        Mutant::LoseInvalidation,
        Mutant::SkipProtectAtRelease,
        Mutant::ReverseOrder,
        Mutant::ForgetVersions,
        Mutant::LeaveWriterOut,
        Mutant::DropRuns,
        Mutant::AskFromTheBeginning,
        Mutant::AskForTooLittle,
        Mutant::OwnDiffLate,
        Mutant::ApplyFrameOnly,
        Mutant::TwinStays,
        Mutant::ZeroTwin,
        Mutant::SendFrame,
        Mutant::StaleCopy,
        Mutant::ClaimTooMuch,
        Mutant::CollectEarly,
        Mutant::ForgetSilently,
        Mutant::AtomicTwice,
        Mutant::OperateOnStaleWord,
        Mutant::ForgetOperation,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            rights: Rights::default(),
            contents: FirstContents::default(),
            unapplied: Unapplied::default(),
            late: FxHashMap::default(),
            requested: FxHashMap::default(),
            asking: FxHashSet::default(),
            page_bytes: FxHashMap::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    rights: Rights,
    contents: FirstContents,
    unapplied: Unapplied,
    /// A comparison that each node has yet to make.
    late: FxHashMap<NodeId, Effect>,
    /// The intervals that each node last requested of a home.
    requested: FxHashMap<(NodeId, PageId), VersionVector>,
    /// Pages of which each node has requested diffs, and applied none since.
    asking: FxHashSet<(NodeId, PageId)>,
    /// The lengths of pages with twins.
    page_bytes: FxHashMap<PageId, u32>,
}

/// Returns a version with only one interval.
fn only(writer: NodeId, seq: u64) -> VersionVector {
    let mut version = VersionVector::new();
    version.advance(writer, seq);
    version
}

impl Planted {
    fn apply_in_reverse(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let kept_back = self.unapplied.keep_back(node, effect);
        kept_back
            .into_iter()
            .flat_map(|(kept_back, next)| kept_back.into_iter().rev().chain([next]))
            .collect()
    }

    /// Defers the comparison before applications until they are over.
    fn compare_late(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match effect {
            Effect::Diff { page, .. } if self.asking.contains(&(node, page)) => {
                self.late.insert(node, effect).into_iter().collect()
            }
            Effect::Apply { page, .. } => {
                self.asking.remove(&(node, page));
                vec![effect]
            }
            other => self.late.remove(&node).into_iter().chain([other]).collect(),
        }
    }

    fn alter(&mut self, from: NodeId, to: NodeId, message: &Message<'_>) -> Fate {
        let altered = match (self.mutant, message.clone()) {
            (Mutant::DropNoticeOfGrant, Message::LockGrant { lock, turn, knowledge }) => {
                Message::LockGrant { lock, turn, knowledge: without_last_page(knowledge) }
            }
            (Mutant::DropNoticeOfBarrier, Message::Depart { epoch, collective, knowledge, moves }) => {
                Message::Depart { epoch, collective, knowledge: without_last_page(knowledge), moves }
            }
            (Mutant::ForgetVersions, Message::DiffsReply { page, last, mut diffs }) => {
                diffs.iter_mut().for_each(|diff| diff.version = only(from, diff.seq));
                return Fate::altered(&Message::DiffsReply { page, last, diffs });
            }
            (Mutant::LeaveWriterOut, Message::DiffsReply { page, last, .. }) => {
                Message::DiffsReply { page, last, diffs: Vec::new() }
            }
            (Mutant::DropRuns, Message::DiffsReply { page, last, mut diffs }) => {
                diffs.last_mut().into_iter().for_each(|diff| diff.runs = &[]);
                return Fate::altered(&Message::DiffsReply { page, last, diffs });
            }
            (Mutant::AskFromTheBeginning, Message::DiffsRequest { page, through, .. }) => {
                Message::DiffsRequest { page, after: 0, through }
            }
            (Mutant::AskForTooLittle, Message::DiffsRequest { page, after, through })
                if after + 1 < through =>
            {
                Message::DiffsRequest { page, after, through: through - 1 }
            }
            (Mutant::CollectEarly, Message::CatchUpRequest { page, version }) => {
                self.requested.insert((from, page), version);
                Message::CatchUpRequest { page, version: VersionVector::new() }
            }
            (Mutant::CollectEarly, Message::CaughtUp { page, .. }) => {
                Message::CaughtUp { page, version: self.requested.remove(&(to, page)).unwrap_or_default() }
            }
            (Mutant::ClaimTooMuch, Message::PagesReply { mut copies, content }) => {
                for version in copies.iter_mut().map(|copy| &mut copy.version) {
                    let entries = version.entries().to_vec();
                    entries.into_iter().for_each(|(writer, seq)| version.advance(writer, seq + 1));
                }
                return Fate::altered(&Message::PagesReply { copies, content });
            }
            (Mutant::ForgetSilently, Message::DiffsCollected { page }) => {
                Message::DiffsReply { page, last: true, diffs: Vec::new() }
            }
            (Mutant::OperateOnStaleWord, Message::AtomicRequest { ticket, page, offset, operation, .. }) => {
                let needed = VersionVector::new();
                Message::AtomicRequest { ticket, page, offset, operation, needed }
            }
            (Mutant::ForgetOperation, Message::WordReply { ticket, page, outcome, turn, .. }) => {
                Message::WordReply { ticket, page, outcome, turn, version: VersionVector::new() }
            }
            _ => return Fate::Sent,
        };
        Fate::altered(&altered)
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let lowers = self.rights.lowers(node, &effect);
        match (self.mutant, effect) {
            (Mutant::SkipProtectAtRelease, Effect::Protect { .. }) if lowers => Vec::new(),
            (Mutant::LoseInvalidation, Effect::Invalidate { .. }) => Vec::new(),
            (Mutant::ReverseOrder, effect) => self.apply_in_reverse(node, effect),
            (Mutant::OwnDiffLate, effect) => self.compare_late(node, effect),
            (Mutant::SendFrame, Effect::Twin { page, page_bytes }) => {
                self.page_bytes.insert(page, page_bytes);
                vec![Effect::Twin { page, page_bytes }]
            }
            (Mutant::SendFrame, Effect::SendTwin { to, page, version }) => {
                let pages =
                    vec![PageToSend { page, page_bytes: self.page_bytes[&page], version, from_twin: false }];
                vec![Effect::SendPages { to, pages }]
            }
            (Mutant::AtomicTwice, effect) => vec![add_twice(effect)],
            (_, effect) => vec![effect],
        }
    }

    fn on_apply(&mut self) -> bool {
        self.mutant != Mutant::ApplyFrameOnly
    }

    fn on_settle(&mut self, after: TwinAfter) -> TwinAfter {
        match (self.mutant, after) {
            (Mutant::TwinStays, TwinAfter::WithDiff) => TwinAfter::Unchanged,
            _ => after,
        }
    }

    fn on_twin(&mut self, _node: NodeId, _page: PageId, twin: &mut Vec<u8>) {
        if self.mutant == Mutant::ZeroTwin {
            twin.fill(0);
        }
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        match self.mutant {
            Mutant::StaleCopy => self.contents.instead_of(page, content),
            _ => content.map(<[u8]>::to_vec),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        if let Message::DiffsRequest { page, .. } = message {
            self.asking.insert((from, *page));
        }
        self.alter(from, to, message)
    }
}
