//! Copies of pages: requests them from homes, sends them, and installs them. One page and many are handled
//! alike; many pages take as few messages, copies and system calls as possible.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_wire::{Message, PAGES_PER_MESSAGE_MAX, PageCopy, PagesWanted};

use super::{Fetch, Hlrc, HomeRequest, Page, PendingRequest};
use crate::batches::{GROUPS_SEARCHED, replies};
use crate::coherence::Site;
use crate::home::Located;
use crate::{Effect, Expected, Fact, NewContent, PageToSend, ProtocolError, unexpected};

/// A received page.
struct Came<'a> {
    page: Located,
    version: &'a VersionVector,
    content: NewContent,
    /// Its fetch, with the waiting threads.
    fetch: Fetch,
}

/// Requests.
impl Hlrc {
    /// Begins to fetch one page, which a thread waits for: from the home's frame, or by message.
    pub(super) fn request_page(&mut self, site: &mut Site, home: NodeId, page_id: PageId) {
        self.moves.before_fetch(site, &[page_id]);
        if self.may_read(site, home, page_id) {
            self.read_pages(site, home, vec![page_id]);
        } else {
            self.ask_for_page(site, home, page_id);
        }
    }

    /// Begins to fetch pages for which fetches have been noted, with one request for each home.
    pub(super) fn request_pages(&mut self, site: &mut Site, pages: &[PageId], descending: bool) {
        self.moves.before_fetch(site, pages);
        let mut homes: BTreeMap<NodeId, Vec<PageId>> = BTreeMap::new();
        for page_id in pages {
            homes.entry(site.locate(*page_id).home).or_default().push(*page_id);
        }
        assert!(!homes.contains_key(&site.me), "a home fetches nothing from itself");
        for (home, pages) in homes {
            let (read, asked): (Vec<_>, Vec<_>) =
                pages.into_iter().partition(|page_id| self.may_read(site, home, *page_id));
            self.read_pages(site, home, read);
            self.ask_for_pages(site, home, &asked, descending);
        }
    }

    /// Returns true if the page may be read from its home's frame. Not while diffs of this node that the home
    /// will not publish may be on their way, because a request follows them on their link; nor the first time
    /// after the page has moved, when its content may still be on its way to the home; nor when this may be
    /// the page's first touch, which its home must notice.
    fn may_read(&self, site: &Site, home: NodeId, page_id: PageId) -> bool {
        self.reach.includes(home)
            && !self.sent_early.contains(page_id)
            && !self.moves.must_be_requested(page_id)
            && !self.may_be_first_touch(site, page_id)
    }

    /// Returns true if a thread waits for a page of which this node has no state, so that the page may move
    /// to this node.
    fn may_be_first_touch(&self, site: &Site, page_id: PageId) -> bool {
        let is_new = |page: &Page| page.version.is_empty() && page.needed.is_empty();
        let is_demanded = |page: &Page| page.fetch.as_ref().is_some_and(|fetch| fetch.demanded);
        site.homes.is_by_first_touch(page_id)
            && self.pages.get(&page_id).is_some_and(|page| is_new(page) && is_demanded(page))
    }

    /// Requests pages in as few messages as possible.
    pub(super) fn ask_for_pages(
        &mut self,
        site: &mut Site,
        home: NodeId,
        pages: &[PageId],
        descending: bool,
    ) {
        for pages in pages.chunks(PAGES_PER_MESSAGE_MAX as usize) {
            match pages {
                // A request for one page means that a thread has touched it.
                [page_id] if !site.homes.is_by_first_touch(*page_id) => {
                    self.ask_for_page(site, home, *page_id);
                }
                pages => {
                    let wanted = self.wanted(pages);
                    site.out.send(home, &Message::PagesRequest { wanted, descending });
                }
            }
        }
    }

    fn ask_for_page(&mut self, site: &mut Site, home: NodeId, page_id: PageId) {
        let needed = self.pages.or_default(page_id).needed.clone();
        site.out.send(home, &Message::PageRequest { page: page_id, needed });
    }

    fn wanted(&mut self, pages: &[PageId]) -> Vec<PagesWanted> {
        let mut wanted: Vec<PagesWanted> = Vec::new();
        for page_id in pages {
            let needed = &self.pages.or_default(*page_id).needed;
            let mut latest = wanted.iter_mut().rev().take(GROUPS_SEARCHED);
            match latest.find(|group| group.needed == *needed) {
                Some(group) => _ = group.pages.insert(*page_id),
                None => wanted
                    .push(PagesWanted { needed: needed.clone(), pages: [*page_id].into_iter().collect() }),
            }
        }
        wanted
    }
}

