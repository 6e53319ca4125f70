//! Planted bugs of home-based lazy release consistency, of its host and of what it shares with other
//! protocols.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector};
use hiroba_protocol::barrier::Tree;
use hiroba_protocol::{Effect, PageToSend, WriteTracking};
use hiroba_wire::{Knowledge, Limits, Message, PageDiff};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wrongs::{self, FirstContents, Rights, Unapplied, without_last, without_last_page};
use super::{Fate, Mutation, Reading};
use crate::memory::{Merge, TwinAfter};
use crate::program::GRANULE_BYTES;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A lock's grant forgets its last write notice.
    DropNoticeOfGrant,
    /// A lock is sent before the interval of its last hold is closed.
    GrantBeforeRelease,
    /// A barrier's departure forgets its last write notice.
    DropNoticeOfBarrier,
    /// A barrier's departure claims intervals that its notices do not name.
    DepartureAheadOfNotices,
    /// A lock request claims to have seen more than it has.
    RequestAheadOfNotices,
    /// The last diff of a flush arrives empty.
    DropRuns,
    /// The home does not apply diffs.
    SkipApply,
    /// Two changed runs are sent as one, with the unchanged bytes between them.
    JoinRuns,
    /// The twin is all zero instead of a copy.
    ZeroTwin,
    /// A page's second twin is its first one again.
    StaleTwin,
    /// An incoming page overwrites unsent writes.
    OverwriteInsteadOfMerge,
    /// An incoming page is merged into the frame, not into the twin.
    MergeFrameOnly,
    /// An invalidation is not carried out.
    LoseInvalidation,
    /// A release leaves its pages writable.
    SkipProtectAtRelease,
    /// The result of an atomic operation does not reach the operating node's own copy.
    SkipPatch,
    /// The result of an atomic operation reaches the frame, not the twin, so that the next diff undoes it.
    PatchFrameOnly,
    /// Atomic additions are carried out twice at the home.
    AtomicTwice,
    /// The home sends the content that the page had when it was first requested.
    StaleContent,
    /// The home answers at once, claiming the requested version.
    IgnoreNeeded,
    /// Diffs leave their link's order.
    DiffsAstray,
    /// Diffs arrive twice, the second time late.
    DiffsTwice,
    /// A condition variable's signal is lost.
    LoseSignal,
    /// A kept twin becomes a copy of the page instead of taking the diff.
    TwinBecomesPage,
    /// A twin that is to be kept is dropped with its diff.
    DropKeptTwin,
    /// The host forgets one of the granules that were written.
    CollectForgets,
    /// A granule that lost its access counts as unwritten, whatever the program has stored.
    UnwrittenUnseen,
    /// The host restarts recording writes only after it has examined all granules.
    CollectClearsLate,
    /// Watched pages do not fault, and writes to them are not recorded.
    WatchWithoutNoting,
    /// Writes to a home page are no longer recorded once the page has been sent.
    UnwatchShared,
    /// A merged page is reported as clean before.
    MergedClean,
    /// A grant claims to be older than it is, and is not deferred until the departure that its sender has
    /// seen.
    GrantCrossesDeparture,
    /// A grant does not say that it contains what came after an arrival.
    ForgetBeyondArrival,
    /// A block is allocated again before the publication that came with it has been absorbed.
    FreeOvertakesPublication,
    /// A kept twin stays unchanged instead of taking the diff.
    TwinStays,
    /// A node arrives at a collective before the last thread of its team.
    TeamOneShort,
    /// Of a long page only the first granule is installed.
    TruncateInstall,
    /// One-sided readers do not check what the home has published.
    LookAway,
    /// One-sided readers announce a page only after they have copied it.
    AnnounceLate,
    /// One-sided readers announce nothing.
    AnnounceNever,
    /// One-sided readers forget that diffs of their own may not have reached the home.
    OvertakeOwnDiffs,
    /// A home sees an announcement one interval late.
    TakeLate,
    /// A home does not see a page's second announcement.
    TakeOnce,
    /// A home publishes an interval before it applies the diffs.
    PublishEarly,
    /// A home publishes one interval more than it has applied.
    PublishTooMuch,
    /// Of pages that arrive together the first and the last are exchanged.
    ExchangeContents,
    /// What a node reports for its subtree lacks the last write notice.
    DropNoticeOfSubtree,
    /// A node claims that all of its subtree have seen what any of them has.
    SubtreeSeesAlike,
    /// A node releases its subtree when all of it has arrived.
    DepartSubtreeEarly,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 48] = [
        Mutant::DropNoticeOfGrant,
        Mutant::GrantBeforeRelease,
        Mutant::DropNoticeOfBarrier,
        Mutant::DepartureAheadOfNotices,
        Mutant::RequestAheadOfNotices,
        Mutant::DropRuns,
        Mutant::SkipApply,
        Mutant::JoinRuns,
        Mutant::ZeroTwin,
        Mutant::StaleTwin,
        Mutant::OverwriteInsteadOfMerge,
        Mutant::MergeFrameOnly,
        Mutant::LoseInvalidation,
        Mutant::SkipProtectAtRelease,
        Mutant::SkipPatch,
        Mutant::PatchFrameOnly,
        Mutant::AtomicTwice,
        Mutant::StaleContent,
        Mutant::IgnoreNeeded,
        Mutant::DiffsAstray,
        Mutant::DiffsTwice,
        Mutant::LoseSignal,
        Mutant::TwinBecomesPage,
        Mutant::DropKeptTwin,
        Mutant::CollectForgets,
        Mutant::UnwrittenUnseen,
        Mutant::CollectClearsLate,
        Mutant::WatchWithoutNoting,
        Mutant::UnwatchShared,
        Mutant::MergedClean,
        Mutant::GrantCrossesDeparture,
        Mutant::ForgetBeyondArrival,
        Mutant::FreeOvertakesPublication,
        Mutant::TwinStays,
        Mutant::TeamOneShort,
        Mutant::TruncateInstall,
        Mutant::LookAway,
        Mutant::AnnounceLate,
        Mutant::AnnounceNever,
        Mutant::OvertakeOwnDiffs,
        Mutant::TakeLate,
        Mutant::TakeOnce,
        Mutant::PublishEarly,
        Mutant::PublishTooMuch,
        Mutant::ExchangeContents,
        Mutant::DropNoticeOfSubtree,
        Mutant::SubtreeSeesAlike,
        Mutant::DepartSubtreeEarly,
    ];

    /// Returns true if the bug is one of one-sided reading.
    pub fn is_one_sided(self) -> bool {
        matches!(
            self,
            Mutant::LookAway
                | Mutant::AnnounceLate
                | Mutant::AnnounceNever
                | Mutant::OvertakeOwnDiffs
                | Mutant::TakeLate
                | Mutant::TakeOnce
                | Mutant::PublishEarly
                | Mutant::PublishTooMuch
        )
    }

    /// Returns true if the bug can be planted under this way of tracking writes.
    pub fn concerns(self, tracking: WriteTracking) -> bool {
        match self {
            Mutant::SkipProtectAtRelease => tracking == WriteTracking::Fault,
            Mutant::TwinBecomesPage
            | Mutant::DropKeptTwin
            | Mutant::TwinStays
            | Mutant::CollectForgets
            | Mutant::UnwrittenUnseen
            | Mutant::CollectClearsLate
            | Mutant::WatchWithoutNoting
            | Mutant::UnwatchShared
            | Mutant::MergedClean => tracking == WriteTracking::Async,
            _ => true,
        }
    }

    /// Returns the bug, ready to be planted.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            twins: FxHashMap::default(),
            contents: FirstContents::default(),
            rights: Rights::default(),
            requested: FxHashMap::default(),
            announced: FxHashMap::default(),
            announced_once: FxHashSet::default(),
            unapplied: Unapplied::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    twins: FxHashMap<(NodeId, PageId), Vec<u8>>,
    contents: FirstContents,
    rights: Rights,
    /// What each node requested last.
    requested: FxHashMap<(NodeId, PageId), VersionVector>,
    /// Announcements that a home will see next time.
    announced: FxHashMap<NodeId, Vec<PageId>>,
    /// Those that it has seen before.
    announced_once: FxHashSet<(NodeId, PageId)>,
    unapplied: Unapplied,
}

