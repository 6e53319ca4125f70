//! Asynchronous write tracking: which pages the host watches, and what it says of them.

use hiroba_base::{Access, PageId, PageSet};

use super::Hlrc;
use crate::Effect;
use crate::home::Located;

/// With asynchronous tracking each release scans all watched pages, about a nanosecond each; a resting copy that is touched
/// again costs a fault of some microseconds. So a copy rests after about as many unwritten releases as scanning it that often
/// costs a fault: at worst both together cost twice what the better one would.
pub const RESTING_AFTER_RELEASES: u32 = 4096;

impl Hlrc {
    pub(super) fn watch(&mut self, page_id: PageId) {
        let page = self.pages.entry(page_id).or_default();
        page.access = Access::Write;
        page.watched = true;
        if page.twin {
            self.watched_copies.insert(page_id);
            self.busy_copies.insert(page_id);
        }
        let pages = self.locate(page_id).span();
        self.effects.push_back(Effect::Watch { pages });
    }

    /// The host has said which watched granules were written.
    pub(super) fn handle_written(&mut self, granules: &PageSet) {
        let release = self.release.as_mut().expect("the host is asked at releases");
        assert!(std::mem::take(&mut release.collecting), "the host answers once");
        let mut exclusive = PageSet::new();
        for granule in granules.iter() {
            let Some(Located { page: page_id, home, .. }) = self.homes.locate(granule) else { continue };
            let Some(page) = self.pages.get_mut(&page_id).filter(|page| page.watched) else { continue };
            if home == self.me && !page.shared {
                // Nobody holds a copy any more, and it is in use: from now on its writes cost nothing.
                page.watched = false;
                exclusive.insert(page_id);
            } else if self.written.insert(page_id) && home != self.me {
                self.busy_copies.insert(page_id);
            }
        }
        let spans = self.homes.spans(&exclusive).into_iter();
        self.effects.extend(spans.map(|pages| Effect::Unwatch { pages }));
        self.close_interval();
    }

    /// Now and then: copies that have long been unwritten lose their twins. They are compared once more, for a thread may
    /// have written one between the host's answer and the loss of its access. `written` are compared anyway.
    pub(super) fn send_to_rest(&mut self, written: &PageSet) -> PageSet {
        let mut resting = PageSet::new();
        if !self.is_async() || self.watched_copies.is_empty() {
            return resting;
        }
        self.releases_until_rest -= 1;
        if self.releases_until_rest > 0 {
            return resting;
        }
        self.releases_until_rest = RESTING_AFTER_RELEASES;
        let busy = std::mem::take(&mut self.busy_copies);
        for page_id in self.watched_copies.iter() {
            if !busy.contains(page_id) && !written.contains(page_id) {
                resting.insert(page_id);
            }
        }
        for page_id in resting.iter() {
            self.watched_copies.remove(page_id);
            let page = self.pages.entry(page_id).or_default();
            (page.access, page.watched) = (Access::None, false);
        }
        self.protect_all(&resting, Access::None);
        resting
    }
}
