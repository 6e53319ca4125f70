//! Planted bugs of automatic update: diffs that are sent before their interval ends.

use hiroba_base::{NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_protocol::{Effect, WriteTracking, diff};
use hiroba_wire::{Knowledge, Limits, Message, PageDiff};
use rustc_hash::{FxHashMap, FxHashSet};

use super::wrongs::{WIDE_LIMITS, without_last};
use super::{Fate, Mutation};
use crate::memory::TwinAfter;
use crate::program::GRANULE_BYTES;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Early diffs are lost.
    LoseEarlyDiffs,
    /// Of several early diffs the last one arrives empty.
    DropEarlyRuns,
    /// Early diffs leave their link's order.
    EarlyDiffsAstray,
    /// Early diffs arrive twice, the second time late.
    EarlyDiffsTwice,
    /// Early diffs arrive after what the node sends that home next.
    EarlyDiffsOvertaken,
    /// Early diffs arrive as if they were the interval's.
    ClaimInterval,
    /// Early diffs arrive as if they were all of the interval's.
    ClaimEndOfInterval,
    /// The twin stays unchanged.
    TwinStays,
    /// The twin becomes a copy of the present page.
    TwinBecomesPage,
    /// The twin is dropped.
    DropTwin,
    /// An early diff spans everything between the changed bytes.
    JoinRuns,
    /// An early diff lacks its last run, which the twin has taken.
    LoseLastRun,
    /// A page of which nothing remains at the release gets no notice.
    ForgetNotice,
    /// The home gets no last message for a page of which nothing remains at the release.
    ForgetVersion,
    /// What a lull has found written is not reported at the release.
    LullForgets,
    /// A page that was sent early is read from the home's frame, where the diff may not have been applied
    /// yet.
    ReadAhead,
    /// Two pages of one message of early diffs are exchanged.
    ExchangePages,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 17] = [
        Mutant::LoseEarlyDiffs,
        Mutant::DropEarlyRuns,
        Mutant::EarlyDiffsAstray,
        Mutant::EarlyDiffsTwice,
        Mutant::EarlyDiffsOvertaken,
        Mutant::ClaimInterval,
        Mutant::ClaimEndOfInterval,
        Mutant::TwinStays,
        Mutant::TwinBecomesPage,
        Mutant::DropTwin,
        Mutant::JoinRuns,
        Mutant::LoseLastRun,
        Mutant::ForgetNotice,
        Mutant::ForgetVersion,
        Mutant::LullForgets,
        Mutant::ReadAhead,
        Mutant::ExchangePages,
    ];

    /// Returns true if the bug can be planted under this way of tracking writes, with or without reading
    /// frames.
    pub fn concerns(self, tracking: WriteTracking, one_sided: bool) -> bool {
        match self {
            Mutant::LullForgets => tracking == WriteTracking::Async,
            Mutant::ReadAhead => one_sided,
            _ => true,
        }
    }

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted {
            mutant: self,
            sent: FxHashSet::default(),
            held: FxHashMap::default(),
            pages: FxHashMap::default(),
        })
    }
}

struct Planted {
    mutant: Mutant,
    /// Pages of which each node has sent early everything that it has sent in the open interval.
    sent: FxHashSet<(NodeId, PageId)>,
    /// Early diffs that are delayed.
    held: FxHashMap<(NodeId, NodeId), Vec<Vec<u8>>>,
    /// The length of pages that have had twins.
    pages: FxHashMap<PageId, u32>,
}

fn each_run(runs: &[u8], visit: impl FnMut(usize, &[u8])) {
    diff::apply(runs, usize::MAX, visit).expect("the engine's diffs are whole");
}

/// Encodes the runs of a page that differs from another in these places.
fn encoded(places: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let end = places.iter().map(|(offset, bytes)| offset + bytes.len()).max().unwrap_or(0);
    let mut page = vec![0; end];
    let mut other = vec![0; end];
    for (offset, bytes) in places {
        page[*offset..offset + bytes.len()].copy_from_slice(bytes);
        other[*offset..offset + bytes.len()]
            .copy_from_slice(&bytes.iter().map(|byte| !byte).collect::<Vec<_>>());
    }
    let mut runs = Vec::new();
    diff::encode(&page, &other, &mut runs);
    runs
}

impl Planted {
    /// Follows which pages have been sent early, and only early.
    fn note(&mut self, from: NodeId, message: &Message<'_>) {
        match message {
            Message::EarlyDiffs { diffs, .. } => {
                self.sent.extend(diffs.iter().map(|diff| (from, diff.page)));
            }
            Message::Diffs { diffs, .. } => {
                let changed = diffs.iter().filter(|diff| !diff.runs.is_empty());
                changed.for_each(|diff| _ = self.sent.remove(&(from, diff.page)));
            }
            _ => {}
        }
    }

    fn forgetful(&self, from: NodeId, knowledge: &Knowledge) -> Knowledge {
        let mut knowledge = knowledge.clone();
        for notice in knowledge.notices.iter_mut().filter(|notice| notice.node == from) {
            notice.pages = notice.pages.iter().filter(|page| !self.sent.contains(&(from, *page))).collect();
        }
        knowledge.notices.retain(|notice| !notice.pages.is_empty());
        knowledge
    }

