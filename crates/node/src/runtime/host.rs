//! Carries out the engine's effects.
//!
//! All of this runs with the core's lock and with signals deferred, and accesses shared pages only through
//! the runtime's view, which never faults.

mod headroom;
mod holds;
pub(crate) mod races;
mod shortage;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::time::{Duration, Instant};

use hiroba_base::legs::{self, Hold, Leg};
use hiroba_base::{Access, ChangedBytes, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_fabric::{Content, Unsent};
use hiroba_memory::{FaultSource, SharedMemory, Twins};
use hiroba_protocol::diff::{self, Blocks, Encoder};
use hiroba_protocol::races::Interval;
use hiroba_protocol::{Done, Effect, Engine, NewContent, PageToSend, ReadOutcome};
use hiroba_trace::Event;
use hiroba_wire::{AtomicOperation, AtomicOutcome, Message, PageCopy};
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::local_space::LocalSpace;
use crate::runtime::Runtime;
use crate::runtime::host::holds::{Holds, KernelClocks};
use crate::runtime::host::races::Races;
use crate::threads::Answer;
use crate::time_class::TimeClass;

/// Pages of one home, and the version that its frames must have.
pub(crate) struct HomePages<'a> {
    pub(crate) home: NodeId,
    /// Consecutive pages.
    pub(crate) pages: PageRange,
    /// The length of each page.
    pub(crate) page_bytes: u32,
    pub(crate) needed: &'a VersionVector,
}

/// The engine, and the state that its host changes under the same lock.
pub(crate) struct Core {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) twins: Twins,
    pub(crate) races: Option<Races>,
    /// Blocks freed by nodes whose publication, which precedes the free, the engine has not absorbed yet.
    /// Keyed by address, so there are no more than this node has blocks.
    pub(crate) freed_early: BTreeMap<u64, NodeId>,
    /// Buffer for pages, as long as the longest use so far.
    pub(crate) page: Vec<u8>,
    message: Vec<u8>,
    /// Buffer for the changes of a diff in a block.
    changed: ChangedBytes,
    /// Faults reported as events. They end when access to the granule is given.
    event_faults: Vec<EventFault>,
    holds: Holds,
    /// Results of the present lull.
    pub(crate) harvest: Harvest,
    /// Peers with posted messages. They are pushed when the core's lock is free.
    posted: Posted,
    /// The memory budget of shared pages, if there is one.
    budget: Option<Budget>,
    /// This node's own data.
    pub(crate) local: LocalSpace,
    is_shortage_told: bool,
    /// True if the user was told that pages cannot be written to the disk.
    is_swap_failure_told: bool,
}

/// Peers in the order of the posts; almost always one or two.
pub(crate) type Posted = SmallVec<[NodeId; 8]>;

/// The core, locked by one thread.
pub(crate) struct CoreHeld<'a> {
    /// Dropped first: it ends with the lock.
    #[expect(dead_code, reason = "it measures as long as it lives")]
    pub(crate) hold: Hold,
    pub(crate) core: MutexGuard<'a, Core>,
}

impl Deref for CoreHeld<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreHeld<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

/// The contents of the frames of some pages, one page after the other.
struct Frames<'a> {
    memory: &'a SharedMemory,
    /// The offset in the content at which each page ends, and its twin if that is meant.
    pages: Vec<(usize, PageId, Option<&'a [u8]>)>,
}

impl Content for Frames<'_> {
    fn bytes(&self) -> usize {
        self.pages.last().map_or(0, |&(end, ..)| end)
    }

    fn append(&self, offset: usize, bytes: usize, room: &mut Vec<u8>) {
        let first = self.pages.partition_point(|&(end, ..)| end <= offset);
        let mut start = first.checked_sub(1).map_or(0, |before| self.pages[before].0);
        let wanted = offset..offset + bytes;
        for &(end, page, twin) in &self.pages[first..] {
            let (from, to) = (wanted.start.max(start), wanted.end.min(end));
            if from >= to {
                break;
            }
            match twin {
                Some(twin) => room.extend_from_slice(&twin[from - start..to - start]),
                None => self.memory.append(page, from - start, to - from, room),
            }
            start = end;
        }
    }
}

/// How long a page stays for a thread that has waited for it: long enough for a thread that is awake to
/// return from its fault and access the page, and no longer, because other nodes wait for the page.
const HOLD: Duration = Duration::from_micros(50);

