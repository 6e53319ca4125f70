//! One-sided fetches: if the fabric can, the faulting thread reads the home's frame itself, without waking
//! another thread.
//!
//! A fetch by message tells the home two things. When the home takes no part, both must be established
//! otherwise:
//!
//! - **Which intervals a frame contains.** The diffs of one writer reach a home in order, and the last
//!   message of an interval is marked. So one word for each writer suffices: the home *publishes* that it has
//!   applied all diffs of the writer's intervals through `seq` for its pages. A node that needs interval `i`
//!   of that writer may read when the word is `i` or more. The word belongs to the home, not to the page, so
//!   no page has a lock or a version for which readers and writers would contend. Two writers need more
//!   thought:
//!   - *The home itself* sends no diffs. But its notice has come by messages, which order its stores before
//!     the reader's loads.
//!   - *The reader itself*: diffs of its own may still be on their way. By message the request would follow
//!     them on the same link; here they are needed like those of any other node.
//! - **That there is a copy.** The home sends no notices of a page that it takes to be exclusive. So the
//!   reader *announces* the page before it copies. The home takes all announcements whenever it closes an
//!   interval, before anything else, makes the pages shared, and counts those that it may have written
//!   without notice as written in that interval. Announcing and taking are ordered like two fences: an
//!   announcement that the home misses was made after the taking, and then the copy contains every store of
//!   the interval, and the next interval will find the announcement. Nothing else need check for
//!   announcements: if a departure makes a page exclusive again that has just been announced, the
//!   announcement still waits for the next release.
//!
//! Bytes that are written while they are copied may be torn. They belong to stores, or to diffs, that are
//! concurrent with the reader: if the reader had acquired what follows them, the word would have been
//! published, or the home's notice would have come. A program without data races does not look at those bytes
//! before a notice of that interval reaches it, which invalidates the copy, since the copy's version does not
//! include the interval. Nor are they taken for writes of the reader: twin and frame are made of one and the
//! same copy, and if there is a twin already, bytes of the copy that differ from it go into both.
//!
//! There is one more consequence: a copy may overtake the reply to an atomic operation of the same node, and
//! contain later values of the word than the reply. So the reply is not written into a copy that was read
//! after the operation was requested; the copy is dropped.
//!
//! If one of the conditions fails, the page is requested by message, as if frames could not be read.

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VersionVector};

use super::Hlrc;
use crate::coherence::Site;
use crate::home::Located;
use crate::{Effect, ReadOutcome};

/// The maximum number of bytes of adjacent pages that are read in one call: enough to make the cost of the
/// call small, and a copy that keeps other threads waiting for some tens of microseconds.
const READ_RUN_BYTES_MAX: u64 = 256 << 10;

/// The nodes whose frames this node can read, by number; empty if the fabric cannot.
#[derive(Debug, Default)]
pub(super) struct Reach {
    nodes: Vec<bool>,
    /// True if this node does not read any more. Others may still read its frames.
    is_stopped: bool,
}

impl Reach {
    /// Returns true if there are any.
    pub(super) fn is_some(&self) -> bool {
        !self.nodes.is_empty()
    }

    pub(super) fn includes(&self, node: NodeId) -> bool {
        !self.is_stopped && self.nodes.get(node.index()).is_some_and(|reached| *reached)
    }

    /// Returns true if the node may read frames of this one.
    pub(super) fn reads(&self, node: NodeId) -> bool {
        self.nodes.get(node.index()).is_some_and(|reached| *reached)
    }

    /// Has this node request pages by message from now on.
    pub(super) fn stop_reading(&mut self) {
        self.is_stopped = true;
    }
}

impl Hlrc {
    /// Has pages that are homed on `others` read from their frames without the home's help
    /// ([`Effect::Read`]). The same nodes read pages homed here in the same way: reach is mutual.
    ///
    /// # Panics
    /// If data races are looked for, which needs every fetch to be a message.
    pub fn reading_from(mut self, others: impl IntoIterator<Item = NodeId>) -> Hlrc {
        assert!(!self.looks_for_races, "a home hears of every fetch when data races are looked for");
        for node in others {
            let reached = self.reach.nodes.len().max(node.index() + 1);
            self.reach.nodes.resize(reached, false);
            self.reach.nodes[node.index()] = true;
        }
        self
    }

    /// Reads pages of one home from its frames, consecutive pages together.
    pub(super) fn read_pages(&mut self, site: &mut Site, home: NodeId, mut pages: Vec<PageId>) {
        assert!(pages.is_empty() || self.reach.includes(home), "only frames within reach are read");
        pages.sort_unstable();
        let mut run: Option<Effect> = None;
        for page_id in pages {
            let read = self.read_of(site, home, page_id);
            if run.as_mut().is_none_or(|run| !extend(run, &read)) {
                site.out.extend(run.replace(read));
            }
        }
        site.out.extend(run);
    }

