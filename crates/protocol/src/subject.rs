//! Finds the page that a message is about, so that the engine can pass the message to the protocol that keeps
//! the page coherent.
//!
//! The match names every message, so a new one does not compile until it is decided.

use hiroba_base::PageId;
use hiroba_wire::Message;

/// The page of a message: the first one, if there are several. All of them belong to one protocol.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) page: PageId,
    /// True if all of them are allocated, as far as this node knows.
    pub(crate) is_known: bool,
    /// True if the message is for the page's home (or manager). It may be the first message about the region
    /// that this node receives.
    pub(crate) is_for_home: bool,
}

impl Subject {
    /// Returns the subject of a message, or `None` if it is about no page that a protocol keeps coherent.
    pub(crate) fn of(message: &Message<'_>, is_known: impl Fn(PageId) -> bool) -> Option<Subject> {
        let (page, is_known, is_for_home) = match message {
            Message::PageRequest { page, .. }
            | Message::AtomicRequest { page, .. }
            | Message::CopyRequest { page, .. }
            | Message::ConversionRequest { page }
            | Message::AtomicForward { page, .. }
            | Message::HomeMoved { page, .. }
            | Message::HomeMovesHeard { page, .. }
            | Message::DiffsRequest { page, .. }
            | Message::CatchUpRequest { page, .. } => (Some(*page), is_known(*page), true),
            Message::AtomicReply { page, .. }
            | Message::DiffsPerformed { page, .. }
            | Message::CopiesSettled { page, .. }
            | Message::HomeTransfer { page, .. }
            | Message::DiffsReply { page, .. }
            | Message::DiffsCollected { page }
            | Message::CaughtUp { page, .. }
            | Message::WordReply { page, .. } => (Some(*page), is_known(*page), false),
            Message::Convert { pages }
            | Message::Converted { pages }
            | Message::CopiesRequest { pages, .. }
            | Message::OwnershipRequest { pages }
            | Message::OwnershipForward { pages, .. } => {
                (pages.iter().next(), pages.iter().all(is_known), true)
            }
            Message::InvalidateCopies { pages, .. }
            | Message::InvalidateCopy { pages, .. }
            | Message::CopyInvalidated { pages } => {
                (pages.iter().next(), pages.iter().all(is_known), false)
            }
            Message::Ownership { pages } => {
                let mut pages = pages.iter().map(|owned| owned.page);
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), false)
            }
            Message::UpdateCopies { diffs, .. } => {
                let mut pages = diffs.iter().map(|diff| diff.page);
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), false)
            }
            Message::PagesRequest { wanted, .. } => {
                let mut pages = wanted.iter().flat_map(|group| group.pages.iter());
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), true)
            }
            Message::Diffs { diffs, .. }
            | Message::EagerDiffs { diffs, .. }
            | Message::EarlyDiffs { diffs, .. } => {
                let mut pages = diffs.iter().map(|diff| diff.page);
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), true)
            }
            Message::HomeHandedOver { pages } => {
                let mut pages = pages.iter().map(|handed| handed.page);
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), false)
            }
            Message::PagesReply { copies, .. } => {
                let mut pages = copies.iter().map(|copy| copy.page);
                let first = pages.next();
                (first, first.into_iter().chain(pages).all(is_known), false)
            }
            // These are about no page that a protocol keeps coherent.
            Message::LockRequest { .. }
            | Message::LockForward { .. }
            | Message::LockGrant { .. }
            | Message::LockTry { .. }
            | Message::LockTryForward { .. }
            | Message::LockTryOutcome { .. }
            | Message::LockTryRefused { .. }
            | Message::CondWait { .. }
            | Message::CondNoted { .. }
            | Message::CondSignal { .. }
            | Message::CondWake { .. }
            | Message::Arrive { .. }
            | Message::Depart { .. }
            | Message::Publish { .. }
            | Message::KeepHomes { .. }
            | Message::HomesKept { .. }
            | Message::Place { .. }
            | Message::Placed { .. }
            // These are between hosts.
            | Message::TouchedPages { .. }
            | Message::TouchedAll
            | Message::TouchedHeard
            | Message::Free { .. }
            | Message::SizeRequest { .. }
            | Message::SizeReply { .. }
            | Message::ProgramData { .. }
            | Message::Ports { .. }
            | Message::LentMemory { .. }
            | Message::Alive => return None,
        };
        page.map(|page| Subject { page, is_known, is_for_home })
    }
}
