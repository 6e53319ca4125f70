//! Size classes: small blocks have few distinct sizes, so that a freed block suits the next request.

use crate::arena::GRAIN_BYTES;

/// A span has blocks of one class. Span lengths are multiples of this, and spans are aligned to it.
pub(super) const SPAN_BYTES: u64 = 64 << 10;

/// Span length for classes of which a short span would have few blocks.
const LONG_SPAN_BYTES: u64 = 512 << 10;

/// The largest blocks that lie in short spans.
const SHORT_SPAN_BLOCK_BYTES_MAX: u64 = 8 << 10;

/// Larger blocks are cut from the arena one by one.
pub(super) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// A thread's cache keeps at most this many bytes of a class (but always [`HELD_BLOCKS_MIN`] blocks) ...
const HELD_BYTES_MAX: u64 = 64 << 10;
/// ... and no more than this many blocks.
const HELD_BLOCKS_MAX: u64 = 256;
const HELD_BLOCKS_MIN: u64 = 4;

/// One size class.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeClass {
    pub(super) bytes: u64,
    pub(super) span_bytes: u64,
    /// Number of blocks in a span.
    pub(super) blocks: usize,
    /// Maximum number of blocks in a thread's cache.
    pub(super) held_max: usize,
    /// 2⁴⁰ / bytes, rounded up: a multiplication and a shift divide an offset in a span by `bytes`.
    reciprocal: u64,
}

impl SizeClass {
    fn new(bytes: u64) -> SizeClass {
        let held = (HELD_BYTES_MAX / bytes).clamp(HELD_BLOCKS_MIN, HELD_BLOCKS_MAX);
        let span_bytes = if bytes <= SHORT_SPAN_BLOCK_BYTES_MAX { SPAN_BYTES } else { LONG_SPAN_BYTES };
        SizeClass {
            bytes,
            span_bytes,
            blocks: (span_bytes / bytes) as usize,
            held_max: held as usize,
            reciprocal: (1u64 << 40).div_ceil(bytes),
        }
    }

    /// Returns the index of the block that contains the byte at `offset` in its span. `offset` is less than
    /// the span's length. The index is `blocks` or more for the unused rest at the span's end.
    #[inline]
    pub(super) fn index_of(&self, offset: u64) -> usize {
        ((offset * self.reciprocal) >> 40) as usize
    }
}

/// The size classes of a heap.
#[derive(Debug)]
pub(super) struct SizeClasses {
    classes: Vec<SizeClass>,
    /// The class for each number of grains.
    by_grains: Box<[u8]>,
}

impl SizeClasses {
    /// Makes the classes. A block of a page or more occupies whole pages, so those classes are multiples of
    /// it.
    pub(super) fn new(page_bytes: u64) -> SizeClasses {
        // At most a fifth of a block is unused, except for the smallest ones and those rounded to pages.
        let steps = (1..=8).map(|step| step * GRAIN_BYTES);
        let doublings = (7..16).flat_map(|shift| (5..=8).map(move |quarter| quarter << (shift - 2)));
        let whole_pages = |bytes: &u64| *bytes < page_bytes || bytes.is_multiple_of(page_bytes);
        let classes: Vec<SizeClass> =
            steps.chain(doublings).filter(whole_pages).map(SizeClass::new).collect();
        let by_grains = (0..=SMALL_BYTES_MAX / GRAIN_BYTES)
            .map(|grains| classes.partition_point(|class| class.bytes < grains * GRAIN_BYTES) as u8)
            .collect();
        SizeClasses { classes, by_grains }
    }

    pub(super) fn len(&self) -> usize {
        self.classes.len()
    }

    /// Returns the class for `bytes` bytes aligned to `align` (a power of two), or `None` when the block is
    /// not small.
    #[inline]
    pub(super) fn find(&self, bytes: u64, align: u64) -> Option<usize> {
        if bytes > SMALL_BYTES_MAX || align > SMALL_BYTES_MAX {
            return None;
        }
        let class = usize::from(self.by_grains[bytes.max(align).div_ceil(GRAIN_BYTES) as usize]);
        if align <= GRAIN_BYTES {
            return Some(class);
        }
        // Spans are aligned to a larger power of two, so all blocks of a class whose size is a multiple of
        // `align` are aligned.
        (class..self.classes.len()).find(|class| self.classes[*class].bytes.is_multiple_of(align))
    }

    #[inline]
    pub(super) fn get(&self, class: usize) -> &SizeClass {
        &self.classes[class]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_large_enough_and_wastes_little() {
        for page_bytes in [4096, 8192, 16384, 64 << 10, 2 << 20] {
            let classes = SizeClasses::new(page_bytes);
            for bytes in 0..=SMALL_BYTES_MAX {
                let class = classes.get(classes.find(bytes, 1).unwrap()).bytes;
                assert!(class >= bytes && class <= SMALL_BYTES_MAX);
                assert!(bytes < page_bytes || class.is_multiple_of(page_bytes));
                if (128..page_bytes).contains(&bytes) && class < page_bytes {
                    assert!((class - bytes) * 4 <= class, "{bytes} bytes take {class}");
                }
            }
            assert_eq!(classes.find(SMALL_BYTES_MAX + 1, 1), None);
        }
    }

    #[test]
    fn aligned_blocks_have_classes_of_multiples() {
        let classes = SizeClasses::new(4096);
        for shift in 0..=16 {
            for bytes in [0, 1, 24, 100, 1000, 5000, 8192, 50_000] {
                let class = classes.get(classes.find(bytes, 1 << shift).unwrap());
                assert!(class.bytes >= bytes && (shift < 4 || class.bytes.is_multiple_of(1 << shift)));
            }
        }
        assert_eq!(classes.find(16, SMALL_BYTES_MAX * 2), None);
    }

    #[test]
    fn the_reciprocal_divides_exactly() {
        let classes = SizeClasses::new(2 << 20);
        for class in &classes.classes {
            for offset in 0..class.span_bytes {
                assert_eq!(class.index_of(offset), (offset / class.bytes) as usize);
            }
        }
    }
}
