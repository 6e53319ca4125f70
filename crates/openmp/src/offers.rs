//! What nodes share for reductions: where they offer their values to thread 0 (`gathering.rs`), and who
//! executes their updates (`updates.rs`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64};

/// What a node offers: the number of the reduction, and the list of its values. It lies on the stack of the
/// node's first thread, near the values.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub(crate) turn: AtomicU64,
    pub(crate) list: AtomicPtr<c_void>,
}

/// How many nodes may reduce so.
pub(crate) const NODES_MAX: usize = 256;
/// How many places of the program are told apart.
pub(crate) const PLACES: usize = 1024;

/// What the nodes know together of such reductions.
#[repr(C, align(4096))]
pub(crate) struct Reductions {
    /// How often the nodes had to meet once more.
    pub(crate) repeated: AtomicU64,
    /// Where each node's offer is. It stays there.
    pub(crate) offers: [AtomicPtr<Offer>; NODES_MAX],
    /// Not 0 if an extra barrier comes first, by places of the program. Several may share an entry.
    pub(crate) has_extra: [AtomicU8; PLACES],
}

/// Which updates of each node are claimed, and which of those that its own thread has claimed are done, by
/// the number of the node's barriers with updates.
#[repr(C, align(4096))]
pub(crate) struct Claims {
    pub(crate) claimed: [AtomicU64; NODES_MAX],
    pub(crate) done: [AtomicU64; NODES_MAX],
}
