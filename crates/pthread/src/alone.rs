//! Whether `main` is the only thread of the program that runs.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::control::control;
use crate::face;

/// True while threads of an OpenMP team run.
static IS_TEAM_RUNNING: AtomicBool = AtomicBool::new(false);

/// Called by the library of OpenMP on node 0 when a team begins and ends.
#[unsafe(no_mangle)]
extern "C" fn hiroba_note_team(runs: c_int) {
    IS_TEAM_RUNNING.store(runs != 0, Relaxed);
}

thread_local! {
    /// True in the thread that runs `main`.
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the calling thread runs `main`.
pub(crate) fn note_main() {
    IS_MAIN.set(true);
}

/// Returns true if the calling thread runs `main`, and no other thread of the program runs.
pub(crate) fn is_main_alone() -> bool {
    let nodes = face::hiroba_nodes().max(1) as usize;
    let running = || control().running.iter().take(nodes).map(|running| running.load(Relaxed)).sum::<u32>();
    IS_MAIN.get() && !IS_TEAM_RUNNING.load(Relaxed) && running() <= 1
}
