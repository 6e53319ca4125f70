//! Pieces of work that a team shares, as data: what threads tell each other of them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire};

/// The code of a region or of a task.
pub(crate) type Function = unsafe extern "C-unwind" fn(*mut c_void);

/// How many pieces of work may be under way at once.
pub(crate) const RING: usize = hiroba_schedule::RING as usize;

/// A piece of work.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// One more than the number of the last piece that a thread prepares or has prepared.
    pub(crate) claimed: AtomicU64,
    /// The same once it is prepared.
    pub(crate) ready: AtomicU64,
    /// The next iteration, chunk or section that no thread has taken; see `hiroba-schedule`.
    pub(crate) next: AtomicU64,
    /// The first iteration of the chunk whose turn it is in ordered regions.
    pub(crate) turn: AtomicU64,
    /// Not 0 once the work is cancelled.
    pub(crate) cancelled: AtomicU32,
    /// How many threads are past it without a barrier.
    pub(crate) passed: AtomicU32,
    /// Memory that goes with it, freed when the place is used again.
    pub(crate) memory: AtomicPtr<c_void>,
    /// Reductions over tasks in it.
    pub(crate) reductions: AtomicPtr<usize>,
    /// How a loop is executed that keeps its threads' speeds: see `sites.rs`.
    pub(crate) plan: AtomicU64,
}

impl Share {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire) != 0
    }
}
