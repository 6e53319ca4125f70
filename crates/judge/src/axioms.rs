//! The checker of release consistency: decides whether a recorded execution keeps its promise.
//!
//! Read first: Gharachorloo et al., *Memory Consistency and Event Ordering in Scalable Shared-Memory
//! Multiprocessors*, ISCA 1990 (properly labelled programs); Flanagan and Freund, *FastTrack*, PLDI 2009, for
//! the vector clocks.
//!
//! **Happens-before** is the transitive closure of program order, of a lock's release before its next
//! acquire, of everything before a meeting before everything after it (for the threads that take part), and
//! of a publication before its receipt, and of the sending of a message to a port before its receipt. Two
//! accesses to one byte **conflict** if one of them is a store. A program whose conflicting accesses are all
//! ordered is data-race-free, and must behave as on one machine: every load returns, byte by byte, what the
//! latest store that happens before it has written. Pairs that are not ordered are reported as races, and
//! loads of such bytes are not checked until a store that is ordered after all of them.
//!
//! Words used by atomic operations have a total order of operations, and each must find what the previous one
//! left. A plain load must not be older than the latest operation that happens before it, even if that one
//! only read the word (a load, a failed compare-exchange): a thread that has seen a change passes it on to
//! later acquirers.
//!
//! An [`Execution`] need not be in one global order. One history per thread is enough, because acquires and
//! releases carry the **turn** of the lock's hold, atomics their turn at the word, and meetings their epoch.
//! The replay takes time linear in the events (times threads for clocks).

use core::fmt::Write as _;
use std::collections::VecDeque;

use hiroba_base::{LockId, NodeId, PageId};
use hiroba_trace::Event;
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::execution::{Described, Execution, Position};
use crate::program::Address;

/// Two conflicting accesses without an order: an error of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// One of them.
    pub first: Position,
    /// The other.
    pub second: Position,
    /// A byte that both touch.
    pub at: Address,
}

/// A load or an atomic operation that returned a forbidden value: an error in Hiroba.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The load or operation.
    pub position: Position,
    /// What it read, who wrote that, what it should have read, and why.
    pub explanation: String,
}

impl Race {
    /// Describes the race in words.
    pub fn describe(&self, execution: &Execution) -> String {
        let event = |position: Position| {
            format!("{}: {}", execution.place(position), Described(execution.event(position)))
        };
        format!(
            "{}\n  {}\n  both touch {}, and nothing orders them",
            event(self.first),
            event(self.second),
            self.at
        )
    }
}

/// The result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Breaches of the promise, the one with the shortest explanation first; at most [`EXPLAINED_MAX`].
    pub violations: Vec<Violation>,
    /// The number of breaches.
    pub violations_found: usize,
    /// Races of the program; at most [`RACES_MAX`].
    pub races: Vec<Race>,
    /// Loads of which every byte could be checked.
    pub loads_judged: usize,
}

/// The maximum number of races that are kept: one is enough to correct the program.
pub const RACES_MAX: usize = 100;

/// The maximum number of violations that are explained; further ones are counted.
pub const EXPLAINED_MAX: usize = 20;

/// The execution contradicts itself: an acquire without the release before it, a meeting that a thread
/// misses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "expected an execution whose waits all end, got one in which {0} waits forever ({1}); is the trace complete?"
)]
pub struct Incomplete(String, String);

/// Checks an execution.
pub fn judge(execution: &Execution) -> Result<Verdict, Incomplete> {
    let mut judge = Judge::new(execution);
    judge.replay()?;
    judge.convict();
    Ok(judge.verdict)
}

type Clock = Vec<u64>;

/// What a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Awaited {
    Turn(LockId, u64),
    Meeting(u64),
    Publication(Publication),
    /// The node that sends a message to a port, and how many it had sent before.
    Post(NodeId, u64),
}

/// Sender, receiver, and the number of earlier ones.
type Publication = (NodeId, NodeId, u64);

#[derive(Clone, Copy, Debug)]
struct Touch {
    position: Position,
    clock: u64,
    store: bool,
}

