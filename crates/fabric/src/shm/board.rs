//! What lies where on a node's board.
//!
//! ```text
//! offset                    who writes        what
//! 0                         its node          number of its present sleep, 0 when it is awake     (bell.rs)
//! 64                        whoever rings     1 when its doorbell was rung; its node sets it to 0
//! words      + 8 · slot     its node          published words                                     (one_sided.rs)
//! ring_tails + 8 · sender   the sender        bytes ever put into the sender's ring               (ring.rs)
//! ring_heads + 8 · sender   its node          bytes ever taken out of it
//! wants_room + 8 · sender   the sender        1 while messages wait in the sender for room
//! log_tails  + 8 · reader   the reader        announcements ever made                             (one_sided.rs)
//! log_heads  + 8 · reader   its node          announcements ever taken
//! logs       + … · reader   the reader        pages announced
//! rings      + … · sender   the sender        frames
//! ```
//!
//! The words that one side scans lie side by side, so that looking at all peers costs few cache lines, and apart from those that
//! the other side writes. Every other word has one writer. A board is sparse: rings and logs that nobody uses take no memory.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use hiroba_base::NodeId;
use rustix::fs::{SealFlags, fcntl_add_seals, fstat, ftruncate};

use super::mapping::SharedMapping;

/// What processors fetch at once, in bytes; adjacent lines are often fetched in pairs.
pub const LINE_BYTES: usize = 64;
const LINE_PAIR_BYTES: usize = 2 * LINE_BYTES;

/// What the rings of one board take at most when all are full, in bytes, while there are few enough nodes for it.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MIN: usize = 64 << 10;
const RING_BYTES_MAX: usize = 1 << 20;

/// The same for the logs of announcements.
const LOGS_BYTES: usize = 16 << 20;
const LOG_BYTES_MIN: usize = 8 << 10;
const LOG_BYTES_MAX: usize = 256 << 10;

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
    bytes: usize,
    /// What one log takes, in bytes; a power of two.
    log_bytes: usize,
    /// What one ring takes, in bytes; a power of two.
    pub ring_bytes: usize,
}

impl Layout {
    /// The same on every node of a job of `nodes` nodes.
    pub fn new(nodes: u16) -> Layout {
        let nodes = usize::from(nodes);
        let share = |all: usize| (all / nodes + 1).next_power_of_two() / 2;
        let ring_bytes = share(RINGS_BYTES).clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let log_bytes = share(LOGS_BYTES).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
        let array_bytes = (nodes * WORD_BYTES).next_multiple_of(LINE_PAIR_BYTES);
        let array = |index: usize| LINE_PAIR_BYTES + index * array_bytes;
        let logs = array(6).next_multiple_of(LOG_BYTES_MAX);
        let rings = (logs + nodes * log_bytes).next_multiple_of(RING_BYTES_MAX);
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
            bytes: rings + nodes * ring_bytes,
            log_bytes,
            ring_bytes,
        }
    }

    /// How many announcements a log holds.
    pub fn log_entries(&self) -> u64 {
        (self.log_bytes / WORD_BYTES) as u64
    }
}

/// A node's board, mapped in this process.
#[derive(Debug)]
pub struct Board {
    layout: Layout,
    /// The whole of it.
    pub memory: SharedMapping,
}

impl Board {
    /// Maps a board, and gives its file the length of one if nobody has yet.
    pub fn open(file: impl AsFd, layout: Layout) -> io::Result<Board> {
        let bytes = layout.bytes as u64;
        // All nodes do the same to all boards, in any order: once the length is set and sealed, it can only be set to itself.
        if fstat(&file)?.st_size as u64 != bytes {
            ftruncate(&file, bytes)?;
        }
        // A file that could get shorter would raise SIGBUS in whoever looks.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Board { layout, memory: SharedMapping::of_file(file, layout.bytes)? })
    }

    fn word(&self, array: usize, node: NodeId) -> &AtomicU64 {
        assert!(
            node.index() < self.layout.nodes,
            "expected one of {} nodes, got node {node}",
            self.layout.nodes
        );
        self.memory.word(array + node.index() * WORD_BYTES)
    }

    /// The number of the node's present sleep.
    pub fn sleep(&self) -> &AtomicU64 {
        self.memory.word(0)
    }

    /// Whether its doorbell was rung.
    pub fn rung(&self) -> &AtomicU64 {
        self.memory.word(LINE_BYTES)
    }

    /// A published word.
    pub fn published(&self, slot: NodeId) -> &AtomicU64 {
        self.word(self.layout.words, slot)
    }

    /// Bytes that `sender` has put into its ring.
    pub fn ring_tail(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.ring_tails, sender)
    }

    /// Bytes taken out of the sender's ring.
    pub fn ring_head(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.ring_heads, sender)
    }

    /// Whether the sender waits for room.
    pub fn wants_room(&self, sender: NodeId) -> &AtomicU64 {
        self.word(self.layout.wants_room, sender)
    }

    /// Announcements made by `reader`.
    pub fn log_tail(&self, reader: NodeId) -> &AtomicU64 {
        self.word(self.layout.log_tails, reader)
    }

    /// Announcements of the reader taken.
    pub fn log_head(&self, reader: NodeId) -> &AtomicU64 {
        self.word(self.layout.log_heads, reader)
    }

    /// The announcement of number `number`, or an older one in its place.
    pub fn log_entry(&self, reader: NodeId, number: u64) -> &AtomicU64 {
        let slot = (number % self.layout.log_entries()) as usize;
        self.memory.word(self.layout.logs + reader.index() * self.layout.log_bytes + slot * WORD_BYTES)
    }

    /// Where the sender's ring begins.
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
            assert_eq!(layout.bytes, layout.rings + usize::from(nodes) * layout.ring_bytes);
            assert!(layout.ring_bytes.is_power_of_two() && layout.log_bytes.is_power_of_two());
        }
        assert_eq!(Layout::new(2).ring_bytes, RING_BYTES_MAX);
        assert_eq!(Layout::new(MAX_NODES).ring_bytes, RING_BYTES_MIN);
    }
}