    fn read_of(&mut self, site: &mut Site, home: NodeId, page_id: PageId) -> Effect {
        let Located { granules, .. } = site.locate(page_id);
        let pages = PageRange { first: page_id, count: granules };
        let page_bytes = granules as u32 * site.limits.granule_bytes;
        let page = self.pages.or_default(page_id);
        let mut needed = VersionVector::new();
        let of_others = page.needed.entries().iter().filter(|(writer, _)| *writer != home);
        of_others.for_each(|(writer, seq)| needed.advance(*writer, *seq));
        needed.advance(site.me, page.version.get(site.me));
        let prefetched = page.fetch.as_ref().is_some_and(|fetch| !fetch.demanded);
        Effect::Read { pages, page_bytes, home, needed, merge: page.twin, prefetched }
    }

    /// Handles the host's answer that it has read pages, or could not.
    pub(super) fn handle_read(&mut self, site: &mut Site, pages: PageRange, outcome: ReadOutcome) {
        let Located { granules, home, .. } = site.locate(pages.first);
        let page_ids = (0..pages.count / granules).map(|index| PageId(pages.first.0 + index * granules));
        let ReadOutcome::Installed { dirty } = outcome else {
            return self.ask_for_pages(site, home, &page_ids.collect::<Vec<_>>(), false);
        };
        let mut fetches = Vec::new();
        for page_id in page_ids {
            let page = self.pages.or_default(page_id);
            let fetch = page.fetch.take().expect("a page that is read is being fetched");
            assert!(!page.valid, "{page_id}: what is here is not read again");
            page.has_come();
            if page.twin && !dirty && site.is_async(page_id) {
                self.written.remove(page_id);
            }
            self.anticipation.has_come(site, page_id);
            // Replies come in the order in which the home acted, copies do not.
            self.atomic_targets.overtake(page_id);
            fetches.push((page_id, fetch));
        }
        self.end_fetches(site, fetches);
    }
}

impl super::Page {
    /// Notes that the copy has come: it contains its earlier and the needed intervals. It may contain more,
    /// and then a notice of those invalidates it in vain.
    fn has_come(&mut self) {
        let needed = std::mem::take(&mut self.needed);
        needed.entries().iter().for_each(|(writer, seq)| self.version.advance(*writer, *seq));
        self.valid = true;
    }
}

/// Extends `last` by the page of `next`, if that follows. Returns true if so.
fn extend(last: &mut Effect, next: &Effect) -> bool {
    let Effect::Read { pages, page_bytes, home, needed, merge: false, prefetched } = last else {
        return false;
    };
    let Effect::Read {
        pages: more,
        page_bytes: bytes,
        home: from,
        needed: also,
        merge: false,
        prefetched: also_ahead,
    } = next
    else {
        return false;
    };
    assert!(more.count > 0, "a page has granules");
    let of_one_kind = (&*page_bytes, &*home) == (bytes, from) && *prefetched && *also_ahead;
    let bytes_after = (pages.count / more.count + 1) * u64::from(*bytes);
    if !of_one_kind || pages.end() != more.first || bytes_after > READ_RUN_BYTES_MAX {
        return false;
    }
    pages.count += more.count;
    also.entries().iter().for_each(|(writer, seq)| needed.advance(*writer, *seq));
    true
}

/// The home's side.
impl Hlrc {
    /// Marks pages homed here as shared: another node has copies, or is about to make them. Returns those
    /// that must be watched from now on. Each counts as written in the open interval, so a store before the
    /// watch begins gets a notice, too.
    #[must_use]
    pub(super) fn share(&mut self, site: &mut Site, page_ids: impl IntoIterator<Item = PageId>) -> PageSet {
        let mut watched = PageSet::new();
        for page_id in page_ids {
            let page = self.pages.or_default(page_id);
            (page.shared, page.served) = (true, true);
            page.served_at = site.collectives_done;
            if std::mem::take(&mut page.unnoticed) {
                // The page may have been written without notice until now; from now on its reader needs
                // notices. An operation on a word counts as a write without notice, also in a watched page.
                let runs_free = page.access == Access::Write && !page.watched;
                self.written.insert(page_id);
                if runs_free && !self.let_unguarded(page_id) && site.is_async(page_id) {
                    watched.insert(page_id);
                }
            } else if !page.unguarded {
                page.leave.note_fetch();
            }
        }
        watched
    }

