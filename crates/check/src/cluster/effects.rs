//! Carries out the effects of engines literally, and wakes threads.

use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSet};
use hiroba_protocol::races::Interval;
use hiroba_protocol::{Done, Effect, Engine, NewContent, Outcome, PageToSend, Waiter, diff};
use hiroba_trace::Event;
use hiroba_wire::{AtomicOutcome, Collective, Message, PageCopy};

use super::one_sided::FrameRead;
use super::{Cluster, Failure, State, TAG_BITS, Thread, Wait};
use crate::memory::{Merge, TwinAfter};
use crate::network::Parcel;
use crate::program::{Address, Register};

impl<E: Engine> Cluster<E> {
    pub(super) fn pump(&mut self, id: NodeId) -> Result<(), Failure> {
        while let Some(effect) = self.nodes[id.index()].engine.poll_effect() {
            // Recording takes no time, and cannot go wrong.
            if let Effect::Tell(fact) = effect {
                self.note_fact(id, fact)?;
                continue;
            }
            for effect in self.mutation.on_effect(id, effect) {
                self.meanwhile(id, &effect);
                if let Some(narration) = &self.recorder.narration {
                    narration.carries_out(id, &effect);
                }
                self.carry_out(id, effect)?;
                self.bustle(id);
                self.others_go_on(id)?;
            }
        }
        self.tell_late(id);
        self.note_states(id)
    }

