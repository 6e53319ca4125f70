//! How much remains to be sent at a release, when updates wait for it and when they leave in the background;
//! and how long the whole phase takes.
//!
//! The paper that defines automatic update (Iftode and others, HPCA 1996) had no such hardware for most of
//! its programs, and took the time of the protocol without it, less the cost of twins, diffs and their
//! application. That estimate is shown beside the measurement. The region is large enough for its pages to be
//! mapped onto their home's frames if nodes share memory, in which case nothing remains to be sent.

use std::time::Instant;

use hiroba_base::LockId;

use super::node::{HOME, Node};
use super::samples::Taken;
use super::shared::{PAGE_BYTES, Region};

/// The protocols that are compared, each in a job of its own; the first is the one that the estimate starts
/// from.
pub const PROTOCOLS: [&str; 2] = ["hlrc", "aurc"];

/// The number of pages that a phase writes.
const PAGES: usize = 512;

/// The computation between two pages: some tens of microseconds.
const STEPS_PER_PAGE: u64 = 20_000;

const WARM_UP: usize = 4;

/// The times of one phase in nanoseconds, and how many bytes of diffs its release sent.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    release: f64,
    whole: f64,
    bytes_left: u64,
}

/// What a node has spent on twins and diffs in nanoseconds, and how many bytes the diffs took.
#[derive(Clone, Copy, Debug)]
struct Spent {
    own: u64,
    applying: u64,
    diff_bytes: u64,
}

impl Node<'_> {
    pub fn updates(&mut self) {
        for (sweeps, what) in [(1, "each written once"), (8, "each written 8 times")] {
            self.update(sweeps, what);
        }
    }

    fn spent(&self) -> Spent {
        let counters = self.runtime.statistics().counters;
        let own = counters.twin_ns + counters.diff_ns;
        Spent { own, applying: counters.apply_ns, diff_bytes: counters.diff_bytes }
    }

    fn update(&mut self, sweeps: usize, what: &str) {
        let runtime = self.runtime;
        let region = self.region(PAGES * PAGE_BYTES, HOME);
        let applying = self.region(8, HOME);
        let lock = self.own_lock();
        let rounds = self.plan.times(60);
        let mut phases = Vec::with_capacity(rounds);
        let mut before = self.spent();
        for round in 0..rounds + WARM_UP {
            if round == WARM_UP {
                before = self.spent();
            }
            runtime.barrier();
            let began = Instant::now();
            let mut phase = Phase::default();
            if self.is_client() {
                phase = self.compute_and_release(region, lock, sweeps, round as u64);
            }
            runtime.barrier();
            phase.whole = began.elapsed().as_nanos() as f64;
            phases.push(phase);
        }
        let after = self.spent();
        if self.is_home() {
            applying.store(0, after.applying - before.applying);
        }
        runtime.barrier();
        let phases = phases.split_off(WARM_UP);
        let taken = |of: fn(&Phase) -> f64| Taken::new(phases.iter().map(of).collect(), WARM_UP);
        let protocol = runtime.protocol().name();
        let left = phases.iter().map(|phase| phase.bytes_left).sum::<u64>() / 1024 / rounds as u64;
        let sent = (after.diff_bytes - before.diff_bytes) / 1024 / rounds as u64;
        let state = format!("{protocol}, {}, {PAGES} pages, {what}", self.plan.setting);
        let client = self.is_client();
        let fabric = self.plan.fabric.name();
        let release = client.then(|| taken(|phase| phase.release));
        // If nodes share memory, a region as large as this is mapped onto its home's frames.
        let how = if sent == 0 { ", stores are at the home" } else { "" };
        let sending = format!("{state}: {left} of {sent} KiB left to send{how}");
        self.tell("release after computing", fabric, &sending, release, None);
        self.tell("phase with its release", fabric, &state, client.then(|| taken(|phase| phase.whole)), None);
        if client && protocol == PROTOCOLS[0] {
            let saved = (after.own - before.own + applying.load(0)) as f64 / rounds as f64;
            let estimated = phases.iter().map(|phase| (phase.whole - saved).max(0.0)).collect();
            let state = format!("aurc as estimated: {state}, less twins, diffs and their application");
            self.tell("phase with its release", fabric, &state, Some(Taken::new(estimated, WARM_UP)), None);
        }
        runtime.barrier();
    }

    /// Writes the pages while the thread computes a fixed number of steps, then releases.
    fn compute_and_release(&self, region: Region, lock: LockId, sweeps: usize, round: u64) -> Phase {
        let mut value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for page in (0..sweeps).flat_map(|_| 0..PAGES) {
            for offset in (0..PAGE_BYTES).step_by(8) {
                value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                region.store(page * PAGE_BYTES + offset, value);
            }
            let mut x = value;
            let steps = STEPS_PER_PAGE / sweeps as u64;
            (0..steps).for_each(|step| x = std::hint::black_box(x.wrapping_mul(3) ^ step));
        }
        let before = self.spent();
        self.runtime.lock(lock);
        let began = Instant::now();
        self.runtime.unlock(lock);
        let release = began.elapsed().as_nanos() as f64;
        Phase { release, whole: 0.0, bytes_left: self.spent().diff_bytes - before.diff_bytes }
    }
}
