//! The addresses that all nodes share.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Returns true if the address is in the shared region.
pub(crate) fn is_shared(address: usize) -> bool {
    /// The addresses of the region (`memory/src/region.rs`).
    const REGION: std::ops::Range<usize> = 0x4000_0000_0000..0x4000_0000_0000 + (16 << 40);
    REGION.contains(&address)
}

/// The parts of data that all nodes share: start and end of each.
static SHARED_DATA: [[AtomicUsize; 2]; PARTS_MAX] = [const { [const { AtomicUsize::new(0) }; 2] }; PARTS_MAX];
/// The maximum number of parts: an executable and its libraries have one or two each.
const PARTS_MAX: usize = 128;

/// Notes a part. Returns false if there is no room for it.
pub(crate) fn note_data(place: usize, range: &Range<usize>) -> bool {
    let Some([start, end]) = SHARED_DATA.get(place) else { return false };
    start.store(range.start, Relaxed);
    end.store(range.end, Relaxed);
    true
}

/// Returns true if the address is in data of the program that all nodes share.
pub(crate) fn is_shared_data(address: usize) -> bool {
    let parts = SHARED_DATA.iter().map(|[start, end]| start.load(Relaxed)..end.load(Relaxed));
    parts.take_while(|part| part.start != 0).any(|part| part.contains(&address))
}