/// Sending copies: the home's side.
impl Hlrc {
    pub(super) fn handle_pages_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        wanted: &[PagesWanted],
        descending: bool,
    ) -> Result<(), ProtocolError> {
        let mut ready = Vec::new();
        for PagesWanted { needed, pages } in wanted {
            for page_id in pages.iter() {
                let located = site.homes.locate(page_id);
                if located.is_none_or(|located| located.page != page_id || located.home != site.me) {
                    return Err(unexpected(Expected::RequestAtHome, format!("one for {page_id}")));
                }
                let is_coming = self.moves.is_coming(page_id);
                let page = self.pages.or_default(page_id);
                if page.version.covers(needed) && !is_coming {
                    ready.push(page_id);
                } else {
                    let request = HomeRequest::Page(from);
                    page.pending.push(PendingRequest { needed: needed.clone(), request });
                }
            }
        }
        if descending {
            ready.reverse();
        }
        self.send_in_order(site, from, &ready);
        Ok(())
    }

    /// Sends pages that contain the needed intervals, the first pages first.
    pub(super) fn send_pages(&mut self, site: &mut Site, to: NodeId, pages: &[PageId]) {
        self.make_room_for_announcements(site, to);
        pages.iter().for_each(|page| self.moves.fetched(*page, to));
        let watched = self.share_by_message(site, pages.iter().copied());
        let mut sent = Vec::with_capacity(pages.len());
        for page_id in pages {
            let page_bytes = site.page_bytes(*page_id);
            let from_twin = self.sends_snapshot(site, *page_id);
            let version = self.pages.or_default(*page_id).version.clone();
            sent.push(PageToSend { page: *page_id, page_bytes, version, from_twin });
        }
        for mut pages in replies(sent) {
            pages.sort_unstable_by_key(|page| page.page);
            site.out.push(Effect::SendPages { to, pages });
        }
        // After the reply, because a thread of the other node waits for that.
        self.watch_set(site, &watched);
    }
}

/// A part of a reply for consecutive frames.
struct Arrived {
    pages: PageRange,
    content: NewContent,
    fetched: u32,
    prefetched: u32,
}

impl Arrived {
    /// Appends the next part. Returns it if it does not continue this one.
    fn join(&mut self, next: Arrived) -> Option<Arrived> {
        match (&mut self.content, &next.content) {
            _ if self.pages.end() != next.pages.first => return Some(next),
            (NewContent::Zero, NewContent::Zero) => {}
            (NewContent::Received(before), NewContent::Received(behind)) if before.end == behind.start => {
                before.end = behind.end;
            }
            (NewContent::Kept(of, before), NewContent::Kept(also_of, behind))
                if Arc::ptr_eq(of, also_of) && before.end == behind.start =>
            {
                before.end = behind.end;
            }
            _ => return Some(next),
        }
        assert_eq!(self.pages.end(), next.pages.first, "what is joined follows");
        self.pages.count += next.pages.count;
        self.fetched += next.fetched;
        self.prefetched += next.prefetched;
        None
    }

    fn install(self, merge: bool) -> Effect {
        let Arrived { pages, content, fetched, prefetched } = self;
        Effect::Install { pages, content, merge, fetched, prefetched }
    }
}

/// Pages that are being installed.
#[derive(Default)]
struct Taken {
    /// Consecutive frames that are not filled yet.
    run: Option<Arrived>,
    accepted: Vec<(PageId, Fetch)>,
}

impl Taken {
    /// Fills the last frames. Returns the pages and their fetches.
    fn finish(self, site: &mut Site) -> Vec<(PageId, Fetch)> {
        site.out.extend(self.run.map(|run| run.install(false)));
        self.accepted
    }
}

/// The content of a reply.
pub(super) enum Content<'a> {
    /// That of the message that is being handled.
    Here(&'a [u8]),
    /// That of an earlier message.
    Kept(Arc<[u8]>),
}

impl Content<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Here(bytes) => bytes,
            Content::Kept(bytes) => bytes,
        }
    }

    fn part(&self, range: Range<usize>) -> NewContent {
        match self {
            Content::Here(_) => NewContent::Received(range),
            Content::Kept(bytes) => NewContent::Kept(bytes.clone(), range),
        }
    }
}

/// Checks that no bytes follow those of the last page.
fn check_all_found(offset: usize, content: &[u8]) -> Result<(), ProtocolError> {
    if offset != content.len() {
        let got = format!("{} bytes for {offset}", content.len());
        return Err(unexpected(Expected::NoOtherBytes, got));
    }
    Ok(())
}

