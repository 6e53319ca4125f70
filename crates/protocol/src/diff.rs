//! Diffs: the bytes in which a page differs from its twin.
//!
//! A diff is a sequence of blocks of 4 KiB in ascending order, without those that have not changed:
//!
//! ```text
//! block  = number                        twice the count of blocks left out before it, plus 1 when all of it
//!                                        has changed
//!          4096 bytes                    if so; else:
//!          groups, (low, high) a group   which eights of its 64 lines of 64 bytes have changed, and the kinds
//!                                        of the lines in these
//!          mask a line that has changed  which of its bytes have
//!          bytes                         the changed bytes, in order
//!
//! mask   =                               by kind (high, low):
//!          nothing                       0 0  no byte
//!          words                         0 1  all bytes of these words of 8 bytes
//!          words, bytes a word           1 0  these bytes of these words
//!          8 × bytes                     1 1  these bytes
//! ```
//!
//! Numbers are LEB128. `groups`, `low`, `high`, `words` and `bytes` are the bits of one byte, the lowest
//! first. So one word costs 5 bytes besides itself, every other word of a page 4 % of them, scattered bytes
//! at most an eighth of their lines, a whole page one byte.
//!
//! The number of changed bytes follows from the masks, which stand together before them. So a diff is checked
//! without a look at the bytes, and made and applied line by line, however short its runs are.
//!
//! Diffs are **byte-exact**: a byte that did not change is never in one, not even to join two runs, because
//! another node may be changing it at the same time.

mod format;

use std::ops::Range;

use hiroba_base::{BLOCK_BYTES, BLOCK_LINES, BlockChanges, ChangedBytes, LINE_BYTES};
use thiserror::Error;

pub use format::{Blocks, Encoder};
use format::{Head, Heads};

/// A diff that does not fit its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DiffError {
    /// The bytes end inside a block.
    #[error("expected a diff of whole blocks, got one that ends inside a block")]
    Truncated,
    /// A number is larger than any page needs.
    #[error("expected numbers of two bytes at most in a diff, got a longer one")]
    LongNumber,
    /// A mask is empty.
    #[error("expected masks of one byte or more in a diff, got an empty one")]
    EmptyMask,
    /// A block extends beyond the page.
    #[error("expected a diff within a page of {page_bytes} bytes, got one through byte {end}")]
    OutOfPage {
        /// The page's size.
        page_bytes: usize,
        /// The end of the changed bytes.
        end: usize,
    },
}

/// Appends the diff that turns `twin` into `page`. Both have the same length.
///
/// # Panics
/// If they have not.
pub fn encode(page: &[u8], twin: &[u8], out: &mut Vec<u8>) {
    let mut encoder = Encoder::new(out);
    let mut bytes = Vec::new();
    each_changed_block(page, twin, |block, changed| {
        bytes.clear();
        for Range { start, end } in changed.runs() {
            bytes.extend_from_slice(&page[block * BLOCK_BYTES..][start..end]);
        }
        encoder.push(BlockChanges { block, changed, bytes: &bytes });
    });
}

/// Returns the diff that writes these bytes and no others, whether they differ from the page or not.
pub fn of_bytes(offset: usize, bytes: &[u8]) -> Vec<u8> {
    assert!(!bytes.is_empty(), "a run has one byte or more");
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out);
    let mut changed = ChangedBytes::NONE;
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (block, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let (piece, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - start));
        changed.insert(start..start + piece.len());
        encoder.push(BlockChanges { block, changed: &changed, bytes: piece });
        changed.clear();
        (at, rest) = (at + piece.len(), behind);
    }
    out
}

/// Calls `run(start, end)` for each maximal run of bytes in which `a` and `b` differ, in order. Both have the
/// same length.
///
/// # Panics
/// If they have not.
pub fn for_each_difference(a: &[u8], b: &[u8], mut run: impl FnMut(usize, usize)) {
    let mut joined = Joined::default();
    each_changed_block(a, b, |block, changed| {
        joined.add(block, changed, |bytes| run(bytes.start, bytes.end));
    });
    joined.end().into_iter().for_each(|bytes| run(bytes.start, bytes.end));
}