fn claim_one_more(timestamp: &mut VectorTimestamp, node: NodeId) {
    timestamp.advance(node, timestamp.get(node) + 1);
}

/// Returns what a node knew before it closed its last interval.
fn without_last_interval(knowledge: &Knowledge, of: NodeId) -> Knowledge {
    let mut knowledge = knowledge.clone();
    let last = knowledge.timestamp.get(of);
    let mut timestamp = VectorTimestamp::new(knowledge.timestamp.nodes() as u16);
    for node in NodeId::all(knowledge.timestamp.nodes() as u16) {
        let seen = knowledge.timestamp.get(node);
        timestamp.advance(node, if node == of { seen.saturating_sub(1) } else { seen });
    }
    knowledge.timestamp = timestamp;
    knowledge.notices.retain(|notice| (notice.node, notice.seq) != (of, last));
    knowledge
}

fn has_below(node: NodeId, limits: &Limits) -> bool {
    Tree::of(limits.nodes).below(node).next().is_some()
}

impl Planted {
    /// Makes applications come after what the node publishes next.
    fn publish_early(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match self.unapplied.keep_back(node, effect) {
            None => Vec::new(),
            Some((kept_back, publish @ Effect::Publish { .. })) => [vec![publish], kept_back].concat(),
            Some((kept_back, other)) => [kept_back, vec![other]].concat(),
        }
    }

