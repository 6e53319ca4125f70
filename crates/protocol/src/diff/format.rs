//! Writes and reads the blocks of a diff.

use hiroba_base::{BLOCK_BYTES, BlockChanges, ChangedBytes};

use super::DiffError;

/// The lowest bit of each byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;
/// All bits of each byte of a word but the highest.
const LOW_SEVEN: u64 = 0x7f * ONES;

/// The maximum number of changed words of a line, not all of them whole, for which its mask is short. A line
/// with more has a mask of 8 bytes: a shorter one would save little space, and take time on both sides.
const SPARSE_WORDS_MAX: u32 = 3;

/// The maximum number of bytes before the masks of a block: a number and the kinds.
const HEAD_BYTES_MAX: usize = 2 + 17;
/// The maximum number of bytes of a mask.
const MASK_BYTES_MAX: usize = 8;

/// Writes a diff, block by block.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    /// The block after the last one.
    next: usize,
}

impl Encoder<'_> {
    /// Returns an encoder that appends to `out`.
    pub fn new(out: &mut Vec<u8>) -> Encoder<'_> {
        Encoder { out, next: 0 }
    }

    /// Appends a block, or nothing if nothing has changed in it.
    ///
    /// # Panics
    /// If it is not after the previous block, or does not have a byte for each one that has changed.
    pub fn push(&mut self, changes: BlockChanges<'_>) {
        let BlockChanges { block, changed, bytes } = changes;
        assert!(block >= self.next, "blocks of a diff ascend");
        debug_assert_eq!(changed.count(), bytes.len(), "a block has the bytes that its masks name");
        if bytes.is_empty() {
            return;
        }
        let is_whole = bytes.len() == BLOCK_BYTES;
        let lines = changed.lines().count_ones() as usize;
        self.out.reserve(HEAD_BYTES_MAX + MASK_BYTES_MAX * lines + bytes.len());
        write_number(self.out, (block - self.next) * 2 + usize::from(is_whole));
        if !is_whole {
            self.push_masks(changed);
        }
        self.out.extend_from_slice(bytes);
        self.next = block + 1;
    }

    fn push_masks(&mut self, changed: &ChangedBytes) {
        let lines = changed.lines();
        let groups = bytes_that_are(lines);
        self.out.push(bits_of(groups));
        let kinds_at = self.out.len();
        let masks_at = kinds_at + 2 * groups.count_ones() as usize;
        self.out.resize(masks_at + MASK_BYTES_MAX * lines.count_ones() as usize, 0);
        let (kinds, masks) = self.out[kinds_at..].split_at_mut(masks_at - kinds_at);
        let (mut low, mut high, mut end) = (0u64, 0u64, 0);
        for (line, mask) in changed.masks() {
            let words = bytes_that_are(mask);
            if full(words) == mask {
                low |= 1 << line;
                masks[end] = bits_of(words);
                end += 1;
            } else if words.count_ones() <= SPARSE_WORDS_MAX {
                high |= 1 << line;
                masks[end] = bits_of(words);
                end += 1;
                let mut words = words;
                while words != 0 {
                    masks[end] = (mask >> words.trailing_zeros()) as u8;
                    end += 1;
                    words &= words - 1;
                }
            } else {
                (low, high) = (low | 1 << line, high | 1 << line);
                masks[end..end + 8].copy_from_slice(&mask.to_le_bytes());
                end += 8;
            }
        }
        let both = low.to_le_bytes().into_iter().zip(high.to_le_bytes());
        let changed = both.filter(|(low, high)| low | high != 0);
        kinds.as_chunks_mut().0.iter_mut().zip(changed).for_each(|(kinds, both)| *kinds = both.into());
        self.out.truncate(masks_at + end);
    }
}

/// Every byte of a block.
static ALL: ChangedBytes = ChangedBytes::ALL;

/// Reads a diff, block by block.
#[derive(Debug)]
pub struct Blocks<'a> {
    heads: Heads<'a>,
    changed: &'a mut ChangedBytes,
}

impl<'a> Blocks<'a> {
    /// Reads the blocks of a diff, which may come from anywhere. The changed bytes of each are written to
    /// `changed`, whose content before does not matter, so that a reader of many diffs allocates it once.
    pub fn of(runs: &'a [u8], changed: &'a mut ChangedBytes) -> Blocks<'a> {
        Blocks { heads: Heads::of(runs), changed }
    }

    /// Returns the next block, or `None` at the end.
    ///
    /// # Errors
    /// If the rest does not begin with a block.
    #[expect(clippy::should_implement_trait, reason = "what it gives borrows from it")]
    pub fn next(&mut self) -> Result<Option<BlockChanges<'_>>, DiffError> {
        let Blocks { heads, changed } = self;
        changed.clear();
        let Some(Head { block, is_whole, bytes }) = heads.next(|line, mask| changed.set(line, mask))? else {
            return Ok(None);
        };
        Ok(Some(BlockChanges { block, changed: if is_whole { &ALL } else { changed }, bytes }))
    }

    /// Returns the number of bytes of the diff that have not been read.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.heads.rest.len()
    }
}

