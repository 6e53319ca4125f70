//! The judge: does a recorded execution keep the promise of release consistency?
//!
//! Read first: Gharachorloo et al., *Memory Consistency and Event Ordering in Scalable Shared-Memory
//! Multiprocessors*, ISCA 1990 (properly labelled programs); Flanagan and Freund, *FastTrack*, PLDI 2009, for the
//! vector clocks.
//!
//! **Happens-before** is the transitive closure of program order, of a lock's release before its next acquire, of
//! everything before a meeting before everything after it, and of a publication before its receipt. All threads that
//! ever meet others meet in every meeting; the rest (threads that the program has made itself) in none. Two accesses to one byte **conflict** when one of them is a store; a program whose conflicting accesses
//! are all ordered is data-race-free, and must behave as on one machine: every load returns, byte by byte, what the
//! latest store that happens before it has left. Pairs that are not ordered are reported as races, and what
//! loads of such bytes return is not judged until a store that is ordered after all of them.
//!
//! Words used by atomic operations have a total order of operations, and each must find what the one before it
//! left; a plain load must not be older than the latest operation that happens before it, also when that one only looked
//! (a load, a failed compare-exchange): who has seen a change passes it on.
//!
//! An [`Execution`] need not be in one global order: one list of events a thread is enough, because acquires
//! and releases carry the **turn** of the lock's hold, atomics their turn at the word, and meetings their epoch. The
//! replay takes time linear in the events (times threads for clocks).

use core::fmt::{self, Write as _};
use std::collections::VecDeque;

use hiroba_base::LockId;
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::program::{Address, Width};

/// What a thread did, in its program order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A load and what it returned.
    Load {
        /// Where.
        at: Address,
        /// How many bytes.
        width: Width,
        /// What it returned.
        value: u64,
    },
    /// A store.
    Store {
        /// Where.
        at: Address,
        /// How many bytes.
        width: Width,
        /// What it wrote.
        value: u64,
    },
    /// The thread got a lock.
    Acquire {
        /// The lock.
        lock: LockId,
        /// How often it had been acquired before.
        turn: u64,
    },
    /// The thread gave a lock up.
    Release {
        /// The lock.
        lock: LockId,
        /// The turn of the acquire that this release ends.
        turn: u64,
    },
    /// The thread met all others that meet.
    Meet {
        /// How many meetings there were before.
        epoch: u64,
    },
    /// Everything so far is made known to whoever receives the token.
    Publish {
        /// Names the publication.
        token: u64,
    },
    /// The token came.
    Receive {
        /// Names the publication.
        token: u64,
    },
    /// An atomic operation.
    Atomic {
        /// The word.
        at: Address,
        /// How many operations the word had seen.
        turn: u64,
        /// What it found.
        previous: u64,
        /// What it left.
        current: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Load { at, width, value } => {
                write!(f, "load of {} bytes at {at} = {value}", width.bytes())
            }
            Event::Store { at, width, value } => {
                write!(f, "store of {} bytes at {at} = {value}", width.bytes())
            }
            Event::Acquire { lock, turn } => write!(f, "acquire of lock {} (turn {turn})", lock.0),
            Event::Release { lock, turn } => write!(f, "release of lock {} (turn {turn})", lock.0),
            Event::Meet { epoch } => write!(f, "barrier {epoch}"),
            Event::Publish { token } => write!(f, "publication {token}"),
            Event::Receive { token } => write!(f, "receipt of publication {token}"),
            Event::Atomic { at, turn, previous, current } => {
                write!(f, "atomic operation {turn} at {at}: {previous} to {current}")
            }
        }
    }
}

/// A recorded execution: one list of events a thread, in program order. Memory begins all zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// The events, by thread.
    pub threads: Vec<Vec<Event>>,
}

/// An event of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The thread's number.
    pub thread: usize,
    /// The event's index in the thread's list.
    pub index: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} event {}", self.thread, self.index)
    }
}

/// Two conflicting accesses that nothing orders: a fault of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// One of them.
    pub first: Position,
    /// The other.
    pub second: Position,
    /// A byte that both touch.
    pub at: Address,
}

