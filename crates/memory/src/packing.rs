//! Packs changed bytes of frames side by side, and writes packed bytes into frames and twins.
//!
//! A byte of a frame that a mask does not select is never written, not even with its present value: the
//! program, or another thread of the runtime, may be writing it. Twins belong to the runtime, so their lines
//! may be written whole.
//!
//! In each line the twin is changed before the frame. Both begin on pages, and processors that compare only
//! some bits of addresses may delay a load behind a store at the same offset of another page: behind the
//! frame's store the twin's load took five times as long in one process of five.

mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

use core::ptr;

use hiroba_base::{BLOCK_BYTES, BlockChanges, ChangedBytes, LINE_BYTES};

use crate::compare::Variant;

/// The bytes of a twin's block.
pub(crate) type TwinBlock = [u8; BLOCK_BYTES];

/// Buffer for the changed bytes of a block. Each line's bytes are written as a whole line, so there is one
/// more line at the end.
#[repr(C, align(64))]
pub(crate) struct Packed([u8; BLOCK_BYTES + LINE_BYTES]);

impl Packed {
    pub(crate) const fn new() -> Packed {
        Packed([0; BLOCK_BYTES + LINE_BYTES])
    }

    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        &self.0[..count]
    }

    /// Returns the buffer for a line's bytes behind the `count` bytes of earlier lines.
    fn line(&mut self, count: usize) -> &mut [u8; LINE_BYTES] {
        (&mut self.0[count..count + LINE_BYTES]).try_into().expect("a line's length")
    }
}

impl Variant {
    /// Finds the bytes in which the given lines of a frame's block differ from its twin, and packs the
    /// frame's bytes. Each line is read once, so that mask, packed bytes and twin agree even if others write
    /// meanwhile. With `settle` the twin becomes what was read. Returns the number of differing bytes.
    ///
    /// # Safety
    /// `frame` must be valid for reading a block, and `self` be [`available`](Variant::available). Other
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
            // SAFETY: the caller's contract.
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
    /// `frame` must be valid for writing a block, and `self` be [`available`](Variant::available). Other
    /// threads may write to unchanged bytes of the block.
    ///
    /// # Panics
    /// Panics if there are fewer bytes than the masks select.
    pub(crate) unsafe fn spread(
        self,
        changes: BlockChanges<'_>,
        frame: *mut u8,
        twin: Option<&mut TwinBlock>,
    ) {
        let BlockChanges { changed, bytes, .. } = changes;
        debug_assert_eq!(changed.count(), bytes.len(), "a block has the bytes that its masks name");
        if bytes.len() == BLOCK_BYTES && changed.is_all() {
            // SAFETY: the caller's contract; every byte of the block has changed.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), frame, BLOCK_BYTES) };
            return twin.into_iter().for_each(|twin| twin.copy_from_slice(bytes));
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's contract.
            Variant::Avx512Vbmi2 => unsafe { x86::vbmi2::spread(changed, bytes, frame, twin) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Variant::Avx512 | Variant::Avx2 => unsafe { x86::avx2::spread(changed, bytes, frame, twin) },
            // SAFETY: as above.
            Variant::Portable => unsafe { words::spread(changed, bytes, frame, twin) },
        }
    }

    /// Writes to a frame's block the bytes in which the given lines of `content` differ from the twin, and
    /// makes the twin equal to the content.
    ///
    /// # Safety
    /// As for [`spread`](Self::spread).
    pub(crate) unsafe fn merge(self, content: &TwinBlock, twin: &mut TwinBlock, lines: u64, frame: *mut u8) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's contract.
            Variant::Avx512Vbmi2 => unsafe { x86::vbmi2::merge(content, twin, lines, frame) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Variant::Avx512 | Variant::Avx2 => unsafe { x86::avx2::merge(content, twin, lines, frame) },
            // SAFETY: as above.
            Variant::Portable => unsafe { words::merge(content, twin, lines, frame) },
        }
    }
}

/// Calls `visit` for the set bits of a word of lines, ascending.
#[inline(always)]
fn each_line(mut lines: u64, mut visit: impl FnMut(usize)) {
    while lines != 0 {
        visit(lines.trailing_zeros() as usize);
        lines &= lines - 1;
    }
}

/// Returns a line of a twin.
#[inline(always)]
fn line_of(twin: &mut TwinBlock, line: usize) -> &mut [u8; LINE_BYTES] {
    (&mut twin[line * LINE_BYTES..][..LINE_BYTES]).try_into().expect("a line's length")
}

#[cfg(test)]
mod tests;
