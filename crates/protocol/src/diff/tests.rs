use proptest::prelude::*;

use super::*;

const PAGE_BYTES: usize = 2 * BLOCK_BYTES;

/// Returns the bytes that a diff writes, `None` where it writes nothing.
fn written(runs: &[u8], page_bytes: usize) -> Result<Vec<Option<u8>>, DiffError> {
    let mut page = vec![None; page_bytes];
    let mut end = 0;
    apply(runs, page_bytes, |offset, bytes| {
        assert!(offset >= end && !bytes.is_empty(), "runs ascend");
        end = offset + bytes.len();
        page[offset..end].iter_mut().zip(bytes).for_each(|(place, byte)| *place = Some(*byte));
    })?;
    Ok(page)
}

/// Returns the bytes that a diff should write, by the definition.
fn expected(page: &[u8], twin: &[u8]) -> Vec<Option<u8>> {
    page.iter().zip(twin).map(|(byte, twin)| (byte != twin).then_some(*byte)).collect()
}

/// Returns the maximal runs of written bytes.
fn runs_of(written: &[Option<u8>]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for at in (0..written.len()).filter(|at| written[*at].is_some()) {
        match runs.last_mut() {
            Some(run) if run.end == at as u32 => run.end += 1,
            _ => runs.push(at as u32..at as u32 + 1),
        }
    }
    runs
}

fn encoded(page: &[u8], twin: &[u8]) -> Vec<u8> {
    let mut runs = Vec::new();
    encode(page, twin, &mut runs);
    runs
}

/// Checks all operations on the diff of a page against the definition.
fn compare_with_definition(page: &[u8], twin: &[u8]) -> Result<(), TestCaseError> {
    let runs = encoded(page, twin);
    let expected = expected(page, twin);
    prop_assert_eq!(check(&runs, page.len()), Ok(()));
    let written = written(&runs, page.len());
    prop_assert_eq!(written.as_ref(), Ok(&expected), "bytes that differ, and no others");
    prop_assert_eq!(ranges(&runs), runs_of(&expected));
    let mut differences = Vec::new();
    for_each_difference(page, twin, |start, end| differences.push(start as u32..end as u32));
    prop_assert_eq!(differences, runs_of(&expected));
    prop_assert_eq!(runs.is_empty(), page == twin);
    Ok(())
}

/// Generates the changed bytes of a line: all kinds of the format, and mixtures.
fn line() -> impl Strategy<Value = u64> {
    let words = |words: u8| (0..64).fold(0, |mask, at| mask | u64::from(words >> (at / 8) & 1) << at);
    prop_oneof![
        4 => Just(0),
        1 => Just(u64::MAX),
        2 => any::<u8>().prop_map(words),
        2 => (any::<u8>(), any::<u64>()).prop_map(move |(these, bytes)| words(these) & bytes),
        1 => any::<u64>(),
        1 => (0..64u32).prop_map(|at| 1 << at),
    ]
}

fn page() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let lines = prop_oneof![
        3 => proptest::collection::vec(line(), PAGE_BYTES / LINE_BYTES),
        1 => (line(), 0..PAGE_BYTES / LINE_BYTES).prop_map(|(mask, at)| {
            (0..PAGE_BYTES / LINE_BYTES).map(|line| if line == at { mask } else { 0 }).collect()
        }),
        1 => line().prop_map(|mask| vec![mask; PAGE_BYTES / LINE_BYTES]),
    ];
    (lines, any::<u8>()).prop_map(|(lines, seed)| {
        let twin: Vec<u8> = (0..PAGE_BYTES).map(|at| (at as u8).wrapping_mul(seed)).collect();
        let changed = |at: usize| lines[at / LINE_BYTES] >> (at % LINE_BYTES) & 1 == 1;
        let page = twin.iter().enumerate().map(|(at, byte)| if changed(at) { !byte } else { *byte });
        (page.collect(), twin)
    })
}

proptest! {
    #[test]
    fn a_diff_holds_the_bytes_that_differ_and_no_others((page, twin) in page()) {
        compare_with_definition(&page, &twin)?;
    }

    #[test]
    fn pages_of_any_length_are_compared_to_their_end(
        twin in proptest::collection::vec(any::<u8>(), 0..5000),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..40),
    ) {
        let mut page = twin.clone();
        if !page.is_empty() {
            flips.iter().for_each(|(at, flip)| page[at.index(twin.len())] ^= flip);
        }
        compare_with_definition(&page, &twin)?;
    }

    #[test]
    fn a_diff_that_is_cut_off_is_refused_whole_wherever_it_is((page, twin) in page()) {
        let runs = encoded(&page, &twin);
        let mut blocks = vec![0];
        let mut changed = ChangedBytes::ALL;
        let mut whole = Blocks::of(&runs, &mut changed);
        while let Ok(Some(_)) = whole.next() {
            blocks.push(runs.len() - whole.left());
        }
        prop_assert_eq!(blocks.last(), Some(&runs.len()));
        for length in 0..runs.len() {
            // A prefix that ends with a block is a valid diff of fewer blocks.
            let is_good = blocks.contains(&length);
            let cut = apply(&runs[..length], PAGE_BYTES, |_, _| assert!(is_good, "a bad diff was written"));
            prop_assert_eq!(cut.is_ok(), is_good, "{} of {} bytes", length, runs.len());
        }
    }

    #[test]
    fn damaged_diffs_are_refused_whole_or_stay_in_the_page(
        (page, twin) in page(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut runs = encoded(&page, &twin);
        if !runs.is_empty() {
            // Only the head matters here, and most of it is at the front.
            let front = runs.len().min(40);
            damage.iter().for_each(|(at, byte)| runs[at.index(front)] = *byte);
        }
        let good = check(&runs, PAGE_BYTES).is_ok();
        let mut end = 0;
        let applied = apply(&runs, PAGE_BYTES, |offset, bytes| {
            assert!(good && offset >= end && !bytes.is_empty());
            end = offset + bytes.len();
            assert!(end <= PAGE_BYTES);
        });
        prop_assert_eq!(applied.is_ok(), good);
    }

    #[test]
    fn arbitrary_bytes_never_panic(runs in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = apply(&runs, 512, |offset, bytes| assert!(offset + bytes.len() <= 512));
        let _ = ranges(&runs);
    }

    #[test]
    fn bytes_are_written_whether_they_are_there_or_not(
        offset in 0..PAGE_BYTES,
        bytes in proptest::collection::vec(any::<u8>(), 0..PAGE_BYTES),
    ) {
        let bytes = &bytes[..bytes.len().min(PAGE_BYTES - offset)];
        let runs = of_bytes(offset, bytes);
        let mut expected = vec![None; PAGE_BYTES];
        expected[offset..].iter_mut().zip(bytes).for_each(|(place, byte)| *place = Some(*byte));
        prop_assert_eq!(written(&runs, PAGE_BYTES), Ok(expected));
    }
}

