//! The checker of sequential consistency: could the threads' accesses have been made one at a time, each
//! thread's in its order?
//!
//! Read first: Lamport, *How to Make a Multiprocessor Computer That Correctly Executes Multiprocess
//! Programs*, 1979; Gibbons and Korach, *Testing Shared Memories*, SIAM J. Computing 26, 1997 (deciding it is
//! NP-complete); Roy, Zeisset, Fleckenstein, Huang, *Fast and Generalized Polynomial Time Memory Consistency
//! Verification*, CAV 2006 (the inference of edges, and clocks instead of a closure).
//!
//! An execution is sequentially consistent if some order of its accesses contains **po** (program order),
//! **rf** (a load comes after the store that it reads), **co** (an order of the stores to each place) and
//! **fr** (a load comes before every store that is later than the one that it reads). That is, po ∪ rf ∪ co ∪
//! fr has no cycle for some co. Values that are stored once to a place determine rf. Parts of co follow from
//! rules:
//!
//! - a store w' that must come before a load that reads w comes before w;
//! - a load that reads w comes before a store w' that must come after w;
//! - operations on an atomic word come in the order of their turns; holds of a lock, meetings and
//!   publications order what is around them.
//!
//! These rules are applied until nothing new follows. A cycle then proves that the execution is not
//! sequentially consistent, and the shortest one is the explanation. Without a cycle nothing is proved, since
//! an order of two stores that no rule decides may still be impossible both ways; the verdict is then
//! [`Sequential::Plausible`].

use std::collections::VecDeque;

use hiroba_trace::Event;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::execution::{Described, Execution, Position, is_access};
use crate::program::Address;

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequential {
    /// No contradiction was found.
    Plausible {
        /// Loads whose store is known.
        loads_judged: usize,
    },
    /// It is not sequentially consistent: there is a shortest cycle, or a value that was never stored.
    No {
        /// The explanation.
        explanation: String,
    },
}

/// The reason why one access comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Program,
    Synchronisation,
    ReadsFrom,
    Coherence,
    FromRead,
}

impl Why {
    fn name(self) -> &'static str {
        match self {
            Why::Program => "program order",
            Why::Synchronisation => "synchronisation",
            Why::ReadsFrom => "reads from",
            Why::Coherence => "coherence",
            Why::FromRead => "from read",
        }
    }
}

/// A place that is accessed in one width only.
type Location = (Address, u8);

/// The effect of an access on a place.
struct Access {
    location: Location,
    reads: Option<u64>,
    writes: Option<u64>,
}

fn access_of(event: &Event) -> Option<Access> {
    let at = |page: &hiroba_base::PageId, offset: &u32| Address { granule: *page, offset: *offset };
    Some(match event {
        Event::Load { page, offset, bytes, value } => {
            Access { location: (at(page, offset), *bytes), reads: Some(*value), writes: None }
        }
        Event::Store { page, offset, bytes, value } => {
            Access { location: (at(page, offset), *bytes), reads: None, writes: Some(*value) }
        }
        Event::Atomic { page, offset, previous, current, .. } => Access {
            location: (at(page, offset), 8),
            reads: Some(*previous),
            writes: (previous != current).then_some(*current),
        },
        _ => return None,
    })
}

/// The accesses of a place by thread, in program order.
#[derive(Default)]
struct Place {
    /// By thread, the indices of events that write.
    stores: FxHashMap<usize, Vec<usize>>,
    /// The event that stores a value; `None` if several do.
    storers: FxHashMap<u64, Option<Position>>,
    /// Loads and the stores that they read from; `None` is the initial zero.
    reads: Vec<(Position, Option<Position>)>,
}

struct Graph<'a> {
    execution: &'a Execution,
    places: FxHashMap<Location, Place>,
    /// Edges between threads, by source.
    edges: FxHashMap<Position, Vec<(Position, Why)>>,
    /// By event: for each thread, including the event's own, how many of its first events must come before.
    clocks: Vec<Vec<Vec<u32>>>,
    loads_judged: usize,
}

