//! Carries out what the engine wants done.
//!
//! Everything here runs with the core's lock held and signals held back, and touches shared pages through the
//! runtime's view alone, which never faults.

use std::sync::atomic::Ordering::{self, Relaxed};
use std::time::Instant;

use hiroba_base::{Access, PageId, PageRange};
use hiroba_memory::Twins;
use hiroba_protocol::{Done, Effect, Engine, NewContent, diff};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, PageContent};

use crate::account::TimeClass;
use crate::runtime::Runtime;
use crate::slot::Answer;

/// The engine and what only its host may touch.
pub(crate) struct Core {
    pub(crate) engine: Box<dyn Engine>,
    twins: Twins,
    page: Vec<u8>,
    message: Vec<u8>,
    /// Faults that came as events: since when each waits, for the account.
    event_faults: Vec<(PageId, TimeClass, Instant)>,
}

impl Core {
    pub(crate) fn new(engine: Box<dyn Engine>, twins: Twins, page_bytes: usize) -> Core {
        Core { engine, twins, page: vec![0; page_bytes], message: Vec::new(), event_faults: Vec::new() }
    }

    /// A fault came as an event; it is over when the page's access is given.
    pub(crate) fn note_event_fault(&mut self, page: PageId, class: TimeClass) {
        self.event_faults.push((page, class, Instant::now()));
    }

    /// Whether threads of the program are stopped in faults that came as events.
    pub(crate) fn has_event_faults(&self) -> bool {
        !self.event_faults.is_empty()
    }
}

impl Runtime {
    /// Carries out all effects that the engine has now.
    pub(crate) fn carry_out_all(&self, core: &mut Core) {
        while let Some(effect) = core.engine.poll_effect() {
            self.carry_out(core, effect);
        }
    }

    fn carry_out(&self, core: &mut Core, effect: Effect) {
        let tallies = &self.account.tallies;
        match effect {
            Effect::Send { to, message } => self.fabric().send(to, &[&message]),
            Effect::SendPage { to, page, version } => {
                let content = if self.memory.is_populated(page) {
                    self.memory.read_page(page, &mut core.page);
                    PageContent::Bytes(&core.page)
                } else {
                    PageContent::Zero
                };
                core.message.clear();
                let reply = Message::PageReply { page, version, content };
                core.message = reply.encode_into(std::mem::take(&mut core.message));
                self.fabric().send(to, &[&core.message]);
            }
            Effect::Protect { pages, access } => self.protect(core, pages, access),
            Effect::Twin { page } => {
                core.twins.make(page);
                tallies.twins_made.fetch_add(1, Relaxed);
            }
            Effect::Diff { page } => {
                let runs = self.make_diff(core, page);
                core.engine.handle_done(Done::Diff { page, runs });
            }
            Effect::Apply { page, runs } => {
                let mut written = Ok(());
                let whole = diff::apply(&runs, core.page.len(), |offset, bytes| {
                    if written.is_ok() {
                        written = self.memory.write(page, offset, bytes);
                    }
                });
                debug_assert!(whole.is_ok(), "the engine has checked the diff");
                self.or_fatal(written);
                tallies.updates_applied.fetch_add(1, Relaxed);
            }
            Effect::Install { page, content, merge, prefetched } => {
                self.install(core, page, &content, merge);
                let count = if prefetched { &tallies.pages_prefetched } else { &tallies.pages_fetched };
                count.fetch_add(1, Relaxed);
            }
            Effect::Patch { page, offset, value } => {
                let bytes = value.to_ne_bytes();
                self.or_fatal(self.memory.write(page, offset as usize, &bytes));
                core.twins.patch(page, offset as usize, &bytes);
            }
            Effect::Atomic { page, offset, operation } => {
                let word = self.or_fatal(self.memory.atomic_u64(page, offset as usize));
                let outcome = operate(word, operation);
                core.engine.handle_done(Done::Atomic { outcome });
            }
            Effect::Wake { waiter, outcome } => self.slots.get(waiter).answer(Answer::Engine(outcome)),
            Effect::Fatal { sentence } => self.fatal(&sentence),
        }
    }

    fn protect(&self, core: &mut Core, pages: PageRange, access: Access) {
        let Some(faults) = &self.faults else { return };
        self.or_fatal(faults.protect(pages, access));
        if access == Access::None {
            self.account.tallies.invalidations.fetch_add(pages.count, Relaxed);
            return;
        }
        core.event_faults.retain(|(page, class, since)| {
            let over = pages.contains(*page);
            if over {
                self.account.fault_served(*class, since.elapsed());
            }
            !over
        });
    }

    fn make_diff(&self, core: &mut Core, page: PageId) -> Vec<u8> {
        self.memory.read_page(page, &mut core.page);
        let twin = core.twins.get(page).expect("a page that is compared has a twin");
        let mut runs = Vec::new();
        diff::encode(&core.page, twin, &mut runs);
        core.twins.remove(page);
        self.account.tallies.diffs_made.fetch_add(1, Relaxed);
        self.account.tallies.diff_bytes.fetch_add(runs.len() as u64, Relaxed);
        runs
    }

    /// Fills a frame; where the frame holds unsent writes, only bytes that are new to the twin go in, and into the twin too.
    fn install(&self, core: &mut Core, page: PageId, content: &NewContent, merge: bool) {
        core.page.fill(0);
        if let NewContent::Bytes(bytes) = content {
            core.page.copy_from_slice(bytes);
        } else if !merge && !self.memory.is_populated(page) {
            return;
        }
        if !merge {
            self.or_fatal(self.memory.write(page, 0, &core.page));
            return;
        }
        let twin = core.twins.get(page).expect("a page that is merged has a twin");
        let mut news = Vec::new();
        diff::encode(&core.page, twin, &mut news);
        let whole = diff::apply(&news, core.page.len(), |offset, bytes| {
            self.or_fatal(self.memory.write(page, offset, bytes));
            core.twins.patch(page, offset, bytes);
        });
        debug_assert!(whole.is_ok(), "the diff was made here");
    }
}

/// Operates on a word that other threads may operate on too. Relaxed would do for the protocol, which orders by
/// messages; threads of this node that load the word plainly after it are served better by acquire-release.
fn operate(word: &std::sync::atomic::AtomicU64, operation: AtomicOperation) -> AtomicOutcome {
    const ORDER: Ordering = Ordering::AcqRel;
    match operation {
        AtomicOperation::Load => {
            let previous = word.load(Ordering::Acquire);
            AtomicOutcome { previous, current: previous, written: false }
        }
        AtomicOperation::Store(value) => {
            AtomicOutcome { previous: word.swap(value, ORDER), current: value, written: true }
        }
        AtomicOperation::FetchAdd(delta) => {
            let previous = word.fetch_add(delta, ORDER);
            AtomicOutcome { previous, current: previous.wrapping_add(delta), written: true }
        }
        AtomicOperation::CompareExchange { expected, desired } => {
            match word.compare_exchange(expected, desired, ORDER, Ordering::Acquire) {
                Ok(previous) => AtomicOutcome { previous, current: desired, written: true },
                Err(previous) => AtomicOutcome { previous, current: previous, written: false },
            }
        }
    }
}
