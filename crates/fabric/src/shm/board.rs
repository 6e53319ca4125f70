//! The layout of a node's board.
//!
//! ```text
//! offset                    written by        content
//! 0                         its node          number of its present sleep, 0 when it is awake     (bell.rs)
//! 64                        any peer          1 when its doorbell was rung; its node sets it to 0
//! words      + 8 · slot     its node          published words                                     (one_sided.rs)
//! ring_tails + 8 · sender   the sender        total bytes put into the sender's ring              (ring.rs)
//! ring_heads + 8 · sender   its node          total bytes taken out of it
//! wants_room + 8 · sender   the sender        1 while messages wait in the sender for room
//! log_tails  + 8 · reader   the reader        total announcements made                            (one_sided.rs)
//! log_heads  + 8 · reader   its node          total announcements taken
//! logs       + … · reader   the reader        pages announced
//! rings      + … · sender   the sender        frames
//! landing                   any peer          out-of-line data, where the node has said  (landing.rs)
//! ```
//!
//! Words that one side scans are adjacent, so that looking at all peers costs few cache lines, and separate
//! from those that the other side writes. Every word but the second has one writer. A board is sparse: unused
//! rings and logs, and what was never used of the landing pool, take no memory.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hiroba_base::NodeId;
use rustix::fs::{SealFlags, fcntl_add_seals, fstat, ftruncate};

use super::mapping::SharedMapping;

/// The cache line, in bytes. Adjacent lines are often fetched in pairs.
pub const LINE_BYTES: usize = 64;
const LINE_PAIR_BYTES: usize = 2 * LINE_BYTES;

/// Maximum total length of the rings of one board, in bytes, as long as the number of nodes permits.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MIN: usize = 64 << 10;
const RING_BYTES_MAX: usize = 1 << 20;

/// The same for the logs of announcements.
const LOGS_BYTES: usize = 16 << 20;
const LOG_BYTES_MIN: usize = 8 << 10;
const LOG_BYTES_MAX: usize = 256 << 10;

/// Maximum total length of the landing pools of a job, in bytes, as long as the number of nodes permits. Each
/// node maps all of them.
const LANDINGS_BYTES: usize = 2 << 30;
const LANDING_BYTES_MIN: usize = 8 << 20;
const LANDING_BYTES_MAX: usize = 64 << 20;

const WORD_BYTES: usize = size_of::<u64>();

/// The offsets on the boards of a job.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    nodes: usize,
    words: usize,
    ring_tails: usize,
    ring_heads: usize,
    wants_room: usize,
    log_tails: usize,
    log_heads: usize,
    logs: usize,
    rings: usize,
    /// The offset of the landing pool, which is at the end.
    pub landing: usize,
    bytes: usize,
    /// The length of one log in bytes, a power of two.
    log_bytes: usize,
    /// The length of one ring in bytes, a power of two.
    pub ring_bytes: usize,
    /// The length of the landing pool in bytes.
    pub landing_bytes: usize,
}

impl Layout {
    /// Computes the layout for a job of `nodes` nodes; the same on every node.
    pub fn new(nodes: u16) -> Layout {
        let nodes = usize::from(nodes);
        let share = |all: usize| (all / nodes + 1).next_power_of_two() / 2;
        let ring_bytes = share(RINGS_BYTES).clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let log_bytes = share(LOGS_BYTES).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
        let landing_bytes = share(LANDINGS_BYTES).clamp(LANDING_BYTES_MIN, LANDING_BYTES_MAX);
        let array_bytes = (nodes * WORD_BYTES).next_multiple_of(LINE_PAIR_BYTES);
        let array = |index: usize| LINE_PAIR_BYTES + index * array_bytes;
        let logs = array(6).next_multiple_of(LOG_BYTES_MAX);
        let rings = (logs + nodes * log_bytes).next_multiple_of(RING_BYTES_MAX);
        let landing = rings + nodes * ring_bytes;
        Layout {
            nodes,
            words: array(0),
            ring_tails: array(1),
            ring_heads: array(2),
            wants_room: array(3),
            log_tails: array(4),
            log_heads: array(5),
            logs,
            rings,
            landing,
            bytes: landing + landing_bytes,
            log_bytes,
            ring_bytes,
            landing_bytes,
        }
    }

    /// Returns the capacity of a log in announcements.
    pub fn log_entries(&self) -> u64 {
        (self.log_bytes / WORD_BYTES) as u64
    }
}

