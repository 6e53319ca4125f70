//! Detects peers that have not taken what was left for them.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;

use super::ShmFabric;

/// The progress last seen of a peer with untaken messages.
#[derive(Clone, Copy, Debug)]
struct Owed {
    /// The amount of our data that it had taken.
    taken: u64,
    /// How much it had sent.
    sent: u64,
    since: Clock,
}

/// For each peer, its progress at the last look. Looking costs the peers nothing.
#[derive(Debug)]
pub struct Silences(Mutex<Vec<Option<Owed>>>);

impl Silences {
    /// Makes the state in which no peer owes anything.
    pub fn new(nodes: u16) -> Silences {
        Silences(Mutex::new(vec![None; usize::from(nodes)]))
    }

    /// Returns the peer that has left our messages untaken, and sent nothing, for the longest time over all
    /// looks. The time counts from the first look that found it silent.
    pub fn longest(&self, fabric: &ShmFabric) -> Option<(NodeId, Duration)> {
        let mut owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Clock::now();
        let mut longest = None;
        for peer in fabric.peers() {
            let seen = &mut owed[peer.index()];
            if fabric.untaken_bytes(peer) == 0 {
                *seen = None;
                continue;
            }
            let taken = fabric.boards[peer.index()].ring_head(fabric.local).load(Ordering::Relaxed);
            let sent = fabric.own_board().ring_tail(peer).load(Ordering::Relaxed);
            match seen {
                Some(seen) if (seen.taken, seen.sent) == (taken, sent) => {
                    let silence = now.saturating_duration_since(seen.since);
                    if longest.is_none_or(|(_, longest)| silence > longest) {
                        longest = Some((peer, silence));
                    }
                }
                _ => *seen = Some(Owed { taken, sent, since: now }),
            }
        }
        longest
    }
}
