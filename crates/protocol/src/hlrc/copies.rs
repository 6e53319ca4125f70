//! Copies of pages: asking homes for them, sending them, taking them in. One page or many, it is the same: what concerns
//! many is said, installed and made accessible in as few messages, copies and system calls as possible.

use std::collections::BTreeMap;
use std::sync::Arc;

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_wire::{Ahead, Message, PAGES_PER_MESSAGE_MAX, PageCopy, PagesWanted};

use super::{Fetch, Hlrc, HomeRequest, Page, PendingRequest};
use crate::coherence::Site;
use crate::home::Located;
use crate::{Effect, Expected, Fact, NewContent, PageToSend, ProtocolError, unexpected};

/// A reply with several pages is no longer than this: the first of them can be used while the next ones travel, the message
/// stays in the caches between its copies, and with its head it fits the longest datagram.
pub(super) const REPLY_BYTES_MAX: u64 = 60 << 10;

/// A request looks among so many of its latest groups for one with the version that a page needs. Nearly all pages of a
/// request need the same.
pub(super) const GROUPS_SEARCHED: usize = 8;

/// A page that has come.
pub(super) struct Came<'a> {
    pub(super) page: Located,
    pub(super) version: &'a VersionVector,
    pub(super) content: NewContent,
    /// What was asked for, and who waits.
    pub(super) fetch: Fetch,
}

/// Asking.
impl Hlrc {
    /// Begins to fetch one page, which somebody waits for: from the home's frame, or by message.
    pub(super) fn request_page(&mut self, site: &mut Site, home: NodeId, page_id: PageId) {
        self.send_withheld_before_fetch(site, &[page_id]);
        if self.may_read(site, home, page_id) {
            self.read_pages(site, home, vec![page_id]);
        } else {
            self.ask_for_page(site, home, page_id);
        }
    }

