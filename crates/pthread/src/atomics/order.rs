//! Ordered fetches of long blocks.
//!
//! A program whose threads pass data through atomic variables or flags in long blocks must see the data when
//! it sees the flag. The runtime's protocol does so only on demand (`protocol/src/hlrc/ordered.rs`). Programs
//! demand it from the start: they may pass data through plain loads and stores, which cannot be recognised.
//! Only in programs of OpenMP whose stores are noted by the kernel (`--write-tracking async`) the first
//! thread that operates atomically on a long block, passes a fence, or waits for a plain store, demands it of
//! all nodes, and goes on when they have begun: fetches are slower then.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::control::{Deadline, IN_ORDER, THREADS, control};
use crate::face;
use crate::record::this_node;
use crate::saying;
use crate::stacks::privately;

/// The time that the other nodes get. They answer at once, unless their machine is very busy.
static PATIENCE: libc::timespec = libc::timespec { tv_sec: 60, tv_nsec: 0 };

/// True if this node knows that all nodes order their fetches.
static IS_EVERYWHERE: AtomicBool = AtomicBool::new(false);

/// Has this node order its fetches. Called on all nodes before the program begins.
pub(super) fn order_from_start() {
    face::hiroba_order_fetches();
    IS_EVERYWHERE.store(true, Relaxed);
}

/// Has all nodes order their fetches. Returns when they do, or when the job ends.
pub(super) fn order_everywhere() {
    if IS_EVERYWHERE.load(Relaxed) {
        return;
    }
    if let Some(node) = privately(missing) {
        saying::fatal(&format!(
            "expected node {node} to order its fetches of long blocks within {} s, got no answer; \
             look at what that node does with 'hiroba run --debug {node}', or use --protocol sc",
            PATIENCE.tv_sec
        ));
    }
    IS_EVERYWHERE.store(true, Relaxed);
}

/// Tells all nodes, and waits for them. Returns a node that does not answer.
fn missing() -> Option<usize> {
    let nodes = face::hiroba_nodes() as usize;
    let deadline = Deadline::after(&raw const PATIENCE);
    let is_behind = |node: &usize| control().is_in_order[*node].load(Relaxed) == 0;
    THREADS.hold(|held| {
        if control().order_wanted.swap(1, Relaxed) == 0 {
            (0..nodes).for_each(|node| held.tell_starter(node));
        }
        loop {
            // A starter that has ended with the job does not answer.
            let missing = (0..nodes).find(is_behind).filter(|_| control().ending.load(Relaxed) == 0)?;
            if !held.wait_until(IN_ORDER, deadline) {
                return Some(missing);
            }
        }
    })
}

/// Has this node order its fetches. Called by its starter.
pub(crate) fn order_here() {
    face::hiroba_order_fetches();
    THREADS.hold(|held| {
        control().is_in_order[this_node() as usize].store(1, Relaxed);
        held.tell_of(IN_ORDER);
    });
}
