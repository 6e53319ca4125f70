//! Planted bugs. A checker that has never failed proves nothing: each mutant breaks one duty of the protocol, of its
//! host or of its messages, without touching the engine, and the suite must notice.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector};
use hiroba_protocol::barrier::Tree;
use hiroba_protocol::{Effect, NewContent, PageToSend, WriteTracking};
use hiroba_wire::{AtomicOperation, Knowledge, Limits, Message, PageDiff};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::memory::{Merge, TwinAfter};
use crate::program::GRANULE_BYTES;

pub mod aurc;
pub mod aurc_moves;
pub mod erc;
pub mod first_touch;
pub mod lrc;
pub mod mapping;
pub mod moves;
pub mod sc;
pub mod supplies;

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

    /// A message leaves: what really goes out, and whether it goes astray (out of its link's order).
    fn on_send(
        &mut self,
        _from: NodeId,
        _to: NodeId,
        bytes: Vec<u8>,
        _limits: &Limits,
    ) -> Vec<(Vec<u8>, bool)> {
        vec![(bytes, false)]
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

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A lock's grant forgets its last write notice.
    DropNoticeOfGrant,
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
    /// Two changed stretches are sent as one, with the unchanged bytes between them.
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
    /// The home sends what the page held when it was first asked for.
    StaleContent,
    /// The home answers at once, claiming the version that was asked for.
    IgnoreNeeded,
    /// Diffs leave their link's order.
    DiffsAstray,
    /// Diffs come twice, the second time late.
    DiffsTwice,
    /// A condition variable's signal is lost.
    LoseSignal,
    /// A kept twin becomes a copy of the page instead of taking the diff.
    TwinBecomesPage,
    /// A twin that is to be kept is dropped with its diff.
    DropKeptTwin,
    /// The host forgets one of the granules that were written.
    CollectForgets,
    /// What lost its access counts as unwritten, whatever the program has stored.
    UnwrittenUnseen,
    /// The host begins to note writes anew only after it has looked at all granules.
    CollectClearsLate,
    /// Watched pages run free, and nobody notes writes to them.
    WatchWithoutNoting,
    /// Writes to a home page are not noted any more once the page has been sent.
    UnwatchShared,
    /// A merged page is said to have been clean.
    MergedClean,
    /// A grant claims to be older than it is, and is not held back until the departure that its sender has seen.
    GrantCrossesDeparture,
    /// A grant does not say that it tells of what came after an arrival.
    ForgetBeyondArrival,
    /// A block is given out again before the publication that came with it has been absorbed.
    FreeOvertakesPublication,
    /// A kept twin stays as it was instead of taking the diff.
    TwinStays,
    /// A node arrives at a collective before the last thread of its team.
    TeamOneShort,
    /// Of a long page only the first granule comes in.
    TruncateInstall,
    /// One-sided readers do not look at what the home has published.
    LookAway,
    /// One-sided readers announce a page when they have copied it.
    AnnounceLate,
    /// One-sided readers announce nothing.
    AnnounceNever,
    /// One-sided readers forget that diffs of their own may not have reached the home.
    OvertakeOwnDiffs,
    /// A home hears of an announcement one interval late.
    TakeLate,
    /// A home does not hear of a page's second announcement.
    TakeOnce,
    /// A home publishes an interval before it applies the diffs.
    PublishEarly,
    /// A home publishes one interval more than it has applied.
    PublishTooMuch,
    /// Of pages that come together the first and the last are exchanged.
    ExchangeContents,
    /// What a node tells for those below it lacks the last write notice.
    DropNoticeOfSubtree,
    /// A node claims that all below it have seen what any of them has.
    SubtreeSeesAlike,
    /// A node lets those below it go when they have all come to it.
    DepartSubtreeEarly,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 47] = [
        Mutant::DropNoticeOfGrant,
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

    /// Whether the bug is one of one-sided reading.
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

    /// Whether the bug can be planted where writes are tracked so.
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

    /// The bug, ready to be planted.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            twins: FxHashMap::default(),
            contents: FxHashMap::default(),
            access: FxHashMap::default(),
            requested: FxHashMap::default(),
            announced: FxHashMap::default(),
            announced_once: FxHashSet::default(),
            unapplied: FxHashMap::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    twins: FxHashMap<(NodeId, PageId), Vec<u8>>,
    contents: FxHashMap<PageId, Option<Vec<u8>>>,
    /// What each node's pages allow, as far as effects have said.
    access: FxHashMap<(NodeId, PageId), Access>,
    /// What each node asked for last.
    requested: FxHashMap<(NodeId, PageId), VersionVector>,
    /// Announcements that a home will hear of next time.
    announced: FxHashMap<NodeId, Vec<PageId>>,
    /// Those that it has heard of before.
    announced_once: FxHashSet<(NodeId, PageId)>,
    /// Diffs that a home has yet to apply.
    unapplied: FxHashMap<NodeId, Vec<Effect>>,
}