/// The state of one byte.
#[derive(Debug, Default)]
struct Cell {
    /// The latest load and store of each thread that no later store is ordered after.
    touches: Vec<Touch>,
    last_store: Option<(Position, u8)>,
    racy: bool,
    /// Loads that returned the wrong byte, unless a store that the replay has not reached yet turns out to
    /// race with them: the load, its clock, and the store that it should have seen.
    suspects: Vec<(Position, u64, Option<Position>)>,
}

#[derive(Debug, Default)]
struct AtomicWord {
    /// The last turn that left a value.
    last_turn_of: FxHashMap<u64, u64>,
    /// What each turn left, by turn.
    history: Vec<(u64, u64, Position)>,
    /// Each thread's latest operation.
    latest: Vec<Operation>,
    /// Whether plain stores also wrote the word, which is then not checked.
    mixed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    thread: usize,
    clock: u64,
    turn: u64,
}

struct Judge<'a> {
    execution: &'a Execution,
    clocks: Vec<Clock>,
    next: Vec<usize>,
    released: FxHashMap<LockId, (u64, Clock)>,
    published: FxHashMap<Publication, Clock>,
    posted: FxHashMap<(NodeId, u64), Clock>,
    /// By epoch, the participating threads that have not arrived.
    absent: FxHashMap<u64, usize>,
    /// By epoch, the threads that have arrived.
    present: FxHashMap<u64, Vec<usize>>,
    waiting: FxHashMap<Awaited, Vec<usize>>,
    ready: VecDeque<usize>,
    cells: FxHashMap<Address, Cell>,
    atomics: FxHashMap<Address, AtomicWord>,
    verdict: Verdict,
}

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

