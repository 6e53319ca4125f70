//! Wakes a sleeping node without disturbing one that is awake.
//!
//! Each node has an eventfd, its doorbell, which all nodes have inherited. A node that may sleep shows the
//! number of that sleep on its board; a node that is awake shows 0. A peer that has left something for the
//! node rings when it sees a number for which it has not rung yet. So a spinning node costs its peers no
//! system call, and a sleeping node costs each peer one per sleep.
//!
//! ```text
//! sender                             receiver
//! put a frame, move the tail         show a number
//! fence                              fence                      SYNC POINT: one of the two sees the other's action
//! read the number, ring              look at all tails, sleep
//! ```
//!
//! A sender with a polling thread can wait a moment before it rings: mostly the receiver is about to poll as
//! well, and a ring would only make its service thread interrupt it. Such a ring is *owed*. It is paid when
//! the moment has passed and the number is still shown, or when the sender stops polling.
//!
//! A sender of an unhurried message does not ring, unless the number shown is odd: then a thread of the node
//! sleeps until something arrives. The node receives the message the next time it looks for any reason.
//!
//! The number has one writer, so a peer that dies between any two steps loses only its own message. A late
//! peer rings for a sleep that has ended: the node then looks once in vain.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;

use super::board::Board;

/// Shown by a node that is awake.
const AWAKE: u64 = 0;

/// Set in the number of a sleep during which a thread waits for anything to arrive.
const EXPECTS: u64 = 1;

/// How long a ring is owed: the time between two calls of a node into the runtime in a loop of such calls.
const OWED_FOR: Duration = Duration::from_micros(3);

/// The doorbells of all nodes, as one node sees them.
#[derive(Debug)]
pub struct Bells {
    local: NodeId,
    doorbells: Vec<OwnedFd>,
    /// By node: the sleep for which this process rang last.
    rung_for: Vec<AtomicU64>,
    /// By node: since when this process owes it a ring, in nanoseconds after `origin`; 0 when it owes none.
    owed_since: Vec<AtomicU64>,
    /// True if any ring may be owed.
    owes: AtomicBool,
    origin: Clock,
    /// Number of this node's sleeps so far.
    sleeps: AtomicU64,
    /// Number of this node's threads that poll without sleeping.
    spinning: AtomicUsize,
    /// Number of this node's threads that sleep until something arrives.
    expecting: AtomicUsize,
}

impl Bells {
    /// Makes the bells of `local` and its peers, by node.
    pub fn new(local: NodeId, doorbells: Vec<OwnedFd>) -> Bells {
        let rung_for = doorbells.iter().map(|_| AtomicU64::new(AWAKE)).collect();
        let owed_since = doorbells.iter().map(|_| AtomicU64::new(0)).collect();
        Bells {
            local,
            doorbells,
            rung_for,
            owed_since,
            owes: AtomicBool::new(false),
            origin: Clock::now(),
            sleeps: AtomicU64::new(AWAKE),
            spinning: AtomicUsize::new(0),
            expecting: AtomicUsize::new(0),
        }
    }