fn claim_one_more(timestamp: &mut VectorTimestamp, node: NodeId) {
    timestamp.advance(node, timestamp.get(node) + 1);
}

fn has_below(node: NodeId, limits: &Limits) -> bool {
    Tree::of(limits.nodes).below(node).next().is_some()
}

fn without_last_page(knowledge: &Knowledge) -> Knowledge {
    let mut knowledge = knowledge.clone();
    if let Some(notice) = knowledge.notices.last_mut() {
        let last = notice.pages.iter().last();
        last.map(|page| notice.pages.remove(page));
    }
    knowledge.notices.retain(|notice| !notice.pages.is_empty());
    knowledge
}

/// Runs that cover everything between the first and the last changed byte.
fn joined(frame: &[u8], twin: &[u8]) -> Vec<u8> {
    let differs = |index: &usize| frame[*index] != twin[*index];
    let (Some(first), Some(last)) = ((0..frame.len()).find(differs), (0..frame.len()).rev().find(differs))
    else {
        return Vec::new();
    };
    // A run is written by encoding a page that differs from another one in exactly these bytes.
    let other: Vec<u8> = frame
        .iter()
        .enumerate()
        .map(|(index, byte)| if (first..=last).contains(&index) { !byte } else { *byte })
        .collect();
    let mut runs = Vec::new();
    hiroba_protocol::diff::encode(frame, &other, &mut runs);
    runs
}

impl Planted {
    /// Holds applications back until something else is done.
    fn publish_early(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let unapplied = self.unapplied.entry(node).or_default();
        match effect {
            Effect::Apply { .. } => {
                unapplied.push(effect);
                Vec::new()
            }
            Effect::Publish { .. } => std::iter::once(effect).chain(unapplied.drain(..)).collect(),
            _ => unapplied.drain(..).chain([effect]).collect(),
        }
    }

