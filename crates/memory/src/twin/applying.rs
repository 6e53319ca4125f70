//! Applies incoming changes to a page's frame and twin.

use hiroba_base::{BLOCK_BYTES, BlockChanges, PageId, PageRange};

use super::filled::Filled;
use crate::{MemoryError, SharedMemory, compare::Variant};

/// A page that receives other nodes' changes. They are not this node's own writes, so its twin receives them,
/// too.
#[derive(Debug)]
pub struct Applying<'a> {
    pub(super) memory: &'a SharedMemory,
    pub(super) variant: Variant,
    pub(super) page: PageId,
    pub(super) twin: Option<&'a mut [u8]>,
    pub(super) filled: &'a mut Filled,
}

impl Applying<'_> {
    /// Writes the changed bytes of a block to frame and twin, whatever the program's access, and no others,
    /// because the program may be writing those.
    ///
    /// # Errors
    /// Fails if there is no memory for the frame.
    ///
    /// # Panics
    /// Panics if the block is not within the page's twin or the region, or if bytes are missing.
    pub fn write(&mut self, changes: BlockChanges<'_>) -> Result<(), MemoryError> {
        let offset = changes.block * BLOCK_BYTES;
        let frame = self.memory.block_to_write(self.page, offset)?;
        let twin = self.twin.as_mut().map(|twin| {
            let block = &mut twin[offset..offset + BLOCK_BYTES];
            block.try_into().expect("a block's length")
        });
        if twin.is_none() {
            let granule = self.page.0 + (offset / self.memory.granule().bytes()) as u64;
            self.filled.forget_overlapping(PageRange::single(PageId(granule)));
        }
        // SAFETY: the block is mapped and writable; the variant was chosen from those that this processor
        // has.
        unsafe { self.variant.spread(changes, frame, twin) };
        Ok(())
    }
}
