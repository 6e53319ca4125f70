//! Spare memory that nodes lend each other: the other end of paper 002's hierarchy, in which a processor's
//! memory is a window on that of the others, and a disk is behind them.
//!
//! A node that is short of memory, the *borrower*, asks a node that has some to spare, the *lender*, for
//! room. A grant is room for a number of pages, not for certain ones. The borrower stores pages there while
//! it has room, fetches copies of them, drops them, and gives back room that it needs no more. The lender may
//! take back any of its memory at any time: first room that is unused, then pages, which it returns to the
//! borrower. They are *at home* there until they have found another place. So a lender never waits for
//! anyone, and what it takes back is free as soon as it has been sent.
//!
//! ```text
//! borrower                                        lender
//!    | -- Ask: room for up to 256 pages -------->  |
//!    | <------------------- Grant: room for 256 -- |   or for fewer, or none
//!    | -- Store: page, stamp, bytes ------------>  |
//!    | -- Fetch: ticket, page, stamp ----------->  |
//!    | <----------------- Page: ticket, bytes ---- |   a copy: it stays
//!    | -- Drop: page, stamp -------------------->  |
//!    | -- GiveBack: room for 100 --------------->  |
//!    | <------------------- Revoke: room for 1 --- |   it needs the memory itself
//!    | <------------ Return: page, stamp, bytes -- |
//! ```
//!
//! # What may cross
//!
//! Messages of one pair arrive once and in the order in which they were sent; nothing more is expected of the
//! network. A page is named by its place and a *stamp*, which differs for each version that its owner lends.
//!
//! | message | crosses | outcome |
//! |---|---|---|
//! | `Store` | `Revoke` | no room: the lender returns the page |
//! | `Store` of a new version | `Return` of the old | the old stamp is not the one lent: ignored |
//! | `Fetch` | `Return` | the borrower has it; the lender's `Missing` comes after it, and is ignored |
//! | `Drop` | `Return` | nothing is lent by this name: ignored |
//! | `GiveBack` | `Revoke` | what was given twice is granted again |
//!
//! The bytes are sealed by their owner, for whom alone they have a meaning. Compressed pages are shorter.
//! Room is granted for whole ones, and what a page is shorter can be granted again. So a version that is
//! longer than the one in whose place it comes may take room, or pages, from others.
//!
//! [`Lending`] is both ends of one node. It does no IO and has no clock.

mod borrower;
mod lender;
mod message;

use std::collections::VecDeque;

use hiroba_base::{Instant, NodeId, PageId};

use self::borrower::Borrower;
use self::lender::Lender;
pub use self::message::{BadMessage, Message, Page};

/// Room for how many pages is asked for at once.
pub const BATCH: u32 = 256;

/// What became of a page that was to be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// It is on its way to a lender.
    Sent,
    /// No room yet; a lender was asked.
    Asked,
    /// No other node has memory to spare.
    NoRoom,
}

/// Why a lent page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its lender is dead.
    Died(NodeId),
    /// Its lender does not have it.
    Missing(NodeId),
    /// It was never lent, or was dropped.
    NotLent,
}

/// What a node has lent and borrowed, in pages since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Pages of other nodes that were stored here.
    pub lent: u64,
    /// Pages of this node that were stored with others.
    pub borrowed: u64,
    /// Their length.
    pub borrowed_bytes: u64,
    /// Pages of this node of which a copy was fetched from a lender.
    pub fetched: u64,
    /// Pages of other nodes that this node has returned because it had no more room for them.
    pub taken_back: u64,
}

/// Messages to send, in order.
type Outbox = VecDeque<(NodeId, Message)>;

/// One node as a borrower and as a lender.
#[derive(Debug)]
pub struct Lending {
    borrower: Borrower,
    lender: Lender,
    outbox: Outbox,
}

impl Lending {
    /// Makes node `me` of `nodes`, which has neither lent nor borrowed anything. Pages have at most
    /// `page_bytes` bytes.
    pub fn new(me: NodeId, nodes: u16, page_bytes: u64) -> Lending {
        let lender = Lender::new(nodes, page_bytes);
        Lending { borrower: Borrower::new(me, nodes), lender, outbox: Outbox::new() }
    }

    /// Lends a version of a page, instead of an earlier one if there is one. `stamp` differs from those of
    /// all earlier versions.
    pub fn lend(&mut self, now: Instant, granule: PageId, stamp: u64, bytes: &[u8]) -> Lent {
        self.borrower.lend(now, granule, stamp, bytes, &mut self.outbox)
    }

    /// Returns false if no node has room, and none can be asked now.
    pub fn may_lend(&self, now: Instant) -> bool {
        self.borrower.may_lend(now)
    }