/// Installing copies.
impl Hlrc {
    pub(super) fn handle_pages_reply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &Content<'_>,
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        let mut taken = Taken::default();
        let mut too_old = Vec::new();
        for copy in copies {
            let PageCopy { page: page_id, version, .. } = copy;
            let (located, received) = site.find_content(copy, &mut offset, content.bytes())?;
            let new = received.map_or(NewContent::Zero, |range| content.part(range));
            if self.moves.is_coming(*page_id) {
                self.take_in_coming(site, copy, new);
                continue;
            }
            site.check_ended(version)?;
            let page = self.pages.or_default(*page_id);
            let Some(fetch) = page.fetch.take().filter(|_| located.home != site.me) else {
                return Err(unexpected(Expected::RequestedPage, format!("{page_id}")));
            };
            // The page's last home may have sent it before the next one operated on one of its words for this
            // node.
            let may_lack_words = located.home != from && self.operated_on.contains(*page_id);
            if !version.covers(&page.needed) || may_lack_words {
                // While the reply was under way, a sibling thread acquired or operated, or this node released
                // the page.
                page.fetch = Some(fetch);
                too_old.push(*page_id);
                continue;
            }
            if !version.covers(&page.version) {
                let got = format!("{page_id} holding {version:?} behind {:?}", page.version);
                return Err(unexpected(Expected::GrowingVersions, got));
            }
            if located.home == from {
                self.moves.came(*page_id);
            }
            self.take_in(site, &mut taken, Came { page: located, version, content: new, fetch });
        }
        check_all_found(offset, content.bytes())?;
        let accepted = taken.finish(site);
        self.request_pages(site, &too_old, false);
        self.end_fetches(site, accepted);
        Ok(())
    }

    /// Fills the frames of one page, or adds it to the run of frames to fill next.
    fn take_in(
        &mut self,
        site: &mut Site,
        taken: &mut Taken,
        Came { page: located, version, content, fetch }: Came<'_>,
    ) {
        let arrived = self.accept(site, located, version, content, &fetch);
        taken.accepted.push((located.page, fetch));
        if self.pages[&located.page].twin {
            site.out.push(arrived.install(true));
        } else if let Some(other) = match &mut taken.run {
            Some(run) => run.join(arrived),
            None => Some(arrived),
        } {
            let before = taken.run.replace(other);
            site.out.extend(before.map(|run| run.install(false)));
        }
    }

    fn accept(
        &mut self,
        site: &mut Site,
        located: Located,
        version: &VersionVector,
        content: NewContent,
        fetch: &Fetch,
    ) -> Arrived {
        let page = self.pages.or_default(located.page);
        assert!(version.covers(&page.needed), "a copy that lacks what notices name is asked for again");
        assert!(version.covers(&page.version), "{}: versions only grow", located.page);
        assert_ne!(located.home, site.me, "{}: a home page is no copy", located.page);
        page.version = version.clone();
        page.needed = VersionVector::new();
        page.valid = true;
        self.anticipation.has_come(site, located.page);
        let fetched = u32::from(fetch.demanded);
        Arrived { pages: located.span(), content, fetched, prefetched: 1 - fetched }
    }

    /// Gives the program access to fetched pages.
    pub(super) fn end_fetches(&mut self, site: &mut Site, fetches: Vec<(PageId, Fetch)>) {
        for (page_id, _) in &fetches {
            site.tell(|| Some(Fact::Holds { page: *page_id, version: self.pages[page_id].version.clone() }));
        }
        let mut given = Vec::new();
        for (page_id, fetch) in &fetches {
            let page = self.pages.or_default(*page_id);
            // A page with unsent writes is opened at once. While data races are looked for, the first touch
            // of any other page must fault.
            let must_open = fetch.demanded || page.twin;
            if self.anticipation.opens(*page_id, must_open) && (must_open || !self.looks_for_races) {
                let is_written = fetch.wants_write || self.rewriting.expects(*page_id);
                given.push((*page_id, if is_written { Access::Write } else { Access::Read }));
            }
        }
        self.give_copies(site, given);
        for (_, fetch) in fetches {
            fetch.waiters.into_iter().for_each(|waiter| site.out.wake(waiter, crate::Outcome::Done));
        }
        site.let_leave();
    }

    /// Gives the program access to copies whose content has come.
    pub(super) fn give_copies(
        &mut self,
        site: &mut Site,
        copies: impl IntoIterator<Item = (PageId, Access)>,
    ) {
        let (mut watched, mut writable, mut readable) = (PageSet::new(), PageSet::new(), PageSet::new());
        for (page_id, wanted) in copies {
            let page = self.pages.or_default(page_id);
            assert!(page.valid && page.needed.is_empty(), "{page_id}: what is given is a good copy");
            let has_twin = page.twin;
            let is_async = site.is_async(page_id);
            let needs_twin = is_async || wanted == Access::Write;
            if needs_twin && !has_twin {
                self.make_twin(site, page_id);
            }
            if is_async {
                watched.insert(page_id);
            } else if needs_twin || has_twin {
                self.written.insert(page_id);
                writable.insert(page_id);
            } else {
                readable.insert(page_id);
            }
        }
        self.watch_set(site, &watched);
        self.protect_set(site, &writable, Access::Write);
        self.protect_set(site, &readable, Access::Read);
    }
}