/// A node's board, mapped in this process.
#[derive(Debug)]
pub struct Board {
    layout: Layout,
    /// The board, up to its landing pool or with it. Regions in the pool keep it mapped.
    pub memory: Arc<SharedMapping>,
}

impl Board {
    /// Maps a board, with its landing pool or without. Sets the length of its file if no node has done so
    /// yet.
    pub fn open(file: impl AsFd, layout: Layout, with_landing: bool) -> io::Result<Board> {
        let bytes = layout.bytes as u64;
        // All nodes do the same to all boards, in any order. Once the length is set and sealed, it can only
        // be set to itself.
        if fstat(&file)?.st_size as u64 != bytes {
            ftruncate(&file, bytes)?;
        }
        // A file that could shrink would raise SIGBUS in its readers.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let mapped = if with_landing { layout.bytes } else { layout.landing };
        Ok(Board { layout, memory: Arc::new(SharedMapping::of_file(file, mapped)?) })
    }

    fn word(&self, array: usize, node: NodeId) -> &AtomicU64 {
        assert!(
            node.index() < self.layout.nodes,
            "expected one of {} nodes, got node {node}",
            self.layout.nodes
        );
        self.memory.word(array + node.index() * WORD_BYTES)
    }

    /// Returns the number of the node's present sleep.
    pub fn sleep(&self) -> &AtomicU64 {
        self.memory.word(0)
    }

    /// Returns the mark that its doorbell was rung.
    pub fn rung(&self) -> &AtomicU64 {
        self.memory.word(LINE_BYTES)
    }

    /// Returns a published word.
    pub fn published(&self, slot: NodeId) -> &AtomicU64 {
        self.word(self.layout.words, slot)
    }

    /// Returns the count of bytes that `sender` has put into its ring.
    pub fn ring_tail(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.ring_tails, sender)
    }

    /// Returns the count of bytes taken out of the sender's ring.
    pub fn ring_head(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.ring_heads, sender)
    }

    /// Returns the mark that the sender waits for room.
    pub fn wants_room(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.wants_room, sender)
    }

    /// Returns the count of announcements made by `reader`.
    pub fn log_tail(&self, reader: NodeId) -> &AtomicU64 {
        self.word(self.layout.log_tails, reader)
    }

    /// Returns the count of the reader's announcements that were taken.
    pub fn log_head(&self, reader: NodeId) -> &AtomicU64 {
        self.word(self.layout.log_heads, reader)
    }

    /// Returns the announcement of number `number`, or an older one in its place.
    pub fn log_entry(&self, reader: NodeId, number: u64) -> &AtomicU64 {
        let slot = (number % self.layout.log_entries()) as usize;
        self.memory.word(self.layout.logs + reader.index() * self.layout.log_bytes + slot * WORD_BYTES)
    }

    /// Returns the offset of the sender's ring.
    pub fn ring_start(&self, sender: NodeId) -> usize {
        self.layout.rings + sender.index() * self.layout.ring_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroba_base::MAX_NODES;

    #[test]
    fn nothing_overlaps_and_rings_are_powers_of_two() {
        for nodes in [1, 2, 3, 8, 31, 32, 33, 128, MAX_NODES] {
            let layout = Layout::new(nodes);
            let array = usize::from(nodes) * WORD_BYTES;
            let starts = [
                0,
                layout.words,
                layout.ring_tails,
                layout.ring_heads,
                layout.wants_room,
                layout.log_tails,
                layout.log_heads,
                layout.logs,
            ];
            assert!(starts.windows(2).all(|pair| pair[1] % LINE_PAIR_BYTES == 0 && pair[0] < pair[1]));
            assert!(starts[1..].windows(2).all(|pair| pair[0] + array <= pair[1]));
            assert!(layout.logs + usize::from(nodes) * layout.log_bytes <= layout.rings);
            assert_eq!(layout.landing, layout.rings + usize::from(nodes) * layout.ring_bytes);
            assert_eq!(layout.bytes, layout.landing + layout.landing_bytes);
            assert!(layout.landing.is_multiple_of(4096) && layout.landing_bytes.is_multiple_of(4096));
            assert!(layout.ring_bytes.is_power_of_two() && layout.log_bytes.is_power_of_two());
        }
        assert_eq!(Layout::new(2).ring_bytes, RING_BYTES_MAX);
        assert_eq!(Layout::new(MAX_NODES).ring_bytes, RING_BYTES_MIN);
        assert_eq!(Layout::new(2).landing_bytes, LANDING_BYTES_MAX);
        assert_eq!(Layout::new(MAX_NODES).landing_bytes, LANDING_BYTES_MIN);
    }
}