/// The same when the thread must first be woken, or given a processor.
const HOLD_FOR_SLEEPERS: Duration = Duration::from_micros(100);

/// Of work on single pages, one operation in this many is timed and counts for all: reading the clock twice
/// costs about a tenth of a comparison.
const TIMED_ONE_IN: u64 = 16;

/// The thread that waits for a granule, since when, and how to account for it.
pub(crate) struct EventFault {
    pub(crate) granule: PageId,
    pub(crate) thread: Option<u32>,
    pub(crate) class: TimeClass,
    pub(crate) since: Instant,
    /// True if the trace has recorded its beginning.
    pub(crate) is_traced: bool,
}

/// The results of a lull.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    /// Number of pages of which something was sent.
    pub(crate) pages_sent: u64,
    /// Granules whose next write is recorded again, each at the cost of a fault in the kernel.
    pub(crate) granules_noted: u64,
}

impl Core {
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        twins: Twins,
        races: Option<Races>,
        budget: Option<Budget>,
        local: LocalSpace,
    ) -> Core {
        Core {
            engine,
            twins,
            races,
            freed_early: BTreeMap::new(),
            page: Vec::new(),
            message: Vec::new(),
            changed: ChangedBytes::NONE,
            event_faults: Vec::new(),
            holds: Holds::default(),
            harvest: Harvest::default(),
            posted: Posted::new(),
            budget,
            local,
            is_shortage_told: false,
            is_swap_failure_told: false,
        }
    }

    /// Takes a page that was held long enough.
    fn take_held(&mut self, now: Instant) -> Option<PageId> {
        let Core { holds, event_faults, engine, .. } = self;
        let waits = |tid| event_faults.iter().any(|fault| fault.thread == Some(tid));
        holds.take_over(now, engine.waits_for_retained(), waits, &KernelClocks)
    }

    /// Returns the time after which a hold may be over, if a request waits for that.
    pub(crate) fn next_hold_ends_in(&self) -> Option<Duration> {
        if self.holds.is_empty() || !self.engine.waits_for_retained() {
            return None;
        }
        self.holds.look_again_in(Instant::now())
    }

    fn note_posted(&mut self, to: NodeId, is_posted: bool) {
        if is_posted && self.posted.last() != Some(&to) {
            self.posted.push(to);
        }
    }

    /// Adds a fault that was reported as an event. It ends when access to its page is given.
    pub(crate) fn note_event_fault(&mut self, fault: EventFault) {
        self.event_faults.push(fault);
    }

    /// Returns true if threads of the program are stopped in faults reported as events.
    pub(crate) fn has_event_faults(&self) -> bool {
        !self.event_faults.is_empty()
    }
}

impl CoreHeld<'_> {
    /// Unlocks the core. Returns the peers for which messages were posted meanwhile. The caller pushes them
    /// now, so that neither sealing nor the system calls of sending keep other threads from the core.
    pub(crate) fn release(mut self) -> Posted {
        std::mem::take(&mut self.core.posted)
    }
}

impl Runtime {
    /// Tells the engine about pages that were held long enough, and carries out what follows.
    ///
    /// Giving such a page away may close an interval. A reply that was handled before the interval's pages
    /// are compared would overwrite what the diffs must contain.
    pub(crate) fn end_holds(&self, core: &mut Core) {
        if core.holds.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(page) = core.take_held(now) {
            core.engine.handle_retained(page);
            self.carry_out_all(core);
        }
    }

    /// Carries out all effects that the engine has now.
    pub(crate) fn carry_out_all(&self, core: &mut Core) {
        self.carry_out_received(core, &[]);
    }

    /// Carries out all effects after the engine has handled a message with this content.
    pub(crate) fn carry_out_received(&self, core: &mut Core, received: &[u8]) {
        while let Some(effect) = core.engine.poll_effect() {
            legs::end(Leg::Host);
            let leg = leg_of(&effect);
            self.carry_out(core, effect, received);
            legs::end(leg);
        }
        core.twins.forget_received();
        self.keep_to_budget(core);
        if let Some(wait) = core.next_hold_ends_in() {
            self.service().look_up_after(wait);
        }
        self.serving.lulls.follow(&*core.engine);
        if !core.freed_early.is_empty() {
            self.free_what_waited(core);
        }
        if self.ports.keeps() {
            self.hand_on_port_packets(core);
        }
    }

