//! A loop as one thread sees it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::batches::{Batches, Own};
use crate::factoring;
use crate::kind::Kind;
use crate::profiled::{self, Numbers, Progress};
use crate::range::Range;
use crate::shared::{Shared, Team, take};
use crate::site::{FIXED, Site};
use crate::weights::Parts;

/// How many words a loop takes in a record that threads share.
pub const WORDS: usize = 9;

/// A loop as one thread sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loop {
    /// Its iterations.
    pub range: Range,
    kind: Kind,
    /// 0 for a static loop whose iterations are dealt out once.
    chunk: u64,
    evaluated: u64,
    skipped: u64,
    is_ordered: bool,
    /// The team takes chunks one after the other.
    is_in_order: bool,
    is_monotonic: bool,
    /// A name of the loop in the program, 0 for none.
    site: u64,
    /// How many chunks of a static loop the thread has had.
    trip: u64,
    of_node: Own,
    progress: Progress,
    /// How many iterations it has had, and since when, where it measures.
    measured: (u64, u64),
}

impl Loop {
    /// A loop with a schedule of OpenMP's own. `chunk` may be 0.
    pub fn new(range: Range, kind: Kind, chunk: u64) -> Loop {
        let least = u64::from(!matches!(kind, Kind::Static | Kind::Profiled));
        // A larger chunk than the loop is all of it, and cannot overflow.
        Loop { range, kind, chunk: chunk.max(least).min(range.count.max(1)), ..Loop::default() }
    }

    /// Says how many iterations threads time with `profiled`, and how many they run before.
    pub fn profiled(self, evaluated: u64, skipped: u64) -> Loop {
        Loop { evaluated, skipped, ..self }
    }

    /// Gives it the name by which it keeps its threads' speeds.
    pub fn at_site(self, site: u64) -> Loop {
        Loop { site, ..self }
    }

    /// Sections are the iterations 1, 2 … of a dynamic loop.
    pub fn sections(count: u32) -> Loop {
        Loop::new(Range::unsigned(true, 1, u64::from(count) + 1, 1), Kind::Dynamic, 1)
    }

    /// A loop whose iterations wait for earlier ones, which the team takes in their order. Schedules that
    /// give a thread much at once would make the others wait, so these become `dynamic`.
    pub fn in_order(self) -> Loop {
        let (kind, chunk) = match self.kind {
            Kind::Profiled | Kind::Factoring | Kind::WeightedFactoring => (Kind::Dynamic, self.chunk.max(1)),
            kind => (kind, self.chunk),
        };
        Loop { kind, chunk, is_in_order: true, is_monotonic: true, ..self }
    }

    /// The same with regions that run in the order of iterations.
    pub fn ordered(self) -> Loop {
        Loop { is_ordered: true, ..self.in_order() }
    }

    /// A loop whose threads never go back in it, if `is_monotonic`.
    pub fn monotonic(self, is_monotonic: bool) -> Loop {
        Loop { is_monotonic: self.is_monotonic || is_monotonic, ..self }
    }

    /// Returns true if it has regions in the order of its iterations.
    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Returns the kind and the name of a loop that keeps its threads' speeds, if it has a name and a team.
    pub fn keeps_speeds(&self, threads: u32) -> Option<(Kind, u64)> {
        let keeps = self.kind.is_weighted() && self.site != 0 && threads > 1 && self.range.count < FIXED;
        keeps.then_some((self.kind, self.site))
    }