    /// Marks pages as shared that are about to be sent, like [`share`](Self::share).
    ///
    /// If no other node reads this node's frames and pages are claimed, exclusive pages are watched before
    /// they are sent. That saves a notice: only the node that gets them now has a copy, which contains every
    /// earlier store. A notice would void the copy at the next barrier, and its home would count as a writer
    /// of the page that its reader claims.
    #[must_use]
    pub(super) fn share_by_message(
        &mut self,
        site: &mut Site,
        page_ids: impl IntoIterator<Item = PageId>,
    ) -> PageSet {
        if self.reach.is_some() || !self.moves.claims_pages() {
            return self.share(site, page_ids);
        }
        let (mut ahead, mut others) = (PageSet::new(), Vec::new());
        for page_id in page_ids {
            let page = self.pages.or_default(page_id);
            let runs_free = page.access == Access::Write && !page.watched;
            let is_exclusive = page.unnoticed && !page.shared && runs_free && !page.has_words;
            if is_exclusive && site.is_async(page_id) && !page.leave.is_left() {
                page.leave.note_fetch();
                (page.shared, page.served, page.unnoticed) = (true, true, false);
                ahead.insert(page_id);
            } else {
                others.push(page_id);
            }
        }
        self.watch_set(site, &ahead);
        self.share(site, others)
    }

    /// Notes that the runtime has written an exclusive page that the program may never have touched. A node
    /// that requests the page by message comes after it, so only a reader that has announced the page already
    /// needs a notice.
    pub(super) fn note_unnoticed(&mut self, page_id: PageId) {
        if self.reach.is_some() {
            self.pages.or_default(page_id).unnoticed = true;
        }
    }

    /// Takes announcements when a node that could have read requests by message: perhaps the queue of
    /// announcements was full.
    pub(super) fn make_room_for_announcements(&mut self, site: &mut Site, asks: NodeId) {
        if self.reach.reads(asks) {
            site.out.push(Effect::TakeAnnouncements);
        }
    }

    pub(super) fn note_readers(&mut self, site: &mut Site, pages: &[PageId]) {
        // A page that is not allocated here yet will be: its reader has left the collective that allocates
        // it.
        let is_ours = |page_id: PageId| match site.homes.locate(page_id) {
            Some(located) => located.page == page_id && located.home == site.me,
            None => page_id.0 < site.limits.region_granules,
        };
        let ours: Vec<PageId> = pages.iter().copied().filter(|page_id| is_ours(*page_id)).collect();
        let watched = self.share(site, ours);
        self.watch_set(site, &watched);
    }

