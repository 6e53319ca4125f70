//! The start of the job: its team is made before `main` runs.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::context;
use crate::criticals::GOMP_atomic_end;
use crate::face;
use crate::job;
use crate::parallel::GOMP_barrier;
use crate::places;
use crate::runtime;
use crate::settings::settings;
use crate::teams;
use crate::updates;

/// Called by the library of pthreads on every node alike, when the program's memory is shared and before
/// anything of the program runs.
#[unsafe(no_mangle)]
extern "C" fn hiroba_prepare_above() {
    runtime::end_at_panics();
    let threads_per_node =
        std::env::var("HIROBA_THREADS_PER_NODE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let has_tasks = std::env::var_os("HIROBA_OPENMP_TASKS").is_some_and(|has| has == "1");
    if !job::make(threads_per_node, has_tasks) {
        runtime::fatal("expected shared memory for the OpenMP team, got none");
    }
    places::find();
    if job::node() == 0 {
        settings().show_if_wanted(&places::shown());
        context::lead();
        // The calling thread runs `main`.
        places::bind(0);
    }
    set_clock();
    updates::prepare(GOMP_barrier as *const () as usize, GOMP_atomic_end as *const () as usize);
    face::hiroba_barrier();
    teams::grow(job::places());
}

/// What is added to this node's clock, in nanoseconds.
static CLOCK_OFFSET_NS: AtomicI64 = AtomicI64::new(0);
/// Clocks that differ by less are one, or as good.
const SAME_CLOCK_NS: i64 = 1_000_000;

fn own_clock_ns() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Compares the nodes' clocks. Collective.
fn set_clock() {
    let clock_ns = &job::begun().clock_ns;
    face::hiroba_barrier();
    let own = own_clock_ns();
    if job::node() == 0 {
        clock_ns.store(own as u64, Relaxed);
    }
    face::hiroba_barrier();
    let offset = clock_ns.load(Relaxed) as i64 - own;
    if offset.abs() >= SAME_CLOCK_NS {
        CLOCK_OFFSET_NS.store(offset, Relaxed);
    }
}

/// Seconds since some moment, on a clock that all nodes share.
pub(crate) fn clock_s() -> f64 {
    (own_clock_ns() + CLOCK_OFFSET_NS.load(Relaxed)) as f64 / 1e9
}
