//! Waking a node that sleeps, and not disturbing one that is awake.
//!
//! Each node has an eventfd, its doorbell, which all nodes have inherited. A node that may sleep shows the number of that sleep on its
//! board; one that is awake shows 0. Whoever has put something where the node should look rings when it sees a number for which it has
//! not rung yet: so a node that spins costs nobody a system call, and one that sleeps costs each peer one a sleep.
//!
//! ```text
//! sender                             receiver
//! put a frame, move the tail         show a number
//! fence                              fence                      SYNC POINT: one of the two sees what the other did
//! read the number, ring              look at all tails, sleep
//! ```
//!
//! A sender whose own thread polls can wait a moment before it rings: more often than not the receiver is about to poll as well, and a ring would
//! only have its service thread interrupt it. Such a ring is *owed*; it is paid when the moment has passed and the number is still
//! there, or when the sender stops polling.
//!
//! A sender of an unhurried message does not ring, unless the number shown is odd: then a thread of the node
//! sleeps until something comes. The node takes the message in at its next look, for whatever reason it
//! looks.
//!
//! The number has one writer, so a peer that dies between any two steps takes only its own message along. One that is late rings for a
//! sleep that has ended: the node looks once for nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;

use super::board::Board;

/// What a node that is awake shows.
const AWAKE: u64 = 0;

/// Set in the number of a sleep during which a thread waits for whatever comes.
const EXPECTS: u64 = 1;

/// For so long a ring is owed: the time that a node takes from one call into the runtime to the next in a loop of them.
const OWED_FOR: Duration = Duration::from_micros(3);

/// The doorbells of all nodes, as one of them has them.
#[derive(Debug)]
pub struct Bells {
    local: NodeId,
    doorbells: Vec<OwnedFd>,
    /// By node: the sleep for which this process rang last.
    rung_for: Vec<AtomicU64>,
    /// By node: since when this process owes it a ring, in nanoseconds after `origin`; 0 when it owes none.
    owed_since: Vec<AtomicU64>,
    /// Whether there may be any such.
    owes: AtomicBool,
    origin: Clock,
    /// This node's sleeps so far.
    sleeps: AtomicU64,
    /// Threads of this node that poll without sleeping.
    spinning: AtomicUsize,
    /// Threads of this node that sleep until something comes.
    expecting: AtomicUsize,
}

impl Bells {
    /// The bells of `local` and its peers, by node.
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

    /// This node's doorbell: readable when it was rung.
    pub fn own(&self) -> BorrowedFd<'_> {
        self.doorbells[self.local.index()].as_fd()
    }

    /// After something was put on the board of `node`, or taken from this node's: wakes the node if it sleeps.
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

    /// As [`ring`](Bells::ring), but if a thread of this node polls without sleeping, only once the node has had a moment to look by itself.
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
        // SYNC POINT: pairs with `end_spinning`, which stops spinning and then looks here: the last to spin sees the debt, or we see that
        // nobody spins.
        self.owes.store(true, Ordering::SeqCst);
        if !self.is_spinning() {
            self.owed_since[node.index()].store(0, Ordering::SeqCst);
            self.ring(node, board);
        }
    }

    /// As [`ring_soon`](Bells::ring_soon), but only if a thread of that node sleeps until something comes.
    pub fn ring_if_expecting(&self, node: NodeId, board: &Board) {
        // SYNC POINT: pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if board.sleep().load(Ordering::Relaxed) & EXPECTS != 0 {
            self.ring_soon(node, board);
        }
    }

    /// A thread of this node is about to sleep until something comes: the next sleep shows it.
    pub fn begin_expecting(&self) {
        self.expecting.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn end_expecting(&self) {
        let before = self.expecting.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "only a thread that expects something stops doing so");
    }

    /// Rings where it has been owed for long enough, or with `all` wherever it is owed.
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
        // An eventfd refuses only what would overflow it, and is readable then anyway.
        let _ = rustix::io::write(&self.doorbells[node.index()], &1u64.to_ne_bytes());
        // Afterwards: who sees the mark finds the eventfd readable.
        board.rung().store(1, Ordering::Release);
    }

    /// As [`silence`](Bells::silence), at the price of a system call only where one has rung.
    pub fn silence_if_rung(&self, own: &Board) {
        if own.rung().load(Ordering::Acquire) != 0 {
            self.silence(own);
        }
    }

    /// Forgets the rings so far. What they were for is to be looked at afterwards.
    pub fn silence(&self, own: &Board) {
        own.rung().store(0, Ordering::Relaxed);
        let mut count = [0; size_of::<u64>()];
        // Nothing to read is as good.
        let _ = rustix::io::read(self.own(), &mut count);
    }

    /// Nobody need ring from now on. The caller looks at everything before it lets the node sleep again.
    pub fn stay_awake(&self, own: &Board) {
        own.sleep().store(AWAKE, Ordering::SeqCst);
    }

    /// Whoever has something for this node must ring from now on. What came before the caller finds by looking, after this.
    pub fn fall_asleep(&self, own: &Board) {
        let number = self.sleeps.fetch_add(1, Ordering::SeqCst) + 1;
        let expects = if self.expecting.load(Ordering::SeqCst) > 0 { EXPECTS } else { 0 };
        own.sleep().store(number << 1 | expects, Ordering::SeqCst);
        // SYNC POINT: pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
    }

    /// A thread of this node polls without sleeping from now on.
    pub fn begin_spinning(&self, own: &Board) {
        self.spinning.fetch_add(1, Ordering::SeqCst);
        self.stay_awake(own);
    }

    /// It does so no more; true when it was the last, and the node has fallen asleep.
    pub fn end_spinning(&self, own: &Board) -> bool {
        let was_last = self.spinning.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last {
            self.fall_asleep(own);
        }
        was_last
    }

    /// Whether some thread polls without sleeping, and will let the node fall asleep when it ends.
    pub fn is_spinning(&self) -> bool {
        self.spinning.load(Ordering::SeqCst) > 0
    }
}
