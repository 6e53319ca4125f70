//! The next home's part: pages that are coming here, and the requests and diffs that wait for them.

use std::collections::BTreeMap;

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{Message, PageHandedOver, PagesHeld};
use rustc_hash::FxHashMap;

use super::{Moves, Pages};
use crate::batches::GROUPS_SEARCHED;
use crate::coherence::Site;
use crate::{Expected, Fact, ProtocolError, unexpected};

/// Pages whose home this node will be.
#[derive(Debug, Default)]
pub(super) struct ComingPages {
    pub(super) pages: FxHashMap<PageId, Coming>,
    /// Pages that must still rest, by last home.
    unrested: BTreeMap<NodeId, PageSet>,
    /// Pages that rest since the release that is being closed, by last home.
    rested: BTreeMap<NodeId, PageSet>,
    /// The latest intervals, by writer, that must not be published yet because some of their diffs wait.
    pub(super) unpublished: BTreeMap<NodeId, IntervalSeq>,
    /// Pages that have come and that the program could access until they rested.
    reopened: PageSet,
}

/// A page on its next home.
#[derive(Debug, Default)]
pub(super) struct Coming {
    /// True if requests and diffs come here: this node has informed the last home.
    is_here: bool,
    /// True if the program had access to it before it rested.
    pub(super) was_open: bool,
    /// Set when it was handed over and its content is still to come.
    handed: Option<PageHandedOver>,
    /// Diffs that wait for the page.
    pub(super) diffs: Vec<QueuedDiff>,
}

/// A diff that waits for its page.
#[derive(Debug)]
pub(crate) struct QueuedDiff {
    pub(crate) writer: NodeId,
    pub(crate) seq: IntervalSeq,
    pub(crate) runs: Vec<u8>,
    /// True if it came before its interval's end.
    pub(crate) is_early: bool,
}

/// A page that is homed here from now on.
#[derive(Debug)]
#[must_use]
pub(crate) struct Arrival {
    pub(crate) page: PageId,
    /// The version of the last home's frame.
    pub(crate) version: VersionVector,
    /// True if its content came from the last home.
    pub(crate) was_sent: bool,
    /// True if threads have operated on its atomic words.
    pub(crate) has_words: bool,
    /// The number of operations on each word, by offset.
    pub(crate) turns: Vec<(u32, u64)>,
    /// This node's own diff, which was withheld from the last home because the page was claimed.
    pub(crate) own: Option<Vec<u8>>,
    /// Diffs to be applied, in the order in which they came.
    pub(crate) diffs: Vec<QueuedDiff>,
}

/// The actions of the protocol when pages have come.
#[derive(Debug)]
#[must_use]
pub(crate) struct Settled {
    /// Pages to which the program regains the access that it had before they rested.
    pub(crate) reopened: PageSet,
    /// Intervals to publish, by writer.
    pub(crate) published: BTreeMap<NodeId, IntervalSeq>,
}

impl ComingPages {
    pub(super) fn expect(&mut self, page: PageId, from: NodeId) {
        self.pages.insert(page, Coming::default());
        self.unrested.entry(from).or_default().insert(page);
    }

    /// Returns true if pages of that last home must still rest, so that the message to it waits.
    pub(super) fn rests_before_word_to(&self, last_home: NodeId) -> bool {
        self.unrested.contains_key(&last_home)
    }

    pub(super) fn must_rest(&self) -> bool {
        !self.unrested.is_empty()
    }

    pub(super) fn unrested(&self) -> impl Iterator<Item = PageId> + '_ {
        self.unrested.values().flat_map(|pages| pages.iter())
    }

    pub(super) fn begin_rest(&mut self) {
        assert!(self.rested.is_empty(), "the last homes of what rested before have been told");
        self.rested = std::mem::take(&mut self.unrested);
    }

    pub(super) fn take_rested(&mut self) -> BTreeMap<NodeId, PageSet> {
        std::mem::take(&mut self.rested)
    }
}

impl Moves {
    /// Takes this node for the home of resting pages, and informs the last home which of them it holds.
    pub(super) fn tell_what_is_here(
        &mut self,
        site: &mut Site,
        pages: &mut impl Pages,
        from: NodeId,
        rested: &PageSet,
    ) {
        let mut held: Vec<PagesHeld> = Vec::new();
        for page in rested.iter() {
            site.homes.move_page(page, site.me);
            self.coming.pages.entry(page).or_default().is_here = true;
            let Some(version) = pages.good_version(page) else { continue };
            let mut latest = held.iter_mut().rev().take(GROUPS_SEARCHED);
            match latest.find(|held| held.version == *version) {
                Some(held) => _ = held.pages.insert(page),
                None => {
                    held.push(PagesHeld { version: version.clone(), pages: [page].into_iter().collect() });
                }
            }
        }
        let to = site.me;
        site.tell(|| Some(Fact::Moved { pages: rested.clone(), to }));
        let page = rested.iter().next().expect("a last home has given some");
        site.out.send(from, &Message::HomeMovesHeard { page, held });
        // Deferred messages are not early any more.
        let ahead = std::mem::take(&mut site.deferred);
        site.out.keep(ahead);
    }

    /// Handles that the last home hands a page over. Returns the page if all of its content has come.
    pub(crate) fn handed_over(
        &mut self,
        pages: &impl Pages,
        from: NodeId,
        handed: &PageHandedOver,
    ) -> Result<Option<Arrival>, ProtocolError> {
        let page = handed.page;
        let coming = self.coming.pages.get_mut(&page);
        let Some(coming) = coming.filter(|coming| coming.is_here && coming.handed.is_none()) else {
            let got = format!("{page} from node {from}");
            return Err(unexpected(Expected::MovesToHere, got));
        };
        if handed.is_sent {
            coming.handed = Some(handed.clone());
            Ok(None)
        } else if pages.version(page).is_some_and(|version| version.covers(&handed.version)) {
            Ok(Some(self.arrive(handed.clone(), false)))
        } else {
            let got = format!("{page} without it");
            Err(unexpected(Expected::LastHomesContent, got))
        }
    }

    /// Handles the content of a page that is coming: either the last home's final content, or an earlier
    /// answer to a request that does not matter any more. Returns the page in the first case.
    pub(crate) fn content_came(&mut self, page: PageId, version: &VersionVector) -> Option<Arrival> {
        let coming = self.coming.pages.get_mut(&page).expect("the page is coming");
        let handed = coming.handed.take_if(|handed| handed.version == *version)?;
        Some(self.arrive(handed, true))
    }

    fn arrive(&mut self, handed: PageHandedOver, was_sent: bool) -> Arrival {
        let PageHandedOver { page, version, moves, is_sent: _, has_words, turns } = handed;
        let coming = self.coming.pages.remove(&page).expect("the page is coming");
        if coming.was_open {
            self.coming.reopened.insert(page);
        }
        self.giving.note_moves(page, moves);
        let own = self.claims.take_own(page);
        Arrival { page, version, was_sent, has_words, turns, own, diffs: coming.diffs }
    }

    /// Takes what waited until pages had come and their diffs were applied.
    pub(crate) fn take_settled(&mut self) -> Settled {
        let reopened = std::mem::take(&mut self.coming.reopened);
        Settled { reopened, published: std::mem::take(&mut self.coming.unpublished) }
    }
}
