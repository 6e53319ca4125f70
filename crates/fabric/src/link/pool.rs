//! Buffers for reuse, so that the hot path seldom calls the allocator.

use crate::fresh::populate;

/// Maximum number of buffers kept.
const POOL_BUFFERS_MAX: usize = 64;

/// Larger buffers are kept separately. With the bound above, the smaller ones take at most 4 MiB.
const POOL_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Maximum number of large buffers kept: one for a message that grows and one for a message being handled.
const LARGE_BUFFERS_MAX: usize = 2;

/// Larger buffers are freed. The longest page in a message fits, given how vectors grow.
const LARGE_BUFFER_BYTES_MAX: usize = 4 << 20;

/// Initial length of a new buffer for something longer than a datagram.
const LARGE_BUFFER_BYTES_MIN: usize = 128 << 10;

/// Makes an empty buffer with room for `bytes`.
fn fresh(bytes: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(bytes);
    populate(buffer.spare_capacity_mut());
    buffer
}

/// A bounded stack of empty buffers.
#[derive(Debug, Default)]
pub struct BufferPool {
    buffers: Vec<Vec<u8>>,
    /// Large buffers, for messages that would otherwise grow step by step from a datagram's length, each time
    /// into memory that the system has just cleared.
    large: Vec<Vec<u8>>,
}

/// The buffers of a link set, by content.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Datagrams that wait for their acknowledgement or for earlier datagrams.
    pub datagrams: BufferPool,
    /// Messages being assembled.
    pub messages: BufferPool,
}

impl BufferPool {
    /// Takes an empty buffer with room for `bytes`.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.buffers.pop().filter(|buffer| buffer.capacity() >= bytes).unwrap_or_else(|| fresh(bytes))
    }

    /// Takes an empty buffer for content of unknown length above `bytes`.
    pub fn take_large(&mut self, bytes: usize) -> Vec<u8> {
        self.large.pop().unwrap_or_else(|| fresh(bytes.max(LARGE_BUFFER_BYTES_MIN)))
    }

    /// Returns a buffer to the pool.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let (kept, buffers_max) = if buffer.capacity() <= POOL_BUFFER_BYTES_MAX {
            (&mut self.buffers, POOL_BUFFERS_MAX)
        } else {
            (&mut self.large, LARGE_BUFFERS_MAX)
        };
        if buffer.capacity() == 0 || buffer.capacity() > LARGE_BUFFER_BYTES_MAX {
            return;
        }
        if kept.len() < buffers_max {
            buffer.clear();
            kept.push(buffer);
        }
    }

    /// Returns the number of buffers kept.
    pub fn len(&self) -> usize {
        self.buffers.len() + self.large.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_room_for_what_is_asked() {
        let mut pool = BufferPool::default();
        for bytes in [0, 1, 5000, 16 << 10, 65_507, 100, 65_507] {
            let mut buffer = pool.take(bytes);
            assert!(buffer.is_empty() && buffer.capacity() >= bytes);
            let room = buffer.as_ptr();
            buffer.resize(bytes, 7);
            assert_eq!(buffer.as_ptr(), room, "it has grown");
            pool.give(buffer);
        }
        assert_eq!(
            pool.len(),
            1,
            "buffers without any room are not kept, short ones make way for longer ones"
        );
    }

    #[test]
    fn long_buffers_come_back_to_long_messages_alone() {
        let mut pool = BufferPool::default();
        for bytes in [0, 100, POOL_BUFFER_BYTES_MAX + 1, LARGE_BUFFER_BYTES_MAX, LARGE_BUFFER_BYTES_MAX] {
            pool.give(Vec::with_capacity(bytes));
        }
        pool.give(Vec::with_capacity(LARGE_BUFFER_BYTES_MAX + 1));
        assert_eq!(pool.len(), 1 + LARGE_BUFFERS_MAX);
        assert!(pool.take(10).capacity() <= POOL_BUFFER_BYTES_MAX);
        assert!(pool.take(10).capacity() <= POOL_BUFFER_BYTES_MAX, "a short message got a long buffer");
        for _ in 0..LARGE_BUFFERS_MAX {
            assert!(pool.take_large(10).capacity() > POOL_BUFFER_BYTES_MAX);
        }
        assert_eq!((pool.len(), pool.take_large(10).is_empty()), (0, true));
    }
}
