//! Buffers kept for reuse, so that the hot path seldom asks the allocator.

/// No more buffers are kept.
const POOL_BUFFERS_MAX: usize = 64;

/// Larger buffers are kept apart: with the bound above there are at most 4 MiB of the others.
const POOL_BUFFER_BYTES_MAX: usize = 64 << 10;

/// No more large buffers are kept: for one message that grows and one that is being handled.
const LARGE_BUFFERS_MAX: usize = 2;

/// Still larger ones are given back to the allocator. The longest page in a message fits, as vectors grow.
const LARGE_BUFFER_BYTES_MAX: usize = 4 << 20;

/// A bounded stack of empty buffers.
#[derive(Debug, Default)]
pub struct BufferPool {
    buffers: Vec<Vec<u8>>,
    /// For messages that would otherwise grow from the length of a datagram to their own, each in memory that the system has just
    /// cleared.
    large: Vec<Vec<u8>>,
}

impl BufferPool {
    /// An empty buffer; a new one has room for `bytes_hint`.
    pub fn take(&mut self, bytes_hint: usize) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(bytes_hint))
    }

    /// An empty buffer for something of unknown length that is longer than `bytes_hint`.
    pub fn take_large(&mut self, bytes_hint: usize) -> Vec<u8> {
        self.large.pop().unwrap_or_else(|| self.take(bytes_hint))
    }

    /// Takes a buffer back.
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

    /// How many buffers are kept.
    pub fn len(&self) -> usize {
        self.buffers.len() + self.large.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
