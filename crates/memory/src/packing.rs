//! Changed bytes: taken out of frames, side by side, and put into frames and twins again.
//!
//! A byte of a frame that a mask does not name is never written, not even with what it holds: the program, or
//! another thread of the runtime, may be writing it. Twins are the runtime's own, so their lines may be
//! written whole.
//!
//! Of each line the twin is changed before the frame. Both begin on pages, and processors that tell addresses
//! apart by some of their bits may have a load wait for a store at the same place of another page: behind the
//! frame's store the twin's load took five times as long in one process of five.

mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

use core::ptr;

use hiroba_base::{BLOCK_BYTES, BlockChanges, ChangedBytes, LINE_BYTES};

use crate::compare::Variant;

/// The bytes of a twin's block.
pub(crate) type TwinBlock = [u8; BLOCK_BYTES];

/// Room for the changed bytes of a block. Each line's are written with a whole line, so there is one more at
/// the end.
#[repr(C, align(64))]
pub(crate) struct Packed([u8; BLOCK_BYTES + LINE_BYTES]);

impl Packed {
    pub(crate) const fn new() -> Packed {
        Packed([0; BLOCK_BYTES + LINE_BYTES])
    }

    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        &self.0[..count]
    }

    /// Room for a line's bytes behind `count` bytes of the block's lines before it.
    fn line(&mut self, count: usize) -> &mut [u8; LINE_BYTES] {
        (&mut self.0[count..count + LINE_BYTES]).try_into().expect("a line's length")
    }
}

impl Variant {
    /// Finds the bytes in which the given lines of a frame's block differ from its twin, and packs what the
    /// frame has there: each line is read once, so that mask, packed byte and twin agree though others write
    /// meanwhile. With `settle` the twin becomes what was read. Returns how many bytes differ.
    ///
    /// # Safety
    /// `frame` must be good for reading a block, and `self` be [`available`](Variant::available). Other
    /// threads may write to the block.
    pub(crate) unsafe fn pack(
        self,
        frame: *const u8,
        twin: &mut TwinBlock,
        settle: bool,
        lines: u64,
        changed: &mut ChangedBytes,
        packed: &mut Packed,
    ) -> usize {
        changed.clear();
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promises are passed on.
            Variant::Avx512Vbmi2 => unsafe { x86::vbmi2::pack(frame, twin, settle, lines, changed, packed) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Variant::Avx512 | Variant::Avx2 => unsafe {
                x86::avx2::pack(frame, twin, settle, lines, changed, packed)
            },
            // SAFETY: as above.
            Variant::Portable => unsafe { words::pack(frame, twin, settle, lines, changed, packed) },
        }
    }

    /// Writes changed bytes to a frame's block and to its twin, if there is one.
    ///
    /// # Safety
    /// `frame` must be good for writing a block, and `self` be [`available`](Variant::available). Other
    /// threads may write to bytes of the block that have not changed.
    ///
    /// # Panics
    /// When there are fewer bytes than have changed.
    pub(crate) unsafe fn spread(
        self,
        changes: BlockChanges<'_>,
        frame: *mut u8,
        twin: Option<&mut TwinBlock>,
    ) {
        let BlockChanges { changed, bytes, .. } = changes;
        debug_assert_eq!(changed.count(), bytes.len(), "a block has the bytes that its masks name");
        if bytes.len() == BLOCK_BYTES && changed.is_all() {
            // SAFETY: the caller's promise; every byte of the block has changed.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), frame, BLOCK_BYTES) };
            return twin.into_iter().for_each(|twin| twin.copy_from_slice(bytes));
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promises are passed on.
            Variant::Avx512Vbmi2 => unsafe { x86::vbmi2::spread(changed, bytes, frame, twin) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Variant::Avx512 | Variant::Avx2 => unsafe { x86::avx2::spread(changed, bytes, frame, twin) },
            // SAFETY: as above.
            Variant::Portable => unsafe { words::spread(changed, bytes, frame, twin) },
        }
    }

    /// Writes to a frame's block the bytes in which the given lines of `content` differ from the twin, which
    /// becomes the content.
    ///
    /// # Safety
    /// As for [`spread`](Self::spread).
    pub(crate) unsafe fn merge(self, content: &TwinBlock, twin: &mut TwinBlock, lines: u64, frame: *mut u8) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promises are passed on.
            Variant::Avx512Vbmi2 => unsafe { x86::vbmi2::merge(content, twin, lines, frame) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Variant::Avx512 | Variant::Avx2 => unsafe { x86::avx2::merge(content, twin, lines, frame) },
            // SAFETY: as above.
            Variant::Portable => unsafe { words::merge(content, twin, lines, frame) },
        }
    }
}

/// The lines that are set in a word, ascending.
#[inline(always)]
fn each_line(mut lines: u64, mut visit: impl FnMut(usize)) {
    while lines != 0 {
        visit(lines.trailing_zeros() as usize);
        lines &= lines - 1;
    }
}

/// A line of a twin.
#[inline(always)]
fn line_of(twin: &mut TwinBlock, line: usize) -> &mut [u8; LINE_BYTES] {
    (&mut twin[line * LINE_BYTES..][..LINE_BYTES]).try_into().expect("a line's length")
}

#[cfg(test)]
mod tests;
