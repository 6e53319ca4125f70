//! Where a node's pages go that are out (`--lend`, `--swap`): opens it, and seals them.

use std::path::Path;
use std::sync::Arc;

use hiroba_fabric::seal::{DirectionKey, TAG_BYTES};
use hiroba_memory::{
    Lenders, MemoryError, SWAP_TAG_BYTES, SharedMemory, SwapOptions, SwapSeal, check_swap_directory,
};
use hiroba_wire::control::{CoherenceChoices, JobDescription, SwapPlace};

use crate::NodeError;

const _: () = assert!(TAG_BYTES == SWAP_TAG_BYTES, "a page bears the tag of the cipher of links");

/// The key of one node's pages that are out, in one job. It exists only in this process's memory.
struct SwapKey(DirectionKey);

impl SwapKey {
    fn of(job: &JobDescription) -> SwapKey {
        SwapKey(DirectionKey::derive(&job.key, &[b"pages that have left memory", &job.node.0.to_be_bytes()]))
    }
}

impl SwapSeal for SwapKey {
    fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES] {
        self.0.seal_beside(count, place, bytes)
    }

    fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool {
        self.0.open_beside(count, place, bytes, tag).is_ok()
    }
}

/// Returns the job's swap directory, if pages are swapped.
pub(crate) fn place_of(job: &JobDescription) -> Option<&SwapPlace> {
    job.coherence.memory_limit.as_ref()?.swap.as_ref()
}

/// Opens the places of a node's pages that are out, if it has any: other nodes' memory, and a swap file.
/// `lost` ends the process when such a page cannot be read.
pub(crate) fn open(
    job: &JobDescription,
    memory: &SharedMemory,
    lenders: Option<Arc<dyn Lenders>>,
    lost: fn(&MemoryError) -> !,
) -> Result<(), MemoryError> {
    let file = place_of(job).map(|place| (Path::new(&place.directory), place.bytes_max));
    if file.is_none() && lenders.is_none() {
        return Ok(());
    }
    memory.open_swap(SwapOptions { file, lenders, seal: Box::new(SwapKey::of(job)), lost })
}

/// Tries what the nodes of a job will need from this machine's disk, and leaves nothing there.
///
/// # Errors
/// Fails if no swap file can be made where the user wants it.
pub fn check_swap(choices: &CoherenceChoices) -> Result<(), NodeError> {
    let place = choices.memory_limit.as_ref().and_then(|limit| limit.swap.as_ref());
    place.map_or(Ok(()), |place| Ok(check_swap_directory(Path::new(&place.directory))?))
}

#[cfg(test)]
mod tests {
    use hiroba_wire::control::JobKey;

    use super::*;

    #[test]
    fn a_page_opens_at_its_place_and_time_alone() {
        let key = |node: u16| {
            let job = JobKey::new(&[9; 32]);
            SwapKey(DirectionKey::derive(&job, &[b"pages", &node.to_be_bytes()]))
        };
        let mut bytes = [7; 4096];
        let tag = key(1).seal(3, b"place", &mut bytes);
        assert!(bytes != [7; 4096], "what leaves is not to be read");
        let opens = |node: u16, count, place: &[u8], change: usize| {
            let mut bytes = bytes;
            bytes[change / 8 % 4096] ^= u8::from(change > 0) << (change % 8);
            key(node).open(count, place, &mut bytes, &tag) && bytes == [7; 4096]
        };
        assert!(opens(1, 3, b"place", 0));
        assert!(!opens(1, 3, b"other", 0) && !opens(1, 2, b"place", 0) && !opens(2, 3, b"place", 0));
        assert!((1..100).all(|change| !opens(1, 3, b"place", 331 * change)));
    }
}