    /// Returns true if this version is lent, and its owner, who has had it in memory, may rely on it again.
    pub fn keep(&mut self, granule: PageId, stamp: u64) -> bool {
        self.borrower.keep(granule, stamp)
    }

    /// Asks for a copy of a lent page, unless it has been requested since it left, or is back.
    pub fn request(&mut self, granule: PageId, stamp: u64) {
        self.borrower.request(granule, stamp, &mut self.outbox);
    }

    /// Takes the copy that was requested, once it is there.
    ///
    /// # Errors
    /// Fails if the page is lost.
    pub fn take(&mut self, granule: PageId, stamp: u64) -> Result<Option<Vec<u8>>, Lost> {
        self.borrower.take(granule, stamp)
    }

    /// Records that the page is in its owner's memory. What is lent is worth something only while it stays
    /// unchanged there, so it gives way to other pages.
    pub fn note_back(&mut self, granule: PageId) {
        self.borrower.note_back(granule, &mut self.outbox);
    }

    /// Forgets a page.
    pub fn discard(&mut self, granule: PageId) {
        self.borrower.discard(granule, &mut self.outbox);
    }

    /// Returns a page that was returned and has found no other lender, for its owner to find it another place
    /// and then discard it here.
    pub fn homeless(&self) -> Option<(PageId, u64, &[u8])> {
        self.borrower.homeless()
    }

    /// Returns the length of pages that take memory here: those stored for others, and this node's own that
    /// are at home.
    pub fn bytes_here(&self) -> u64 {
        self.borrower.bytes_at_home() + self.lender.bytes()
    }

    /// Returns the number of pages that are stored here for others.
    pub fn pages_lent(&self) -> u64 {
        self.lender.pages()
    }

    /// Returns the memory that is promised to others: that of their pages, and that of room for whole ones.
    pub fn promised_bytes(&self) -> u64 {
        self.lender.promised_bytes()
    }

    /// Sets the memory that this node promises to others at most. If it has promised more, it takes room and
    /// pages back.
    pub fn set_room(&mut self, bytes: u64) {
        self.lender.set_room(bytes, &mut self.outbox);
    }

    /// Handles a message.
    pub fn handle_message(&mut self, now: Instant, from: NodeId, message: Message) {
        let outbox = &mut self.outbox;
        match message {
            Message::Ask { count } => self.lender.handle_ask(from, count, outbox),
            Message::GiveBack { count } => self.lender.handle_give_back(from, count, outbox),
            Message::Store(page) => self.lender.handle_store(from, page, outbox),
            Message::Fetch { ticket, granule, stamp } => {
                self.lender.handle_fetch(from, ticket, granule, stamp, outbox);
            }
            Message::Drop { granule, stamp } => self.lender.handle_drop(from, granule, stamp, outbox),
            Message::Grant { count, left, is_answer } => {
                self.borrower.handle_grant(now, from, count, left, is_answer, outbox);
            }
            Message::Revoke { count } => self.borrower.handle_revoke(from, count),
            Message::Page { ticket, page } => self.borrower.handle_page(ticket, page),
            Message::Missing { ticket } => self.borrower.handle_missing(from, ticket),
            Message::Return(page) => self.borrower.handle_return(now, from, page, outbox),
        }
    }

    /// Asks again for room for pages that are at home. To be called every now and then.
    pub fn handle_time(&mut self, now: Instant) {
        self.borrower.handle_time(now, &mut self.outbox);
    }

    /// Records that a node is dead: its memory is gone, and what it had borrowed is free.
    pub fn handle_death(&mut self, node: NodeId) {
        self.borrower.handle_death(node);
        self.lender.handle_death(node);
        self.outbox.retain(|(to, _)| *to != node);
    }

    /// Returns the next message to send.
    pub fn poll_send(&mut self) -> Option<(NodeId, Message)> {
        self.outbox.pop_front()
    }

    /// Returns what was lent and borrowed since the beginning.
    pub fn tallies(&self) -> Tallies {
        Tallies {
            lent: self.lender.lent,
            taken_back: self.lender.taken_back,
            borrowed: self.borrower.borrowed,
            borrowed_bytes: self.borrower.borrowed_bytes,
            fetched: self.borrower.fetched,
        }
    }

    /// Returns, for node `with`, the room that it has granted as this node believes, and the number of this
    /// node's pages there.
    pub fn borrowed_from(&self, with: NodeId) -> (i64, u64) {
        self.borrower.account_with(with)
    }

    /// Returns, for node `with`, the room that this node has granted to it, and the number of its pages here.
    pub fn lent_to(&self, with: NodeId) -> (i64, u64) {
        self.lender.account_with(with)
    }
}
