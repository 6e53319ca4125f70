//! Order with pages of other protocols: if a job has both, a page under sequential consistency carries the
//! knowledge of its writers.
//!
//! A program that passes data through a flag, or through an atomic instruction, may have the flag in such a
//! page and the data in pages of a lazier protocol. So giving a page to another node is a release there and
//! an acquire here: its owner takes its own access away, closes the interval, informs the receiver of what it
//! does not know yet, and then sends the page. Links keep the order.
//!
//! **Why this is enough.** A thread that reads another thread's store from the page has got the page from
//! that thread's node, or from a node that has got it in this way. The store precedes the loss of access, so
//! everything before the store belongs to an interval that is closed when the page is sent. The receiver
//! passes on what it has learned.
//!
//! So is giving up a copy, for the node that is about to write. A thread that has loaded the page before that
//! store may have stored to pages of other protocols earlier; if it had missed the store, and the writer its
//! stores, no order would explain that (store buffering). Its node closes the interval and informs the writer
//! before it confirms that it has given the copy up.
//!
//! A page that was not written since it was last given follows an empty interval, which costs no message.
//! Pages that leave for the same node in the same event need one release (`sc/sending.rs`).
//!
//! A publication waits at its receiver while the sender has left a collective whose departure has not
//! arrived. Pages that follow the publication are installed, but no thread may touch them before the
//! departure has arrived ([`Order::waiting`]).

use hiroba_base::{Access, NodeId, PageId};
use rustc_hash::FxHashMap;

use super::Sc;
use crate::ProtocolError;
use crate::coherence::{AfterRelease, Site};

/// The state of operations that keep order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// True if the job has pages of other protocols.
    is_kept: bool,
    /// Pages that are given after a release: the receiver, and the access that it wants.
    going: FxHashMap<PageId, (NodeId, Access)>,
    /// The pages that go on after the same release, by the first of them, which names the release.
    together: FxHashMap<PageId, Vec<PageId>>,
    /// Pages that followed a publication that is kept back.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    page: PageId,
    from: NodeId,
    grant: Grant,
}

/// What a node receives of a page.
#[derive(Clone, Debug)]
pub(super) enum Grant {
    Copy,
    Ownership {
        copyset: Vec<NodeId>,
        turns: Vec<(u32, u64)>,
    },
    /// A copy was given up, so that its owner may write.
    Permission,
}

impl Order {
    /// Returns true if the page waits for a release before it is given.
    pub(super) fn is_going(&self, page: PageId) -> bool {
        self.going.contains_key(&page)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Sc {
    /// Notes that the job has pages of other protocols from now on.
    pub(super) fn keep_order(&mut self) {
        self.order.is_kept = true;
    }

    /// Gives the page, or a copy, to a node after all changes that this node knows. Owner, writing or shared
    /// → owner, giving.
    pub(super) fn give_behind_release(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        to: NodeId,
        wanted: Access,
    ) {
        self.lower_access(site, page_id, wanted);
        let before = self.order.going.insert(page_id, (to, wanted));
        assert_eq!(before, None, "{page_id}: it goes to one node at a time");
        self.sending.release_for(page_id, to);
    }

    /// Requests the release that these pages need. They have lost the access that they are to lose.
    pub(super) fn release(&mut self, site: &mut Site, to: NodeId, pages: Vec<PageId>) {
        let first = pages[0];
        site.release_for(AfterRelease::Order { page: first, to, closes: true });
        let before = self.order.together.insert(first, pages);
        assert_eq!(before, None, "{first}: one release names it at a time");
    }

    /// Gives the pages, or confirms their loss, after the interval was closed and the receiver was informed.
    pub(super) fn go_on(&mut self, site: &mut Site, first: PageId) {
        for page in self.order.together.remove(&first).expect("the release was for these pages") {
            if self.order.is_going(page) {
                self.give_after_release(site, page);
            } else {
                self.confirm(site, page);
            }
        }
    }

    fn give_after_release(&mut self, site: &mut Site, page_id: PageId) {
        let (to, wanted) = self.order.going.remove(&page_id).expect("the release was for a page that goes");
        self.give(site, page_id, to, wanted);
        self.settle(site, page_id);
    }

    /// Takes a received page: now, or after a publication before it has been absorbed.
    pub(super) fn take(
        &mut self,
        site: &mut Site,
        page: PageId,
        from: NodeId,
        grant: Grant,
    ) -> Result<(), ProtocolError> {
        if self.order.is_kept && site.keeps_back(from) {
            self.order.waiting.push(Waiting { page, from, grant });
            return Ok(());
        }
        match grant {
            Grant::Copy => self.take_copy(site, from, page),
            Grant::Ownership { copyset, turns } => {
                return self.handle_ownership(site, page, &copyset, &turns);
            }
            Grant::Permission => return self.handle_invalidated(site, page),
        }
        Ok(())
    }

    /// Takes the pages that waited for publications, which have been absorbed.
    pub(super) fn take_waiting(&mut self, site: &mut Site) -> Result<(), ProtocolError> {
        for Waiting { page, from, grant } in std::mem::take(&mut self.order.waiting) {
            self.take(site, page, from, grant)?;
        }
        Ok(())
    }
}