impl<'a> Judge<'a> {
    fn new(execution: &'a Execution) -> Judge<'a> {
        let threads = execution.threads.len();
        let clocks = (0..threads).map(|thread| {
            let mut clock = vec![0; threads];
            clock[thread] = 1;
            clock
        });
        let mut judge = Judge {
            execution,
            clocks: clocks.collect(),
            next: vec![0; threads],
            released: FxHashMap::default(),
            published: FxHashMap::default(),
            posted: FxHashMap::default(),
            absent: FxHashMap::default(),
            present: FxHashMap::default(),
            waiting: FxHashMap::default(),
            ready: (0..threads).collect(),
            cells: FxHashMap::default(),
            atomics: FxHashMap::default(),
            verdict: Verdict::default(),
        };
        for (_, event) in execution.events() {
            if let Event::Met { epoch } = event {
                *judge.absent.entry(*epoch).or_default() += 1;
            }
        }
        judge.collect_atomics();
        judge
    }

    fn collect_atomics(&mut self) {
        for (position, event) in self.execution.events() {
            if let Event::Atomic { page, offset, turn, current, .. } = event {
                let word = self.atomics.entry(address(page, offset)).or_default();
                word.history.push((*turn, *current, position));
                let last = word.last_turn_of.entry(*current).or_default();
                *last = (*turn).max(*last);
            }
        }
        if self.atomics.is_empty() {
            return;
        }
        for (_, event) in self.execution.events() {
            if let Event::Store { page, offset, .. } = event
                && let Some(word) = self.atomics.get_mut(&word_of(address(page, offset)))
            {
                word.mixed = true;
            }
        }
        self.atomics.values_mut().for_each(|word| word.history.sort_by_key(|(turn, ..)| *turn));
    }

    fn replay(&mut self) -> Result<(), Incomplete> {
        let execution = self.execution;
        while let Some(thread) = self.ready.pop_front() {
            while let Some(event) = execution.threads[thread].events.get(self.next[thread]) {
                if let Some(awaited) = self.awaited(thread, event) {
                    self.waiting.entry(awaited).or_default().push(thread);
                    break;
                }
                let position = Position { thread, index: self.next[thread] };
                self.next[thread] += 1;
                self.step(position, event);
            }
        }
        let stuck =
            (0..self.next.len()).find(|thread| self.next[*thread] < execution.threads[*thread].events.len());
        match stuck {
            Some(thread) => {
                let position = Position { thread, index: self.next[thread] };
                Err(Incomplete(execution.place(position), Described(execution.event(position)).to_string()))
            }
            None => Ok(()),
        }
    }

    /// Returns what the event must wait for, if it must. Registers the thread at a meeting.
    fn awaited(&mut self, thread: usize, event: &Event) -> Option<Awaited> {
        match event {
            Event::Acquired { lock, turn } => {
                let releases = self.released.get(lock).map_or(0, |(releases, _)| *releases);
                (releases != *turn).then_some(Awaited::Turn(*lock, *turn))
            }
            Event::PublicationSeen { from, count } => {
                let publication = (*from, self.node_of(thread), *count);
                let is_known = self.published.contains_key(&publication);
                (!is_known).then_some(Awaited::Publication(publication))
            }
            Event::Taken { from, number } => {
                let is_known = self.posted.contains_key(&(*from, *number));
                (!is_known).then_some(Awaited::Post(*from, *number))
            }
            Event::Met { epoch } => {
                let present = self.present.entry(*epoch).or_default();
                present.push(thread);
                if present.len() < self.absent[epoch] {
                    return Some(Awaited::Meeting(*epoch));
                }
                self.complete_meeting(*epoch, thread);
                None
            }
            _ => None,
        }
    }

    fn node_of(&self, thread: usize) -> NodeId {
        self.execution.threads[thread].node
    }

    fn complete_meeting(&mut self, epoch: u64, last: usize) {
        let members = self.present.remove(&epoch).unwrap_or_default();
        let mut joined = vec![0; self.clocks.len()];
        members.iter().for_each(|thread| join(&mut joined, &self.clocks[*thread]));
        for &thread in &members {
            let clock = &mut self.clocks[thread];
            clock.clone_from(&joined);
            clock[thread] += 1;
        }
        for thread in self.waiting.remove(&Awaited::Meeting(epoch)).unwrap_or_default() {
            debug_assert_ne!(thread, last);
            self.next[thread] += 1;
            self.ready.push_back(thread);
        }
    }

    fn wake(&mut self, awaited: Awaited) {
        self.ready.extend(self.waiting.remove(&awaited).unwrap_or_default());
    }

    fn step(&mut self, position: Position, event: &Event) {
        let thread = position.thread;
        match event {
            Event::Load { page, offset, bytes, value } => {
                self.load(position, address(page, offset), *bytes, *value);
            }
            Event::Store { page, offset, bytes, value } => {
                self.store(position, address(page, offset), *bytes, *value);
            }
            Event::Acquired { lock, .. } => {
                if let Some((_, clock)) = self.released.get(lock) {
                    join(&mut self.clocks[thread], clock);
                }
            }
            Event::Released { lock, turn } => {
                self.released.insert(*lock, (turn + 1, self.clocks[thread].clone()));
                self.clocks[thread][thread] += 1;
                self.wake(Awaited::Turn(*lock, turn + 1));
            }
            Event::Published { to, count } => {
                let publication = (self.node_of(thread), *to, *count);
                self.published.insert(publication, self.clocks[thread].clone());
                self.clocks[thread][thread] += 1;
                self.wake(Awaited::Publication(publication));
            }
            Event::PublicationSeen { from, count } => {
                let clock = &self.published[&(*from, self.node_of(thread), *count)];
                join(&mut self.clocks[thread], clock);
            }
            Event::Posted { number } => {
                let post = (self.node_of(thread), *number);
                self.posted.insert(post, self.clocks[thread].clone());
                self.clocks[thread][thread] += 1;
                self.wake(Awaited::Post(post.0, post.1));
            }
            Event::Taken { from, number } => {
                join(&mut self.clocks[thread], &self.posted[&(*from, *number)]);
            }
            Event::Atomic { page, offset, turn, previous, .. } => {
                self.atomic(position, address(page, offset), *turn, *previous);
            }
            _ => {}
        }
    }
}

fn address(page: &PageId, offset: &u32) -> Address {
    Address { granule: *page, offset: *offset }
}

fn word_of(at: Address) -> Address {
    Address { granule: at.granule, offset: at.offset & !7 }
}

fn bytes_of(at: Address, bytes: u8, value: u64) -> impl Iterator<Item = (Address, u8)> {
    let bytes = value.to_le_bytes().into_iter().take(usize::from(bytes)).enumerate();
    bytes.map(move |(index, byte)| (Address { granule: at.granule, offset: at.offset + index as u32 }, byte))
}

/// Plain accesses.
impl Judge<'_> {
    fn load(&mut self, position: Position, at: Address, bytes: u8, value: u64) {
        if self.atomics.contains_key(&word_of(at)) {
            self.load_of_atomic(position, at, bytes, value);
            return;
        }
        let mut judged = true;
        let now = self.clocks[position.thread][position.thread];
        for (byte_at, byte) in bytes_of(at, bytes, value) {
            let race = self.touch(position, byte_at, None);
            let cell = self.cells.entry(byte_at).or_default();
            if cell.racy || race {
                judged = false;
            } else if cell.last_store.map_or(0, |(_, byte)| byte) != byte {
                cell.suspects.push((position, now, cell.last_store.map(|(store, _)| store)));
            }
        }
        self.verdict.loads_judged += usize::from(judged);
    }