    fn alter(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        let altered = match (self.mutant, message) {
            (Mutant::DropNoticeOfGrant, Message::LockGrant { lock, turn, knowledge }) => Message::LockGrant {
                lock: *lock,
                turn: *turn,
                knowledge: without_last_page(knowledge.clone()),
            },
            (Mutant::GrantBeforeRelease, Message::LockGrant { lock, turn, knowledge }) => {
                Message::LockGrant {
                    lock: *lock,
                    turn: *turn,
                    knowledge: without_last_interval(knowledge, from),
                }
            }
            (Mutant::GrantCrossesDeparture, Message::LockGrant { lock, turn, knowledge }) => {
                Message::LockGrant {
                    lock: *lock,
                    turn: *turn,
                    knowledge: Knowledge { epoch: 0, ..knowledge.clone() },
                }
            }
            (Mutant::ForgetBeyondArrival, Message::LockGrant { lock, turn, knowledge }) => {
                let knowledge = Knowledge { beyond_arrival: false, ..knowledge.clone() };
                Message::LockGrant { lock: *lock, turn: *turn, knowledge }
            }
            (Mutant::DropNoticeOfBarrier, Message::Depart { epoch, collective, knowledge, moves }) => {
                let knowledge = without_last_page(knowledge.clone());
                Message::Depart { epoch: *epoch, collective: *collective, knowledge, moves: moves.clone() }
            }
            (Mutant::DepartureAheadOfNotices, Message::Depart { epoch, collective, knowledge, moves }) => {
                let mut knowledge = knowledge.clone();
                let others = NodeId::all(limits.nodes).filter(|node| *node != to);
                others.for_each(|node| claim_one_more(&mut knowledge.timestamp, node));
                Message::Depart { epoch: *epoch, collective: *collective, knowledge, moves: moves.clone() }
            }
            (
                Mutant::DropNoticeOfSubtree | Mutant::SubtreeSeesAlike,
                Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions },
            ) if has_below(from, limits) => {
                let (epoch, collective, caller) = (*epoch, *collective, *caller);
                let drops = self.mutant == Mutant::DropNoticeOfSubtree;
                let knowledge = if drops { without_last_page(knowledge.clone()) } else { knowledge.clone() };
                let least = least.clone().filter(|_| drops);
                let (moves, contributions) = (moves.clone(), contributions.clone());
                Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions }
            }
            (Mutant::ExchangeContents, Message::PagesReply { copies, content })
                if copies.len() > 1 && copies.iter().all(|copy| !copy.is_zero) =>
            {
                let page_bytes = content.len() / copies.len();
                let (first, last) = (&content[..page_bytes], &content[content.len() - page_bytes..]);
                let between = &content[page_bytes..content.len() - page_bytes];
                let content = [last, between, first].concat();
                return Fate::altered(&Message::PagesReply { copies: copies.clone(), content: &content });
            }
            (Mutant::RequestAheadOfNotices, Message::LockRequest { lock, timestamp }) => {
                let mut timestamp = timestamp.clone();
                let others = NodeId::all(limits.nodes).filter(|node| *node != from);
                others.for_each(|node| claim_one_more(&mut timestamp, node));
                Message::LockRequest { lock: *lock, timestamp }
            }
            (Mutant::DropRuns, Message::Diffs { seq, last, diffs }) => {
                let mut diffs = diffs.clone();
                if let Some(diff) = diffs.last_mut() {
                    *diff = PageDiff { page: diff.page, runs: &[] };
                }
                return Fate::altered(&Message::Diffs { seq: *seq, last: *last, diffs });
            }
            (Mutant::IgnoreNeeded, Message::PageRequest { page, needed }) => {
                self.requested.insert((from, *page), needed.clone());
                Message::PageRequest { page: *page, needed: VersionVector::new() }
            }
            (Mutant::IgnoreNeeded, Message::PagesRequest { wanted, descending }) => {
                let mut wanted = wanted.clone();
                for group in &mut wanted {
                    let needed = std::mem::take(&mut group.needed);
                    for page in group.pages.iter() {
                        self.requested.insert((from, page), needed.clone());
                    }
                }
                Message::PagesRequest { wanted, descending: *descending }
            }
            (Mutant::IgnoreNeeded, Message::PagesReply { copies, content }) => {
                let mut copies = copies.clone();
                for copy in &mut copies {
                    let claimed = self.requested.remove(&(to, copy.page)).unwrap_or_default();
                    claimed.entries().iter().for_each(|(node, seq)| copy.version.advance(*node, *seq));
                }
                return Fate::altered(&Message::PagesReply { copies, content });
            }
            _ => return Fate::Sent,
        };
        Fate::altered(&altered)
    }
}