    fn free_what_waited(&self, core: &mut Core) {
        let Core { engine, freed_early, .. } = core;
        freed_early.retain(|address, from| {
            let waits = engine.keeps_back(*from);
            if !waits {
                self.free_for_peer(*from, *address);
            }
            waits
        });
    }

    /// Records that another node has freed a block. An invalid address or a double free is reported at once,
    /// so that only valid frees wait.
    pub(crate) fn note_freed(&self, core: &mut Core, from: NodeId, address: u64) {
        if !self.allocations.heap.is_block(address) {
            return self.free_for_peer(from, address);
        }
        if let Some(before) = core.freed_early.insert(address, from) {
            self.free_for_peer(before, address);
            self.free_for_peer(from, address);
        }
    }

    /// Posts a message, whose first byte is its kind. It is sent when the core's lock is free.
    fn post_to(&self, core: &mut Core, to: NodeId, parts: &[&[u8]]) {
        let is_posted = self.post(to, parts[0][0], Unsent::new(parts));
        core.note_posted(to, is_posted);
    }

    fn carry_out(&self, core: &mut Core, effect: Effect, received: &[u8]) {
        let tallies = &self.account.tallies;
        match effect {
            Effect::Send { to, message } => self.post_to(core, to, &[&message]),
            Effect::SendPages { to, pages } => self.send_pages(core, to, pages),
            Effect::SendTwin { to, page, version } => self.send_twin(core, to, page, version),
            Effect::Protect { pages, access } => self.protect(core, pages, access),
            Effect::Invalidate { span, pages } => {
                self.protect(core, span, Access::None);
                self.explain(|regions| regions.note_lost(span));
                tallies.invalidations.fetch_add(pages, Relaxed);
            }
            Effect::MapHome { pages, home } => self.map_home(pages, home),
            Effect::Watch { pages } => {
                self.or_fatal(self.watching().watch(pages));
                core.note_given(pages);
                self.note_given_ahead(pages);
                self.trace_fact(|| Event::Access { granules: pages, access: Access::Write });
                self.end_event_faults(core, pages);
            }
            Effect::Unwatch { pages } => self.or_fatal(self.watching().unwatch(pages)),
            Effect::CollectWritten => {
                let mut granules = PageSet::new();
                self.or_fatal(self.watching().collect_written(&mut granules));
                core.harvest.granules_noted += granules.len();
                core.note_stores(&granules);
                core.engine.handle_done(Done::Written { granules });
            }
            Effect::GiveUp { pages } => self.give_up(core, pages),
            Effect::PageOut { pages } => self.page_out(core, pages),
            Effect::MakeRoom { pages } => self.or_fatal(self.memory.populate(pages)),
            Effect::FindUnwritten { spans } => {
                let (first, mut granules) = (spans[0].first, PageSet::new());
                for span in joined(spans) {
                    self.or_fatal(self.watching().find_unwritten(span, &mut granules));
                }
                core.engine.handle_done(Done::Unwritten { first, granules });
            }
            Effect::DropTwin { page } | Effect::DropSnapshot { page } => _ = core.twins.remove(page),
            Effect::Twin { page, page_bytes } => {
                timed(&tallies.twins_made, &tallies.twin_ns, || core.twins.make(page, page_bytes as usize));
                self.trace_fact(|| Event::Twinned { page });
            }
            Effect::Diff { page, keep_twin } => {
                let runs = self.make_diff(core, page, keep_twin);
                core.engine.handle_done(Done::Diff { page, runs });
            }
            Effect::DiffEarly { page } => {
                let runs = self.make_diff(core, page, true);
                core.harvest.pages_sent += u64::from(!runs.is_empty());
                tallies.early_diffs.fetch_add(u64::from(!runs.is_empty()), Relaxed);
                tallies.early_diff_bytes.fetch_add(runs.len() as u64, Relaxed);
                core.engine.handle_done(Done::DiffedEarly { page, runs });
            }
            Effect::Apply { page, runs } => {
                timed(&tallies.updates_applied, &tallies.apply_ns, || self.apply(core, page, &runs));
            }
            Effect::Install { pages, content, merge, fetched, prefetched } => {
                let content = match content {
                    NewContent::Zero => None,
                    NewContent::Received(range) => Some(&received[range]),
                    NewContent::Kept(ref bytes, range) => Some(&bytes[range]),
                };
                if merge {
                    let dirty = self.merge(core, pages.first, content);
                    core.engine.handle_done(Done::Merged { page: pages.first, dirty });
                } else {
                    self.install(core, pages, content);
                }
                core.note_came(pages);
                let (singly, together) = (u64::from(fetched), u64::from(prefetched));
                tallies.pages_fetched.fetch_add(singly, Relaxed);
                tallies.pages_prefetched.fetch_add(together, Relaxed);
                self.explain(|regions| regions.note_came(pages.first, singly, together));
            }
            Effect::Read { pages, page_bytes, home, needed, merge, prefetched } => {
                let wanted = HomePages { home, pages, page_bytes, needed: &needed };
                let outcome = self.read_from_home(core, &wanted, merge);
                if outcome != ReadOutcome::Behind {
                    core.note_came(pages);
                    let read = pages.count / self.span(pages.first, page_bytes).count;
                    let count = if prefetched { &tallies.pages_prefetched } else { &tallies.pages_fetched };
                    count.fetch_add(read, Relaxed);
                    let (singly, together) = if prefetched { (0, read) } else { (read, 0) };
                    self.explain(|regions| regions.note_came(pages.first, singly, together));
                }
                core.engine.handle_done(Done::Read { pages, outcome });
            }
            Effect::Publish { writer, seq } => self.one_sided().publish(writer, seq),
            Effect::TakeAnnouncements => {
                let mut pages = Vec::new();
                self.one_sided().announcements(&mut |_, page| pages.push(PageId(page)));
                core.engine.handle_done(Done::Announced { pages });
            }
            Effect::Patch { page, offset, value } => {
                self.note_overwritten(core, page, std::iter::once(offset..offset + 8));
                let bytes = value.to_ne_bytes();
                self.or_fatal(self.memory.write(page, offset as usize, &bytes));
                core.twins.patch(page, offset as usize, &bytes);
            }
            Effect::Atomic { page, offset, operation } => {
                self.note_overwritten(core, page, std::iter::once(offset..offset + 8));
                let word = self.or_fatal(self.memory.atomic_u64(page, offset as usize));
                let outcome = operate(word, operation);
                core.twins.patch(page, offset as usize, &outcome.current.to_ne_bytes());
                core.engine.handle_done(Done::Atomic { page, outcome });
            }
            Effect::Retain { page } => {
                let followers = self.job.nodes - 1 - self.me.0;
                core.holds.begin(page, Instant::now() + self.hold(), followers);
            }
            Effect::CountConversion { .. } => _ = tallies.pages_converted.fetch_add(1, Relaxed),
            Effect::CountMove { .. } => _ = tallies.home_migrations.fetch_add(1, Relaxed),
            Effect::Wake { waiter, outcome } => self.threads.get(waiter).answer(Answer::Engine(outcome)),
            Effect::IntervalEnded { seq, timestamp, epoch } => {
                self.tell_touched(core, Interval { node: self.me, seq, timestamp, epoch });
            }
            Effect::Tell(fact) => self.trace_told(fact),
            Effect::Fatal { sentence } => self.fatal(&sentence),
        }
    }