/// A block without its masks.
pub(super) struct Head<'a> {
    pub(super) block: usize,
    pub(super) is_whole: bool,
    pub(super) bytes: &'a [u8],
}

/// Reads a diff and leaves the masks to the caller.
#[derive(Clone, Debug)]
pub(super) struct Heads<'a> {
    rest: &'a [u8],
    next: usize,
}

impl<'a> Heads<'a> {
    pub(super) fn of(runs: &'a [u8]) -> Heads<'a> {
        Heads { rest: runs, next: 0 }
    }

    /// Returns the next block, or `None` at the end. If the block is not whole, `each` gets its changed
    /// lines, with their masks.
    #[inline]
    pub(super) fn next(&mut self, each: impl FnMut(usize, u64)) -> Result<Option<Head<'a>>, DiffError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let number = read_number(&mut self.rest)?;
        let block = self.next.saturating_add(number / 2);
        self.next = block.saturating_add(1);
        let is_whole = number % 2 == 1;
        let count = if is_whole { BLOCK_BYTES } else { read_masks(&mut self.rest, each)? };
        let bytes = take(&mut self.rest, count)?;
        Ok(Some(Head { block, is_whole, bytes }))
    }
}

/// Calls `each` for each changed line. Returns the number of changed bytes.
#[inline]
fn read_masks(from: &mut &[u8], mut each: impl FnMut(usize, u64)) -> Result<usize, DiffError> {
    let mut rest = *from;
    let groups = named(take_byte(&mut rest)?)?;
    let (mut low, mut high) = (0u64, 0u64);
    for group in (0..8).filter(|group| groups >> group & 1 == 1) {
        let kinds = take(&mut rest, 2)?;
        named(kinds[0] | kinds[1])?;
        low |= u64::from(kinds[0]) << (8 * group);
        high |= u64::from(kinds[1]) << (8 * group);
    }
    let mut lines = low | high;
    // In lines with whole words, counts each word of a line. Counting their bits one by one would take longer
    // than all else.
    let (mut words, mut bytes) = (0, 0);
    while lines != 0 {
        let line = lines.trailing_zeros() as usize;
        lines &= lines - 1;
        let mask = if high >> line & 1 == 0 {
            let these = bytes_of(named(take_byte(&mut rest)?)?);
            words += these;
            full(these)
        } else {
            let is_sparse = low >> line & 1 == 0;
            let mask = if is_sparse { read_sparse(&mut rest)? } else { read_bytes(&mut rest)? };
            bytes += mask.count_ones() as usize;
            mask
        };
        each(line, mask);
    }
    *from = rest;
    let words: usize = words.to_le_bytes().into_iter().map(usize::from).sum();
    Ok(8 * words + bytes)
}

/// Reads the mask of a line of which a few words have changed in part.
fn read_sparse(rest: &mut &[u8]) -> Result<u64, DiffError> {
    let mut words = named(take_byte(rest)?)?;
    let mut mask = 0;
    while words != 0 {
        let bytes = named(take_byte(rest)?)?;
        mask |= u64::from(bytes) << (8 * words.trailing_zeros());
        words &= words - 1;
    }
    Ok(mask)
}

/// Reads the mask of a line that has a bit for each byte.
fn read_bytes(rest: &mut &[u8]) -> Result<u64, DiffError> {
    let (mask, behind) = rest.split_first_chunk().ok_or(DiffError::Truncated)?;
    *rest = behind;
    named(u64::from_le_bytes(*mask))
}

/// Returns the mask if it is not empty.
fn named<Mask: PartialEq + Default>(mask: Mask) -> Result<Mask, DiffError> {
    if mask == Mask::default() { Err(DiffError::EmptyMask) } else { Ok(mask) }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], DiffError> {
    rest.split_off(..count).ok_or(DiffError::Truncated)
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, DiffError> {
    rest.split_off_first().copied().ok_or(DiffError::Truncated)
}

/// Returns the lowest bit of each byte that is not 0.
fn bytes_that_are(word: u64) -> u64 {
    ((((word & LOW_SEVEN) + LOW_SEVEN) | word) >> 7) & ONES
}

/// Returns all bits of each byte whose lowest bit is set; the other bytes are 0.
fn full(lowest: u64) -> u64 {
    lowest * 0xff
}

/// Returns a bit for each byte whose lowest bit is set; the other bits are 0.
fn bits_of(lowest: u64) -> u8 {
    (lowest.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Computes the inverse of [`bits_of`].
fn bytes_of(bits: u8) -> u64 {
    bytes_that_are((u64::from(bits) * ONES) & 0x8040_2010_0804_0201)
}

fn write_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number. The largest page has 512 blocks, so two bytes suffice.
fn read_number(rest: &mut &[u8]) -> Result<usize, DiffError> {
    let low = usize::from(take_byte(rest)?);
    if low < 0x80 {
        return Ok(low);
    }
    let high = usize::from(take_byte(rest)?);
    if high < 0x80 { Ok(low & 0x7f | high << 7) } else { Err(DiffError::LongNumber) }
}