/// A load, or an atomic operation, that returned what it must not: a fault of Hiroba's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The offender.
    pub position: Position,
    /// What it read, who wrote that, what it should have read, and why.
    pub explanation: String,
}

/// What the judge found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Breaches of the promise, the earliest in its thread first.
    pub violations: Vec<Violation>,
    /// Races of the program; at most [`RACES_MAX`].
    pub races: Vec<Race>,
    /// Loads whose every byte could be judged.
    pub loads_judged: usize,
}

/// Races beyond this number are not kept: one is enough to mend the program.
pub const RACES_MAX: usize = 100;

/// The execution contradicts itself: an acquire without the release before it, a meeting that somebody misses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "expected an execution whose waits all end, got one in which {0} waits for ever ({1}); is the trace complete?"
)]
pub struct Incomplete(String, String);

/// Judges an execution.
pub fn judge(execution: &Execution) -> Result<Verdict, Incomplete> {
    let mut judge = Judge::new(execution);
    judge.replay()?;
    judge.convict();
    Ok(judge.verdict)
}

type Clock = Vec<u64>;

fn meets(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Meet { .. }))
}

/// What a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Awaited {
    Turn(LockId, u64),
    Meeting(u64),
    Token(u64),
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    position: Position,
    clock: u64,
    store: bool,
}