/// Checks an execution of a program without data races, which must look sequentially consistent under every
/// protocol. Plain loads of words with atomic operations are left out: until the next acquire they may find
/// an old value.
pub fn judge_race_free(execution: &Execution) -> Sequential {
    judge_some(execution, false)
}

/// Checks an execution. Time is near-linear in the events, times the threads, times the rounds of inference
/// (few).
pub fn judge(execution: &Execution) -> Sequential {
    judge_some(execution, true)
}

/// Checks whether an execution is causally consistent (Ahamad et al., *Causal Memory*, Distributed Computing
/// 9, 1995): whoever sees a store sees all that happened before it, by **po**, **rf** and synchronisation. So
/// no load returns a value for which there is a later one, in that order, before the load. Stores that
/// nothing orders may be seen in different orders.
pub fn judge_causal(execution: &Execution) -> Sequential {
    let mut graph = Graph::new(execution);
    graph.synchronise();
    if let Err(explanation) = graph.read_from(true) {
        return Sequential::No { explanation };
    }
    if let Err(stuck) = graph.order() {
        return Sequential::No { explanation: graph.shortest_cycle(&stuck) };
    }
    match graph.find_outdated() {
        Some(explanation) => Sequential::No { explanation },
        None => Sequential::Plausible { loads_judged: graph.loads_judged },
    }
}

fn judge_some(execution: &Execution, loads_of_atomics: bool) -> Sequential {
    let mut graph = Graph::new(execution);
    graph.synchronise();
    if let Err(explanation) = graph.read_from(loads_of_atomics) {
        return Sequential::No { explanation };
    }
    loop {
        if let Err(stuck) = graph.order() {
            return Sequential::No { explanation: graph.shortest_cycle(&stuck) };
        }
        if !graph.infer() {
            return Sequential::Plausible { loads_judged: graph.loads_judged };
        }
    }
}

