//! Packing by vectors.

/// Compares 32 bytes of a line at once. Lines in which groups of 4 bytes change or stay together, as in most
/// programs, are moved by permutations and written under a mask. Other lines are moved by words, whose bytes
/// a shuffle moves.
pub(super) mod avx2 {
    use core::arch::x86_64::{
        __m256i, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_shuffle_epi8, _mm256_blendv_epi8,
        _mm256_cmpeq_epi8, _mm256_cvtepi8_epi32, _mm256_loadu_si256, _mm256_maskstore_epi32,
        _mm256_movemask_epi8, _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_storeu_si256,
        _mm256_xor_si256,
    };

    use hiroba_base::{ChangedBytes, LINE_BYTES};

    use crate::packing::words::{self, LINE_WORDS};
    use crate::packing::{Packed, TwinBlock, each_line, line_of};

    const HALF_BYTES: usize = LINE_BYTES / 2;
    /// The lowest bit of each four.
    const FOURS: u64 = 0x1111_1111_1111_1111;

    /// For each mask of eight pieces: the source of each piece of the compressed form.
    static COMPRESS: [u64; 256] = orders(true);
    /// The inverse: the place in the compressed form of each piece; negative where the mask does not select
    /// it.
    static EXPAND: [u64; 256] = orders(false);