/// One byte.
#[derive(Debug, Default)]
struct Cell {
    /// The latest load and store of each thread that no later store is ordered after.
    touches: Vec<Touch>,
    last_store: Option<(Position, u8)>,
    racy: bool,
    /// Loads that returned the wrong byte, unless a store that the replay has yet to meet turns out to race with them:
    /// the load, its clock, and the store it should have seen.
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
    /// Plain stores hit the word too: not judged.
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
    published: FxHashMap<u64, Clock>,
    meeting: (usize, Clock),
    /// The threads that meet.
    members: Vec<usize>,
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
            meeting: (0, vec![0; threads]),
            members: (0..threads).filter(|thread| meets(&execution.threads[*thread])).collect(),
            waiting: FxHashMap::default(),
            ready: (0..threads).collect(),
            cells: FxHashMap::default(),
            atomics: FxHashMap::default(),
            verdict: Verdict::default(),
        };
        judge.collect_atomics();
        judge
    }

    fn events(&self) -> impl Iterator<Item = (Position, Event)> + use<'a> {
        self.execution.threads.iter().enumerate().flat_map(|(thread, events)| {
            events.iter().enumerate().map(move |(index, event)| (Position { thread, index }, *event))
        })
    }

    fn collect_atomics(&mut self) {
        for (position, event) in self.events() {
            if let Event::Atomic { at, turn, current, .. } = event {
                let word = self.atomics.entry(at).or_default();
                word.history.push((turn, current, position));
                let last = word.last_turn_of.entry(current).or_default();
                *last = turn.max(*last);
            }
        }
        if self.atomics.is_empty() {
            return;
        }
        for (_, event) in self.events() {
            if let Event::Store { at, .. } = event
                && let Some(word) = self.atomics.get_mut(&word_of(at))
            {
                word.mixed = true;
            }
        }
        self.atomics.values_mut().for_each(|word| word.history.sort_by_key(|(turn, ..)| *turn));
    }

    fn replay(&mut self) -> Result<(), Incomplete> {
        while let Some(thread) = self.ready.pop_front() {
            while let Some(event) = self.execution.threads[thread].get(self.next[thread]).copied() {
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
            (0..self.next.len()).find(|thread| self.next[*thread] < self.execution.threads[*thread].len());
        match stuck {
            Some(thread) => {
                let position = Position { thread, index: self.next[thread] };
                let event = self.execution.threads[thread][position.index];
                Err(Incomplete(position.to_string(), event.to_string()))
            }
            None => Ok(()),
        }
    }

    /// What the event must wait for, if it must. A meeting counts the thread in.
    fn awaited(&mut self, thread: usize, event: Event) -> Option<Awaited> {
        match event {
            Event::Acquire { lock, turn } => {
                let releases = self.released.get(&lock).map_or(0, |(releases, _)| *releases);
                (releases != turn).then_some(Awaited::Turn(lock, turn))
            }
            Event::Receive { token } => {
                (!self.published.contains_key(&token)).then_some(Awaited::Token(token))
            }
            Event::Meet { epoch } => {
                join(&mut self.meeting.1, &self.clocks[thread]);
                self.meeting.0 += 1;
                if self.meeting.0 == self.members.len() {
                    self.meeting.0 = 0;
                    self.complete_meeting(epoch, thread);
                    return None;
                }
                Some(Awaited::Meeting(epoch))
            }
            _ => None,
        }
    }

    fn complete_meeting(&mut self, epoch: u64, last: usize) {
        let joined = self.meeting.1.clone();
        for &thread in &self.members {
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

    fn step(&mut self, position: Position, event: Event) {
        let thread = position.thread;
        match event {
            Event::Load { at, width, value } => self.load(position, at, width, value),
            Event::Store { at, width, value } => self.store(position, at, width, value),
            Event::Acquire { lock, .. } => {
                if let Some((_, clock)) = self.released.get(&lock) {
                    join(&mut self.clocks[thread], clock);
                }
            }
            Event::Release { lock, turn } => {
                self.released.insert(lock, (turn + 1, self.clocks[thread].clone()));
                self.clocks[thread][thread] += 1;
                self.wake(Awaited::Turn(lock, turn + 1));
            }
            Event::Publish { token } => {
                self.published.insert(token, self.clocks[thread].clone());
                self.clocks[thread][thread] += 1;
                self.wake(Awaited::Token(token));
            }
            Event::Receive { token } => {
                let clock = self.published.remove(&token).expect("the token was awaited");
                join(&mut self.clocks[thread], &clock);
            }
            Event::Meet { .. } => {}
            Event::Atomic { at, turn, previous, .. } => {
                self.atomic(position, at, turn, previous);
            }
        }
    }
}

fn word_of(at: Address) -> Address {
    Address { granule: at.granule, offset: at.offset & !7 }
}

fn bytes_of(at: Address, width: Width, value: u64) -> impl Iterator<Item = (Address, u8)> {
    let bytes = value.to_le_bytes().into_iter().take(width.bytes() as usize).enumerate();
    bytes.map(move |(index, byte)| (Address { granule: at.granule, offset: at.offset + index as u32 }, byte))
}

/// Plain accesses.
impl Judge<'_> {
    fn load(&mut self, position: Position, at: Address, width: Width, value: u64) {
        if self.atomics.contains_key(&word_of(at)) {
            self.load_of_atomic(position, at, width, value);
            return;
        }
        let mut judged = true;
        let now = self.clocks[position.thread][position.thread];
        for (byte_at, byte) in bytes_of(at, width, value) {
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

    /// Turns the suspicions that are left into violations, one a load.
    fn convict(&mut self) {
        let suspects = self.cells.iter().flat_map(|(at, cell)| {
            cell.suspects.iter().map(move |(load, _, expected)| (*load, *at, *expected))
        });
        let mut suspects: Vec<_> = suspects.collect();
        suspects.sort_by_key(|(load, at, _)| (load.index, load.thread, *at));
        suspects.dedup_by_key(|(load, ..)| *load);
        for (position, at, expected) in suspects {
            let explanation = self.explain(position, at, expected);
            self.verdict.violations.push(Violation { position, explanation });
        }
    }

    fn store(&mut self, position: Position, at: Address, width: Width, value: u64) {
        if self.atomics.contains_key(&word_of(at)) {
            return;
        }
        for (byte_at, byte) in bytes_of(at, width, value) {
            self.touch(position, byte_at, Some(byte));
        }
    }

    /// Notes an access to a byte; whether it races with an earlier one.
    fn touch(&mut self, position: Position, at: Address, stored: Option<u8>) -> bool {
        let clock = &self.clocks[position.thread];
        let cell = self.cells.entry(at).or_default();
        let store = stored.is_some();
        let ordered = |touch: &Touch| clock[touch.position.thread] >= touch.clock;
        let rival = cell.touches.iter().find(|touch| (touch.store || store) && !ordered(touch)).copied();
        let touch = Touch { position, clock: clock[position.thread], store };
        if let Some(rival) = rival {
            // The pair is reported for the first byte only; the byte is judged again after an ordered store.
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
    /// The latest of these operations that happens before now.
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
                "{position}: atomic operation {turn} at {at} found {previous}, but the operation before it left {expected}"
            ));
        } else if before.is_some_and(|before| before >= turn) {
            explanation = Some(format!(
                "{position}: atomic operation {turn} at {at} came before operation {}, which happens before it",
                before.unwrap_or(0)
            ));
        }
        self.verdict.violations.extend(explanation.map(|explanation| Violation { position, explanation }));
    }

    fn load_of_atomic(&mut self, position: Position, at: Address, width: Width, value: u64) {
        let before = self.latest_before(position.thread, &self.atomics[&word_of(at)].latest);
        let word = &self.atomics[&word_of(at)];
        if word.mixed || width != Width::Word {
            return;
        }
        self.verdict.loads_judged += 1;
        let fresh = match (word.last_turn_of.get(&value), before) {
            (Some(turn), Some(before)) => *turn >= before,
            (Some(_), None) => true,
            (None, before) => value == 0 && before.is_none(),
        };
        if !fresh {
            let (turn, left, store) = word
                .history
                .iter()
                .find(|(turn, ..)| Some(*turn) == before)
                .copied()
                .unwrap_or((0, 0, position));
            let chain = self.chain(store, position);
            let explanation = format!(
                "{position}: load at {at} read {value}; atomic operation {turn} ({store}) left {left} and happens \
                 before the load: {chain}"
            );
            self.verdict.violations.push(Violation { position, explanation });
        }
    }
}

/// Explanations.
impl Judge<'_> {
    fn event(&self, position: Position) -> Event {
        self.execution.threads[position.thread][position.index]
    }

    fn explain(&self, load: Position, byte_at: Address, expected: Option<Position>) -> String {
        let Event::Load { at, width, value } = self.event(load) else {
            unreachable!("only loads are explained")
        };
        let mut text = format!("{load}: {}", self.event(load));
        let byte = (value >> ((byte_at.offset - at.offset) * 8)) as u8;
        let writes_it = |event: &Event| match event {
            Event::Store { at, width, value } => {
                bytes_of(*at, *width, *value).any(|written| written == (byte_at, byte))
            }
            _ => false,
        };
        let same_width = |event: &Event| *event == Event::Store { at, width, value };
        let exact = self.events().find(|(_, event)| same_width(event));
        let source = exact.or_else(|| self.events().find(|(_, event)| writes_it(event)));
        match source {
            Some((writer, _)) => write!(text, "\n  it read what {writer} wrote: {}", self.event(writer)),
            None if byte == 0 => write!(text, "\n  it read the initial zero at {byte_at}"),
            None => write!(text, "\n  nobody ever wrote {byte} at {byte_at}"),
        }
        .expect("writing to a string cannot fail");
        match expected {
            Some(store) => {
                let chain = self.chain(store, load);
                write!(text, "\n  it should have read what {store} wrote: {}\n  {chain}", self.event(store))
            }
            None => write!(text, "\n  no store to it happens before the load: it should have read zero"),
        }
        .expect("writing to a string cannot fail");
        text
    }

    /// The synchronisation that orders two events, with few hops.
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
        let targets = self.targets();
        while let Some((start, parent)) = queue.pop_front() {
            if start.thread == to.thread && start.index <= to.index {
                let mut path = Vec::new();
                let mut at = parent;
                while let Some(index) = at {
                    let hop: &Hop = &hops[index];
                    path.push(hop);
                    at = hop.parent;
                }
                let mut text = format!("{from}");
                for hop in path.into_iter().rev() {
                    let (source, target) = (hop.source, hop.target);
                    write!(text, " → {source}: {} → {target}: {}", self.event(source), self.event(target))
                        .expect("writing to a string cannot fail");
                }
                write!(text, " → {to}").expect("writing to a string cannot fail");
                return text;
            }
            let events = &self.execution.threads[start.thread];
            for (index, event) in events.iter().enumerate().skip(start.index) {
                let Some(key) = source_key(event) else { continue };
                for target in targets.get(&key).into_iter().flatten() {
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
        format!("{from} happens before {to}")
    }

    fn targets(&self) -> FxHashMap<Awaited, Vec<Position>> {
        let mut targets: FxHashMap<Awaited, Vec<Position>> = FxHashMap::default();
        for (position, event) in self.events() {
            let key = match event {
                Event::Acquire { lock, turn } => Awaited::Turn(lock, turn),
                Event::Meet { epoch } => Awaited::Meeting(epoch),
                Event::Receive { token } => Awaited::Token(token),
                _ => continue,
            };
            targets.entry(key).or_default().push(position);
        }
        targets
    }
}

fn source_key(event: &Event) -> Option<Awaited> {
    match event {
        Event::Release { lock, turn } => Some(Awaited::Turn(*lock, turn + 1)),
        Event::Meet { epoch } => Some(Awaited::Meeting(*epoch)),
        Event::Publish { token } => Some(Awaited::Token(*token)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Address = Address::word(0, 0);
    const Y: Address = Address::word(0, 1);

    fn load(at: Address, value: u64) -> Event {
        Event::Load { at, width: Width::Word, value }
    }

    fn store(at: Address, value: u64) -> Event {
        Event::Store { at, width: Width::Word, value }
    }

    fn acquire(lock: u32, turn: u64) -> Event {
        Event::Acquire { lock: LockId(lock), turn }
    }

    fn release(lock: u32, turn: u64) -> Event {
        Event::Release { lock: LockId(lock), turn }
    }

    fn verdict(threads: Vec<Vec<Event>>) -> Verdict {
        judge(&Execution { threads }).unwrap()
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
        for part in
            ["thread 0 event 1 wrote", "thread 1 event 1 wrote", "release of lock 2", "acquire of lock 2"]
        {
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
        let meet = |epoch| Event::Meet { epoch };
        let verdict = verdict(vec![
            vec![store(X, 1), meet(0), store(X, 3), meet(1), load(X, 3)],
            vec![store(X, 2), meet(0), meet(1), load(X, 1)],
        ]);
        assert_eq!((verdict.races.len(), verdict.loads_judged, verdict.violations.len()), (1, 2, 1));
    }

    #[test]
    fn threads_that_never_meet_are_not_waited_for_and_not_ordered_by_meetings() {
        let meet = |epoch| Event::Meet { epoch };
        let verdict = verdict(vec![
            vec![store(X, 1), meet(0), load(X, 1)],
            vec![store(Y, 1), meet(0), load(X, 0)],
            vec![acquire(0, 0), load(Y, 0), release(0, 0)],
        ]);
        assert_eq!((verdict.races.len(), verdict.violations.len()), (1, 1));
    }

    #[test]
    fn bytes_of_one_word_are_told_apart() {
        let byte = |offset, value| Event::Store { at: Address::byte(0, offset), width: Width::Byte, value };
        let meet = Event::Meet { epoch: 0 };
        let good = verdict(vec![vec![byte(0, 1), meet, load(X, 0x0201)], vec![byte(1, 2), meet]]);
        assert!(good.races.is_empty() && good.violations.is_empty());
        let lost = verdict(vec![vec![byte(0, 1), meet, load(X, 0x0001)], vec![byte(1, 2), meet]]);
        assert_eq!(lost.violations.len(), 1);
    }

    #[test]
    fn publications_order_and_atomics_have_one_history() {
        let atomic = |turn, previous, current| Event::Atomic { at: X, turn, previous, current };
        let good = verdict(vec![
            vec![atomic(0, 0, 1), store(Y, 5), Event::Publish { token: 4 }],
            vec![atomic(1, 1, 2), Event::Receive { token: 4 }, load(Y, 5), load(X, 2)],
        ]);
        assert!(good.violations.is_empty() && good.races.is_empty(), "{good:?}");
        let undone = verdict(vec![
            vec![atomic(0, 0, 1), Event::Publish { token: 4 }],
            vec![atomic(1, 0, 1), Event::Receive { token: 4 }, load(X, 0)],
        ]);
        assert_eq!(undone.violations.len(), 2);
    }

    #[test]
    fn an_incomplete_trace_is_refused_with_the_event_that_waits() {
        let error = judge(&Execution { threads: vec![vec![acquire(3, 1)]] }).unwrap_err();
        assert!(error.to_string().contains("acquire of lock 3 (turn 1)"), "{error}");
    }
}