    /// Checks that every page is in a row of its protocol's state table, and narrates changes.
    fn note_states(&mut self, id: NodeId) -> Result<(), Failure> {
        let node = &mut self.nodes[id.index()];
        let states = node.engine.page_states().map_err(|misfit| Failure::State { node: id, misfit })?;
        if let Some(narration) = &self.recorder.narration {
            narration.changes_states(id, &node.states, &states);
            node.states = states;
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, id: NodeId, effect: Effect) -> Result<(), Failure> {
        self.note_overwritten(id, &effect);
        let node = &mut self.nodes[id.index()];
        let memory = &mut node.memory;
        let wrong = |error| Failure::Memory { node: id, error };
        match effect {
            Effect::Send { to, message } => self.send(id, to, message),
            Effect::SendPages { to, pages } => {
                let mut content = Vec::new();
                let mut copies = Vec::new();
                for PageToSend { page, page_bytes, version, from_twin } in pages {
                    let present = if from_twin {
                        Some(memory.with_twin(page).map_err(wrong)?.1)
                    } else {
                        memory.content(page, page_bytes as usize)
                    };
                    let bytes = self.mutation.on_content(page, present);
                    content.extend(bytes.as_deref().unwrap_or_default());
                    copies.push(PageCopy { page, version, is_zero: bytes.is_none() });
                }
                let content = &content[..];
                self.send(id, to, Message::PagesReply { copies, content }.encode());
            }
            Effect::SendTwin { to, page, version } => {
                let (_, twin) = memory.with_twin(page).map_err(wrong)?;
                let bytes = self.mutation.on_content(page, Some(twin));
                let copies = vec![PageCopy { page, version, is_zero: bytes.is_none() }];
                let content = bytes.unwrap_or_default();
                let message = Message::PagesReply { copies, content: &content }.encode();
                self.send(id, to, message);
            }
            Effect::Protect { pages, access } => {
                memory.protect(pages, access).map_err(wrong)?;
                self.note_access(id, pages, access);
                if access > Access::None {
                    self.end_faults_in_kernel(id, pages);
                }
            }
            Effect::Invalidate { span, pages: _ } => {
                memory.protect(span, Access::None).map_err(wrong)?;
                self.note_access(id, span, Access::None);
            }
            Effect::MapHome { pages, home } => {
                memory.map(pages).map_err(wrong)?;
                node.mappings.add(pages, home);
                self.note_access(id, pages, Access::Write);
            }
            Effect::Watch { pages } => {
                memory.watch(pages).map_err(wrong)?;
                self.note_access(id, pages, Access::Write);
                self.end_faults_in_kernel(id, pages);
            }
            // There is always enough room.
            Effect::MakeRoom { .. } => {}
            Effect::GiveUp { pages } => memory.give_up(pages).map_err(wrong)?,
            Effect::PageOut { pages } => memory.page_out(pages).map_err(wrong)?,
            Effect::Unwatch { pages } => memory.unwatch(pages).map_err(wrong)?,
            Effect::CollectWritten => self.collect_written(id)?,
            Effect::FindUnwritten { spans } => self.find_unwritten(id, &spans),
            Effect::DropTwin { page } => memory.drop_twin(page).map_err(wrong)?,
            Effect::DropSnapshot { page } => memory.drop_snapshot(page).map_err(wrong)?,
            Effect::Twin { page, page_bytes } => {
                let twin = memory.make_twin(page, page_bytes as usize).map_err(wrong)?;
                self.mutation.on_twin(id, page, twin);
                self.note_at(id, Event::Twinned { page });
            }
            Effect::Diff { page, keep_twin } => {
                let after = if keep_twin { TwinAfter::WithDiff } else { TwinAfter::Dropped };
                let after = self.mutation.on_settle(after);
                let runs = self.make_diff(id, page, after)?;
                self.nodes[id.index()].engine.handle_done(Done::Diff { page, runs });
            }
            Effect::DiffEarly { page } => {
                let after = self.mutation.on_settle_early(TwinAfter::WithDiff);
                let runs = self.make_diff(id, page, after)?;
                self.nodes[id.index()].engine.handle_done(Done::DiffedEarly { page, runs });
            }
            Effect::Apply { page, runs } => {
                memory.apply(page, &runs, self.mutation.on_apply()).map_err(wrong)?;
                self.nodes[id.index()].applied.insert(page);
            }
            Effect::Install { pages, content, merge, fetched: _, prefetched: _ } => {
                let content = match content {
                    NewContent::Zero => None,
                    NewContent::Received(range) => Some(&node.received[range]),
                    NewContent::Kept(ref bytes, range) => Some(&bytes[range]),
                };
                let how = if merge { self.mutation.on_merge() } else { Merge::Replace };
                let dirty = memory.install(pages, content, how).map_err(wrong)?;
                if merge {
                    let dirty = self.mutation.on_merged(dirty);
                    self.nodes[id.index()].engine.handle_done(Done::Merged { page: pages.first, dirty });
                }
            }
            Effect::Read { pages, page_bytes, home, needed, merge, prefetched: _ } => {
                let read = FrameRead { pages, page_bytes, home, needed, merge };
                let outcome = self.read(id, &read)?;
                self.nodes[id.index()].engine.handle_done(Done::Read { pages, outcome });
            }
            Effect::Publish { writer, seq } => node.board.publish(writer, seq),
            Effect::TakeAnnouncements => {
                let pages = node.board.take_announced();
                let pages = self.mutation.on_announced(id, pages);
                self.nodes[id.index()].engine.handle_done(Done::Announced { pages });
            }
            Effect::Patch { page, offset, value } => {
                memory.patch(page, offset, value, self.mutation.on_patch());
            }
            Effect::Atomic { page, offset, operation } => {
                let outcome = memory.operate(page, offset, operation);
                node.engine.handle_done(Done::Atomic { page, outcome });
                let at = Address::in_page(page, offset);
                let (turns, unreported) = self.truth.atomics.entry(at).or_default();
                unreported.push((*turns, outcome));
                *turns += 1;
            }
            Effect::Retain { page } => self.holds.push((id, page)),
            Effect::CountMove { .. } | Effect::CountConversion { .. } => {}
            Effect::Wake { waiter, outcome } => self.wake(id, waiter, outcome)?,
            Effect::IntervalEnded { seq, timestamp, epoch } => {
                self.end_interval(id, Interval { node: id, seq, timestamp, epoch });
            }
            Effect::Tell(_) => unreachable!("what is told is recorded at once"),
            Effect::Fatal { sentence } => return Err(Failure::Fatal { node: id, sentence }),
        }
        Ok(())
    }

    fn end_faults_in_kernel(&mut self, id: NodeId, pages: PageRange) {
        let mut ended = Vec::new();
        for number in self.nodes[id.index()].threads.iter() {
            let state = &mut self.threads[*number].state;
            if matches!(state, State::FaultingInKernel(at) if pages.contains(at.granule)) {
                *state = State::Running;
                ended.push(*number);
            }
        }
        ended.into_iter().for_each(|number| self.note(number, Event::Leave));
    }

    /// Collects written granules as a kernel scans: granule by granule, each read and cleared in one step.
    /// Sometimes reports one as written that it has lost track of.
    fn collect_written(&mut self, id: NodeId) -> Result<(), Failure> {
        let watched = self.nodes[id.index()].memory.watched();
        let watched = watched.map_err(|error| Failure::Memory { node: id, error })?;
        let late = self.mutation.clears_late();
        let mut granules = PageSet::new();
        for granule in watched.iter().copied() {
            let memory = &mut self.nodes[id.index()].memory;
            let is_written = memory.is_written(granule);
            if is_written || self.schedule.exploring && self.schedule.chance(1, 64) {
                granules.insert(granule);
            }
            if !late {
                memory.clear_written(granule);
            }
            self.bustle(id);
            self.choose_within(id);
        }
        let node = &mut self.nodes[id.index()];
        if late {
            watched.into_iter().for_each(|granule| node.memory.clear_written(granule));
        }
        let granules = self.mutation.on_collect(granules);
        let granules = if node.in_lull { self.mutation.on_collect_in_lull(granules) } else { granules };
        node.engine.handle_done(Done::Written { granules });
        Ok(())
    }

    /// Finds unwritten granules; sometimes the kernel has lost track of one.
    fn find_unwritten(&mut self, id: NodeId, spans: &[PageRange]) {
        let mut granules = PageSet::new();
        for granule in spans.iter().flat_map(|span| span.iter()) {
            let was_unwritten = self.nodes[id.index()].memory.was_unwritten(granule);
            let is_known = !self.schedule.exploring || !self.schedule.chance(1, 16);
            if self.mutation.on_unwritten(was_unwritten) && is_known {
                granules.insert(granule);
            }
        }
        self.nodes[id.index()].engine.handle_done(Done::Unwritten { first: spans[0].first, granules });
    }

    fn make_diff(&mut self, id: NodeId, page: PageId, after: TwinAfter) -> Result<Vec<u8>, Failure> {
        let wrong = |error| Failure::Memory { node: id, error };
        let (frame, twin) = self.nodes[id.index()].memory.with_twin(page).map_err(wrong)?;
        let mut runs = Vec::new();
        diff::encode(frame, twin, &mut runs);
        let mutation = &mut self.mutation;
        let told = match self.nodes[id.index()].in_lull {
            true => mutation.on_early_diff(runs.clone()),
            false => mutation.on_diff(frame, twin, runs.clone()),
        };
        self.bustle(id);
        self.choose_within(id);
        self.note_diff(id, page, &runs);
        let node = &mut self.nodes[id.index()];
        node.memory.settle_twin(page, &runs, after).map_err(wrong)?;
        self.note_at(id, Event::Diffed { page, bytes: told.len() as u32 });
        Ok(told)
    }

    pub(super) fn send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        let limits = self.limits;
        for (to, bytes) in self.mutation.sends_before(from, &bytes, &limits) {
            self.note_sent(from, to, &bytes);
            self.network.send(Parcel { from, to, bytes }, false);
        }
        for (bytes, astray) in self.mutation.on_send(from, to, bytes, &limits) {
            self.note_sent(from, to, &bytes);
            self.network.send(Parcel { from, to, bytes }, astray);
        }
    }