    /// Returns this node's doorbell, which is readable when it was rung.
    pub fn own(&self) -> BorrowedFd<'_> {
        self.doorbells[self.local.index()].as_fd()
    }

    /// Wakes a node if it sleeps. Call it after something was put on the node's board, or taken from this
    /// node's.
    pub fn ring(&self, node: NodeId, board: &Board) {
        // SYNC POINT: pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        let sleep = board.sleep().load(Ordering::Relaxed);
        let rung_for = &self.rung_for[node.index()];
        if sleep != AWAKE && rung_for.load(Ordering::Relaxed) != sleep {
            rung_for.store(sleep, Ordering::Relaxed);
            self.strike(node, board);
        }
    }

    /// Rings like [`ring`](Bells::ring). If a thread of this node polls without sleeping, the ring waits
    /// until the node has had a moment to look by itself.
    pub fn ring_soon(&self, node: NodeId, board: &Board) {
        // SYNC POINT: pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if board.sleep().load(Ordering::Relaxed) == AWAKE {
            return;
        }
        if !self.is_spinning() {
            return self.ring(node, board);
        }
        let now = self.origin.elapsed().as_nanos() as u64;
        self.owed_since[node.index()].store(now.max(1), Ordering::SeqCst);
        // SYNC POINT: pairs with `end_spinning`, which stops spinning and then looks here. Either the last
        // spinning thread sees the debt, or we see that no thread spins.
        self.owes.store(true, Ordering::SeqCst);
        if !self.is_spinning() {
            self.owed_since[node.index()].store(0, Ordering::SeqCst);
            self.ring(node, board);
        }
    }

    /// Rings like [`ring_soon`](Bells::ring_soon), but only if a thread of that node sleeps until something
    /// arrives.
    pub fn ring_if_expecting(&self, node: NodeId, board: &Board) {
        // SYNC POINT: pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if board.sleep().load(Ordering::Relaxed) & EXPECTS != 0 {
            self.ring_soon(node, board);
        }
    }

    /// Records that a thread of this node is about to sleep until something arrives. The next sleep shows it.
    pub fn begin_expecting(&self) {
        self.expecting.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends [`begin_expecting`](Bells::begin_expecting).
    pub fn end_expecting(&self) {
        let before = self.expecting.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "only a thread that expects something stops doing so");
    }

    /// Rings where a ring was owed for long enough, or with `all` wherever one is owed.
    pub fn pay(&self, boards: &[Board], all: bool) {
        if !self.owes.load(Ordering::SeqCst) {
            return;
        }
        self.owes.store(false, Ordering::SeqCst);
        let now = self.origin.elapsed();
        for (node, (owed_since, board)) in self.owed_since.iter().zip(boards).enumerate() {
            let since = owed_since.load(Ordering::SeqCst);
            if since == 0 {
                continue;
            }
            if all || now.saturating_sub(Duration::from_nanos(since)) >= OWED_FOR {
                owed_since.store(0, Ordering::SeqCst);
                self.ring(NodeId(node as u16), board);
            } else {
                self.owes.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Makes this node's own descriptor readable.
    pub fn ring_own(&self, own: &Board) {
        self.strike(self.local, own);
    }

    fn strike(&self, node: NodeId, board: &Board) {
        // An eventfd refuses only a write that would overflow it, and is readable then anyway.
        let _ = rustix::io::write(&self.doorbells[node.index()], &1u64.to_ne_bytes());
        // Afterwards, so that a node that sees the mark finds the eventfd readable.
        board.rung().store(1, Ordering::Release);
    }

    /// Silences like [`silence`](Bells::silence), with a system call only if the doorbell was rung.
    pub fn silence_if_rung(&self, own: &Board) {
        if own.rung().load(Ordering::Acquire) != 0 {
            self.silence(own);
        }
    }

    /// Forgets the rings so far. The caller looks at the boards afterwards.
    pub fn silence(&self, own: &Board) {
        own.rung().store(0, Ordering::Relaxed);
        let mut count = [0; size_of::<u64>()];
        // It does not matter if there is nothing to read.
        let _ = rustix::io::read(self.own(), &mut count);
    }

    /// Announces that peers need not ring. The caller looks at everything before it lets the node sleep
    /// again.
    pub fn stay_awake(&self, own: &Board) {
        own.sleep().store(AWAKE, Ordering::SeqCst);
    }

    /// Announces that peers must ring from now on. The caller looks afterwards for what arrived before.
    pub fn fall_asleep(&self, own: &Board) {
        let number = self.sleeps.fetch_add(1, Ordering::SeqCst) + 1;
        let expects = if self.expecting.load(Ordering::SeqCst) > 0 { EXPECTS } else { 0 };
        own.sleep().store(number << 1 | expects, Ordering::SeqCst);
        // SYNC POINT: pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Records that a thread of this node polls without sleeping from now on.
    pub fn begin_spinning(&self, own: &Board) {
        self.spinning.fetch_add(1, Ordering::SeqCst);
        self.stay_awake(own);
    }

    /// Ends it. Returns true when it was the last such thread and the node has fallen asleep.
    pub fn end_spinning(&self, own: &Board) -> bool {
        let was_last = self.spinning.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last {
            self.fall_asleep(own);
        }
        was_last
    }

    /// Returns true if a thread polls without sleeping; the node falls asleep when it ends.
    pub fn is_spinning(&self) -> bool {
        self.spinning.load(Ordering::SeqCst) > 0
    }
}
