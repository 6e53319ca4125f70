//! One-sided fetches: the faulting thread reads the home's frame itself, where the fabric can, and wakes nobody.
//!
//! A fetch by message tells the home two things, which must be agreed upon otherwise when the home takes no part:
//!
//! - **Which intervals a frame holds.** The diffs of one writer come to a home in order, and the last message of an interval says so.
//!   So one word a writer suffices: the home *publishes* that it has applied all that the writer's intervals through `seq` hold for
//!   it. Who needs interval `i` of that writer may read when the word is `i` or more. The word is the home's, not the page's, so no page
//!   has a lock or a version that readers and writers would contend for. Two writers need more thought:
//!   - *The home itself* sends no diffs. But its notice has come by messages, which order its stores before the reader's loads.
//!   - *The reader itself*: diffs of its own may still be on their way. By message the request would follow them on the same link; here
//!     they are needed like anybody else's.
//! - **That there is a copy.** Of a page that it takes to be exclusive the home sends no notices. So the reader *announces*
//!   the page before it copies; and the home takes all announcements whenever it closes an interval, before anything else, makes
//!   the pages shared, and counts those that it may have written without notice as written in that interval. Announcing and taking
//!   are ordered like two fences: an announcement that the home misses was made after the taking, and then the copy holds every store
//!   that the interval is about; the next interval will find it. Nothing else need look for announcements: if a departure makes
//!   a page exclusive again that has just been announced, the announcement still waits for the next release.
//!
//! Bytes that are written while they are copied may come torn. They belong to stores, or to diffs, that are concurrent with the
//! reader: had the reader acquired what follows them, the word would have been published, or the home's notice would have come. A program
//! without data races does not look at those bytes before a notice of that interval reaches it, which invalidates the copy, since the copy
//! does not claim to hold the interval. Nor are they taken for writes of its own: twin and frame are made of one and the same copy,
//! and where there is a twin, bytes of the copy that differ from it go into both.
//!
//! One thing more follows from not asking: a copy may overtake the reply to an atomic operation of the same node, and hold later values of the
//! word than the reply tells. So the reply is not written into a copy that was read since the operation was asked for; the copy is dropped.
//!
//! Where either condition fails the page is asked for by message, as if nobody could read anything.

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VersionVector};

use super::Hlrc;
use crate::coherence::Site;
use crate::home::Located;
use crate::{Effect, ReadOutcome};

/// Adjacent pages are read in one go up to this many bytes: enough to make the cost of a call small, and a
/// copy that keeps others waiting for some tens of microseconds.
const READ_RUN_BYTES_MAX: u64 = 256 << 10;

/// The nodes whose frames this node can read, by number; none where the fabric cannot.
#[derive(Debug, Default)]
pub(super) struct Reach(Vec<bool>);

impl Reach {
    /// Whether there are any.
    pub(super) fn is_some(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn includes(&self, node: NodeId) -> bool {
        self.0.get(node.index()).is_some_and(|reached| *reached)
    }
}

impl Hlrc {
    /// Has pages that are homed on `others` read from there without the home's help ([`Effect::Read`]). The same nodes read pages
    /// homed here likewise: reach is mutual.
    ///
    /// # Panics
    /// When data races are looked for, which needs every fetch to be a message.
    pub fn reading_from(mut self, others: impl IntoIterator<Item = NodeId>) -> Hlrc {
        assert!(!self.looks_for_races, "a home hears of every fetch when data races are looked for");
        for node in others {
            let reached = self.reach.0.len().max(node.index() + 1);
            self.reach.0.resize(reached, false);
            self.reach.0[node.index()] = true;
        }
        self
    }

    /// Reads pages of one home from its frames; those that follow each other together.
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
        let page = self.pages.entry(page_id).or_default();
        let mut needed = VersionVector::new();
        let of_others = page.needed.entries().iter().filter(|(writer, _)| *writer != home);
        of_others.for_each(|(writer, seq)| needed.advance(*writer, *seq));
        needed.advance(site.me, page.held.get(site.me));
        let prefetched = page.fetch.as_ref().is_some_and(|fetch| !fetch.demanded);
        Effect::Read { pages, page_bytes, home, needed, merge: page.twin, prefetched }
    }

