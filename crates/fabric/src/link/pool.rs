//! Buffers kept for reuse, so that the hot path seldom asks the allocator.

/// No more buffers are kept.
const POOL_BUFFERS_MAX: usize = 64;

/// Larger buffers are given back to the allocator: with the bound above a pool keeps at most 4 MiB.
const POOL_BUFFER_BYTES_MAX: usize = 64 << 10;

/// A bounded stack of empty buffers.
#[derive(Debug, Default)]
pub struct BufferPool {
    buffers: Vec<Vec<u8>>,
}

impl BufferPool {
    /// An empty buffer; a new one has room for `bytes_hint`.
    pub fn take(&mut self, bytes_hint: usize) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(bytes_hint))
    }

    /// Takes a buffer back.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0
            && buffer.capacity() <= POOL_BUFFER_BYTES_MAX
            && self.buffers.len() < POOL_BUFFERS_MAX
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// How many buffers are kept.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }
}
