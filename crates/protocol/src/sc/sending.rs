//! What one event makes this node take away, give and ask: with one message to each node, whatever number of
//! pages it is about.
//!
//! Each page goes through the states of [`sc`](super) by itself, as if every message named one page. While an
//! event is handled, what is to be sent is collected by receiver, and it is sent when the event has been
//! handled. So a request for many pages is answered for all of those that can be answered at once, by one
//! release, one publication and one message (or several of bounded length), and others follow when their time
//! has come.
//!
//! **Why this is correct.** Nothing waits that could be sent: an event is handled at once. What is collected
//! is carried out in this order:
//! 1. Threads here lose their access. In one event no page is given to threads here after it was taken from
//!    them, so this comes after what they have got.
//! 2. Where order is kept (`sc/order.rs`), the interval is closed once for each receiver, after all its
//!    pages have lost their access. Pages of a later event need another release, because this one may have
//!    begun.
//! 3. The contents are sent, then ownership, the confirmations of lost copies, and requests. A receiver needs
//!    no other order among the messages about one page: contents come before ownership, and what it is given
//!    or is free to give comes before what it is asked for.
//! 4. The host is asked to retain the pages that threads have got, all for the same moment. When that has
//!    passed, those that others wait for can again go together.
//!
//! Bounds: an event is about the pages of one message, of one moment of retention, or of one fault with its
//! run.

use std::collections::BTreeMap;

use hiroba_base::{Access, NodeId, PageId, PageSet};
use hiroba_wire::{Message, PAGES_PER_MESSAGE_MAX, PageOwned};

use super::Sc;
use crate::batches::replies;
use crate::coherence::Site;
use crate::{Effect, PageToSend};

/// What the present event has collected.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Pages that threads here may still read.
    shared: PageSet,
    /// Pages that go to another owner.
    handed_over: PageSet,
    /// Copies that are given up.
    given_up: PageSet,
    /// Pages that are given, or whose loss is confirmed, after a release, by receiver.
    behind_release: BTreeMap<NodeId, Vec<PageId>>,
    contents: BTreeMap<NodeId, PageSet>,
    ownerships: BTreeMap<NodeId, Vec<PageOwned>>,
    words: BTreeMap<(Word, NodeId), PageSet>,
    /// Pages that threads here have got.
    retained: Vec<PageId>,
}

/// A message that only names pages, in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Word {
    CopyInvalidated,
    InvalidateCopy { is_lent: bool },
    OwnershipForward { requester: NodeId },
    OwnershipRequest,
    CopiesRequest { requester: NodeId },
}

impl Word {
    fn of(self, pages: PageSet) -> Message<'static> {
        match self {
            Word::CopyInvalidated => Message::CopyInvalidated { pages },
            Word::InvalidateCopy { is_lent } => Message::InvalidateCopy { pages, are_lent: is_lent },
            Word::OwnershipForward { requester } => Message::OwnershipForward { pages, requester },
            Word::OwnershipRequest => Message::OwnershipRequest { pages },
            Word::CopiesRequest { requester } => Message::CopiesRequest { pages, requester },
        }
    }
}

impl Sending {
    /// Takes the access of threads here away, or leaves them `left`, for another node.
    pub(super) fn lower(&mut self, page: PageId, left: Access) {
        assert!(left < Access::Write, "{page}: what another node gets is not written here");
        let lowered = if left == Access::Read { &mut self.shared } else { &mut self.handed_over };
        lowered.insert(page);
    }

    /// Takes the access of threads here to a copy away.
    pub(super) fn give_copy_up(&mut self, page: PageId) {
        self.given_up.insert(page);
    }

    /// Has the page go on after a release ([`Sc::go_on`]).
    pub(super) fn release_for(&mut self, page: PageId, to: NodeId) {
        self.behind_release.entry(to).or_default().push(page);
    }

    /// Sends the page's content.
    pub(super) fn content(&mut self, page: PageId, to: NodeId) {
        self.contents.entry(to).or_default().insert(page);
    }

    /// Sends ownership of a page.
    pub(super) fn ownership(&mut self, to: NodeId, owned: PageOwned) {
        self.ownerships.entry(to).or_default().push(owned);
    }

    /// Sends a message about a page.
    pub(super) fn word(&mut self, page: PageId, to: NodeId, word: Word) {
        self.words.entry((word, to)).or_default().insert(page);
    }

    /// Has the page retained.
    pub(super) fn retain(&mut self, page: PageId) {
        self.retained.push(page);
    }
}

/// Divides pages into sets that fit a message each.
fn in_messages(pages: PageSet) -> Vec<PageSet> {
    if pages.len() <= PAGES_PER_MESSAGE_MAX {
        return vec![pages];
    }
    let pages: Vec<PageId> = pages.iter().collect();
    pages.chunks(PAGES_PER_MESSAGE_MAX as usize).map(|some| some.iter().copied().collect()).collect()
}

impl Sc {
    /// Carries out what the event that has been handled has collected.
    pub(super) fn end_event(&mut self, site: &mut Site) {
        let Sending { shared, handed_over, given_up, behind_release, contents, ownerships, words, retained } =
            std::mem::take(&mut self.sending);
        site.protect_all(&shared, Access::Read);
        site.protect_all(&handed_over, Access::None);
        for span in site.homes.spans(&given_up) {
            let pages = site.homes.pages_in(span).count() as u64;
            site.out.push(Effect::Invalidate { span, pages });
        }
        for (to, pages) in behind_release {
            self.release(site, to, pages);
        }
        for (to, pages) in contents {
            for pages in replies(pages.iter().map(|page| content_of(site, page))) {
                site.out.push(Effect::SendPages { to, pages });
            }
        }
        for (to, mut owned) in ownerships {
            while !owned.is_empty() {
                let pages = owned.drain(..owned.len().min(PAGES_PER_MESSAGE_MAX as usize)).collect();
                site.out.send(to, &Message::Ownership { pages });
            }
        }
        for ((word, to), pages) in words {
            in_messages(pages).into_iter().for_each(|pages| site.out.send(to, &word.of(pages)));
        }
        let mut retained = retained.into_iter();
        if let Some(page) = retained.next() {
            site.out.push(Effect::Retain { page });
            if !retained.as_slice().is_empty() {
                self.retained_with.insert(page, retained.collect());
            }
        }
    }
}

fn content_of(site: &Site, page: PageId) -> PageToSend {
    let page_bytes = site.page_bytes(page);
    PageToSend { page, page_bytes, version: Default::default(), from_twin: false }
}