    fn wake(&mut self, id: NodeId, waiter: Waiter, outcome: Outcome) -> Result<(), Failure> {
        let wrong = |sentence: String| Err(Failure::Host { node: id, sentence });
        if self.is_service(id, waiter) {
            return self.send_owing(id);
        }
        let Some(&number) = self.nodes[id.index()].threads.get(waiter.0 as usize) else {
            return wrong(format!("waiter {} is no thread", waiter.0));
        };
        if let Outcome::Misuse(misuse) = outcome {
            return Err(Failure::Misuse { thread: number, misuse });
        }
        let state = self.threads[number].state;
        self.threads[number].state = State::Running;
        if matches!((state, outcome), (State::Faulting(_), Outcome::Done)) {
            self.note(number, Event::Leave);
            return Ok(());
        }
        match (state, outcome) {
            (State::Waiting(Wait::Acquire(lock) | Wait::Condition(lock)), Outcome::Done) => {
                self.acquired(number, lock)?;
            }
            (State::Waiting(Wait::Try(lock, into)), Outcome::Done) => {
                self.set(number, into, 1);
                self.acquired(number, lock)?;
            }
            (State::Waiting(Wait::Try(_, into)), Outcome::Refused) => self.set(number, into, 0),
            (State::Waiting(Wait::Release | Wait::Signal | Wait::Convert), Outcome::Done)
            | (State::Waiting(Wait::Others), Outcome::Others { .. }) => {}
            (State::Waiting(Wait::Combine(at)), Outcome::Contributions) => {
                self.note(number, Event::Leave);
                return self.begin_visit(number, at);
            }
            (State::Waiting(wait @ (Wait::Collective(_) | Wait::Combine(_))), Outcome::Collective(done)) => {
                let asked = if let Wait::Collective(asked) = wait { asked } else { Collective::Barrier };
                if asked != done && asked != Collective::Follow {
                    return wrong(format!("thread {number} asked for {asked:?} and was told {done:?}"));
                }
                let meetings = self.threads[number].meetings;
                self.nodes[id.index()].collectives = meetings;
                let missing = |thread: &&Thread| thread.in_team && thread.meetings < meetings;
                if let Some(missing) = self.threads.iter().position(|thread| missing(&thread)) {
                    return wrong(format!(
                        "thread {number} left a collective that thread {missing} has yet to reach"
                    ));
                }
                // An engine that tells facts has said so already.
                if !std::mem::take(&mut self.threads[number].has_met) {
                    self.note(number, Event::Met { epoch: meetings - 1 });
                }
            }
            (State::Waiting(Wait::Publish { to, tag }), Outcome::Done) => {
                self.tell_of_publication(number, to, tag);
            }
            (State::Waiting(Wait::Inform(post)), Outcome::Done) => {
                self.note(number, Event::Leave);
                return self.queue_post(number, post);
            }
            (State::Waiting(Wait::Atomic { at, into }), Outcome::Atomic(outcome)) => {
                self.set(number, into, outcome.previous);
                self.note_atomic(number, at, outcome);
            }
            (state, outcome) => {
                return wrong(format!("thread {number} in {state:?} was woken with {outcome:?}"));
            }
        }
        self.note(number, Event::Leave);
        // A thread that departed before its visit has yet to make that.
        self.threads[number].next += usize::from(!self.goes_on_visiting(number));
        Ok(())
    }