impl Graph<'_> {
    fn new(execution: &Execution) -> Graph<'_> {
        Graph {
            execution,
            places: FxHashMap::default(),
            edges: FxHashMap::default(),
            clocks: Vec::new(),
            loads_judged: 0,
        }
    }

    /// Describes a load that reads an older store than one that comes before it, if there is one.
    fn find_outdated(&self) -> Option<String> {
        let describe = |position: Position| {
            let event = Described(self.execution.event(position));
            format!("{}: {event}", self.execution.place(position))
        };
        self.places.values().find_map(|place| {
            place.reads.iter().find_map(|(load, source)| {
                let stores = place.stores.iter().flat_map(|(thread, indices)| {
                    indices.iter().map(|index| Position { thread: *thread, index: *index })
                });
                let is_later = |store: &Position| source.is_none_or(|source| self.precedes(source, *store));
                let mut later = stores.filter(|store| is_later(store) && self.precedes(*store, *load));
                let store = later.find(|store| store != load)?;
                let read = source.map_or_else(|| "the initial zero".to_owned(), describe);
                let load = describe(*load);
                Some(format!("{load}\n  reads {read}\n  though it comes after {}", describe(store)))
            })
        })
    }

    fn add(&mut self, from: Position, to: Position, why: Why) -> bool {
        let edges = self.edges.entry(from).or_default();
        let is_new = !edges.iter().any(|(other, _)| *other == to);
        if is_new {
            edges.push((to, why));
        }
        is_new
    }

    fn node_of(&self, position: Position) -> hiroba_base::NodeId {
        self.execution.threads[position.thread].node
    }

    /// Adds edges for holds, which follow each other, and for meetings: a thread that leaves one comes after
    /// all that were to reach it.
    fn synchronise(&mut self) {
        let execution = self.execution;
        let mut released = FxHashMap::default();
        let mut published = FxHashMap::default();
        let mut posted = FxHashMap::default();
        let mut met: FxHashMap<u64, Vec<Position>> = FxHashMap::default();
        let mut atomics: FxHashMap<Location, Vec<(u64, Position)>> = FxHashMap::default();
        for (position, event) in execution.events() {
            match event {
                Event::Released { lock, turn } => _ = released.insert((*lock, turn + 1), position),
                Event::Published { to, count } => {
                    published.insert((self.node_of(position), *to, *count), position);
                }
                Event::Posted { number } => {
                    posted.insert((self.node_of(position), *number), position);
                }
                Event::Met { epoch } => met.entry(*epoch).or_default().push(position),
                Event::Atomic { page, offset, turn, .. } => {
                    let location = (Address { granule: *page, offset: *offset }, 8);
                    atomics.entry(location).or_default().push((*turn, position));
                }
                _ => {}
            }
        }
        for (position, event) in execution.events() {
            let before = match event {
                Event::Acquired { lock, turn } => released.get(&(*lock, *turn)),
                Event::PublicationSeen { from, count } => {
                    published.get(&(*from, self.node_of(position), *count))
                }
                Event::Taken { from, number } => posted.get(&(*from, *number)),
                _ => None,
            };
            if let Some(before) = before {
                self.add(*before, position, Why::Synchronisation);
            }
        }
        for members in met.values() {
            for (one, other) in members.iter().flat_map(|one| members.iter().map(move |other| (one, other))) {
                // What comes before the meeting in one thread comes before what follows it in the other.
                if one.thread != other.thread && one.index > 0 {
                    let before = Position { index: one.index - 1, ..*one };
                    self.add(before, *other, Why::Synchronisation);
                }
            }
        }
        for mut operations in atomics.into_values() {
            operations.sort_unstable_by_key(|(turn, _)| *turn);
            for pair in operations.windows(2) {
                self.add(pair[0].1, pair[1].1, Why::Coherence);
            }
        }
    }

    /// Determines which store each load reads. A value that several stores left determines nothing.
    fn read_from(&mut self, loads_of_atomics: bool) -> Result<(), String> {
        let execution = self.execution;
        let atomics = execution.events().filter_map(|(_, event)| match event {
            Event::Atomic { page, offset, .. } => Some((*page, *offset)),
            _ => None,
        });
        let left_out: FxHashSet<_> = if loads_of_atomics { FxHashSet::default() } else { atomics.collect() };
        let mut mixed: FxHashMap<(hiroba_base::PageId, u32), u8> = FxHashMap::default();
        let mut loads = Vec::new();
        for (position, event) in execution.events() {
            let Some(Access { location, reads, writes }) = access_of(event) else { continue };
            if matches!(event, Event::Load { page, offset, .. } if left_out.contains(&(*page, *offset))) {
                continue;
            }
            // Accesses of different widths to one word are not checked.
            let word = (location.0.granule, location.0.offset / 8);
            let width = mixed.entry(word).or_insert(location.1);
            if *width != location.1 {
                *width = 0;
            }
            let place = self.places.entry(location).or_default();
            if let Some(value) = writes {
                place.stores.entry(position.thread).or_default().push(position.index);
                place.storers.entry(value).and_modify(|storer| *storer = None).or_insert(Some(position));
            }
            loads.extend(reads.map(|value| (position, location, value)));
        }
        for (position, location, value) in loads {
            if mixed[&(location.0.granule, location.0.offset / 8)] == 0 {
                continue;
            }
            let place = self.places.entry(location).or_default();
            let source = match place.storers.get(&value) {
                Some(None) => continue,
                Some(Some(_)) if value == 0 => continue,
                Some(Some(store)) => Some(*store),
                None if value == 0 => None,
                None => {
                    let event = Described(execution.event(position));
                    return Err(format!(
                        "{}: {event}, which was never stored there",
                        execution.place(position)
                    ));
                }
            };
            place.reads.push((position, source));
            self.loads_judged += 1;
            if let Some(store) = source.filter(|store| *store != position) {
                self.add(store, position, Why::ReadsFrom);
            }
        }
        Ok(())
    }

    /// Returns the clocks of all events, or the events of a cycle and what follows it.
    fn order(&mut self) -> Result<(), Vec<Position>> {
        let threads = self.execution.threads.len();
        let lengths: Vec<usize> = self.execution.threads.iter().map(|history| history.events.len()).collect();
        let mut missing: Vec<Vec<u32>> = lengths.iter().map(|length| vec![0; *length]).collect();
        for (to, _) in self.edges.values().flatten() {
            missing[to.thread][to.index] += 1;
        }
        self.clocks = lengths.iter().map(|length| vec![vec![0; threads]; *length]).collect();
        let mut next = vec![0; threads];
        let mut ready: VecDeque<usize> = (0..threads).collect();
        while let Some(thread) = ready.pop_front() {
            while next[thread] < lengths[thread] && missing[thread][next[thread]] == 0 {
                let position = Position { thread, index: next[thread] };
                next[thread] += 1;
                self.settle(position);
                for (to, _) in self.edges.get(&position).into_iter().flatten() {
                    missing[to.thread][to.index] -= 1;
                    if to.thread != thread && missing[to.thread][to.index] == 0 && next[to.thread] == to.index
                    {
                        ready.push_back(to.thread);
                    }
                }
            }
        }
        let stuck = (0..threads)
            .flat_map(|thread| (next[thread]..lengths[thread]).map(move |index| Position { thread, index }));
        let stuck: Vec<Position> = stuck.collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }

    /// Passes the clock of an event on, once all its predecessors are settled.
    fn settle(&mut self, position: Position) {
        let Position { thread, index } = position;
        let mut clock = std::mem::take(&mut self.clocks[thread][index]);
        if let Some(before) = index.checked_sub(1) {
            join(&mut clock, &self.clocks[thread][before]);
        }
        clock[thread] = clock[thread].max(index as u32 + 1);
        for (to, _) in self.edges.get(&position).into_iter().flatten() {
            join(&mut self.clocks[to.thread][to.index], &clock);
        }
        self.clocks[thread][index] = clock;
    }

    /// Returns true if `first` must come before `then`.
    fn precedes(&self, first: Position, then: Position) -> bool {
        first != then && self.clocks[then.thread][then.index][first.thread] as usize > first.index
    }

    /// Adds the edges of coherence and from-read that follow from what is known. Returns true if there are
    /// any.
    fn infer(&mut self) -> bool {
        let mut found = Vec::new();
        for place in self.places.values() {
            for (load, source) in &place.reads {
                for (thread, stores) in &place.stores {
                    let at = |index: &usize| Position { thread: *thread, index: *index };
                    let other = |store: &Position| Some(*store) != *source && store != load;
                    // The last store of the thread that must come before the load comes before the store that
                    // the load reads.
                    let before = stores.partition_point(|index| self.precedes(at(index), *load));
                    let last = stores[..before].iter().rev().map(at).find(other);
                    if let (Some(store), Some(source)) = (last, source)
                        && !self.precedes(store, *source)
                    {
                        found.push((store, *source, Why::Coherence));
                    }
                    // The first store that must come after the store that the load reads comes after the
                    // load.
                    let after = source.map_or(0, |source| {
                        stores.partition_point(|index| !self.precedes(source, at(index)))
                    });
                    let first = stores[after..].iter().map(at).find(other);
                    if let Some(store) = first.filter(|store| !self.precedes(*load, *store)) {
                        found.push((*load, store, Why::FromRead));
                    }
                }
            }
        }
        found.into_iter().fold(false, |any, (from, to, why)| self.add(from, to, why) || any)
    }

    /// Returns the shortest cycle among events that cannot be ordered, counted in accesses of other threads.
    fn shortest_cycle(&self, stuck: &[Position]) -> String {
        let members: FxHashSet<&Position> = stuck.iter().collect();
        let starts = stuck.iter().filter(|position| {
            self.edges.get(position).is_some_and(|edges| edges.iter().any(|(to, _)| members.contains(to)))
        });
        let most = (CYCLE_STEPS_MAX / stuck.len().max(1)).clamp(1, CYCLE_STARTS_MAX);
        let cycles = starts.take(most).filter_map(|start| self.cycle_through(*start));
        let Some(cycle) = cycles.min_by_key(Vec::len) else {
            return "the accesses cannot be ordered".to_owned();
        };
        let mut text = String::from("no order of the accesses explains what they read:");
        for (position, why) in &cycle {
            let event = Described(self.execution.event(*position));
            text +=
                &format!("\n  {}: {event}\n    before, by {},", self.execution.place(*position), why.name());
        }
        let first = cycle.first().map_or(String::new(), |(position, _)| self.execution.place(*position));
        text + &format!("\n  {first} again")
    }

    /// Returns a shortest way from an event back to itself: its events, each with the reason why the next
    /// comes after it.
    fn cycle_through(&self, start: Position) -> Option<Vec<(Position, Why)>> {
        let mut parents: FxHashMap<Position, (Position, Why)> = FxHashMap::default();
        let mut queue = VecDeque::from([start]);
        while let Some(position) = queue.pop_front() {
            let next = Position { index: position.index + 1, ..position };
            let has_next = next.index < self.execution.threads[position.thread].events.len();
            // Program order is followed from event to event; the intermediate events are left out of the
            // explanation.
            let on = has_next.then_some((next, Why::Program));
            let edges = self.edges.get(&position).into_iter().flatten().copied();
            for (to, why) in edges.chain(on) {
                if to == start {
                    return Some(self.path(&parents, start, position, why));
                }
                parents.entry(to).or_insert_with(|| {
                    queue.push_back(to);
                    (position, why)
                });
            }
        }
        None
    }

    fn path(
        &self,
        parents: &FxHashMap<Position, (Position, Why)>,
        start: Position,
        end: Position,
        why: Why,
    ) -> Vec<(Position, Why)> {
        let mut path = vec![(end, why)];
        let mut at = end;
        while at != start {
            let (before, why) = parents[&at];
            path.push((before, why));
            at = before;
        }
        path.reverse();
        // Of several successive steps of program order the first is enough.
        let mut kept: Vec<(Position, Why)> = Vec::new();
        for (position, why) in path {
            let goes_on = kept.last().is_some_and(|(_, last)| *last == Why::Program);
            let is_passed = goes_on && why == Why::Program && !is_access(self.execution.event(position));
            let is_repeated = goes_on && why == Why::Program;
            if !is_passed && !is_repeated {
                kept.push((position, why));
            }
        }
        kept
    }
}

