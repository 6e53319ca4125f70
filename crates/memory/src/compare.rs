//! Finds the lines in which two copies of a page differ, at the speed of memory.
//!
//! A block of sixteen lines is first tested as a whole, by combining all its differences in one register.
//! Pages that a release finds unchanged are the common case, and cost no more than reading them.

use hiroba_base::{BLOCK_BYTES, LINE_BYTES};

/// Number of lines tested together.
const GROUP_LINES: usize = 16;

#[repr(C, align(64))]
pub(crate) struct Block([u8; BLOCK_BYTES]);

/// The content of a page without a frame.
pub(crate) static ZERO_BLOCK: Block = Block([0; BLOCK_BYTES]);

impl Block {
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

/// The implementations of the comparison; all give the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// 64 bytes at once; one instruction moves any of a line's bytes together.
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi2,
    /// 64 bytes at once.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32 bytes at once.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Words, which the compiler turns into the vectors that every processor of the architecture has.
    Portable,
}

impl Variant {
    /// Returns the variants that this processor supports, fastest first.
    pub fn available() -> Vec<Variant> {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt");
        #[cfg(target_arch = "x86_64")]
        let avx512 = avx2 && is_x86_feature_detected!("avx512f");
        #[cfg(target_arch = "x86_64")]
        let vbmi2 = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi2");
        #[cfg(target_arch = "x86_64")]
        let wide = [
            (avx512 && vbmi2).then_some(Variant::Avx512Vbmi2),
            avx512.then_some(Variant::Avx512),
            avx2.then_some(Variant::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide = [None];
        wide.into_iter().flatten().chain([Variant::Portable]).collect()
    }

    /// Returns the fastest variant that this processor supports.
    pub fn best() -> Variant {
        Variant::available()[0]
    }

    /// Compares two copies of a page. Bit `i % 64` of `out[i / 64]` is set if line `i` differs. Returns false
    /// if no line differs.
    ///
    /// # Panics
    /// Panics if the copies differ in length or are not whole blocks, if `out` does not have a word for each
    /// block, or if this processor does not support the variant.
    pub fn changed_lines(self, first: &[u8], second: &[u8], out: &mut [u64]) -> bool {
        assert!(Variant::available().contains(&self), "this processor has no {self:?}");
        assert_eq!((first.len(), first.len()), (second.len(), out.len() * BLOCK_BYTES));
        let mut differ = false;
        let blocks = first.chunks_exact(BLOCK_BYTES).zip(second.chunks_exact(BLOCK_BYTES));
        for (word, (first, second)) in out.iter_mut().zip(blocks) {
            // SAFETY: both slices contain a block, and the processor was checked above.
            *word = unsafe { self.changed_lines_of_block(first.as_ptr(), second.as_ptr()) };
            differ |= *word != 0;
        }
        differ
    }

    /// Returns the lines in which two blocks differ, by bits. A concurrent write may be seen or not.
    ///
    /// Both pointers must be valid for reading a block, and `self` must be [`available`](Self::available).
    /// Other threads may write to the blocks: they are only read through the pointers, never referenced.
    /// referred to.
    pub(crate) unsafe fn changed_lines_of_block(self, first: *const u8, second: *const u8) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's contract.
            Variant::Avx512Vbmi2 | Variant::Avx512 => unsafe { x86::avx512(first, second) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's contract.
            Variant::Avx2 => unsafe { x86::avx2(first, second) },
            // SAFETY: the caller's contract.
            Variant::Portable => unsafe { portable(first, second) },
        }
    }
}

/// # Safety
/// Both pointers must be valid for reading a block.
unsafe fn portable(first: *const u8, second: *const u8) -> u64 {
    const WORDS: usize = LINE_BYTES / size_of::<u64>();
    let difference = |line: usize| {
        (line * WORDS..(line + 1) * WORDS).fold(0, |differing, word| {
            // SAFETY: within the block by the caller's contract.
            let ours = unsafe { first.cast::<u64>().wrapping_add(word).read_unaligned() };
            // SAFETY: as above.
            let theirs = unsafe { second.cast::<u64>().wrapping_add(word).read_unaligned() };
            differing | (ours ^ theirs)
        })
    };
    let mut changed = 0;
    for group in (0..BLOCK_BYTES / LINE_BYTES).step_by(GROUP_LINES) {
        let lines = group..group + GROUP_LINES;
        if lines.clone().fold(0, |differing, line| differing | difference(line)) != 0 {
            changed |= lines.fold(0, |bits, line| bits | u64::from(difference(line) != 0) << line);
        }
    }
    changed
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        _mm256_loadu_si256, _mm256_or_si256, _mm256_setzero_si256, _mm256_testz_si256, _mm256_xor_si256,
        _mm512_cmpneq_epi64_mask, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_ternarylogic_epi64,
        _mm512_test_epi64_mask,
    };