/// Returns a page of zeros in which these bytes are changed.
fn changed(change: impl Fn(usize) -> bool) -> Vec<u8> {
    (0..4096).map(|at| u8::from(change(at))).collect()
}

#[test]
fn diffs_are_as_short_as_they_should_be() {
    let length = |change: fn(usize) -> bool| encoded(&changed(change), &[0; 4096]).len();
    assert_eq!(length(|_| false), 0);
    assert_eq!(length(|at| at == 2405), 6 + 1);
    assert_eq!(length(|at| at / 8 == 301), 5 + 8);
    assert_eq!(length(|at| at / 4 == 301), 6 + 4);
    assert_eq!(length(|at| at / 8 % 2 == 1), 18 + 64 + 2048);
    assert_eq!(length(|at| at % 64 < 4), 18 + 2 * 64 + 256);
    assert_eq!(length(|at| at % 2 == 1), 18 + 8 * 64 + 2048);
    assert_eq!(length(|at| at < 2048), 10 + 32 + 2048);
    assert_eq!(length(|_| true), 1 + 4096);
    let whole = encoded(&vec![1; 2 << 20], &vec![0; 2 << 20]);
    assert_eq!(whole.len(), 512 * (1 + 4096));
    let last = of_bytes((2 << 20) - 8, &[1; 8]);
    assert_eq!(last.len(), 6 + 8, "the number of blocks left out takes two bytes");
}

#[test]
fn the_format_is_what_the_module_says() {
    let mut page = [0; 4096];
    page[24..32].fill(7); // line 0: a whole word
    page[9 * 64 + 1] = 8; // line 9: some bytes of two words
    page[9 * 64 + 62..9 * 64 + 64].fill(9);
    (0..8).for_each(|word| page[10 * 64 + 8 * word] = 5); // line 10: a byte of each word
    let kinds = [1, 0, 0b100, 0b110];
    let masks = [&[0b1000][..], &[0b1000_0001, 0b10, 0b1100_0000], &[1; 8]].concat();
    let bytes = [&[7; 8][..], &[8, 9, 9], &[5; 8]].concat();
    assert_eq!(encoded(&page, &[0; 4096]), [&[0, 0b11][..], &kinds, &masks, &bytes].concat());
}

#[test]
fn bad_diffs_are_refused_whole() {
    let word = [0, 1, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    assert!(check(&word, 4096).is_ok());
    let behind_it = |rest: &[u8]| [&word, rest].concat();
    let out_of_page = |page_bytes, end| DiffError::OutOfPage { page_bytes, end };
    let bad: [(Vec<u8>, DiffError); 13] = [
        (vec![0], DiffError::Truncated),
        (vec![0x80], DiffError::Truncated),
        (vec![0x80, 0x80, 0], DiffError::LongNumber),
        (vec![0, 0], DiffError::EmptyMask),
        (vec![0, 1, 0, 0], DiffError::EmptyMask),
        (vec![0, 1, 1, 0, 0], DiffError::EmptyMask),
        (vec![0, 1, 0, 1, 0], DiffError::EmptyMask),
        (vec![0, 1, 0, 1, 1, 0], DiffError::EmptyMask),
        (vec![0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], DiffError::EmptyMask),
        (word[..12].to_vec(), DiffError::Truncated),
        (behind_it(&[1]), DiffError::Truncated),
        (behind_it(&word), out_of_page(4096, 4096 + 8)),
        (vec![2, 1, 0, 1, 1, 1, 9], out_of_page(4096, 4097)),
    ];
    for (runs, error) in bad {
        let write = |_: usize, _: &[u8]| panic!("a run of a bad diff was written");
        assert_eq!(apply(&runs, 4096, write), Err(error), "{runs:?}");
    }
    let last_byte = of_bytes(511, &[1]);
    assert_eq!((check(&last_byte, 512), check(&last_byte, 511)), (Ok(()), Err(out_of_page(511, 512))));
}
