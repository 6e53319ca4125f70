//! Automatic update where nodes share memory: pages that every node has mapped onto their home's frame.
//!
//! Read first: Blumrich, Li, Alpert, Dubnicki, Felten, Sandberg, *Virtual Memory Mapped Network Interface for
//! the SHRIMP Multicomputer*, ISCA 1994, for the mappings on which automatic update rests (Barli and others,
//! section 2.2 and figure 2: outgoing and incoming buffers); then [`crate::aurc`].
//!
//! In the papers a copy is mapped to its home's page, and the network interface repeats each store there.
//! Nodes that share memory need no interface for that: all of them map the home's frame itself. A completed
//! store is at the home; there is no copy, twin, diff, notice or fetch, and the release has nothing left to
//! send.
//!
//! **The deviation**: loads go to the home's frame too, where the 1996 machine had a local copy to read from.
//! So no node reads an outdated page, and no node invalidates one.
//!
//! | state | load, store | atomic word | release | notice |
//! |---|---|---|---|---|
//! | mapped, from its allocation to the end of the job | run free | at the home, by message | – | none is sent |
//!
//! **Which pages**: runs of one home of a region, [`RUN_BYTES_MIN`] or more each, as the region places its
//! pages; at most [`RUNS_MAX`] of them in a job, since each costs every node mappings, of which a process may
//! have 65,530. The choice follows from what all nodes know when they allocate, so every node maps the same
//! pages at the same collective and no node ever has a copy. The other pages are under [`super::Aurc`]
//! itself.
//!
//! **They do not move.** Every node stores into the same memory, so no other home of a mapped page is better.
//! For the same reason a run of a region that is placed by first touch is cut and mapped as if it were placed
//! in blocks; only its other pages move to their first touchers.
//!
//! Why this is correct:
//! - *A release orders the stores before it.* The engine sends the messages of a release after the thread's
//!   stores in program order: the thread, or the last of its team, has called the engine under its host's
//!   lock. A message travels through memory that both nodes have mapped; its sender publishes it by a store
//!   with release order and its receiver finds it by a load with acquire order, and so on along every chain
//!   of messages and locks up to the thread that goes on. The frames are memory of the same machine. On
//!   x86-64 and aarch64, whose memory is coherent and whose stores reach all other processors at once, a
//!   thread that goes on after an acquire therefore finds the stores in them.
//! - *A node may go on before others have mapped.* It stores into the home's frame, which exists from the
//!   home's start, and a node that maps later finds the stores. No other node can know the address before it
//!   has left the collective too.
//! - The home operates on *atomic words* in its frame: in one order, and plain loads find the results.

use std::collections::VecDeque;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_wire::{AtomicOutcome, Message, Ticket};
use rustc_hash::FxHashMap;

use crate::coherence::{Coherence, Site, WordOperation};
use crate::home::{HomeMap, Layout, Located};
use crate::words::{Client, Operated, Turns};
use crate::{Done, Effect, Expected, Outcome, ProtocolError, Waiter, unexpected};

/// The least length in bytes of a run of pages of one home that is mapped: shorter ones would cost more
/// mappings than they save faults.
pub const RUN_BYTES_MIN: u64 = 2 << 20;

/// The maximum number of runs that a job maps. Each takes up to six of a process's mappings: itself and the
/// remainders on its sides, in two views, and guards between regions.
pub const RUNS_MAX: usize = 4096;

/// The rule by which runs of pages are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRule {
    /// The minimum number of bytes of a run.
    pub run_bytes_min: u64,
}

impl Default for MappingRule {
    fn default() -> MappingRule {
        MappingRule { run_bytes_min: RUN_BYTES_MIN }
    }
}

/// A part of a region that is about to be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its granules, which are whole pages.
    pub granules: PageRange,
    /// The home onto whose frames all of them are mapped, or `None` if they are not mapped.
    pub mapped_onto: Option<NodeId>,
}

impl MappingRule {
    /// Cuts a region into at most `runs_max` runs that are mapped, and the parts between them.
    pub(crate) fn parts(
        self,
        homes: &HomeMap,
        layout: &Layout,
        granule_bytes: u32,
        runs_max: usize,
    ) -> Vec<Part> {
        let granules_min = self.run_bytes_min.div_ceil(u64::from(granule_bytes));
        let mut parts = Vec::new();
        let region = layout.granules;
        let mut rest = region;
        let is_mapped = |run: &(PageRange, NodeId)| run.0.count >= granules_min;
        // In a region that is spread page by page no run is longer than the first, so the others need no
        // look.
        let mut runs = homes.runs(layout).peekable();
        let some = runs.peek().is_some_and(is_mapped);
        for (run, home) in runs.filter(is_mapped).take(if some { runs_max } else { 0 }) {
            let before = PageRange { first: rest.first, count: run.first.0 - rest.first.0 };
            parts.extend((before.count > 0).then_some(Part { granules: before, mapped_onto: None }));
            parts.push(Part { granules: run, mapped_onto: Some(home) });
            rest = PageRange { first: run.end(), count: region.end().0 - run.end().0 };
        }
        parts.extend((rest.count > 0).then_some(Part { granules: rest, mapped_onto: None }));
        let granules: u64 = parts.iter().map(|part| part.granules.count).sum();
        assert_eq!(granules, region.count, "the parts of a region are all of it");
        parts
    }
}