    /// Turns the remaining suspicions into violations, one per load.
    fn convict(&mut self) {
        let suspects = self.cells.iter().flat_map(|(at, cell)| {
            cell.suspects.iter().map(move |(load, _, expected)| (*load, *at, *expected))
        });
        let mut suspects: Vec<_> = suspects.collect();
        suspects.sort_by_key(|(load, at, _)| (load.index, load.thread, *at));
        suspects.dedup_by_key(|(load, ..)| *load);
        self.verdict.violations_found += suspects.len();
        suspects.truncate(EXPLAINED_MAX);
        let targets = Targets::new(self.execution);
        for (position, at, expected) in suspects {
            let explanation = self.explain(&targets, position, at, expected);
            self.verdict.violations.push(Violation { position, explanation });
        }
        self.verdict.violations.sort_by_key(|violation| violation.explanation.len());
        self.verdict.violations.truncate(EXPLAINED_MAX);
    }

    fn store(&mut self, position: Position, at: Address, bytes: u8, value: u64) {
        if self.atomics.contains_key(&word_of(at)) {
            return;
        }
        for (byte_at, byte) in bytes_of(at, bytes, value) {
            self.touch(position, byte_at, Some(byte));
        }
    }

    /// Records an access to a byte. Returns true if it races with an earlier one.
    fn touch(&mut self, position: Position, at: Address, stored: Option<u8>) -> bool {
        let clock = &self.clocks[position.thread];
        let cell = self.cells.entry(at).or_default();
        let store = stored.is_some();
        let ordered = |touch: &Touch| clock[touch.position.thread] >= touch.clock;
        let rival = cell.touches.iter().find(|touch| (touch.store || store) && !ordered(touch)).copied();
        let touch = Touch { position, clock: clock[position.thread], store };
        if let Some(rival) = rival {
            // The pair is reported for the first byte only; the byte is checked again after an ordered store.
            let race = Race { first: rival.position, second: position, at };
            let known = self.verdict.races.last();
            let repeated = known.is_some_and(|last| (last.first, last.second) == (race.first, race.second));
            if !repeated && self.verdict.races.len() < RACES_MAX {
                self.verdict.races.push(race);
            }
            cell.racy = true;
        } else if store {
            cell.racy = false;
            cell.touches.clear();
        }
        cell.touches.retain(|old| old.position.thread != position.thread || old.store != store);
        cell.touches.push(touch);
        if let Some(byte) = stored {
            cell.suspects.retain(|(load, when, _)| clock[load.thread] >= *when);
            cell.last_store = Some((position, byte));
        }
        rival.is_some()
    }
}