    fn alter_early(&mut self, from: NodeId, to: NodeId, seq: u64, diffs: &[PageDiff<'_>]) -> Fate {
        let mut diffs = diffs.to_vec();
        match self.mutant {
            Mutant::LoseEarlyDiffs => Fate::LOST,
            Mutant::DropEarlyRuns => {
                diffs.last_mut().into_iter().for_each(|diff| diff.runs = &[]);
                Fate::altered(&Message::EarlyDiffs { seq, diffs })
            }
            Mutant::EarlyDiffsAstray => Fate::Astray,
            Mutant::EarlyDiffsTwice => Fate::Twice { late: true },
            Mutant::EarlyDiffsOvertaken => {
                let early = Message::EarlyDiffs { seq, diffs }.encode();
                self.held.entry((from, to)).or_default().push(early);
                Fate::LOST
            }
            Mutant::ClaimInterval | Mutant::ClaimEndOfInterval => {
                let last = self.mutant == Mutant::ClaimEndOfInterval;
                Fate::altered(&Message::Diffs { seq, last, diffs })
            }
            Mutant::ExchangePages if diffs.len() > 1 => {
                let last = diffs.len() - 1;
                (diffs[0].page, diffs[last].page) = (diffs[last].page, diffs[0].page);
                Fate::altered(&Message::EarlyDiffs { seq, diffs })
            }
            _ => Fate::Sent,
        }
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        match effect {
            Effect::Twin { page, page_bytes } => {
                self.pages.insert(page, page_bytes);
                vec![Effect::Twin { page, page_bytes }]
            }
            Effect::Send { to: home, message } if self.mutant == Mutant::ReadAhead => {
                match Message::decode(&message, &WIDE_LIMITS) {
                    Ok(Message::PageRequest { page, needed })
                        if self.sent.contains(&(node, page)) && self.pages.contains_key(&page) =>
                    {
                        let page_bytes = self.pages[&page];
                        let pages = PageRange { first: page, count: u64::from(page_bytes / GRANULE_BYTES) };
                        let mut others = VersionVector::new();
                        let entries = needed.entries().iter().filter(|(writer, _)| *writer != home);
                        entries.for_each(|(writer, seq)| others.advance(*writer, *seq));
                        let (needed, merge, prefetched) = (others, true, false);
                        vec![Effect::Read { pages, page_bytes, home, needed, merge, prefetched }]
                    }
                    _ => vec![Effect::Send { to: home, message }],
                }
            }
            effect => vec![effect],
        }
    }

    fn on_collect_in_lull(&mut self, granules: PageSet) -> PageSet {
        if self.mutant == Mutant::LullForgets { without_last(granules) } else { granules }
    }

    fn on_early_diff(&mut self, runs: Vec<u8>) -> Vec<u8> {
        let mut places: Vec<(usize, Vec<u8>)> = Vec::new();
        each_run(&runs, |offset, bytes| places.push((offset, bytes.to_vec())));
        match self.mutant {
            Mutant::LoseLastRun => {
                places.pop();
                encoded(&places)
            }
            Mutant::JoinRuns if places.len() > 1 => {
                let first = places[0].0;
                let (last, bytes) = &places[places.len() - 1];
                let mut span = vec![0; last + bytes.len() - first];
                for (offset, bytes) in &places {
                    span[offset - first..][..bytes.len()].copy_from_slice(bytes);
                }
                encoded(&[(first, span)])
            }
            _ => runs,
        }
    }

    fn on_settle_early(&mut self, after: TwinAfter) -> TwinAfter {
        match self.mutant {
            Mutant::TwinStays => TwinAfter::Unchanged,
            Mutant::TwinBecomesPage => TwinAfter::Page,
            Mutant::DropTwin => TwinAfter::Dropped,
            _ => after,
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, _limits: &Limits) -> Fate {
        self.note(from, message);
        if let Message::EarlyDiffs { seq, diffs } = message {
            return self.alter_early(from, to, *seq, diffs);
        }
        let altered = match (self.mutant, message) {
            (Mutant::ForgetNotice, Message::LockGrant { lock, turn, knowledge }) => {
                Message::LockGrant { lock: *lock, turn: *turn, knowledge: self.forgetful(from, knowledge) }
                    .encode()
            }
            (
                Mutant::ForgetNotice,
                Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions },
            ) => {
                let (epoch, collective, caller, least) = (*epoch, *collective, *caller, least.clone());
                let knowledge = self.forgetful(from, knowledge);
                let (moves, contributions) = (moves.clone(), contributions.clone());
                Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions }.encode()
            }
            (Mutant::ForgetVersion, Message::Diffs { seq, last, diffs }) => {
                let stays = |diff: &&PageDiff<'_>| !self.sent.contains(&(from, diff.page));
                let diffs: Vec<_> = diffs.iter().filter(stays).copied().collect();
                if diffs.is_empty() {
                    return Fate::LOST;
                }
                Message::Diffs { seq: *seq, last: *last, diffs }.encode()
            }
            _ => message.encode(),
        };
        if matches!(message, Message::Diffs { last: true, .. }) {
            self.sent.retain(|(node, _)| *node != from || self.mutant == Mutant::ForgetNotice);
        }
        let late = self.held.remove(&(from, to)).unwrap_or_default();
        Fate::Replaced([vec![altered], late].concat())
    }
}