    const fn orders(compressing: bool) -> [u64; 256] {
        let mut all = [if compressing { 0 } else { u64::MAX }; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut piece, mut count) = (0, 0);
            while piece < 8 {
                if mask >> piece & 1 == 1 {
                    let (from, to) = if compressing { (piece, count) } else { (count, piece) };
                    all[mask] = all[mask] & !(0xff << (8 * to)) | from << (8 * to);
                    count += 1;
                }
                piece += 1;
            }
            mask += 1;
        }
        all
    }

    /// Permutes a word's bytes.
    #[target_feature(enable = "avx2")]
    fn shuffle(word: u64, order: u64) -> u64 {
        let (word, order) = (_mm_cvtsi64_si128(word as i64), _mm_cvtsi64_si128(order as i64));
        _mm_cvtsi128_si64(_mm_shuffle_epi8(word, order)) as u64
    }

    /// Widens an order to pieces of 4 bytes.
    #[target_feature(enable = "avx2")]
    fn wide(order: u64) -> __m256i {
        _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(order as i64))
    }

    #[target_feature(enable = "avx2")]
    fn load(from: &[u8; HALF_BYTES]) -> __m256i {
        // SAFETY: the array has 32 bytes.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store(to: &mut [u8; HALF_BYTES], half: __m256i) {
        // SAFETY: the array has 32 bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), half) };
    }

    /// Returns half a line.
    #[inline(always)]
    fn half(line: &mut [u8; LINE_BYTES], at: usize) -> &mut [u8; HALF_BYTES] {
        (&mut line[at..at + HALF_BYTES]).try_into().expect("half a line's length")
    }

    /// Returns which pieces of 4 bytes the mask selects in each half of a line, if it selects only whole
    /// pieces.
    #[inline(always)]
    fn fours(mask: u64) -> Option<[usize; 2]> {
        let fours = mask & FOURS;
        if fours * 0xf != mask {
            return None;
        }
        let pairs = (fours | fours >> 3) & 0x0303_0303_0303_0303;
        let bytes = (pairs | pairs >> 6) & 0x000f_000f_000f_000f;
        let halves = (bytes | bytes >> 12) & 0x0000_00ff_0000_00ff;
        Some([halves as usize & 0xff, (halves >> 32) as usize])
    }

    /// # Safety
    /// As for [`Variant::pack`](crate::compare::Variant::pack); the processor must have AVX2 and POPCNT.
    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::packing) unsafe fn pack(
        frame: *const u8,
        twin: &mut TwinBlock,
        settle: bool,
        lines: u64,
        changed: &mut ChangedBytes,
        packed: &mut Packed,
    ) -> usize {
        let mut count = 0;
        each_line(lines, |line| {
            let twin = line_of(twin, line);
            let (mut ours, mut mask) = ([_mm256_set1_epi32(0); 2], u64::MAX);
            for (index, ours) in ours.iter_mut().enumerate() {
                let place = frame.wrapping_add(line * LINE_BYTES + index * HALF_BYTES);
                // SAFETY: within the block by the caller's contract.
                *ours = unsafe { _mm256_loadu_si256(place.cast()) };
                let theirs = half(twin, index * HALF_BYTES);
                let same = _mm256_movemask_epi8(_mm256_cmpeq_epi8(*ours, load(theirs))) as u32;
                mask ^= u64::from(same) << (index * HALF_BYTES);
                if settle {
                    store(theirs, *ours);
                }
            }
            changed.set(line, mask);
            let room = packed.line(count);
            if let Some([first, second]) = fours(mask) {
                store(half(room, 0), _mm256_permutevar8x32_epi32(ours[0], wide(COMPRESS[first])));
                let behind = 4 * first.count_ones() as usize;
                store(half(room, behind), _mm256_permutevar8x32_epi32(ours[1], wide(COMPRESS[second])));
            } else {
                let mut words = [0; LINE_WORDS];
                for (ours, words) in ours.iter().zip(words.as_chunks_mut::<4>().0) {
                    // SAFETY: four words have 32 bytes.
                    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), *ours) };
                }
                words::pack_line(&words, mask, room, |word, bytes| {
                    shuffle(word, COMPRESS[usize::from(bytes)])
                });
            }
            count += mask.count_ones() as usize;
        });
        count
    }

    /// # Safety
    /// As for [`Variant::spread`](crate::compare::Variant::spread); the processor must have AVX2 and POPCNT.
    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::packing) unsafe fn spread(
        changed: &ChangedBytes,
        bytes: &[u8],
        frame: *mut u8,
        mut twin: Option<&mut TwinBlock>,
    ) {
        let mut rest = bytes;
        for (line, mask) in changed.masks() {
            let frame = frame.wrapping_add(line * LINE_BYTES);
            let mut twin = twin.as_mut().map(|twin| line_of(twin, line));
            let Some(fours) = fours(mask) else {
                let expand = |packed: u64, bytes: u8| shuffle(packed, EXPAND[usize::from(bytes)]);
                // SAFETY: the caller's contract; the line lies in the block.
                unsafe { words::spread_line(&mut rest, mask, frame, twin, expand) };
                continue;
            };
            for (index, named) in fours.into_iter().enumerate() {
                let (packed, behind) = rest.split_at(4 * named.count_ones() as usize);
                let mut last = [0; HALF_BYTES];
                let next = rest.first_chunk().unwrap_or_else(|| {
                    last[..packed.len()].copy_from_slice(packed);
                    &last
                });
                rest = behind;
                let order = wide(EXPAND[named]);
                let spread = _mm256_permutevar8x32_epi32(load(next), order);
                if let Some(twin) = &mut twin {
                    let twin = half(twin, index * HALF_BYTES);
                    store(twin, _mm256_blendv_epi8(spread, load(twin), order));
                }
                let place = frame.wrapping_add(index * HALF_BYTES).cast();
                if named == 0xff {
                    // SAFETY: within the block by the caller's contract; the mask selects all of these bytes.
                    unsafe { _mm256_storeu_si256(place, spread) };
                } else {
                    let is_named = _mm256_xor_si256(order, _mm256_set1_epi32(-1));
                    // SAFETY: within the block by the caller's contract; only bytes that the mask selects are
                    // written.
                    unsafe { _mm256_maskstore_epi32(place.cast(), is_named, spread) };
                }
            }
        }
    }

    /// # Safety
    /// As for [`Variant::merge`](crate::compare::Variant::merge); the processor must have AVX2 and POPCNT.
    #[target_feature(enable = "avx2,popcnt")]
    pub(in crate::packing) unsafe fn merge(
        content: &TwinBlock,
        twin: &mut TwinBlock,
        lines: u64,
        frame: *mut u8,
    ) {
        // SAFETY: the caller's contract.
        unsafe { words::merge(content, twin, lines, frame) }
    }
}

/// Compares, compresses, expands and writes lines by one instruction each.
pub(super) mod vbmi2 {
    use core::arch::x86_64::{
        __m512i, _mm512_cmpneq_epi8_mask, _mm512_loadu_si512, _mm512_mask_expand_epi8,
        _mm512_mask_storeu_epi8, _mm512_maskz_compress_epi8, _mm512_maskz_expand_epi8,
        _mm512_maskz_loadu_epi8, _mm512_storeu_si512,
    };