/// Atomic words.
impl Judge<'_> {
    /// Returns the latest of these operations that happens before now.
    fn latest_before(&self, thread: usize, operations: &[Operation]) -> Option<u64> {
        let clock = &self.clocks[thread];
        let earlier = operations.iter().filter(|operation| clock[operation.thread] >= operation.clock);
        earlier.map(|operation| operation.turn).max()
    }

    fn atomic(&mut self, position: Position, at: Address, turn: u64, previous: u64) {
        let thread = position.thread;
        let before = self.latest_before(thread, &self.atomics[&at].latest);
        let now = self.clocks[thread][thread];
        let word = self.atomics.get_mut(&at).expect("collected before");
        let operation = Operation { thread, clock: now, turn };
        word.latest.retain(|other| other.thread != thread);
        word.latest.push(operation);
        if word.mixed {
            return;
        }
        let found = word.history.partition_point(|(other, ..)| *other < turn);
        let expected = found.checked_sub(1).map_or(0, |last| word.history[last].1);
        let mut explanation = None;
        if previous != expected {
            explanation = Some(format!(
                "{}: atomic operation {turn} at {at} found {previous}, but the operation before it left {expected}",
                self.execution.place(position)
            ));
        } else if before.is_some_and(|before| before >= turn) {
            explanation = Some(format!(
                "{}: atomic operation {turn} at {at} came before operation {}, which happens before it",
                self.execution.place(position),
                before.unwrap_or(0)
            ));
        }
        if let Some(explanation) = explanation {
            self.convict_of(position, explanation);
        }
    }

    fn load_of_atomic(&mut self, position: Position, at: Address, bytes: u8, value: u64) {
        let before = self.latest_before(position.thread, &self.atomics[&word_of(at)].latest);
        let word = &self.atomics[&word_of(at)];
        if word.mixed || bytes != 8 {
            return;
        }
        self.verdict.loads_judged += 1;
        let fresh = match (word.last_turn_of.get(&value), before) {
            (Some(turn), Some(before)) => *turn >= before,
            (Some(_), None) => true,
            (None, before) => value == 0 && before.is_none(),
        };
        if !fresh && self.verdict.violations.len() < EXPLAINED_MAX {
            let (turn, left, store) = word
                .history
                .iter()
                .find(|(turn, ..)| Some(*turn) == before)
                .copied()
                .unwrap_or((0, 0, position));
            let (load, store_at) = (self.execution.place(position), self.execution.place(store));
            let chain = Targets::new(self.execution).chain(store, position);
            let explanation = format!(
                "{load}: load at {at} read {value}; atomic operation {turn} ({store_at}) left {left} and happens before \
                 the load: {chain}"
            );
            self.convict_of(position, explanation);
        }
    }

    fn convict_of(&mut self, position: Position, explanation: String) {
        self.verdict.violations_found += 1;
        self.verdict.violations.push(Violation { position, explanation });
    }
}

/// Explanations.
impl Judge<'_> {
    fn explain(
        &self,
        targets: &Targets<'_>,
        load: Position,
        byte_at: Address,
        expected: Option<Position>,
    ) -> String {
        let event = self.execution.event(load);
        let Event::Load { page, offset, bytes, value } = event else {
            unreachable!("only loads are explained")
        };
        let place = |position: Position| self.execution.place(position);
        let mut text = format!("{}: {}", place(load), Described(event));
        let byte = (value >> ((byte_at.offset - offset) * 8)) as u8;
        let writes_it = |event: &Event| match event {
            Event::Store { page, offset, bytes, value } => {
                bytes_of(address(page, offset), *bytes, *value).any(|written| written == (byte_at, byte))
            }
            _ => false,
        };
        let same = Event::Store { page: *page, offset: *offset, bytes: *bytes, value: *value };
        let exact = self.execution.events().find(|(_, event)| **event == same);
        let source = exact.or_else(|| self.execution.events().find(|(_, event)| writes_it(event)));
        match source {
            Some((writer, event)) => {
                write!(text, "\n  it read what {} wrote: {}", place(writer), Described(event))
            }
            None if byte == 0 => write!(text, "\n  it read the initial zero at {byte_at}"),
            None => write!(text, "\n  no thread ever wrote {byte} at {byte_at}"),
        }
        .expect("writing to a string cannot fail");
        match expected {
            Some(store) => {
                let (event, chain) = (Described(self.execution.event(store)), targets.chain(store, load));
                write!(text, "\n  it should have read what {} wrote: {event}\n  {chain}", place(store))
            }
            None => write!(text, "\n  no store to it happens before the load: it should have read zero"),
        }
        .expect("writing to a string cannot fail");
        text
    }
}

/// The events that each synchronisation event leads to.
struct Targets<'a> {
    execution: &'a Execution,
    of: FxHashMap<Awaited, Vec<Position>>,
}