    fn alter(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Option<Vec<u8>> {
        let altered = match (self.mutant, message) {
            (Mutant::DropNoticeOfGrant, Message::LockGrant { lock, turn, knowledge }) => {
                Message::LockGrant { lock: *lock, turn: *turn, knowledge: without_last_page(knowledge) }
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
                let knowledge = without_last_page(knowledge);
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
                Message::Arrive { epoch, collective, caller, least, knowledge, moves },
            ) if has_below(from, limits) => {
                let (epoch, collective, caller) = (*epoch, *collective, *caller);
                let drops = self.mutant == Mutant::DropNoticeOfSubtree;
                let knowledge = if drops { without_last_page(knowledge) } else { knowledge.clone() };
                let least = least.clone().filter(|_| drops);
                let moves = moves.clone();
                Message::Arrive { epoch, collective, caller, least, knowledge, moves }
            }
            (Mutant::ExchangeContents, Message::PagesReply { copies, content })
                if copies.len() > 1 && copies.iter().all(|copy| !copy.is_zero) =>
            {
                let page_bytes = content.len() / copies.len();
                let (first, last) = (&content[..page_bytes], &content[content.len() - page_bytes..]);
                let between = &content[page_bytes..content.len() - page_bytes];
                let content = [last, between, first].concat();
                return Some(Message::PagesReply { copies: copies.clone(), content: &content }.encode());
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
                return Some(Message::Diffs { seq: *seq, last: *last, diffs }.encode());
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
                return Some(Message::PagesReply { copies, content }.encode());
            }
            _ => return None,
        };
        Some(altered.encode())
    }
}

impl Mutation for Planted {
    fn on_team(&mut self, threads: u32) -> u32 {
        if self.mutant == Mutant::TeamOneShort { threads.saturating_sub(1) } else { threads }
    }

    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let mut lowers = false;
        let set = match &effect {
            Effect::Protect { pages, access } => Some((*pages, *access)),
            Effect::Invalidate { span, .. } => Some((*span, Access::None)),
            _ => None,
        };
        if let Some((pages, access)) = set {
            for page in pages.iter() {
                let before = self.access.insert((node, page), access);
                lowers |= before == Some(Access::Write) && access == Access::Read;
            }
        }
        match (self.mutant, effect) {
            (Mutant::SkipProtectAtRelease, Effect::Protect { .. }) if lowers => Vec::new(),
            (Mutant::SkipApply, Effect::Apply { .. })
            | (Mutant::LoseInvalidation, Effect::Invalidate { .. })
            | (Mutant::SkipPatch, Effect::Patch { .. }) => Vec::new(),
            (
                Mutant::AtomicTwice,
                Effect::Atomic { page, offset, operation: AtomicOperation::FetchAdd(delta) },
            ) => {
                let operation = AtomicOperation::FetchAdd(delta * 2);
                vec![Effect::Atomic { page, offset, operation }]
            }
            (Mutant::WatchWithoutNoting, Effect::Watch { pages }) => {
                vec![Effect::Protect { pages, access: Access::Write }]
            }
            (Mutant::UnwatchShared, Effect::SendPages { to, pages, ahead_of }) => {
                let span = |page: &PageToSend| {
                    let count = u64::from(page.page_bytes / GRANULE_BYTES);
                    Effect::Unwatch { pages: PageRange { first: page.page, count } }
                };
                let unwatch: Vec<Effect> = pages.iter().map(span).collect();
                [vec![Effect::SendPages { to, pages, ahead_of }], unwatch].concat()
            }
            (Mutant::TruncateInstall, Effect::Install { pages, content, merge, fetched, prefetched })
                if pages.count > 1 =>
            {
                let content = match content {
                    NewContent::Received(range) => {
                        NewContent::Received(range.start..range.start + GRANULE_BYTES as usize)
                    }
                    other => other,
                };
                let pages = PageRange::single(pages.first);
                vec![Effect::Install { pages, content, merge, fetched, prefetched }]
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

    fn on_collect(&mut self, mut granules: PageSet) -> PageSet {
        if self.mutant == Mutant::CollectForgets {
            let last = granules.iter().last();
            last.map(|granule| granules.remove(granule));
        }
        granules
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
        if self.mutant == Mutant::JoinRuns { joined(frame, twin) } else { runs }
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
        let content = content.map(<[u8]>::to_vec);
        if self.mutant == Mutant::StaleContent {
            return self.contents.entry(page).or_insert(content).clone();
        }
        content
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

    fn on_send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>, limits: &Limits) -> Vec<(Vec<u8>, bool)> {
        let Ok(message) = Message::decode(&bytes, limits) else { return vec![(bytes, false)] };
        let altered = self.alter(from, to, &message, limits);
        match (self.mutant, &message) {
            (Mutant::DiffsAstray, Message::Diffs { .. }) => vec![(bytes, true)],
            (Mutant::DiffsTwice, Message::Diffs { .. }) => vec![(bytes.clone(), false), (bytes, true)],
            (Mutant::LoseSignal, Message::CondSignal { .. }) => Vec::new(),
            // They have gone.
            (Mutant::DepartSubtreeEarly, Message::Depart { .. }) if from != NodeId::ZERO => Vec::new(),
            _ => vec![(altered.unwrap_or(bytes), false)],
        }
    }
}