    use hiroba_base::{ChangedBytes, LINE_BYTES};

    use crate::packing::{Packed, TwinBlock, each_line, line_of};

    /// # Safety
    /// `from` must be valid for reading a line.
    #[target_feature(enable = "avx512f")]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[target_feature(enable = "avx512f")]
    fn store(to: &mut [u8; LINE_BYTES], line: __m512i) {
        // SAFETY: the array is a line.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), line) }
    }

    /// # Safety
    /// As for [`Variant::pack`](crate::compare::Variant::pack); the processor must have AVX-512 VBMI2 and BW,
    /// and POPCNT.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(in crate::packing) unsafe fn pack(
        frame: *const u8,
        twin: &mut TwinBlock,
        settle: bool,
        lines: u64,
        changed: &mut ChangedBytes,
        packed: &mut Packed,
    ) -> usize {
        let mut count = 0;
        each_line(lines, |line| {
            // SAFETY: within the block by the caller's contract.
            let ours = unsafe { load(frame.wrapping_add(line * LINE_BYTES)) };
            let twin = line_of(twin, line);
            // SAFETY: a line of the twin.
            let theirs = unsafe { load(twin.as_ptr()) };
            let mask = _mm512_cmpneq_epi8_mask(ours, theirs);
            changed.set(line, mask);
            store(packed.line(count), _mm512_maskz_compress_epi8(mask, ours));
            count += mask.count_ones() as usize;
            if settle {
                store(twin, ours);
            }
        });
        count
    }

    /// # Safety
    /// As for [`Variant::spread`](crate::compare::Variant::spread); the processor must have AVX-512 VBMI2 and
    /// BW, and POPCNT.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(in crate::packing) unsafe fn spread(
        changed: &ChangedBytes,
        bytes: &[u8],
        frame: *mut u8,
        mut twin: Option<&mut TwinBlock>,
    ) {
        let mut rest = bytes;
        for (line, mask) in changed.masks() {
            let next = match rest.first_chunk::<LINE_BYTES>() {
                // SAFETY: the array is a line.
                Some(line) => unsafe { load(line.as_ptr()) },
                // SAFETY: the mask selects the bytes that are left, fewer than a line; no others are read.
                None => unsafe { _mm512_maskz_loadu_epi8((1 << rest.len()) - 1, rest.as_ptr().cast()) },
            };
            rest = &rest[mask.count_ones() as usize..];
            if let Some(twin) = &mut twin {
                let twin = line_of(twin, line);
                // SAFETY: a line of the twin.
                let before = unsafe { load(twin.as_ptr()) };
                store(twin, _mm512_mask_expand_epi8(before, mask, next));
            }
            let place = frame.wrapping_add(line * LINE_BYTES).cast();
            let spread = _mm512_maskz_expand_epi8(mask, next);
            // SAFETY: within the block by the caller's contract; only bytes that the mask selects are
            // written.
            unsafe { _mm512_mask_storeu_epi8(place, mask, spread) };
        }
    }

    /// # Safety
    /// As for [`Variant::merge`](crate::compare::Variant::merge); the processor must have AVX-512 VBMI2 and
    /// BW, and POPCNT.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(in crate::packing) unsafe fn merge(
        content: &TwinBlock,
        twin: &mut TwinBlock,
        lines: u64,
        frame: *mut u8,
    ) {
        each_line(lines, |line| {
            let offset = line * LINE_BYTES;
            let twin = line_of(twin, line);
            // SAFETY: a line of the content.
            let news = unsafe { load(content[offset..offset + LINE_BYTES].as_ptr()) };
            // SAFETY: a line of the twin.
            let before = unsafe { load(twin.as_ptr()) };
            let mask = _mm512_cmpneq_epi8_mask(news, before);
            let place = frame.wrapping_add(offset).cast();
            // SAFETY: within the block by the caller's contract; only bytes that the mask selects are
            // written.
            unsafe { _mm512_mask_storeu_epi8(place, mask, news) };
            store(twin, news);
        });
    }
}