fn each_changed_block(a: &[u8], b: &[u8], mut visit: impl FnMut(usize, &ChangedBytes)) {
    assert_eq!(a.len(), b.len(), "a page and its twin have the same length");
    let mut changed = ChangedBytes::NONE;
    for (block, (a, b)) in a.chunks(BLOCK_BYTES).zip(b.chunks(BLOCK_BYTES)).enumerate() {
        for (line, (a, b)) in a.chunks(LINE_BYTES).zip(b.chunks(LINE_BYTES)).enumerate() {
            if a != b {
                changed.set(line, differing(a, b));
            }
        }
        if changed.lines() != 0 {
            visit(block, &changed);
            changed.clear();
        }
    }
}

/// Returns a bit for each byte in which two lines differ.
fn differing(a: &[u8], b: &[u8]) -> u64 {
    let bytes = a.iter().zip(b).enumerate();
    bytes.fold(0, |mask, (index, (a, b))| mask | u64::from(a != b) << index)
}

/// Checks a diff that came from another node and calls `write(offset, bytes)` for each run within a block. If
/// any part is bad, nothing is written.
///
/// # Errors
/// If the diff does not decode or leaves the page.
pub fn apply(runs: &[u8], page_bytes: usize, mut write: impl FnMut(usize, &[u8])) -> Result<(), DiffError> {
    check(runs, page_bytes)?;
    let mut changed = ChangedBytes::NONE;
    let mut blocks = Blocks::of(runs, &mut changed);
    while let Some(BlockChanges { block, changed, mut bytes }) = blocks.next()? {
        for run in changed.runs() {
            let (these, behind) = bytes.split_at(run.len());
            write(block * BLOCK_BYTES + run.start, these);
            bytes = behind;
        }
    }
    Ok(())
}

/// Returns the changed bytes of a diff that was checked or made here, as maximal runs.
pub fn ranges(runs: &[u8]) -> Vec<Range<u32>> {
    let mut ranges = Vec::new();
    let mut add = |bytes: Range<usize>| ranges.push(bytes.start as u32..bytes.end as u32);
    let (mut joined, mut changed) = (Joined::default(), ChangedBytes::NONE);
    let mut blocks = Blocks::of(runs, &mut changed);
    while let Ok(Some(changes)) = blocks.next() {
        joined.add(changes.block, changes.changed, &mut add);
    }
    joined.end().into_iter().for_each(add);
    ranges
}

/// Checks that a diff decodes and stays within a page of `page_bytes` bytes.
///
/// # Errors
/// If it does not.
pub fn check(runs: &[u8], page_bytes: usize) -> Result<(), DiffError> {
    let mut heads = Heads::of(runs);
    const LAST_BYTE: (usize, u64) = (BLOCK_LINES - 1, u64::MAX);
    let mut last = LAST_BYTE;
    while let Some(Head { block, is_whole, .. }) = heads.next(|line, mask| last = (line, mask))? {
        let (line, mask) = if is_whole { LAST_BYTE } else { last };
        let end = line * LINE_BYTES + (u64::BITS - mask.leading_zeros()) as usize;
        let end = block.saturating_mul(BLOCK_BYTES).saturating_add(end);
        if end > page_bytes {
            return Err(DiffError::OutOfPage { page_bytes, end });
        }
    }
    Ok(())
}

/// Joins the runs of adjacent blocks.
#[derive(Default)]
struct Joined {
    open: Option<Range<usize>>,
}

impl Joined {
    fn add(&mut self, block: usize, changed: &ChangedBytes, mut run: impl FnMut(Range<usize>)) {
        let base = block * BLOCK_BYTES;
        for Range { start, end } in changed.runs() {
            let (start, end) = (base + start, base + end);
            match &mut self.open {
                Some(open) if open.end == start => open.end = end,
                open => open.replace(start..end).into_iter().for_each(&mut run),
            }
        }
    }

    /// Returns the last run.
    fn end(self) -> Option<Range<usize>> {
        self.open
    }
}

#[cfg(test)]
mod tests;