impl Mutation for Planted {
    fn on_team(&mut self, threads: u32) -> u32 {
        if self.mutant == Mutant::TeamOneShort { threads.saturating_sub(1) } else { threads }
    }

    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let lowers = self.rights.lowers(node, &effect);
        match (self.mutant, effect) {
            (Mutant::SkipProtectAtRelease, Effect::Protect { .. }) if lowers => Vec::new(),
            (Mutant::SkipApply, Effect::Apply { .. })
            | (Mutant::LoseInvalidation, Effect::Invalidate { .. })
            | (Mutant::SkipPatch, Effect::Patch { .. }) => Vec::new(),
            (Mutant::AtomicTwice, effect) => vec![wrongs::add_twice(effect)],
            (Mutant::TruncateInstall, effect) => vec![wrongs::truncate_install(effect)],
            (Mutant::WatchWithoutNoting, Effect::Watch { pages }) => {
                vec![Effect::Protect { pages, access: Access::Write }]
            }
            (Mutant::UnwatchShared, Effect::SendPages { to, pages }) => {
                let span = |page: &PageToSend| {
                    let count = u64::from(page.page_bytes / GRANULE_BYTES);
                    Effect::Unwatch { pages: PageRange { first: page.page, count } }
                };
                let unwatch: Vec<Effect> = pages.iter().map(span).collect();
                [vec![Effect::SendPages { to, pages }], unwatch].concat()
            }
            (
                Mutant::OvertakeOwnDiffs,
                Effect::Read { pages, page_bytes, home, needed, merge, prefetched },
            ) => {
                let others = needed.entries().iter().filter(|(writer, _)| *writer != node);
                let mut needed = VersionVector::new();
                others.for_each(|(writer, seq)| needed.advance(*writer, *seq));
                vec![Effect::Read { pages, page_bytes, home, needed, merge, prefetched }]
            }
            (Mutant::PublishTooMuch, Effect::Publish { writer, seq }) => {
                vec![Effect::Publish { writer, seq: seq + 1 }]
            }
            (Mutant::PublishEarly, effect) => self.publish_early(node, effect),
            (_, effect) => vec![effect],
        }
    }

    fn on_announced(&mut self, home: NodeId, pages: Vec<PageId>) -> Vec<PageId> {
        match self.mutant {
            Mutant::TakeLate => self.announced.insert(home, pages).unwrap_or_default(),
            Mutant::TakeOnce => {
                pages.into_iter().filter(|page| self.announced_once.insert((home, *page))).collect()
            }
            _ => pages,
        }
    }

    fn on_read(&mut self) -> Reading {
        Reading {
            looks_away: self.mutant == Mutant::LookAway,
            announces_late: self.mutant == Mutant::AnnounceLate,
            announces_never: self.mutant == Mutant::AnnounceNever,
        }
    }

    fn on_collect(&mut self, granules: PageSet) -> PageSet {
        if self.mutant == Mutant::CollectForgets { without_last(granules) } else { granules }
    }

    fn on_unwritten(&mut self, was_unwritten: bool) -> bool {
        was_unwritten || self.mutant == Mutant::UnwrittenUnseen
    }

    fn clears_late(&mut self) -> bool {
        self.mutant == Mutant::CollectClearsLate
    }

    fn on_settle(&mut self, after: TwinAfter) -> TwinAfter {
        match (self.mutant, after) {
            (Mutant::TwinBecomesPage, TwinAfter::WithDiff) => TwinAfter::Page,
            (Mutant::DropKeptTwin, TwinAfter::WithDiff) => TwinAfter::Dropped,
            (Mutant::TwinStays, TwinAfter::WithDiff) => TwinAfter::Unchanged,
            _ => after,
        }
    }

    fn keeps_back(&mut self) -> bool {
        self.mutant != Mutant::FreeOvertakesPublication
    }

    fn on_merged(&mut self, dirty: bool) -> bool {
        dirty && self.mutant != Mutant::MergedClean
    }

    fn on_twin(&mut self, node: NodeId, page: PageId, twin: &mut Vec<u8>) {
        match self.mutant {
            Mutant::ZeroTwin => twin.fill(0),
            Mutant::StaleTwin => {
                twin.clone_from(self.twins.entry((node, page)).or_insert_with(|| twin.clone()))
            }
            _ => {}
        }
    }

    fn on_diff(&mut self, frame: &[u8], twin: &[u8], runs: Vec<u8>) -> Vec<u8> {
        if self.mutant == Mutant::JoinRuns { wrongs::joined(frame, twin) } else { runs }
    }

    fn on_merge(&mut self) -> Merge {
        match self.mutant {
            Mutant::OverwriteInsteadOfMerge => Merge::Overwrite,
            Mutant::MergeFrameOnly => Merge::FrameOnly,
            _ => Merge::FrameAndTwin,
        }
    }

    fn on_patch(&mut self) -> bool {
        self.mutant != Mutant::PatchFrameOnly
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        match self.mutant {
            Mutant::StaleContent => self.contents.instead_of(page, content),
            _ => content.map(<[u8]>::to_vec),
        }
    }

    fn sends_before(&mut self, from: NodeId, bytes: &[u8], limits: &Limits) -> Vec<(NodeId, Vec<u8>)> {
        match Message::decode(bytes, limits) {
            Ok(Message::Arrive { epoch, collective, knowledge, .. })
                if self.mutant == Mutant::DepartSubtreeEarly =>
            {
                let knowledge = Knowledge { epoch: epoch + 1, ..knowledge };
                let depart = Message::Depart { epoch, collective, knowledge, moves: Vec::new() }.encode();
                Tree::of(limits.nodes).below(from).map(|below| (below, depart.clone())).collect()
            }
            _ => Vec::new(),
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        match (self.mutant, message) {
            (Mutant::DiffsAstray, Message::Diffs { .. }) => Fate::Astray,
            (Mutant::DiffsTwice, Message::Diffs { .. }) => Fate::Twice { late: true },
            (Mutant::LoseSignal, Message::CondSignal { .. }) => Fate::LOST,
            // They were released before.
            (Mutant::DepartSubtreeEarly, Message::Depart { .. }) if from != NodeId::ZERO => Fate::LOST,
            _ => self.alter(from, to, message, limits),
        }
    }
}