impl<'a> Targets<'a> {
    fn new(execution: &'a Execution) -> Targets<'a> {
        let mut of: FxHashMap<Awaited, Vec<Position>> = FxHashMap::default();
        for (position, event) in execution.events() {
            let key = match event {
                Event::Acquired { lock, turn } => Awaited::Turn(*lock, *turn),
                Event::Met { epoch } => Awaited::Meeting(*epoch),
                Event::PublicationSeen { from, count } => {
                    Awaited::Publication((*from, execution.threads[position.thread].node, *count))
                }
                Event::Taken { from, number } => Awaited::Post(*from, *number),
                _ => continue,
            };
            of.entry(key).or_default().push(position);
        }
        Targets { execution, of }
    }

    fn source_key(&self, node: NodeId, event: &Event) -> Option<Awaited> {
        match event {
            Event::Released { lock, turn } => Some(Awaited::Turn(*lock, turn + 1)),
            Event::Met { epoch } => Some(Awaited::Meeting(*epoch)),
            Event::Published { to, count } => Some(Awaited::Publication((node, *to, *count))),
            Event::Posted { number } => Some(Awaited::Post(node, *number)),
            _ => None,
        }
    }

    /// Describes the synchronisation that orders two events, with the fewest possible hops from thread to
    /// thread.
    fn chain(&self, from: Position, to: Position) -> String {
        struct Hop {
            source: Position,
            target: Position,
            parent: Option<usize>,
        }
        let mut hops: Vec<Hop> = Vec::new();
        let mut reached: Vec<Option<usize>> = vec![None; self.execution.threads.len()];
        reached[from.thread] = Some(from.index);
        let mut queue = VecDeque::from([(from, None)]);
        let place = |position: Position| self.execution.place(position);
        let event = |position: Position| Described(self.execution.event(position));
        // Breadth first, so the first path found has the fewest hops.
        while let Some((start, parent)) = queue.pop_front() {
            if start.thread == to.thread && start.index <= to.index {
                let mut path = Vec::new();
                let mut at = parent;
                while let Some(index) = at {
                    let hop: &Hop = &hops[index];
                    path.push(hop);
                    at = hop.parent;
                }
                let mut text = place(from);
                for Hop { source, target, .. } in path.into_iter().rev() {
                    let (source_event, target_event) = (event(*source), event(*target));
                    write!(
                        text,
                        " → {}: {source_event} → {}: {target_event}",
                        place(*source),
                        place(*target)
                    )
                    .expect("writing to a string cannot fail");
                }
                write!(text, " → {}", place(to)).expect("writing to a string cannot fail");
                return text;
            }
            let history = &self.execution.threads[start.thread];
            for (index, event) in history.events.iter().enumerate().skip(start.index) {
                let Some(key) = self.source_key(history.node, event) else { continue };
                for target in self.of.get(&key).into_iter().flatten() {
                    let earlier = reached[target.thread].is_none_or(|known| target.index < known);
                    if earlier && target.thread != start.thread {
                        reached[target.thread] = Some(target.index);
                        let source = Position { thread: start.thread, index };
                        hops.push(Hop { source, target: *target, parent });
                        queue.push_back((*target, Some(hops.len() - 1)));
                    }
                }
            }
        }
        format!("{} happens before {}", place(from), place(to))
    }
}

#[cfg(test)]
mod tests {
    use hiroba_trace::ThreadNumber;

    use super::*;
    use crate::execution::History;

    const X: Address = Address::word(0, 0);
    const Y: Address = Address::word(0, 1);

    fn load(at: Address, value: u64) -> Event {
        Event::Load { page: at.granule, offset: at.offset, bytes: 8, value }
    }

    fn store(at: Address, value: u64) -> Event {
        Event::Store { page: at.granule, offset: at.offset, bytes: 8, value }
    }

    fn acquire(lock: u32, turn: u64) -> Event {
        Event::Acquired { lock: LockId(lock), turn }
    }

    fn release(lock: u32, turn: u64) -> Event {
        Event::Released { lock: LockId(lock), turn }
    }

    /// Makes an execution with each thread on a node of its own.
    fn execution(threads: Vec<Vec<Event>>) -> Execution {
        let histories = (0..).zip(threads).map(|(node, events)| History {
            node: NodeId(node),
            thread: ThreadNumber(0),
            events,
        });
        Execution { threads: histories.collect() }
    }

    fn verdict(threads: Vec<Vec<Event>>) -> Verdict {
        judge(&execution(threads)).unwrap()
    }