    /// Begins to fetch pages for which fetches have been noted, those of each home together.
    pub(super) fn request_pages(&mut self, site: &mut Site, pages: &[PageId], descending: bool) {
        self.send_withheld_before_fetch(site, pages);
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

    /// Whether the page may be read from its home's frame: not while diffs of this node's may be on their way that the home will not publish, which
    /// a request follows on their link; nor the first time after it has moved, when its content may still be on its way to the home; nor
    /// when this may be the page's first touch, of which its home is to hear.
    fn may_read(&self, site: &Site, home: NodeId, page_id: PageId) -> bool {
        self.reach.includes(home)
            && !self.sent_early.contains(page_id)
            && !self.moves.is_unfetched(page_id)
            && !self.may_be_first_touch(site, page_id)
    }

    /// Whether somebody waits for a page of which this node knows nothing, so that it may go to this node.
    fn may_be_first_touch(&self, site: &Site, page_id: PageId) -> bool {
        let is_new = |page: &Page| page.held.is_empty() && page.needed.is_empty();
        let is_demanded = |page: &Page| page.fetch.as_ref().is_some_and(|fetch| fetch.demanded);
        site.homes.is_by_first_touch(page_id)
            && self.pages.get(&page_id).is_some_and(|page| is_new(page) && is_demanded(page))
    }

    /// Asks for pages in as few messages as they fit.
    pub(super) fn ask_for_pages(
        &mut self,
        site: &mut Site,
        home: NodeId,
        pages: &[PageId],
        descending: bool,
    ) {
        for pages in pages.chunks(PAGES_PER_MESSAGE_MAX as usize) {
            match pages {
                // A request for one page alone says that somebody has touched it.
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
        let needed = self.pages.entry(page_id).or_default().needed.clone();
        site.out.send(home, &Message::PageRequest { page: page_id, needed });
    }

    fn wanted(&mut self, pages: &[PageId]) -> Vec<PagesWanted> {
        let mut wanted: Vec<PagesWanted> = Vec::new();
        for page_id in pages {
            let needed = &self.pages.entry(*page_id).or_default().needed;
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

/// Sending: the home's side.
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
                let page = self.pages.entry(page_id).or_default();
                if page.held.covers(needed) && !is_coming {
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
        self.send_pages(site, from, &ready);
        Ok(())
    }

    /// Sends pages that hold what is needed, the first ones first.
    pub(super) fn send_pages(&mut self, site: &mut Site, to: NodeId, pages: &[PageId]) {
        self.make_room_for_announcements(site, to);
        pages.iter().for_each(|page| self.moves.choice.note_fetched(*page, to));
        self.send_all(site, to, pages, None);
    }

    /// Sends pages that are homed here as they are: because they were asked for, or ahead of a barrier.
    pub(super) fn send_all(
        &mut self,
        site: &mut Site,
        to: NodeId,
        pages: &[PageId],
        ahead_of: Option<Ahead>,
    ) {
        let watched = self.share_by_message(site, pages.iter().copied());
        let mut reply = Vec::new();
        let mut bytes = 0;
        for page_id in pages {
            let page_bytes = site.page_bytes(*page_id);
            if bytes + u64::from(page_bytes) > REPLY_BYTES_MAX {
                send_reply(site, to, std::mem::take(&mut reply), ahead_of);
                bytes = 0;
            }
            bytes += u64::from(page_bytes);
            let version = self.pages.entry(*page_id).or_default().held.clone();
            reply.push(PageToSend { page: *page_id, page_bytes, version });
        }
        send_reply(site, to, reply, ahead_of);
        // Behind the reply, for which a thread of the other node stands still.
        self.watch_set(site, &watched);
    }
}

fn send_reply(site: &mut Site, to: NodeId, mut pages: Vec<PageToSend>, ahead_of: Option<Ahead>) {
    if !pages.is_empty() {
        pages.sort_unstable_by_key(|page| page.page);
        site.out.push(Effect::SendPages { to, pages, ahead_of });
    }
}

/// What of a reply goes into frames that follow each other.
struct Arrived {
    pages: PageRange,
    content: NewContent,
    fetched: u32,
    prefetched: u32,
}

impl Arrived {
    /// Joins what follows; gives it back when it is not its continuation.
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

/// Pages that are being taken in.
#[derive(Default)]
pub(super) struct Taken {
    /// Frames that follow each other, still to be filled.
    run: Option<Arrived>,
    accepted: Vec<(PageId, Fetch)>,
}

impl Taken {
    /// Fills the last frames. What was fetched.
    pub(super) fn finish(self, site: &mut Site) -> Vec<(PageId, Fetch)> {
        site.out.extend(self.run.map(|run| run.install(false)));
        self.accepted
    }
}

/// Whether a version that another node tells names no interval of this node that has yet to end.
pub(super) fn check_ended(site: &Site, version: &VersionVector) -> Result<(), ProtocolError> {
    let (named, closed) = (version.get(site.me), site.latest_closed());
    if named > closed {
        let got = format!("interval {named} of this node, which has ended {closed}");
        return Err(unexpected(Expected::EndedIntervals, got));
    }
    Ok(())
}

/// Whether nothing is left behind the last page's bytes.
pub(super) fn check_all_found(offset: usize, content: &[u8]) -> Result<(), ProtocolError> {
    if offset != content.len() {
        let got = format!("{} bytes for {offset}", content.len());
        return Err(unexpected(Expected::NoOtherBytes, got));
    }
    Ok(())
}

/// Taking in.
impl Hlrc {
    pub(super) fn handle_pages_reply(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let mut offset = 0;
        let mut taken = Taken::default();
        let mut too_old = Vec::new();
        for copy in copies {
            let PageCopy { page: page_id, version, .. } = copy;
            let (located, received) = site.find_content(copy, &mut offset, content)?;
            let new = received.map_or(NewContent::Zero, NewContent::Received);
            if self.moves.is_coming(*page_id) {
                self.take_in_coming(site, copy, new);
                continue;
            }
            check_ended(site, version)?;
            let page = self.pages.entry(*page_id).or_default();
            let Some(fetch) = page.fetch.take().filter(|_| located.home != site.me) else {
                return Err(unexpected(Expected::RequestedPage, format!("{page_id}")));
            };
            // The page's last home may have sent it before the next one operated on a word of it for this node.
            let may_lack_words = located.home != from && self.operated_on.contains(*page_id);
            if !version.covers(&page.needed) || may_lack_words {
                // A sibling thread acquired or operated, or this node released the page, while the reply was under way.
                page.fetch = Some(fetch);
                too_old.push(*page_id);
                continue;
            }
            if !version.covers(&page.held) {
                let got = format!("{page_id} holding {version:?} behind {:?}", page.held);
                return Err(unexpected(Expected::GrowingVersions, got));
            }
            self.take_in(site, &mut taken, Came { page: located, version, content: new, fetch });
        }
        check_all_found(offset, content)?;
        let accepted = taken.finish(site);
        self.request_pages(site, &too_old, false);
        self.end_fetches(site, accepted);
        Ok(())
    }

    /// Fills the frames of one page, or notes that with what is to be filled next.
    pub(super) fn take_in(
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
        let page = self.pages.entry(located.page).or_default();
        assert!(version.covers(&page.needed), "a copy that lacks what notices name is asked for again");
        assert!(version.covers(&page.held), "{}: versions only grow", located.page);
        assert_ne!(located.home, site.me, "{}: a home page is no copy", located.page);
        page.held = version.clone();
        page.needed = VersionVector::new();
        page.valid = true;
        self.moves.note_fetched(located.page);
        self.anticipation.has_come(site, located.page);
        let fetched = u32::from(fetch.demanded);
        Arrived { pages: located.span(), content, fetched, prefetched: 1 - fetched }
    }

    /// Lets the program at what has come.
    pub(super) fn end_fetches(&mut self, site: &mut Site, fetches: Vec<(PageId, Fetch)>) {
        for (page_id, _) in &fetches {
            site.tell(|| Some(Fact::Holds { page: *page_id, version: self.pages[page_id].held.clone() }));
        }
        let mut given = Vec::new();
        for (page_id, fetch) in &fetches {
            let page = self.pages.entry(*page_id).or_default();
            // A page with unsent writes is opened at once. While data races are looked for the first touch of
            // any other must fault.
            let must_open = fetch.demanded || page.twin;
            if self.anticipation.opens(*page_id, must_open) && (must_open || !self.looks_for_races) {
                given.push((*page_id, if fetch.wants_write { Access::Write } else { Access::Read }));
            }
        }
        self.give_copies(site, given);
        for (_, fetch) in fetches {
            fetch.waiters.into_iter().for_each(|waiter| site.out.wake(waiter, crate::Outcome::Done));
        }
    }

    /// Lets the program at copies whose content is there.
    pub(super) fn give_copies(
        &mut self,
        site: &mut Site,
        copies: impl IntoIterator<Item = (PageId, Access)>,
    ) {
        let (mut watched, mut writable, mut readable) = (PageSet::new(), PageSet::new(), PageSet::new());
        for (page_id, wanted) in copies {
            let page = self.pages.entry(page_id).or_default();
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
