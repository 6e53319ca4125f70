//! Ordered fetches, for programs that pass data through plain loads and stores.
//!
//! A page that comes from its home may contain stores of intervals that the reader has no notices of.
//! Data-race free programs do not see the difference. But a thread that finds a flag set in such a page, and
//! then reads a stale copy of the data that the flag announces, does. Once fetches are *ordered*
//! ([`Engine::order_fetches`](crate::Engine::order_fetches)), whoever sees a store has the notices of all
//! that happened before it:
//!
//! - **The home's own stores.** Before it serves a page it takes its own access away, closes the interval,
//!   and informs the reader; then it sends the page, which contains no store of a later interval. This is
//!   what the owner of a page does under sequential consistency ([`crate::sc`], `order.rs`).
//! - **Diffs.** A writer that has sent diffs informs each home that got some, directly behind them. The home
//!   applies them only after that, so its own threads and its readers have the notices first. Until then
//!   later messages of that writer for homes here wait, too ([`Site::deferred`]).
//! - **Stores during a release.** Stores must fault ([`WriteTracking::Fault`](crate::WriteTracking::Fault)).
//!   Then a page loses its write access before it is compared, and a store that comes later waits for the
//!   next interval, as do all later stores of its thread. Where stores are noted instead, one that comes
//!   while the interval is being closed may be in the diff of its page, while the page of an earlier store
//!   has no notice.
//! - **Publications that wait.** One of a node that has left a collective waits until this node leaves it,
//!   too ([`Site::keeps_back`]). Pages that follow it wait with it.
//! - **One-sided reads** come without notices, so pages are requested by message.
//!
//! The order begins at different times on the nodes. A node whose fetches are not ordered yet sends diffs
//! without informing their home; so each node informs all others of everything just after it has begun.

use std::sync::Arc;

use hiroba_base::{NodeId, PageId, PageSet};
use hiroba_wire::{Message, PageCopy};

use super::Hlrc;
use super::copies::Content;
use crate::ProtocolError;
use crate::coherence::{AfterRelease, Coherence, Site};

/// The state of ordered fetches.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    is_on: bool,
    /// Requests that wait for a release: the reader, and the pages that it gets. The first page identifies
    /// the release.
    waiting: Vec<(NodeId, Vec<PageId>)>,
    /// Replies that followed a publication that is kept back: at most one for each fetch under way.
    early: Vec<EarlyReply>,
}

#[derive(Debug)]
struct EarlyReply {
    from: NodeId,
    copies: Vec<PageCopy>,
    content: Arc<[u8]>,
}

impl Hlrc {
    /// Orders fetches from now on.
    pub(super) fn begin_order(&mut self) {
        self.ordered.is_on = true;
        self.reach.stop_reading();
    }

    /// Sends pages that contain the needed intervals; where fetches are ordered, after a release.
    pub(super) fn send_in_order(&mut self, site: &mut Site, to: NodeId, pages: &[PageId]) {
        if !self.ordered.is_on || pages.is_empty() {
            return self.send_pages(site, to, pages);
        }
        self.make_room_for_announcements(site, to);
        self.take_own_access(site, pages);
        self.ordered.waiting.push((to, pages.to_vec()));
        site.release_for(AfterRelease::Order(pages[0], to));
    }

    /// Takes the access of this node's threads to pages homed here away. What they have written counts for
    /// the open interval.
    fn take_own_access(&mut self, site: &mut Site, pages: &[PageId]) {
        // They are about to get readers. Stores without notices end here.
        let _ = self.share(site, pages.iter().copied());
        let mut voided = PageSet::new();
        pages.iter().for_each(|page_id| self.void(*page_id, &mut voided));
        site.invalidate(&voided, |page| self.access(page));
        self.ask_for_unwritten(site);
    }

    /// Serves the request whose first page this is, after the release.
    pub(super) fn send_after_release(&mut self, site: &mut Site, first: PageId) {
        let place = self.ordered.waiting.iter().position(|(_, pages)| pages[0] == first);
        let (to, pages) = self.ordered.waiting.remove(place.expect("the release was for a request"));
        self.send_pages(site, to, &pages);
    }

    /// Keeps diffs whose notices have not come. Returns true if it does.
    pub(super) fn come_before_notices(&self, site: &mut Site, from: NodeId, message: &Message<'_>) -> bool {
        let Message::Diffs { seq, .. } = message else { return false };
        let waits = self.ordered.is_on && site.timestamp.get(from) < *seq;
        if waits {
            site.deferred.push((from, message.encode()));
        }
        waits
    }

    /// Takes the pages of a reply: now, or after a publication before it has been absorbed.
    pub(super) fn handle_reply_in_order(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.ordered.is_on && site.keeps_back(from) {
            let (copies, content) = (copies.to_vec(), content.into());
            self.ordered.early.push(EarlyReply { from, copies, content });
            return Ok(());
        }
        self.handle_pages_reply(site, from, copies, &Content::Here(content))
    }

    /// Takes the pages that waited for publications, which have been absorbed.
    pub(super) fn take_waiting_replies(&mut self, site: &mut Site) -> Result<(), ProtocolError> {
        for reply in std::mem::take(&mut self.ordered.early) {
            if site.keeps_back(reply.from) {
                self.ordered.early.push(reply);
                continue;
            }
            let EarlyReply { from, copies, content } = reply;
            self.handle_pages_reply(site, from, &copies, &Content::Kept(content))?;
        }
        Ok(())
    }
}