    #[test]
    fn a_stale_load_is_explained_by_the_chain_of_locks() {
        let verdict = verdict(vec![
            vec![acquire(1, 0), store(X, 7), release(1, 0)],
            vec![acquire(1, 1), store(X, 8), release(1, 1), acquire(2, 0), release(2, 0)],
            vec![acquire(2, 1), load(X, 7), release(2, 1)],
        ]);
        let [violation] = &verdict.violations[..] else { panic!("{verdict:?}") };
        assert_eq!(violation.position, Position { thread: 2, index: 1 });
        for part in [
            "node 0 thread 0 event 1 wrote",
            "node 1 thread 0 event 1 wrote",
            "release of lock 2",
            "acquire of lock 2",
        ] {
            assert!(violation.explanation.contains(part), "{part} is missing in: {}", violation.explanation);
        }
        assert!(verdict.races.is_empty());
    }

    #[test]
    fn unordered_accesses_are_races_and_not_judged() {
        let verdict = verdict(vec![vec![store(X, 1), store(Y, 2)], vec![load(X, 99), load(Y, 0)]]);
        assert!(verdict.violations.is_empty());
        assert_eq!((verdict.races.len(), verdict.loads_judged), (2, 0));
    }

    #[test]
    fn a_load_is_not_judged_when_the_store_it_races_with_is_replayed_later() {
        let verdict = verdict(vec![
            vec![load(X, 1), acquire(0, 1), load(X, 1)],
            vec![acquire(0, 0), store(X, 1), release(0, 0)],
        ]);
        assert_eq!((verdict.races.len(), verdict.violations.len()), (1, 0));
    }

    #[test]
    fn a_store_ordered_after_a_race_is_judged_again() {
        let meet = |epoch| Event::Met { epoch };
        let verdict = verdict(vec![
            vec![store(X, 1), meet(0), store(X, 3), meet(1), load(X, 3)],
            vec![store(X, 2), meet(0), meet(1), load(X, 1)],
        ]);
        assert_eq!((verdict.races.len(), verdict.loads_judged, verdict.violations.len()), (1, 2, 1));
    }

    #[test]
    fn threads_that_never_meet_are_not_waited_for_and_not_ordered_by_meetings() {
        let meet = |epoch| Event::Met { epoch };
        let verdict = verdict(vec![
            vec![store(X, 1), meet(0), load(X, 1)],
            vec![store(Y, 1), meet(0), load(X, 0)],
            vec![acquire(0, 0), load(Y, 0), release(0, 0)],
        ]);
        assert_eq!((verdict.races.len(), verdict.violations.len()), (1, 1));
    }

    #[test]
    fn bytes_of_one_word_are_told_apart() {
        let byte = |offset, value| Event::Store { page: PageId(0), offset, bytes: 1, value };
        let meet = || Event::Met { epoch: 0 };
        let good = verdict(vec![vec![byte(0, 1), meet(), load(X, 0x0201)], vec![byte(1, 2), meet()]]);
        assert!(good.races.is_empty() && good.violations.is_empty());
        let lost = verdict(vec![vec![byte(0, 1), meet(), load(X, 0x0001)], vec![byte(1, 2), meet()]]);
        assert_eq!(lost.violations.len(), 1);
    }

    #[test]
    fn publications_order_and_atomics_have_one_history() {
        let atomic = |turn, previous, current| Event::Atomic {
            page: X.granule,
            offset: X.offset,
            turn,
            previous,
            current,
        };
        let good = verdict(vec![
            vec![atomic(0, 0, 1), store(Y, 5), Event::Published { to: NodeId(1), count: 4 }],
            vec![
                atomic(1, 1, 2),
                Event::PublicationSeen { from: NodeId(0), count: 4 },
                load(Y, 5),
                load(X, 2),
            ],
        ]);
        assert!(good.violations.is_empty() && good.races.is_empty(), "{good:?}");
        let undone = verdict(vec![
            vec![atomic(0, 0, 1), Event::Published { to: NodeId(1), count: 4 }],
            vec![atomic(1, 0, 1), Event::PublicationSeen { from: NodeId(0), count: 4 }, load(X, 0)],
        ]);
        assert_eq!(undone.violations.len(), 2);
    }

    #[test]
    fn an_incomplete_trace_is_refused_with_the_event_that_waits() {
        let error = judge(&execution(vec![vec![acquire(3, 1)]])).unwrap_err();
        assert!(error.to_string().contains("acquire of lock 3 (turn 1)"), "{error}");
    }
}
