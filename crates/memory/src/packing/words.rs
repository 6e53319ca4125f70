//! Packing by words of eight bytes, for every processor.

use hiroba_base::{ChangedBytes, LINE_BYTES};

use super::{Packed, TwinBlock, each_line, line_of};

const WORD_BYTES: usize = size_of::<u64>();
pub(super) const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;

/// The lowest bit of each byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;
/// All bits of each byte of a word except the highest.
const LOW_SEVEN: u64 = 0x7f * ONES;

/// Moves the bytes that the mask selects to the lowest places of the word; the others are undefined.
pub(super) fn compress(word: u64, mask: u8) -> u64 {
    let (mut packed, mut count, mut rest) = (0, 0, mask);
    while rest != 0 {
        packed |= (word >> (8 * rest.trailing_zeros()) & 0xff) << count;
        count += 8;
        rest &= rest - 1;
    }
    packed
}

/// Moves the lowest bytes to the places that the mask selects; the others are undefined.
pub(super) fn expand(packed: u64, mask: u8) -> u64 {
    let (mut word, mut left, mut rest) = (0, packed, mask);
    while rest != 0 {
        word |= (left & 0xff) << (8 * rest.trailing_zeros());
        left >>= 8;
        rest &= rest - 1;
    }
    word
}

/// Returns a bit for each word of a line in which the mask selects any byte.
#[inline(always)]
fn named_words(mask: u64) -> u8 {
    let bytes = ((((mask & LOW_SEVEN) + LOW_SEVEN) | mask) >> 7) & ONES;
    (bytes.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Calls `visit` for each word of a line in which the mask selects any byte, in order, with the word's mask.
#[inline(always)]
fn each_word(mask: u64, mut visit: impl FnMut(usize, u8)) {
    let mut words = named_words(mask);
    while words != 0 {
        let index = words.trailing_zeros() as usize;
        visit(index, (mask >> (index * WORD_BYTES)) as u8);
        words &= words - 1;
    }
}

/// Packs the bytes of a line that the mask selects side by side.
#[inline(always)]
pub(super) fn pack_line(
    line: &[u64; LINE_WORDS],
    mask: u64,
    room: &mut [u8; LINE_BYTES],
    compress: impl Fn(u64, u8) -> u64,
) {
    let mut taken = 0;
    each_word(mask, |index, bytes| {
        let word = if bytes == u8::MAX { line[index] } else { compress(line[index], bytes) };
        // No more bytes precede it than the words before it have, so it fits the line.
        room[taken..taken + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
        taken += bytes.count_ones() as usize;
    });
}

/// Writes packed bytes to the bytes of a line that the mask selects, and to a twin's line, if there is one.
/// Leaves the remaining bytes in `packed`.
///
/// # Safety
/// `frame` must be valid for writing a line, except for bytes that the mask does not select.
#[inline(always)]
pub(super) unsafe fn spread_line(
    packed: &mut &[u8],
    mask: u64,
    frame: *mut u8,
    mut twin: Option<&mut [u8; LINE_BYTES]>,
    expand: impl Fn(u64, u8) -> u64,
) {
    each_word(mask, |index, bytes| {
        let word = first_word(packed);
        *packed = &packed[bytes.count_ones() as usize..];
        let word = if bytes == u8::MAX { word } else { expand(word, bytes) };
        let offset = index * WORD_BYTES;
        if let Some(twin) = &mut twin {
            let place = &mut twin[offset..offset + WORD_BYTES];
            let before = u64::from_le_bytes((&*place).try_into().expect("a word's length"));
            let full = full(bytes);
            place.copy_from_slice(&(before & !full | word & full).to_le_bytes());
        }
        // SAFETY: the caller's contract; the word lies in the line.
        unsafe { store(frame.wrapping_add(offset), word, bytes) };
    });
}

/// # Safety
/// As for [`Variant::pack`](crate::compare::Variant::pack).
pub(super) unsafe fn pack(
    frame: *const u8,
    twin: &mut TwinBlock,
    settle: bool,
    lines: u64,
    changed: &mut ChangedBytes,
    packed: &mut Packed,
) -> usize {
    let mut count = 0;
    each_line(lines, |line| {
        let theirs = line_of(twin, line);
        let (mut ours, mut mask) = ([0; LINE_WORDS], 0);
        for (index, word) in ours.iter_mut().enumerate() {
            let place = frame.wrapping_add(line * LINE_BYTES + index * WORD_BYTES).cast::<u64>();
            // SAFETY: within the block by the caller's contract; blocks begin on lines. Volatile, so that the
            // bytes compared are the bytes packed.
            *word = u64::from_le(unsafe { place.read_volatile() });
            let place = &mut theirs[index * WORD_BYTES..][..WORD_BYTES];
            let twin = u64::from_le_bytes((&*place).try_into().expect("a word's length"));
            mask |= u64::from(named_words(*word ^ twin)) << (index * WORD_BYTES);
            if settle {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        changed.set(line, mask);
        pack_line(&ours, mask, packed.line(count), compress);
        count += mask.count_ones() as usize;
    });
    count
}

/// # Safety
/// As for [`Variant::spread`](crate::compare::Variant::spread).
pub(super) unsafe fn spread(
    changed: &ChangedBytes,
    bytes: &[u8],
    frame: *mut u8,
    mut twin: Option<&mut TwinBlock>,
) {
    let mut packed = bytes;
    for (line, mask) in changed.masks() {
        let place = frame.wrapping_add(line * LINE_BYTES);
        let twin = twin.as_mut().map(|twin| line_of(twin, line));
        // SAFETY: the caller's contract; the line lies in the block.
        unsafe { spread_line(&mut packed, mask, place, twin, expand) };
    }
}

/// # Safety
/// As for [`Variant::merge`](crate::compare::Variant::merge).
#[inline(always)]
pub(super) unsafe fn merge(content: &TwinBlock, twin: &mut TwinBlock, lines: u64, frame: *mut u8) {
    each_line(lines, |line| {
        let theirs = line_of(twin, line);
        let news: &[u8; LINE_BYTES] =
            content[line * LINE_BYTES..][..LINE_BYTES].try_into().expect("a line's length");
        for (index, (new, before)) in news.as_chunks().0.iter().zip(theirs.as_chunks().0).enumerate() {
            let (new, before) = (u64::from_le_bytes(*new), u64::from_le_bytes(*before));
            let offset = line * LINE_BYTES + index * WORD_BYTES;
            // SAFETY: the caller's contract; the word lies in the block.
            unsafe { store(frame.wrapping_add(offset), new, named_words(new ^ before)) };
        }
        *theirs = *news;
    });
}

/// Returns the next bytes of a slice as a word.
#[inline(always)]
fn first_word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Returns a word with all bits set in each byte that the mask selects.
#[inline(always)]
fn full(mask: u8) -> u64 {
    let bits = (u64::from(mask) * ONES) & 0x8040_2010_0804_0201;
    (((((bits & LOW_SEVEN) + LOW_SEVEN) | bits) >> 7) & ONES) * 0xff
}

/// Stores the bytes of a word that the mask selects, and no others.
///
/// # Safety
/// `place` must be valid for writing a word, except for bytes that the mask does not select.
#[inline(always)]
unsafe fn store(place: *mut u8, word: u64, mask: u8) {
    if mask == u8::MAX {
        // SAFETY: the caller's contract.
        unsafe { place.cast::<u64>().write_unaligned(word.to_le()) };
        return;
    }
    let mut rest = u32::from(mask);
    while rest != 0 {
        let mut at = rest.trailing_zeros();
        let length = (rest >> at).trailing_ones();
        rest &= !(((1 << length) - 1) << at);
        if length & 4 != 0 {
            let (place, part) = (place.wrapping_add(at as usize).cast::<u32>(), word >> (8 * at));
            // SAFETY: the mask selects these four bytes.
            unsafe { place.write_unaligned((part as u32).to_le()) };
            at += 4;
        }
        if length & 2 != 0 {
            let (place, part) = (place.wrapping_add(at as usize).cast::<u16>(), word >> (8 * at));
            // SAFETY: the mask selects these two bytes.
            unsafe { place.write_unaligned((part as u16).to_le()) };
            at += 2;
        }
        if length & 1 != 0 {
            // SAFETY: the mask selects this byte.
            unsafe { place.wrapping_add(at as usize).write((word >> (8 * at)) as u8) };
        }
    }
}