/// The maximum number of events from which cycles are searched; fewer if the search takes too many steps.
const CYCLE_STARTS_MAX: usize = 64;
const CYCLE_STEPS_MAX: usize = 4_000_000;

fn join(clock: &mut [u32], other: &[u32]) {
    clock.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

#[cfg(test)]
mod tests {
    use hiroba_base::{LockId, NodeId};
    use hiroba_trace::ThreadNumber;

    use super::*;
    use crate::execution::History;

    const X: Address = Address::word(0, 0);
    const Y: Address = Address::word(1, 0);
    const Z: Address = Address::word(2, 0);

    fn load(at: Address, value: u64) -> Event {
        Event::Load { page: at.granule, offset: at.offset, bytes: 8, value }
    }

    fn store(at: Address, value: u64) -> Event {
        Event::Store { page: at.granule, offset: at.offset, bytes: 8, value }
    }

    fn execution(threads: Vec<Vec<Event>>) -> Execution {
        let histories = (0..).zip(threads);
        let histories =
            histories.map(|(node, events)| History { node: NodeId(node), thread: ThreadNumber(0), events });
        Execution { threads: histories.collect() }
    }

    fn verdict(threads: Vec<Vec<Event>>) -> Sequential {
        judge(&execution(threads))
    }

    /// Checks that the execution is refused with an explanation that contains these words.
    fn refused(threads: Vec<Vec<Event>>, words: &[&str]) {
        let Sequential::No { explanation } = verdict(threads) else {
            panic!("that is not sequentially consistent")
        };
        for word in words {
            assert!(explanation.contains(word), "'{word}' is missing in: {explanation}");
        }
    }

    fn allowed(threads: Vec<Vec<Event>>) {
        let verdict = verdict(threads);
        assert!(matches!(verdict, Sequential::Plausible { .. }), "{verdict:?}");
    }

    #[test]
    fn store_buffering_is_refused_when_both_miss_the_other() {
        refused(
            vec![vec![store(X, 1), load(Y, 0)], vec![store(Y, 1), load(X, 0)]],
            &["node 0 thread 0 event 1", "node 1 thread 0 event 0", "from read", "program order"],
        );
        allowed(vec![vec![store(X, 1), load(Y, 0)], vec![store(Y, 1), load(X, 1)]]);
    }

    #[test]
    fn a_message_without_its_data_is_refused() {
        let writer = || vec![store(X, 7), store(Y, 1)];
        refused(vec![writer(), vec![load(Y, 1), load(X, 0)]], &["reads from", "from read"]);
        for (flag, data) in [(0, 0), (0, 7), (1, 7)] {
            allowed(vec![writer(), vec![load(Y, flag), load(X, data)]]);
        }
    }

    #[test]
    fn causal_order_is_less() {
        let verdict = |threads: Vec<Vec<Event>>| judge_causal(&execution(threads));
        let is_refused = |threads| matches!(verdict(threads), Sequential::No { explanation } if explanation.contains("though"));
        let writer = || vec![store(X, 7), store(Y, 1)];
        assert!(is_refused(vec![writer(), vec![load(Y, 1), load(X, 0)]]));
        assert!(!is_refused(vec![writer(), vec![load(Y, 0), load(X, 0)]]));
        let passes_on = || vec![load(Y, 1), store(Z, 2)];
        assert!(is_refused(vec![writer(), passes_on(), vec![load(Z, 2), load(X, 0)]]));
        assert!(!is_refused(vec![writer(), passes_on(), vec![load(Z, 2), load(X, 7)]]));
        let buffers = vec![vec![store(X, 1), load(Y, 0)], vec![store(Y, 1), load(X, 0)]];
        assert!(!is_refused(buffers), "nothing orders these stores");
        assert!(is_refused(vec![vec![store(X, 1), store(X, 2)], vec![load(X, 2), load(X, 1)]]));
    }

    #[test]
    fn readers_who_disagree_about_two_writes_are_refused() {
        let writers = || vec![vec![store(X, 1)], vec![store(Y, 1)]];
        let with = |readers: Vec<Vec<Event>>| [writers(), readers].concat();
        refused(with(vec![vec![load(X, 1), load(Y, 0)], vec![load(Y, 1), load(X, 0)]]), &["reads from"]);
        allowed(with(vec![vec![load(X, 1), load(Y, 0)], vec![load(Y, 1), load(X, 1)]]));
    }

    #[test]
    fn one_place_never_goes_back() {
        refused(
            vec![vec![store(X, 1)], vec![store(X, 2)], vec![load(X, 1), load(X, 2), load(X, 1)]],
            &["coherence"],
        );
        refused(vec![vec![store(X, 1)], vec![load(X, 1), load(X, 0)]], &["from read"]);
        allowed(vec![vec![store(X, 1)], vec![store(X, 2)], vec![load(X, 2), load(X, 1)]]);
        refused(
            vec![
                vec![store(X, 1)],
                vec![store(X, 2)],
                vec![load(X, 1), load(X, 2)],
                vec![load(X, 2), load(X, 1)],
            ],
            &["coherence"],
        );
    }

    #[test]
    fn locks_meetings_and_atomics_order() {
        let acquired = |turn| Event::Acquired { lock: LockId(0), turn };
        let released = |turn| Event::Released { lock: LockId(0), turn };
        let atomic =
            |turn, previous, current| Event::Atomic { page: Y.granule, offset: 0, turn, previous, current };
        let met = || Event::Met { epoch: 0 };
        refused(
            vec![vec![acquired(0), store(X, 1), released(0)], vec![acquired(1), load(X, 0), released(1)]],
            &["synchronisation"],
        );
        refused(vec![vec![store(X, 1), met()], vec![met(), load(X, 0)]], &["synchronisation"]);
        allowed(vec![vec![store(X, 1), met()], vec![met(), load(X, 1)]]);
        refused(vec![vec![store(X, 1), atomic(0, 0, 1)], vec![atomic(1, 1, 2), load(X, 0)]], &["coherence"]);
    }

    #[test]
    fn what_nobody_stored_is_refused() {
        refused(vec![vec![store(X, 1)], vec![load(X, 5)]], &["never stored"]);
    }
}