    pub(super) fn set(&mut self, thread: usize, register: Register, value: u64) {
        self.threads[thread].registers[usize::from(register.0)] = value;
    }

    pub(super) fn acquired(&mut self, thread: usize, lock: LockId) -> Result<(), Failure> {
        let record = self.truth.locks.entry(lock).or_default();
        if let Some(holder) = record.holder {
            let sentence = format!("thread {thread} was given lock {}, which thread {holder} holds", lock.0);
            return Err(Failure::Host { node: self.threads[thread].node, sentence });
        }
        record.holder = Some(thread);
        let turn = record.turns;
        record.turns += 1;
        self.note(thread, Event::Acquired { lock, turn });
        Ok(())
    }

    pub(super) fn note_release(&mut self, thread: usize, lock: LockId) {
        let record = self.truth.locks.entry(lock).or_default();
        if record.holder == Some(thread) {
            record.holder = None;
            let turn = record.turns - 1;
            self.note(thread, Event::Released { lock, turn });
        }
    }

    fn note_atomic(&mut self, thread: usize, at: Address, outcome: AtomicOutcome) {
        let Some((_, unreported)) = self.truth.atomics.get_mut(&at) else { return };
        // Equal outcomes that wait for their threads are interchangeable: the first thread gets the earliest.
        let Some(found) = unreported.iter().position(|(_, other)| *other == outcome) else { return };
        let (turn, AtomicOutcome { previous, current, .. }) = unreported.remove(found);
        let Address { granule: page, offset } = at;
        self.note(thread, Event::Atomic { page, offset, turn, previous, current });
    }

    /// Sends what `free` sends after the publication, over the same link.
    fn tell_of_publication(&mut self, thread: usize, to: NodeId, tag: u16) {
        let from = self.threads[thread].node;
        let count = self.truth.publications.entry((from, to)).or_default();
        let token = *count << TAG_BITS | u64::from(tag);
        *count += 1;
        self.note(thread, Event::Published { to, count: token >> TAG_BITS });
        self.send(from, to, Message::Free { address: token }.encode());
    }
}
