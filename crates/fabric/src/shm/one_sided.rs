//! Words and announcements on boards, and copies of other nodes' frames.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use hiroba_base::NodeId;

use super::ShmFabric;
use super::ring::Nonsense;
use crate::traits::{LandingPool, OneSided};

/// This node's ends of the logs of announcements, by peer. The counts are ours; the boards only show them.
#[derive(Debug)]
pub struct Logs {
    /// Announcements made to each peer.
    made: Vec<AtomicU64>,
    /// Number of them that the peer had taken at the last check.
    taken_there: Vec<AtomicU64>,
    /// Announcements taken from each peer.
    taken: Vec<AtomicU64>,
}

impl Logs {
    /// Makes empty logs between `nodes` nodes.
    pub fn new(nodes: u16) -> Logs {
        let zeros = || (0..nodes).map(|_| AtomicU64::new(0)).collect();
        Logs { made: zeros(), taken_there: zeros(), taken: zeros() }
    }
}

impl ShmFabric {
    /// Returns true if the log at `home` has room for one more announcement; it has `made - taken` now.
    fn has_log_room(&self, home: NodeId, made: u64) -> bool {
        let entries = self.layout.log_entries();
        let seen = &self.logs.taken_there[home.index()];
        if made - seen.load(Ordering::Relaxed) < entries {
            return true;
        }
        // SYNC POINT: pairs with the release in `take_announcements`: the home has copied the entry that we
        // are about to overwrite.
        let taken = self.boards[home.index()].log_head(self.local).load(Ordering::Acquire);
        if taken > made || taken < seen.load(Ordering::Relaxed) {
            let expected = "no more announcements taken than were made, and never fewer than before";
            self.fail(&Nonsense { peer: home, expected, got: taken });
            return false;
        }
        seen.store(taken, Ordering::Relaxed);
        made - taken < entries
    }

    fn take_announcements(&self, reader: NodeId, take: &mut dyn FnMut(NodeId, u64)) {
        let board = &self.boards[self.local.index()];
        let count = &self.logs.taken[reader.index()];
        let taken = count.load(Ordering::Relaxed);
        // SYNC POINT: pairs with the release in `announce`.
        let made = board.log_tail(reader).load(Ordering::Acquire);
        if made == taken {
            return;
        }
        if made < taken || made - taken > self.layout.log_entries() {
            let expected = "a log with no more announcements than it holds, and never fewer than before";
            self.fail(&Nonsense { peer: reader, expected, got: made });
            return;
        }
        for number in taken..made {
            take(reader, board.log_entry(reader, number).load(Ordering::Relaxed));
        }
        count.store(made, Ordering::Relaxed);
        // SYNC POINT: pairs with the acquire in `has_log_room`.
        board.log_head(reader).store(made, Ordering::Release);
    }
}

impl OneSided for ShmFabric {
    fn reaches(&self, node: NodeId) -> bool {
        node.0 < self.nodes
    }

    fn announce(&self, home: NodeId, page: u64) -> bool {
        let count = &self.logs.made[home.index()];
        let made = count.load(Ordering::Relaxed);
        if !self.has_log_room(home, made) {
            return false;
        }
        let board = &self.boards[home.index()];
        board.log_entry(self.local, made).store(page, Ordering::Relaxed);
        count.store(made + 1, Ordering::Relaxed);
        // SYNC POINT: pairs with the acquire in `take_announcements`.
        board.log_tail(self.local).store(made + 1, Ordering::Release);
        // SYNC POINT: pairs with the fence in `announcements`. Either the home takes this announcement, or
        // our reads from here on return what it had written before it took the others.
        fence(Ordering::SeqCst);
        true
    }

    fn announcements(&self, take: &mut dyn FnMut(NodeId, u64)) {
        // SYNC POINT: pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        for reader in self.peers() {
            self.take_announcements(reader, take);
        }
    }

    fn read(&self, home: NodeId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.frames[home.index()].read(offset, into, &self.windows_open)
    }

    fn frames(&self, node: NodeId) -> Option<BorrowedFd<'_>> {
        Some(self.frames.get(node.index())?.file())
    }

    fn landing(&self) -> Option<Arc<dyn LandingPool>> {
        self.own_landing()
    }

    fn land(&self, to: NodeId, offset: u64, bytes: &[u8]) -> bool {
        self.put_into_landing(to, offset, bytes)
    }

    fn land_again(&self, to: NodeId, offset: u64, from: u64, bytes: usize) -> bool {
        self.copy_into_landing(to, offset, from, bytes)
    }

    fn publish(&self, slot: NodeId, value: u64) {
        // SYNC POINT: pairs with the acquire in `published`.
        self.boards[self.local.index()].published(slot).store(value, Ordering::Release);
    }

    fn published(&self, home: NodeId, slot: NodeId) -> u64 {
        // SYNC POINT: pairs with the release in `publish`.
        self.boards[home.index()].published(slot).load(Ordering::Acquire)
    }
}