    fn hold(&self) -> Duration {
        let wakes_by_itself = self.shields_system_calls(); // the thread then serves its own fault
        if wakes_by_itself && self.patience.stays_awake() { HOLD } else { HOLD_FOR_SLEEPERS }
    }

    fn protect(&self, core: &mut Core, pages: PageRange, access: Access) {
        let Some(faults) = &self.faults else { return };
        self.or_fatal(faults.protect(pages, access));
        self.trace_fact(|| Event::Access { granules: pages, access });
        if access > Access::None {
            core.note_given(pages);
            self.note_given_ahead(pages);
            self.end_event_faults(core, pages);
        }
    }

    /// Resumes the threads that waited for access to `pages`.
    pub(crate) fn end_event_faults(&self, core: &mut Core, pages: PageRange) {
        let Core { event_faults, holds, .. } = core;
        event_faults.retain(|fault| {
            let over = pages.contains(fault.granule);
            if over {
                if let Some(tid) = fault.thread {
                    holds.note_resumed(tid, fault.granule, &KernelClocks);
                }
                let thread = fault.thread.and_then(|tid| self.threads.by_tid(tid));
                let served = fault.since.elapsed();
                self.account.fault_served(thread, fault.class, served);
                self.explain(|regions| regions.note_wait(fault.granule, served));
                if fault.is_traced {
                    self.trace_event_fault_served(fault.thread);
                }
            }
            !over
        });
    }

