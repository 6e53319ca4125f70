//! The bounds of functions, from the tables for exceptions.

use std::ops::Range;

/// The readable memory of an executable or library: the address and bytes of each segment.
#[derive(Clone, Debug, Default)]
pub struct Image<'a> {
    segments: Vec<(u64, &'a [u8])>,
}

impl<'a> Image<'a> {
    /// Returns the image that consists of these segments.
    pub fn new(segments: Vec<(u64, &'a [u8])>) -> Image<'a> {
        Image { segments }
    }

    /// Returns the bytes at an address, if a segment has all of them.
    pub fn bytes(&self, at: u64, count: usize) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(at.checked_sub(*start)?).ok()?;
            bytes.get(offset..offset.checked_add(count)?)
        })
    }

    fn word(&self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(at, 4)?.try_into().ok()?))
    }

    fn offset(&self, at: u64) -> Option<i64> {
        Some(i64::from(self.word(at)?.cast_signed()))
    }

    fn byte(&self, at: u64) -> Option<u8> {
        Some(self.bytes(at, 1)?[0])
    }
}

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The addresses of its code.
    pub code: Range<u64>,
    /// True if exceptions may continue in the middle of it.
    pub has_landing_pads: bool,
}

/// The number of functions of an object that are read at most.
const FUNCTIONS_MAX: u64 = 4 << 20;

/// Returns the functions of an object by ascending address. `header` is the address of its `.eh_frame_hdr`.
/// Functions whose description has another form than the one that compilers emit are left out.
pub fn functions(image: &Image<'_>, header: u64) -> Vec<Function> {
    // Version 1; pointer to the frames: 4 bytes relative to itself; count: 4 bytes; table: 4 bytes, relative
    // to the header.
    if image.bytes(header, 4) != Some(&[1, 0x1b, 0x03, 0x3b]) {
        return Vec::new();
    }
    let count = image.word(header + 8).map_or(0, u64::from).min(FUNCTIONS_MAX);
    let mut all: Vec<Function> =
        (0..count).map_while(|index| entry(image, header, index)).flatten().collect();
    all.sort_by_key(|function| function.code.start);
    all.dedup_by_key(|function| function.code.start);
    all
}

/// Returns an entry of the table, `None` behind its end, `Some(None)` if its form is another one.
fn entry(image: &Image<'_>, header: u64, index: u64) -> Option<Option<Function>> {
    let at = header + 12 + 8 * index;
    let start = header.checked_add_signed(image.offset(at)?)?;
    let description = header.checked_add_signed(image.offset(at + 4)?)?;
    Some(described(image, start, description))
}

/// Returns the function that begins at `start`, by its description (FDE).
fn described(image: &Image<'_>, start: u64, description: u64) -> Option<Function> {
    let first = description + 8;
    let is_usual = first.checked_add_signed(image.offset(first)?)? == start;
    let bytes = u64::from(image.word(description + 12)?);
    let code = start..start.checked_add(bytes)?;
    if !is_usual || image.bytes(start, usize::try_from(bytes).ok()?).is_none() {
        return None;
    }
    // What functions have in common (CIE) says whether one may have landing pads.
    let common = (description + 4).checked_sub(u64::from(image.word(description + 4)?))?;
    let letters: Vec<u8> =
        (0..8).map_while(|index| image.byte(common + 9 + index)).take_while(|letter| *letter != 0).collect();
    let may_have = letters.contains(&b'L');
    let has_landing_pads = may_have && image.word(description + 17) != Some(0);
    Some(Function { code, has_landing_pads })
}
