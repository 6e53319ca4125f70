//! A simulated team: what its threads share, and threads with clocks of their own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hiroba_schedule::{Loop, Shared, Site, Slots, Team};

/// What the threads of a team share of a loop that is executed again and again.
pub struct Common {
    pub threads: u32,
    pub per_node: u32,
    next: AtomicU64,
    slots: Vec<AtomicU64>,
    site: Vec<AtomicU64>,
    plan: AtomicU64,
}

fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Words of a node, and the one that the loop uses.
const STRIDE: usize = 8;
const PLACE: usize = 3;

impl Common {
    pub fn new(threads: u32, per_node: u32) -> Common {
        let (slots, site) = (zeros(STRIDE * threads as usize), zeros(Site::words(threads)));
        Common { threads, per_node, next: AtomicU64::new(0), slots, site, plan: AtomicU64::new(0) }
    }

    /// The first thread comes to the loop. Returns what the loop's word is then.
    pub fn begin(&self, of_loop: Loop) -> u64 {
        let site = Site::new(&self.site, self.threads);
        let prepared = of_loop.keeps_speeds(self.threads).map(|(kind, _)| site.prepare(kind));
        let (plan, first) = prepared.unwrap_or_default();
        self.plan.store(plan, Relaxed);
        self.next.store(first, Relaxed);
        first
    }

    pub fn team(&self, number: u32) -> Team {
        Team { number, threads: self.threads, per_node: self.per_node }
    }

    pub fn slots(&self) -> Slots<'_> {
        Slots { words: &self.slots, stride: STRIDE, place: PLACE }
    }

    pub fn shared(&self, of_loop: &Loop) -> Shared<'_> {
        let site = Site::new(&self.site, self.threads);
        let plan = of_loop.keeps_speeds(self.threads).map(|_| (site, self.plan.load(Relaxed)));
        Shared { next: &self.next, slots: Some(self.slots()), plan }
    }

    /// What the nodes' claims have come to.
    pub fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }
}

/// One execution of a loop by threads that take `cost(thread, iteration)` nanoseconds for an iteration: whose
/// clock is behind takes the next chunk. Returns all chunks with their threads, in the order in which they
/// were taken, and the clocks at the end.
pub fn execute(
    common: &Common,
    of_loop: Loop,
    cost: impl Fn(u32, u64) -> u64,
) -> (Vec<(u32, u64, u64)>, Vec<u64>) {
    common.begin(of_loop);
    let mut threads: Vec<(Loop, u64, bool)> = vec![(of_loop, 0, false); common.threads as usize];
    let mut chunks = Vec::new();
    loop {
        let behind =
            (0..threads.len()).filter(|thread| !threads[*thread].2).min_by_key(|thread| threads[*thread].1);
        let Some(thread) = behind else { break };
        let (own, clock, is_done) = &mut threads[thread];
        let now = *clock;
        match own.next(common.team(thread as u32), common.shared(&of_loop), || now) {
            Some((first, end)) => {
                assert!(first < end && end <= of_loop.range.count, "a chunk {first}..{end}");
                chunks.push((thread as u32, first, end));
                *clock += (first..end).map(|iteration| cost(thread as u32, iteration)).sum::<u64>();
            }
            None => *is_done = true,
        }
    }
    (chunks, threads.iter().map(|(_, clock, _)| *clock).collect())
}

/// Asserts that chunks are every iteration once.
#[track_caller]
pub fn assert_once(count: u64, mut chunks: Vec<(u64, u64)>) {
    chunks.sort_unstable();
    let mut behind = 0;
    for (first, end) in chunks {
        assert_eq!(first, behind, "iterations from {behind} to {first} are given out twice or never");
        behind = end;
    }
    assert_eq!(behind, count, "the last iterations are given out");
}

/// How many iterations each thread had.
pub fn iterations(threads: u32, chunks: &[(u32, u64, u64)]) -> Vec<u64> {
    let of = |number| {
        chunks.iter().filter(move |(thread, ..)| *thread == number).map(|(_, first, end)| end - first)
    };
    (0..threads).map(|number| of(number).sum()).collect()
}