    /// Publishes that all diffs of `writer` from its intervals through `seq` are applied, unless some are
    /// kept.
    pub(super) fn publish(&mut self, site: &mut Site, writer: NodeId, seq: IntervalSeq) {
        let some_is_kept = site.deferred.iter().chain(site.out.kept()).any(|(from, _)| *from == writer);
        if self.reach.is_some() && !some_is_kept && !self.moves.puts_off(writer, seq) {
            site.out.push(Effect::Publish { writer, seq });
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::PageSize;
    use hiroba_wire::{Message, PageDiff, Placement};

    use super::*;
    use crate::{Consistency, Done, Engine, WriteTracking, diff};

    const WRITER: NodeId = NodeId(1);
    const FIRST: PageRange = PageRange { first: PageId(0), count: 4 };
    const SECOND: PageRange = PageRange { first: PageId(4), count: 4 };

    fn engine(me: NodeId) -> Consistency {
        let limits = hiroba_wire::Limits { nodes: 2, region_granules: 8, granule_bytes: 4096 };
        let others = NodeId::all(2).filter(|node| *node != me);
        let protocol = Box::new(Hlrc::new().reading_from(others));
        let mut engine = Consistency::new(me, limits, WriteTracking::Async, protocol);
        engine.add_region(FIRST, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        engine
    }

    fn effects(engine: &mut Consistency) -> Vec<Effect> {
        std::iter::from_fn(|| engine.poll_effect()).collect()
    }

    fn publications(engine: &mut Consistency) -> Vec<IntervalSeq> {
        let effects = effects(engine).into_iter();
        let seqs = effects.filter_map(|effect| match effect {
            Effect::Publish { seq, .. } => Some(seq),
            _ => None,
        });
        seqs.collect()
    }

    fn diffs(engine: &mut Consistency, seq: IntervalSeq, last: bool, page: u64) -> Vec<IntervalSeq> {
        let diffs = vec![PageDiff { page: PageId(page), runs: &[] }];
        engine.handle_message(WRITER, &Message::Diffs { seq, last, diffs }).unwrap();
        publications(engine)
    }

    #[test]
    fn an_interval_is_published_with_its_last_diffs() {
        let mut home = engine(NodeId::ZERO);
        assert_eq!(diffs(&mut home, 1, false, 0), []);
        assert_eq!(diffs(&mut home, 1, true, 1), [1]);
        assert_eq!(diffs(&mut home, 2, true, 0), [2]);
    }

    #[test]
    fn nothing_is_published_while_diffs_for_a_later_region_are_kept() {
        let mut home = engine(NodeId::ZERO);
        assert_eq!(diffs(&mut home, 1, true, 4), [], "the region is not known here yet");
        assert_eq!(diffs(&mut home, 2, true, 0), [], "the first interval is not applied");
        home.add_region(SECOND, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        assert_eq!(publications(&mut home), [2], "both are applied, in their order");
        assert_eq!(diffs(&mut home, 3, true, 0), [3]);
    }

    #[test]
    fn diffs_that_come_before_kept_ones_are_applied_wait_for_them() {
        let mut home = engine(NodeId::ZERO);
        diffs(&mut home, 1, true, 4);
        home.add_region(SECOND, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        // The host has not polled in between.
        let message =
            Message::Diffs { seq: 2, last: true, diffs: vec![PageDiff { page: PageId(0), runs: &[] }] };
        home.handle_message(WRITER, &message).unwrap();
        assert_eq!(publications(&mut home), [2]);
    }

    /// Without this, an older diff would undo a younger one, or a writer would fetch a page without its own
    /// diff.
    #[test]
    fn nothing_of_a_writer_overtakes_its_diffs_that_are_kept_for_a_later_region() {
        let mut home = engine(NodeId::ZERO);
        let runs = &diff::of_bytes(0, &[7])[..];
        let diffs_of = |seq, pages: &[u64]| Message::Diffs {
            seq,
            last: true,
            diffs: pages.iter().map(|page| PageDiff { page: PageId(*page), runs }).collect(),
        };
        let mut needed = VersionVector::new();
        needed.advance(WRITER, 2);
        let request = Message::PageRequest { page: PageId(0), needed: VersionVector::new() };
        for message in [diffs_of(1, &[0, 4]), diffs_of(2, &[0]), request] {
            home.handle_message(WRITER, &message).unwrap();
        }
        assert_eq!(effects(&mut home), [], "all of it waits");
        home.add_region(SECOND, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        let order: Vec<(char, u64)> = effects(&mut home)
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Apply { page, .. } => Some(('a', page.0)),
                Effect::SendPages { pages, .. } if pages[0].version == needed => Some(('s', pages[0].page.0)),
                Effect::SendPages { .. } => Some(('?', 0)),
                _ => None,
            })
            .collect();
        assert_eq!(order, [('a', 0), ('a', 4), ('a', 0), ('s', 0)]);
    }

    #[test]
    fn a_page_announced_ahead_of_its_region_is_shared_from_the_beginning() {
        let mut home = engine(NodeId::ZERO);
        home.handle_done(Done::Announced { pages: vec![PageId(5), PageId(u64::MAX)] });
        home.add_region(SECOND, PageSize::KIB_4, Placement::On(NodeId::ZERO));
        home.handle_fault(PageId(5), Access::Write, None);
        assert_eq!(effects(&mut home), [Effect::Watch { pages: PageRange::single(PageId(5)) }]);
        home.handle_fault(PageId(6), Access::Write, None);
        let exclusive = PageRange { first: PageId(6), count: 2 };
        assert_eq!(effects(&mut home), [Effect::Protect { pages: exclusive, access: Access::Write }]);
    }

    #[test]
    fn pages_that_follow_each_other_are_read_in_one_go_and_asked_for_in_one_message() {
        let mut reader = engine(WRITER);
        reader.handle_prefetch(&[FIRST]);
        let read = Effect::Read {
            pages: FIRST,
            page_bytes: 4096,
            home: NodeId::ZERO,
            needed: VersionVector::new(),
            merge: false,
            prefetched: true,
        };
        assert_eq!(effects(&mut reader), [read]);
        reader.handle_done(Done::Read { pages: FIRST, outcome: ReadOutcome::Behind });
        let requests = effects(&mut reader);
        assert!(matches!(requests[..], [Effect::Send { to: NodeId::ZERO, .. }]), "{requests:?}");
    }

    #[test]
    fn a_run_that_was_read_is_watched_in_one_go() {
        let mut reader = engine(WRITER);
        reader.handle_prefetch(&[FIRST]);
        effects(&mut reader);
        let outcome = ReadOutcome::Installed { dirty: false };
        reader.handle_done(Done::Read { pages: FIRST, outcome });
        let effects = effects(&mut reader);
        assert_eq!(effects.last(), Some(&Effect::Watch { pages: FIRST }));
        let twins = effects.iter().filter(|effect| matches!(effect, Effect::Twin { .. })).count();
        assert_eq!((twins, effects.len()), (4, 5));
    }
}
