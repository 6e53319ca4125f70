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
    /// Compresses a granule in place, if that pays. The rest of it is zeros then. Returns its length, which
    /// is less than before only if it is compressed. The same granule always becomes the same bytes.
    pub(super) fn pack(&mut self, granule: &mut [u8]) -> usize {
        let Packing(scratch) = self;
        scratch.resize(lz4_flex::block::get_maximum_output_size(granule.len()), 0);
        match lz4_flex::block::compress_into(granule, scratch) {
            Ok(bytes) if bytes <= granule.len() * PERCENT_MAX / 100 => {
                granule[..bytes].copy_from_slice(&scratch[..bytes]);
                // What was not compressed must not leave unsealed.
                granule[bytes..].fill(0);
                bytes
            }
            _ => granule.len(),
        }
    }

    /// Restores a granule of which the first `bytes` are what [`pack`](Self::pack) left of it. Returns false
    /// if they are anything else.
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
            let packed = packing.pack(&mut granule);
            prop_assert!(packed == 4096 || (packed <= 2457 && granule[packed..].iter().all(|byte| *byte == 0)));
            prop_assert!(packing.unpack(&mut granule, packed));
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
            let before: Vec<u8> = (0..4096).map(|at| if at < noisy { noise() } else { 9 }).collect();
            let mut granule = before.clone();
            let bytes = packing.pack(&mut granule);
            assert_eq!(bytes < 4096, is_packed, "{noisy}: {bytes}");
            assert!(is_packed || granule == before);
        }
    }

    #[test]
    fn what_would_be_longer_or_shorter_than_a_granule_is_refused() {
        let mut packing = Packing::default();
        for other in [4096, 1024] {
            let mut longer = vec![5; other];
            let bytes = packing.pack(&mut longer);
            let mut granule = [0; 2048];
            granule[..bytes].copy_from_slice(&longer[..bytes]);
            assert!(!packing.unpack(&mut granule, bytes));
        }
    }
}
