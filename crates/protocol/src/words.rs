//! Operations on atomic words, as far as all protocols treat them alike: the waiting threads, the numbers of
//! operations on words, and the delivery of results.

use hiroba_base::{NodeId, PageId};
use hiroba_wire::{AtomicOutcome, Message, Ticket};
use rustc_hash::FxHashMap;

use crate::coherence::Site;
use crate::{Fact, Outcome, Waiter};

/// The thread that waits for an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    /// A thread of the node that operates.
    Here(Waiter),
    /// A thread of another node.
    There(NodeId, Ticket),
}

/// The result of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operated {
    /// The word's page.
    pub(crate) page: PageId,
    /// The word's byte offset in it.
    pub(crate) offset: u32,
    /// The number of operations on the word before; 0 if no record is kept.
    pub(crate) turn: u64,
    /// The old and new value of the word.
    pub(crate) outcome: AtomicOutcome,
}

impl Site {
    /// Resumes a thread of this node with the result of its operation.
    pub(crate) fn end_operation(&mut self, waiter: Waiter, operated: Operated) {
        let Operated { page, offset, turn, outcome } = operated;
        self.tell(|| Some(Fact::Atomic { waiter, page, offset, turn, outcome }));
        self.out.wake(waiter, Outcome::Atomic(outcome));
    }

    /// Sends the result of an operation to the client that waits for it. This node has operated on the word.
    pub(crate) fn answer_operation(&mut self, client: Client, operated: Operated) {
        match client {
            Client::Here(waiter) => self.end_operation(waiter, operated),
            Client::There(node, ticket) => {
                let Operated { page, turn, outcome, .. } = operated;
                self.out.send(node, &Message::AtomicReply { ticket, page, outcome, turn });
            }
        }
    }
}

/// The number of operations on each atomic word that this node operates on, by page and offset. Counted only
/// when a record is kept. As many entries as the program has such words.
#[derive(Debug, Default)]
pub(crate) struct Turns(FxHashMap<(PageId, u32), u64>);

impl Turns {
    /// Counts an operation that has just been carried out on a word. Returns its number, or 0 if no record is
    /// kept.
    pub(crate) fn count(&mut self, site: &Site, page: PageId, offset: u32) -> u64 {
        if !site.tells() {
            return 0;
        }
        let next = self.0.entry((page, offset)).or_default();
        *next += 1;
        *next - 1
    }

    /// Takes the counts of pages that another node operates on from now on: by page, the offset and count of
    /// each word.
    pub(crate) fn take_of(&mut self, leaves: impl Fn(PageId) -> bool) -> FxHashMap<PageId, Vec<(u32, u64)>> {
        let mut taken: FxHashMap<PageId, Vec<(u32, u64)>> = FxHashMap::default();
        for ((page, offset), turn) in self.0.extract_if(|(page, _), _| leaves(*page)) {
            taken.entry(page).or_default().push((offset, turn));
        }
        taken
    }

    /// Continues with the counts of a page that another node has operated on.
    pub(crate) fn go_on(&mut self, page: PageId, turns: impl IntoIterator<Item = (u32, u64)>) {
        self.0.extend(turns.into_iter().map(|(offset, turn)| ((page, offset), turn)));
    }
}
