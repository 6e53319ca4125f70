//! Granules that are compressed before they are sealed, where that makes them much smaller.
//!
//! Lenders keep, and links carry, only as many bytes as a granule has then. Slots of the file have a fixed
//! length; there the rest is zeros.

/// A granule of which more than this remains stays as it is: what would be saved is not worth the time.
const PERCENT_MAX: usize = 60;

/// Room for what is compressed, and for what it was. Reused, because each batch needs it.
#[derive(Debug, Default)]
pub(super) struct Packing(Vec<u8>);

impl Packing {
    /// Compresses a granule. Returns what remains of it, if that pays. The same granule always becomes the
    /// same bytes.
    pub(super) fn pack(&mut self, granule: &[u8]) -> Option<&[u8]> {
        let Packing(scratch) = self;
        scratch.resize(lz4_flex::block::get_maximum_output_size(granule.len()), 0);
        let bytes = lz4_flex::block::compress_into(granule, scratch).ok()?;
        (bytes <= granule.len() * PERCENT_MAX / 100).then(|| &scratch[..bytes])
    }

    /// Restores a granule of which the first `bytes` are what [`pack`](Self::pack) returned for it. Returns
    /// false if they are anything else.
    pub(super) fn unpack(&mut self, granule: &mut [u8], bytes: usize) -> bool {
        if bytes == granule.len() {
            return true;
        }
        let Packing(scratch) = self;
        scratch.clear();
        scratch.extend_from_slice(&granule[..bytes]);
        // It never writes beyond the granule.
        lz4_flex::block::decompress_into(scratch, granule).is_ok_and(|bytes| bytes == granule.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(bytes in proptest::collection::vec(0..4u8, 4096), plain in 0..4096usize) {
            let mut granule = bytes;
            granule[plain..].fill(7);
            let before = granule.clone();
            let mut packing = Packing::default();
            let mut bytes = 4096;
            if let Some(packed) = packing.pack(&granule) {
                bytes = packed.len();
                prop_assert!(bytes <= 2457);
                granule[..bytes].copy_from_slice(packed);
            }
            prop_assert!(packing.unpack(&mut granule, bytes));
            prop_assert_eq!(granule, before);
        }

        #[test]
        fn what_was_not_packed_is_refused_or_fills_a_granule(bytes in proptest::collection::vec(any::<u8>(), 1..300)) {
            let mut granule = [0; 512];
            granule[..bytes.len()].copy_from_slice(&bytes);
            Packing::default().unpack(&mut granule, bytes.len());
        }
    }

    #[test]
    fn what_stays_long_stays_as_it_is() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut packing = Packing::default();
        // Two thirds of noise compress to two thirds, and a half to a half.
        for (noisy, is_packed) in [(4096, false), (2730, false), (2048, true), (0, true)] {
            let granule: Vec<u8> = (0..4096).map(|at| if at < noisy { noise() } else { 9 }).collect();
            assert_eq!(packing.pack(&granule).is_some(), is_packed, "{noisy}");
        }
    }

    #[test]
    fn what_would_be_longer_or_shorter_than_a_granule_is_refused() {
        let mut packing = Packing::default();
        for other in [4096, 1024] {
            let packed = packing.pack(&vec![5; other]).unwrap().to_vec();
            let mut granule = [0; 2048];
            granule[..packed.len()].copy_from_slice(&packed);
            assert!(!packing.unpack(&mut granule, packed.len()));
        }
    }
}