    /// Writes it to a record that threads share. Words that it does not change are not stored.
    pub fn write(self, words: &[AtomicU64; WORDS]) {
        let flags = [self.is_ordered, self.is_in_order, self.is_monotonic];
        let bits = flags.iter().enumerate().map(|(bit, is_set)| u64::from(*is_set) << (8 + bit)).sum::<u64>();
        let kind = self.kind.number() | bits;
        let Range { start, step, count, end } = self.range;
        let values = [start, step, count, end, self.chunk, kind, self.evaluated, self.skipped, self.site];
        let changed = words.iter().zip(values).filter(|(word, value)| word.load(Relaxed) != *value);
        changed.for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Reads it from there.
    pub fn read(words: &[AtomicU64; WORDS]) -> Loop {
        let [start, step, count, end, chunk, kind, evaluated, skipped, site] =
            std::array::from_fn(|word| words[word].load(Relaxed));
        Loop {
            range: Range { start, step, count, end },
            kind: Kind::from_number(kind & 0xff),
            chunk,
            evaluated,
            skipped,
            is_ordered: kind & 1 << 8 != 0,
            is_in_order: kind & 1 << 9 != 0,
            is_monotonic: kind & 1 << 10 != 0,
            site,
            ..Loop::default()
        }
    }

    /// The next chunk of a thread: first iteration and end. `now_ns` is the thread's own clock.
    pub fn next(&mut self, team: Team, shared: Shared, now_ns: impl Fn() -> u64) -> Option<(u64, u64)> {
        let count = self.range.count;
        if team.threads == 1 && !matches!(self.kind, Kind::Static | Kind::Dynamic | Kind::Guided) {
            return take(shared.next, count, |_| count);
        }
        match (self.kind, shared.plan) {
            (Kind::Static, _) => self.next_static(u64::from(team.number), u64::from(team.threads)),
            (Kind::Profiled, Some(plan)) => {
                let (chunk, evaluated, skipped) = (self.chunk, self.evaluated, self.skipped);
                let may_go_back = !self.is_monotonic;
                let numbers = Numbers { count, chunk, evaluated, skipped, may_go_back };
                profiled::next(numbers, &mut self.progress, team, shared.next, plan, &now_ns)
            }
            (Kind::WeightedFactoring, Some((site, plan))) => {
                self.next_measured(team, shared.next, site, plan, &now_ns)
            }
            (Kind::Dynamic | Kind::Guided, _) => self.next_of_queue(team, shared),
            _ => self.next_of_round(team, shared.next, |length| length),
        }
    }

    /// A chunk of `factoring`.
    fn next_of_round(
        &self,
        team: Team,
        next: &AtomicU64,
        weighted: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        let sizes = (self.range.count, u64::from(team.threads), self.chunk.max(1));
        factoring::next(next, sizes, weighted)
    }

    /// A weighted chunk of it; the thread's speed is measured if the execution wants that.
    fn next_measured(
        &mut self,
        team: Team,
        next: &AtomicU64,
        site: Site,
        plan: u64,
        now_ns: &impl Fn() -> u64,
    ) -> Option<(u64, u64)> {
        let thread = team.number as usize;
        let measures = Site::measures(plan);
        if measures && self.measured.0 == 0 {
            self.measured.1 = now_ns();
        }
        let parts = Parts::new(&site.weights(plan));
        let chunk = self.next_of_round(team, next, |length| parts.weighted(thread, length));
        match chunk {
            Some((first, end)) => self.measured.0 += end - first,
            None if measures && self.measured.0 > 0 => {
                site.say(thread, profiled::speed(self.measured.0, self.measured.1, now_ns()));
                self.measured.0 = 0;
            }
            None => {}
        }
        chunk
    }

    fn next_of_queue(&mut self, team: Team, shared: Shared) -> Option<(u64, u64)> {
        let (count, is_guided) = (self.range.count, self.kind == Kind::Guided);
        let (units, least) = if is_guided { (count, self.chunk) } else { (count.div_ceil(self.chunk), 1) };
        let batches = Batches { units, least, is_guided, may_steal: !self.is_monotonic };
        let slots = shared.slots.filter(|slots| !self.is_in_order && batches.are_worth_it(team, *slots));
        if let Some(slots) = slots {
            let (first, end) = batches.next(team, shared.next, slots, &mut self.of_node)?;
            let length = if is_guided { 1 } else { self.chunk };
            return Some((first * length, (end * length).min(count)));
        }
        let threads = u64::from(team.threads);
        let size = |first: u64| {
            if is_guided { (count - first).div_ceil(threads).max(self.chunk) } else { self.chunk }
        };
        take(shared.next, count, size)
    }

    fn next_static(&mut self, number: u64, threads: u64) -> Option<(u64, u64)> {
        let count = self.range.count;
        let trip = self.trip;
        self.trip += 1;
        if self.chunk == 0 {
            // As compilers deal out iterations themselves: the first threads get one more.
            let (part, rest) = (count / threads, count % threads);
            let first = part * number + number.min(rest);
            let end = first + part + u64::from(number < rest);
            return (trip == 0 && first < end).then_some((first, end));
        }
        let first = (trip * threads + number).checked_mul(self.chunk).filter(|first| *first < count)?;
        Some((first, first.saturating_add(self.chunk).min(count)))
    }
}