    use hiroba_base::{BLOCK_BYTES, LINE_BYTES};

    use super::GROUP_LINES;

    /// The truth table of `a | (b ^ c)`.
    const OR_OF_XOR: i32 = 0xF6;

    /// # Safety
    /// Both pointers must be valid for reading a block; the processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(first: *const u8, second: *const u8) -> u64 {
        let pair = |line: usize| {
            let offset = line * LINE_BYTES;
            // SAFETY: within the block by the caller's contract.
            let ours = unsafe { _mm512_loadu_si512(first.wrapping_add(offset).cast()) };
            // SAFETY: as above.
            let theirs = unsafe { _mm512_loadu_si512(second.wrapping_add(offset).cast()) };
            (ours, theirs)
        };
        let mut changed = 0;
        for group in (0..BLOCK_BYTES / LINE_BYTES).step_by(GROUP_LINES) {
            let mut differing = _mm512_setzero_si512();
            for line in group..group + GROUP_LINES {
                let (ours, theirs) = pair(line);
                differing = _mm512_ternarylogic_epi64::<OR_OF_XOR>(differing, ours, theirs);
            }
            if _mm512_test_epi64_mask(differing, differing) == 0 {
                continue;
            }
            for line in group..group + GROUP_LINES {
                let (ours, theirs) = pair(line);
                changed |= u64::from(_mm512_cmpneq_epi64_mask(ours, theirs) != 0) << line;
            }
        }
        changed
    }

    /// # Safety
    /// Both pointers must be valid for reading a block; the processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(first: *const u8, second: *const u8) -> u64 {
        let half = |at: usize| {
            let offset = at * LINE_BYTES / 2;
            // SAFETY: within the block by the caller's contract.
            let ours = unsafe { _mm256_loadu_si256(first.wrapping_add(offset).cast()) };
            // SAFETY: as above.
            let theirs = unsafe { _mm256_loadu_si256(second.wrapping_add(offset).cast()) };
            _mm256_xor_si256(ours, theirs)
        };
        let mut changed = 0;
        for group in (0..BLOCK_BYTES / LINE_BYTES).step_by(GROUP_LINES) {
            let mut differing = _mm256_setzero_si256();
            for at in 2 * group..2 * (group + GROUP_LINES) {
                differing = _mm256_or_si256(differing, half(at));
            }
            if _mm256_testz_si256(differing, differing) == 1 {
                continue;
            }
            for line in group..group + GROUP_LINES {
                let differing = _mm256_or_si256(half(2 * line), half(2 * line + 1));
                changed |= u64::from(_mm256_testz_si256(differing, differing) == 0) << line;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn all_variants_agree_with_the_definition(
            blocks in 1..5usize,
            seed in any::<u8>(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..40),
            skew in 0..64usize,
        ) {
            let bytes = blocks * BLOCK_BYTES;
            let first: Vec<u8> = (0..bytes + skew).map(|at| (at as u8).wrapping_mul(seed)).collect();
            let first = &first[skew..];
            let mut second = first.to_vec();
            flips.iter().for_each(|(index, flip)| second[index.index(bytes)] ^= flip);
            let mut expected = vec![0; blocks];
            for (line, (ours, theirs)) in first.chunks(LINE_BYTES).zip(second.chunks(LINE_BYTES)).enumerate() {
                expected[line / 64] |= u64::from(ours != theirs) << (line % 64);
            }
            for variant in Variant::available() {
                let mut out = vec![u64::MAX; blocks];
                prop_assert_eq!(variant.changed_lines(first, &second, &mut out), first != second);
                prop_assert_eq!(&out, &expected, "{:?}", variant);
            }
        }
    }

    #[test]
    fn each_bit_of_a_block_is_looked_at() {
        let zeros = vec![0; BLOCK_BYTES];
        let mut other = zeros.clone();
        for variant in Variant::available() {
            for bit in 0..8 * BLOCK_BYTES {
                other[bit / 8] = 1 << (bit % 8);
                let mut out = [0];
                assert!(variant.changed_lines(&zeros, &other, &mut out), "{variant:?} bit {bit}");
                assert_eq!(out, [1 << (bit / 8 / LINE_BYTES)]);
                other[bit / 8] = 0;
            }
        }
    }
}