    fn watching(&self) -> &dyn FaultSource {
        self.faults.as_deref().expect("without a fault source nothing is watched")
    }

    fn span(&self, page: PageId, page_bytes: u32) -> PageRange {
        PageRange { first: page, count: u64::from(page_bytes / self.job.limits.granule_bytes) }
    }

    /// If data races are looked for, records that these bytes are about to change in frame and twin alike.
    fn note_overwritten(
        &self,
        core: &mut Core,
        page: PageId,
        changed: impl IntoIterator<Item = std::ops::Range<u32>>,
    ) {
        if let (Some(races), Some(twin)) = (&mut core.races, core.twins.get(page)) {
            races.note_overwritten(&self.memory, page, twin, changed);
        }
    }

    fn apply(&self, core: &mut Core, page: PageId, runs: &[u8]) {
        if core.races.is_some() {
            self.note_overwritten(core, page, diff::ranges(runs));
        }
        let mut applying = core.twins.applying(page);
        let mut blocks = Blocks::of(runs, &mut core.changed);
        while let Some(changes) = blocks.next().expect("the engine has checked the diff") {
            self.or_fatal(applying.write(changes));
        }
    }

    fn make_diff(&self, core: &mut Core, page: PageId, keep_twin: bool) -> Vec<u8> {
        let tallies = &self.account.tallies;
        let runs = timed(&tallies.diffs_made, &tallies.diff_ns, || self.compare(core, page, keep_twin));
        self.trace_fact(|| Event::Diffed { page, bytes: runs.len() as u32 });
        tallies.diff_bytes.fetch_add(runs.len() as u64, Relaxed);
        self.explain(|regions| regions.note_diff(page, runs.is_empty()));
        runs
    }

    fn compare(&self, core: &mut Core, page: PageId, keep_twin: bool) -> Vec<u8> {
        let mut runs = Vec::new();
        let mut encoder = Encoder::new(&mut runs);
        // A kept twin becomes twin plus diff, not the page: a sibling thread may have stored more since, and
        // the next diff must contain that.
        core.twins.collect(page, keep_twin, |changes| encoder.push(changes));
        if let Some(races) = &mut core.races {
            races.note_diff(page, &runs);
        }
        if !keep_twin {
            core.twins.remove(page);
        }
        runs
    }

    /// Sends pages that are homed here, copied from their frames, or twins, into the outgoing message.
    fn send_pages(&self, core: &mut Core, to: NodeId, pages: Vec<PageToSend>) {
        let mut content = Frames { memory: &self.memory, pages: Vec::with_capacity(pages.len()) };
        let mut copies = Vec::with_capacity(pages.len());
        for PageToSend { page, page_bytes, version, from_twin } in pages {
            let is_zero = !self.memory.is_populated(self.span(page, page_bytes));
            if !is_zero {
                let twin = from_twin.then(|| core.twins.get(page).expect("a page that is sent as it was"));
                content.pages.push((content.bytes() + page_bytes as usize, page, twin));
            }
            copies.push(PageCopy { page, version, is_zero });
        }
        core.message.clear();
        let head = std::mem::take(&mut core.message);
        let message = Message::PagesReply { copies, content: &[] };
        core.message = message.encode_before_content(content.bytes(), head);
        let is_posted = self.post(to, core.message[0], Unsent::with_content(&[&core.message], &content));
        core.note_posted(to, is_posted);
    }

    /// Sends a page with its twin's content.
    fn send_twin(&self, core: &mut Core, to: NodeId, page: PageId, version: VersionVector) {
        let twin = core.twins.get(page).expect("a page that is sent as it was has a twin");
        let copies = vec![PageCopy { page, version, is_zero: false }];
        core.message.clear();
        let head = std::mem::take(&mut core.message);
        core.message = Message::PagesReply { copies, content: &[] }.encode_before_content(twin.len(), head);
        let parts: [&[u8]; 2] = [&core.message, twin];
        let is_posted = self.post(to, core.message[0], Unsent::new(&parts));
        core.note_posted(to, is_posted);
    }

