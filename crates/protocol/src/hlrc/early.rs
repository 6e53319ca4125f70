//! Diffs that leave before their interval ends, in home-based LRC: which pages may be sent, and how their
//! homes apply them. [`crate::aurc`] decides when they leave, and argues why this is correct.

use hiroba_base::{IntervalSeq, NodeId, PageId};
use hiroba_wire::{Message, PageDiff};

use super::{Hlrc, Page};
use crate::ProtocolError;
use crate::coherence::Site;

impl Hlrc {
    /// Returns true if the page has a twin here that may differ from it, and no copy of the page that could
    /// cross a diff is on its way.
    pub(crate) fn may_send_early(&self, site: &Site, page_id: PageId) -> bool {
        let may = |page: &Page| page.twin && page.fetch.is_none();
        self.written.contains(page_id) && !site.is_home(page_id) && self.pages.get(&page_id).is_some_and(may)
    }

    /// Handles `message` on the home. It contains these diffs of the sender's open interval.
    pub(crate) fn handle_early_diffs(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
        seq: IntervalSeq,
        diffs: &[PageDiff<'_>],
    ) -> Result<(), ProtocolError> {
        if self.moves.defers(site, from, message) {
            return Ok(());
        }
        for diff in diffs {
            self.check_diff(site, diff)?;
            if !self.moves.keeps_diff(diff, from, seq, true) {
                self.apply_early(site, diff.page, from, seq, diff.runs);
            }
        }
        Ok(())
    }

    /// Changes the frame, and leaves the version unchanged.
    pub(super) fn apply_early(
        &mut self,
        site: &mut Site,
        page_id: PageId,
        writer: NodeId,
        seq: IntervalSeq,
        runs: &[u8],
    ) {
        assert!(site.is_home(page_id), "{page_id}: diffs are applied at its home");
        self.change_frame(site, page_id, writer, seq, runs);
        self.moves.applied_in_part(site, page_id, writer, seq);
    }
}
