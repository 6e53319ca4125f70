//! The landing pool at the end of a node's board, where peers put out-of-line data directly.
//!
//! Who may write where, and when, is for the nodes to agree on by messages. The pool is mapped in all nodes,
//! as the rings are. Three ways for the data were measured; the tables are in `docs/PORTS.md`.
//!
//! A page of the pool gets its frame when it is first used, and keeps it. The first store of each process to
//! a page takes a fault, so a sender has the kernel map pages behind the last one that it has written, in one
//! call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hiroba_base::NodeId;

use super::ShmFabric;
use super::mapping::SharedMapping;
use crate::traits::LandingPool;

/// The pages that are mapped ahead are a multiple of this many bytes.
const AHEAD_BYTES: usize = 64 << 10;

/// A node's landing pool. It keeps the whole board mapped.
#[derive(Debug)]
struct OwnPool {
    board: Arc<SharedMapping>,
    start: usize,
    bytes: usize,
}

impl LandingPool for OwnPool {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "expected an offset below {}, got {offset}", self.bytes);
        self.board.address(self.start + offset)
    }

    fn append_to(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) {
        let is_inside = offset <= self.bytes && bytes <= self.bytes - offset;
        assert!(is_inside, "expected a span inside {} bytes, got {bytes} bytes at {offset}", self.bytes);
        self.board.append_to(self.start + offset, bytes, into);
    }
}

/// What this node has put into one peer's landing pool.
#[derive(Debug, Default)]
pub struct Landing {
    /// The number of bytes in total.
    bytes: AtomicU64,
    /// The pages from this offset in the pool on are not mapped for writing.
    mapped: AtomicUsize,
}

impl Landing {
    /// Returns the number of bytes that this node has put there.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl ShmFabric {
    /// Returns this node's landing pool, unless its address space is limited.
    pub(super) fn own_landing(&self) -> Option<Arc<dyn LandingPool>> {
        let (start, bytes) = (self.layout.landing, self.layout.landing_bytes);
        let board = self.own_board().memory.clone();
        self.lands.then(|| Arc::new(OwnPool { board, start, bytes }) as Arc<dyn LandingPool>)
    }

    /// Returns the place of `bytes` bytes at `offset` of the peer's landing pool: the board and the offset
    /// there. Its pages are mapped.
    fn place(&self, to: NodeId, offset: u64, bytes: usize) -> Option<(&SharedMapping, usize)> {
        let length = self.layout.landing_bytes;
        let start =
            usize::try_from(offset).ok().filter(|start| *start <= length && bytes <= length - start)?;
        if !self.lands || to == self.local {
            return None;
        }
        let board = &self.boards.get(to.index())?.memory;
        let landing = &self.outbound[to.index()].landing;
        let end = (start + bytes).next_multiple_of(AHEAD_BYTES).min(length);
        // Two threads may map the same pages, which does no harm.
        let mapped = landing.mapped.fetch_max(end, Ordering::Relaxed);
        let from = mapped.max(start / AHEAD_BYTES * AHEAD_BYTES);
        if from < end {
            board.populate(self.layout.landing + from, end - from);
        }
        landing.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Some((board, self.layout.landing + start))
    }

    pub(super) fn put_into_landing(&self, to: NodeId, offset: u64, bytes: &[u8]) -> bool {
        let place = self.place(to, offset, bytes.len());
        place.inspect(|(board, start)| board.copy_in(*start, bytes)).is_some()
    }

    pub(super) fn copy_into_landing(&self, to: NodeId, offset: u64, from: u64, bytes: usize) -> bool {
        let length = self.layout.landing_bytes;
        let from = usize::try_from(from).ok().filter(|from| *from <= length && bytes <= length - from);
        let Some(from) = from else { return false };
        let place = self.place(to, offset, bytes);
        let own = &self.own_board().memory;
        place
            .inspect(|(board, start)| board.copy_from(*start, own, self.layout.landing + from, bytes))
            .is_some()
    }
}
