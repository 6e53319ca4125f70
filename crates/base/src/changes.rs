//! Which bytes of a page have changed: a mask for each line. Comparisons produce masks, diffs carry them, and
//! frames and twins take the bytes that they name.

use core::ops::Range;

/// A cache line: the bytes that one mask describes.
pub const LINE_BYTES: usize = 64;
/// Lines of a block: the number of bits in a word.
pub const BLOCK_LINES: usize = 64;
/// The bytes of a block. Every page is a multiple of it.
pub const BLOCK_BYTES: usize = BLOCK_LINES * LINE_BYTES;

/// The bytes of a block that have changed.
#[derive(Clone, PartialEq, Eq)]
pub struct ChangedBytes {
    /// Bit *l* is set if any byte of line *l* has changed.
    lines: u64,
    /// Bit *i* of mask *l* is set if byte *i* of line *l* has changed; 0 for lines without a bit above.
    masks: [u64; BLOCK_LINES],
}

impl ChangedBytes {
    /// No byte.
    pub const NONE: ChangedBytes = ChangedBytes { lines: 0, masks: [0; BLOCK_LINES] };
    /// Every byte.
    pub const ALL: ChangedBytes = ChangedBytes { lines: u64::MAX, masks: [u64::MAX; BLOCK_LINES] };

    /// Returns the lines with a changed byte, as bits.
    #[inline]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns true if every byte has changed.
    #[inline]
    pub fn is_all(&self) -> bool {
        self.masks.iter().fold(u64::MAX, |all, mask| all & mask) == u64::MAX
    }

    /// Returns the lines with a changed byte, in order, each with the mask of its changed bytes, which is
    /// never 0.
    #[inline]
    pub fn masks(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        bits(self.lines).map(|line| (line, self.masks[line]))
    }

    /// Sets the mask of a line.
    ///
    /// # Panics
    /// If the block has no such line.
    #[inline(always)]
    pub fn set(&mut self, line: usize, mask: u64) {
        self.masks[line] = mask;
        let bit = 1 << line;
        self.lines = if mask == 0 { self.lines & !bit } else { self.lines | bit };
    }

    /// Adds bytes.
    ///
    /// # Panics
    /// If they are not in the block.
    pub fn insert(&mut self, bytes: Range<usize>) {
        let mut at = bytes.start;
        while at < bytes.end {
            let (line, first) = (at / LINE_BYTES, at % LINE_BYTES);
            let count = (bytes.end - at).min(LINE_BYTES - first);
            let ones = u64::MAX >> (LINE_BYTES - count);
            self.set(line, self.masks[line] | ones << first);
            at += count;
        }
    }

    /// Removes all bytes.
    #[inline]
    pub fn clear(&mut self) {
        bits(core::mem::take(&mut self.lines)).for_each(|line| self.masks[line] = 0);
    }

    /// Returns how many bytes have changed.
    #[inline]
    pub fn count(&self) -> usize {
        self.masks().map(|(_, mask)| mask.count_ones() as usize).sum()
    }

    /// Returns the maximal runs of changed bytes, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            let start = self.first_from(at, true)?;
            at = self.first_from(start, false).unwrap_or(BLOCK_BYTES);
            Some(start..at)
        })
    }

    /// Returns the first byte at or after `at` that has changed, or has not.
    fn first_from(&self, at: usize, changed: bool) -> Option<usize> {
        // Bytes before `at` in its line are masked out.
        let mut interest = u64::MAX << (at % LINE_BYTES);
        (at / LINE_BYTES..BLOCK_LINES).find_map(|line| {
            let found = if changed { self.masks[line] } else { !self.masks[line] };
            let found = found & core::mem::replace(&mut interest, u64::MAX);
            (found != 0).then(|| line * LINE_BYTES + found.trailing_zeros() as usize)
        })
    }
}

impl Default for ChangedBytes {
    fn default() -> ChangedBytes {
        ChangedBytes::NONE
    }
}

impl core::fmt::Debug for ChangedBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

/// The changes of one block of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChanges<'a> {
    /// The block's number in the page.
    pub block: usize,
    /// The bytes that have changed.
    pub changed: &'a ChangedBytes,
    /// Their new values in order.
    pub bytes: &'a [u8],
}

/// Returns the numbers of the set bits, ascending.
#[inline]
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_come_back_as_their_maximal_runs(
            inserted in proptest::collection::vec((0..BLOCK_BYTES, 0usize..200), 0..30),
        ) {
            let mut changed = ChangedBytes::NONE;
            let mut model = [false; BLOCK_BYTES];
            for (start, length) in inserted {
                let bytes = start..(start + length).min(BLOCK_BYTES);
                changed.insert(bytes.clone());
                model[bytes].fill(true);
            }
            let runs: Vec<_> = changed.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let mut named = [false; BLOCK_BYTES];
            runs.into_iter().for_each(|run| named[run].fill(true));
            prop_assert_eq!(named, model);
            prop_assert_eq!(changed.count(), model.iter().filter(|changed| **changed).count());
            let lines = changed.masks().fold(0, |lines, (line, mask)| lines | u64::from(mask != 0) << line);
            prop_assert_eq!(lines, changed.lines());
            changed.clear();
            prop_assert_eq!(changed, ChangedBytes::NONE);
        }
    }

    #[test]
    fn a_line_whose_mask_becomes_empty_is_none_that_changed() {
        let mut changed = ChangedBytes::ALL;
        assert_eq!(
            (changed.count(), changed.runs().collect::<Vec<_>>()),
            (BLOCK_BYTES, std::iter::once(0..BLOCK_BYTES).collect())
        );
        (0..BLOCK_LINES).for_each(|line| changed.set(line, 0));
        assert_eq!(changed, ChangedBytes::NONE);
    }
}