    /// The host has read pages, or could not.
    pub(super) fn handle_read(&mut self, site: &mut Site, pages: PageRange, outcome: ReadOutcome) {
        let Located { granules, home, .. } = site.locate(pages.first);
        let page_ids = (0..pages.count / granules).map(|index| PageId(pages.first.0 + index * granules));
        let ReadOutcome::Installed { dirty } = outcome else {
            return self.ask_for_pages(site, home, &page_ids.collect::<Vec<_>>(), false);
        };
        let mut fetches = Vec::new();
        for page_id in page_ids {
            let page = self.pages.entry(page_id).or_default();
            let fetch = page.fetch.take().expect("a page that is read is being fetched");
            assert!(!page.valid, "{page_id}: what is here is not read again");
            page.has_come();
            if page.twin && !dirty && site.is_async(page_id) {
                self.written.remove(page_id);
            }
            self.anticipation.has_come(site, page_id);
            // Replies come in the order in which the home acted, copies do not.
            let under_way = self.atomic_targets.values_mut().filter(|target| target.page == page_id);
            under_way.for_each(|target| target.overtaken = true);
            fetches.push((page_id, fetch));
        }
        self.end_fetches(site, fetches);
    }
}

impl super::Page {
    /// The copy holds what it held and what was needed. It may hold more: a notice of that invalidates it in vain.
    fn has_come(&mut self) {
        let needed = std::mem::take(&mut self.needed);
        needed.entries().iter().for_each(|(writer, seq)| self.held.advance(*writer, *seq));
        self.valid = true;
    }
}

/// Whether `last` reads the page that `next` reads as well, by now.
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
    /// Another node has copies of pages homed here, or is about to make them. Those that are to be watched from now on: each counts as
    /// written in the open interval, so a store that comes before it is watched is told, too.
    #[must_use]
    pub(super) fn share(&mut self, site: &mut Site, page_ids: impl IntoIterator<Item = PageId>) -> PageSet {
        let mut watched = PageSet::new();
        for page_id in page_ids {
            let page = self.pages.entry(page_id).or_default();
            (page.shared, page.served) = (true, true);
            if std::mem::take(&mut page.unnoticed) {
                // It may have been written without notice until now; from now on its reader must hear of writes.
                // An operation on a word counts as a write without notice, also of a page that is watched.
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

    /// The same for what is about to be sent.
    ///
    /// Where nobody reads this node's frames and pages are claimed, exclusive pages are watched before they
    /// are sent. That spares a notice: nobody but who gets them now has a copy, and that holds every store
    /// that came before. A notice would void the copy at the next barrier, and its home would count as a
    /// writer of what its reader claims.
    #[must_use]
    pub(super) fn share_by_message(
        &mut self,
        site: &mut Site,
        page_ids: impl IntoIterator<Item = PageId>,
    ) -> PageSet {
        if self.reach.is_some() || !self.moves.claims.are_on() {
            return self.share(site, page_ids);
        }
        let (mut ahead, mut others) = (PageSet::new(), Vec::new());
        for page_id in page_ids {
            let page = self.pages.entry(page_id).or_default();
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

    /// The runtime has written an exclusive page that the program may never have touched. Who asks by message comes after it, so only a
    /// reader who has announced the page already need hear of it.
    pub(super) fn note_unnoticed(&mut self, page_id: PageId) {
        if self.reach.is_some() {
            self.pages.entry(page_id).or_default().unnoticed = true;
        }
    }

    /// A node that could have read asks by message: perhaps there was no room for its announcement.
    pub(super) fn make_room_for_announcements(&mut self, site: &mut Site, asks: NodeId) {
        if self.reach.includes(asks) {
            site.out.push(Effect::TakeAnnouncements);
        }
    }

    pub(super) fn note_readers(&mut self, site: &mut Site, pages: &[PageId]) {
        // A page that is not allocated here yet will be: its reader has left the collective that allocates it.
        let is_ours = |page_id: PageId| match site.homes.locate(page_id) {
            Some(located) => located.page == page_id && located.home == site.me,
            None => page_id.0 < site.limits.region_granules,
        };
        let ours: Vec<PageId> = pages.iter().copied().filter(|page_id| is_ours(*page_id)).collect();
        let watched = self.share(site, ours);
        self.watch_set(site, &watched);
    }

    /// All that `writer` has sent from its intervals through `seq` is applied, unless some of it is kept.
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

    /// Otherwise an older diff would undo a younger one, or a writer would fetch a page without its own.
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
        home.handle_fault(PageId(6), Access::Write, None);
        let watched = PageRange::single(PageId(5));
        let exclusive = PageRange { first: PageId(6), count: 2 };
        let expected =
            [Effect::Watch { pages: watched }, Effect::Protect { pages: exclusive, access: Access::Write }];
        assert_eq!(effects(&mut home), expected);
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