    /// Fills frames that hold nothing of value, with these bytes or with zeros.
    fn install(&self, core: &mut Core, pages: PageRange, content: Option<&[u8]>) {
        match content {
            Some(bytes) if !core.engine.notes_stores(pages.first) => {
                self.or_fatal(self.memory.write(pages.first, 0, bytes));
            }
            Some(bytes) => {
                let offset_of = |granule: PageId| {
                    (granule.0 - pages.first.0) as usize * self.job.limits.granule_bytes as usize
                };
                let filled = core.twins.fill_frames(pages, true, |first, room| {
                    room.copy_from_slice(&bytes[offset_of(first)..][..room.len()]);
                });
                self.or_fatal(filled);
            }
            None if self.memory.is_populated(pages) => {
                let bytes = pages.count as usize * self.job.limits.granule_bytes as usize;
                core.page.resize(core.page.len().max(bytes), 0);
                core.page[..bytes].fill(0);
                self.or_fatal(self.memory.write(pages.first, 0, &core.page[..bytes]));
            }
            None => {}
        }
    }

    /// Fills a frame that may hold unsent writes: only bytes that differ from the twin are written, to frame
    /// and twin. Returns true if there were unsent writes. The program has no access meanwhile.
    pub(crate) fn merge(&self, core: &mut Core, page: PageId, content: Option<&[u8]>) -> bool {
        let dirty = core.twins.differs(page);
        let twin = core.twins.get(page).expect("a page that is merged has a twin");
        let zeros;
        let content = match content {
            Some(bytes) => bytes,
            None => {
                zeros = vec![0; twin.len()];
                &zeros[..]
            }
        };
        if !dirty {
            // By far the most common case where writes do not fault: nothing to preserve.
            self.or_fatal(self.memory.write(page, 0, content));
            core.twins.patch(page, 0, content);
            return false;
        }
        if let Some(races) = &mut core.races {
            let mut news = Vec::new();
            diff::for_each_difference(content, twin, |start, end| news.push(start as u32..end as u32));
            races.note_overwritten(&self.memory, page, twin, news);
        }
        self.or_fatal(core.twins.merge(page, content));
        true
    }
}

/// Returns the leg that an effect belongs to.
fn leg_of(effect: &Effect) -> Leg {
    match effect {
        Effect::Protect { .. }
        | Effect::Invalidate { .. }
        | Effect::Watch { .. }
        | Effect::Unwatch { .. }
        | Effect::GiveUp { .. }
        | Effect::PageOut { .. } => Leg::Map,
        Effect::CollectWritten | Effect::FindUnwritten { .. } | Effect::MapHome { .. } => Leg::Map,
        Effect::MakeRoom { .. }
        | Effect::Twin { .. }
        | Effect::DropTwin { .. }
        | Effect::DropSnapshot { .. }
        | Effect::Install { .. }
        | Effect::Read { .. } => Leg::Place,
        Effect::Diff { .. } | Effect::DiffEarly { .. } | Effect::Apply { .. } => Leg::Place,
        _ => Leg::Host,
    }
}

/// Scanning this many granules costs about as much as another system call.
const JOINED_GAP_GRANULES_MAX: u64 = 64;

/// Merges ascending ranges into fewer ones that cover them.
fn joined(spans: Vec<PageRange>) -> Vec<PageRange> {
    let mut wider: Vec<PageRange> = Vec::new();
    for span in spans {
        match wider.last_mut() {
            Some(last) if span.first.0 - last.end().0 <= JOINED_GAP_GRANULES_MAX => {
                last.count = span.end().0 - last.first.0;
            }
            _ => wider.push(span),
        }
    }
    wider
}

/// Runs and counts some work on a page, and times a sample of it.
fn timed<T>(count: &AtomicU64, nanos: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let is_timed = count.fetch_add(1, Relaxed) % TIMED_ONE_IN == TIMED_ONE_IN / 2;
    let began = is_timed.then(Instant::now);
    let done = work();
    if let Some(began) = began {
        nanos.fetch_add(began.elapsed().as_nanos() as u64 * TIMED_ONE_IN, Relaxed);
    }
    done
}

/// Applies an operation to a word that other threads may operate on too. Relaxed would suffice for the
/// protocol, which orders by messages. Acquire-release also serves threads of this node that then load the
/// word plainly.
pub(crate) fn operate(word: &AtomicU64, operation: AtomicOperation) -> AtomicOutcome {
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