/// The pages of a node that are mapped onto their homes' frames.
#[derive(Debug, Default)]
pub struct Mapped {
    /// Operations that the host must still carry out.
    operations: VecDeque<(Client, u32)>,
    /// Words of other homes for whose results threads of this node wait.
    asked: FxHashMap<Ticket, (PageId, u32)>,
    turns: Turns,
}

impl Mapped {
    fn begin(&mut self, site: &mut Site, client: Client, asked: WordOperation) {
        let WordOperation { page, offset, operation, .. } = asked;
        assert!(site.is_home(page), "{page}: its home operates on its words");
        self.operations.push_back((client, offset));
        site.out.push(Effect::Atomic { page, offset, operation });
    }

    fn finish(&mut self, site: &mut Site, page: PageId, outcome: AtomicOutcome) {
        let (client, offset) = self.operations.pop_front().expect("every answer has its effect");
        let turn = self.turns.count(site, page, offset);
        site.answer_operation(client, Operated { page, offset, turn, outcome });
    }
}

impl Coherence for Mapped {
    fn leaves_intervals_open(&self) -> bool {
        true
    }

    fn access(&self, _page: PageId) -> Access {
        Access::Write
    }

    /// Returns no pages: all mapped pages are in the same state, and none is stored.
    fn known_pages(&self) -> Vec<PageId> {
        Vec::new()
    }

    fn state(&self, _site: &Site, _page: Located) -> Option<Result<&'static str, String>> {
        Some(Ok("mapped"))
    }

    /// Gives access again that a fault source has taken away for its own reasons.
    fn fault(&mut self, site: &mut Site, page: Located, _wanted: Access, waiter: Option<Waiter>) {
        site.out.push(Effect::Protect { pages: page.span(), access: Access::Write });
        waiter.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
    }

    fn operate(&mut self, site: &mut Site, asked: WordOperation) {
        let WordOperation { page, offset, operation, waiter } = asked;
        let home = site.locate(page).home;
        if home == site.me {
            return self.begin(site, Client::Here(waiter), asked);
        }
        let (ticket, needed) = (waiter.0, VersionVector::new());
        let before = self.asked.insert(ticket, (page, offset));
        assert!(before.is_none(), "thread {ticket} waits for one operation at a time");
        site.out.send(home, &Message::AtomicRequest { ticket, page, offset, operation, needed });
    }

    fn prefetch(&mut self, _site: &mut Site, _ranges: &[PageRange]) {}

    fn handle_message(
        &mut self,
        site: &mut Site,
        from: NodeId,
        message: &Message<'_>,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::AtomicRequest { ticket, page, offset, operation, .. } if site.is_home(*page) => {
                let (page, offset, operation, waiter) = (*page, *offset, *operation, Waiter(*ticket));
                let asked = WordOperation { page, offset, operation, waiter };
                self.begin(site, Client::There(from, *ticket), asked);
                Ok(())
            }
            Message::AtomicReply { ticket, page, outcome, turn } => match self.asked.remove(ticket) {
                Some((asked, offset)) if asked == *page => {
                    let operated = Operated { page: *page, offset, turn: *turn, outcome: *outcome };
                    site.end_operation(Waiter(*ticket), operated);
                    Ok(())
                }
                _ => {
                    let got = format!("one of {page} for thread {ticket}");
                    Err(unexpected(Expected::RequestedAtomic, got))
                }
            },
            _ => Err(unexpected(Expected::MappedPagesMessage, "another message".to_owned())),
        }
    }

    fn handle_done(&mut self, site: &mut Site, done: Done) {
        match done {
            Done::Atomic { page, outcome } => self.finish(site, page, outcome),
            other => unreachable!("nobody asked for {other:?}"),
        }
    }

    /// Rejects a notice: its sender has taken the page for a copy.
    fn handle_notice(
        &mut self,
        site: &mut Site,
        writer: NodeId,
        _seq: IntervalSeq,
        page: PageId,
        _voided: &mut PageSet,
    ) {
        let expected = "no write notice of a page that all nodes have mapped onto its home's frame";
        site.out.end_job(format!("expected {expected}, got one of {page} by node {writer}"));
    }
}
