//! Ordered fetches of long blocks.
//!
//! A program whose threads pass data through atomic variables or flags in long blocks must see the data when
//! it sees the flag. The runtime's protocol does so only on demand (`protocol/src/hlrc/ordered.rs`), because
//! it makes fetches slower. Programs of POSIX threads demand it from the start: they may pass data through
//! plain loads and stores, which cannot be recognised. In programs of OpenMP the first thread that operates
//! atomically on a long block, passes a fence, or waits for a plain store, demands it of all nodes, and goes
//! on when they have begun.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::control::{THREADS, control};
use crate::face;
use crate::stacks::privately;

/// The time that the nodes get. A starter that has ended with the job does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

fn is_everywhere() -> bool {
    FROM_START.load(Relaxed) || control().nodes_in_order.load(Relaxed) >= face::hiroba_nodes() as u32
}

/// True if this node ordered its fetches before the program began, as all do then.
static FROM_START: AtomicBool = AtomicBool::new(false);

/// Has this node order its fetches. Called on all nodes before the program begins.
pub(super) fn order_from_start() {
    face::hiroba_order_fetches();
    FROM_START.store(true, Relaxed);
}

/// Has all nodes order their fetches. Returns when they do.
pub(super) fn order_everywhere() {
    if is_everywhere() {
        return;
    }
    privately(|| {
        THREADS.hold(|held| {
            if control().order_wanted.swap(1, Relaxed) == 0 {
                (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
            }
        });
        let since = Instant::now();
        while !is_everywhere() && since.elapsed() < PATIENCE {
            std::thread::sleep(LOOK_INTERVAL);
        }
    });
}

/// Has this node order its fetches. Called by its starter.
pub(crate) fn order_here() {
    face::hiroba_order_fetches();
    THREADS.hold(|_| {
        let nodes = &control().nodes_in_order;
        nodes.store(nodes.load(Relaxed) + 1, Relaxed);
    });
}
