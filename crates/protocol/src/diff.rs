//! Diffs: where a page differs from its twin, byte for byte.
//!
//! A diff is a sequence of runs, each `gap length bytes`: `gap` unchanged bytes after the previous run, then
//! `length ≥ 1` changed bytes. Numbers are LEB128. Runs are **byte-exact**: a byte that did not change is never
//! in a diff, not even to join two runs, because another node may be changing it at the same time.

use thiserror::Error;

/// A diff that does not fit its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DiffError {
    /// The bytes end inside a run.
    #[error("expected a diff of whole runs, got one that ends inside a run")]
    Truncated,
    /// A run is empty.
    #[error("expected runs of one byte or more in a diff, got an empty run")]
    EmptyRun,
    /// A run leaves the page.
    #[error("expected a diff within a page of {page_bytes} bytes, got a run that ends at byte {end}")]
    OutOfPage {
        /// The page's size.
        page_bytes: usize,
        /// Where the run ends.
        end: usize,
    },
}

/// Equal stretches dominate: lines of this length are compared first, and only one that differs is looked at byte by byte.
const LINE_BYTES: usize = 64;

/// Appends the runs where `page` differs from `twin`. Both are one page long.
pub fn encode(page: &[u8], twin: &[u8], out: &mut Vec<u8>) {
    encode_from(page, twin, different_lines(page, twin), out);
}

/// The same when it is known which lines of 64 bytes may differ: bit `i % 64` of `changed_lines[i / 64]` stands for line `i`. The
/// others are taken to be equal without a look.
pub fn encode_lines(page: &[u8], twin: &[u8], changed_lines: &[u64], out: &mut Vec<u8>) {
    let lines = changed_lines.iter().enumerate().flat_map(|(index, word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
    });
    encode_from(page, twin, lines, out);
}

/// The diff that changes these bytes alone, one at least.
pub fn of_bytes(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_number(&mut out, offset);
    write_number(&mut out, bytes.len());
    out.extend_from_slice(bytes);
    out
}

fn encode_from(page: &[u8], twin: &[u8], lines: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
    let mut previous_end = 0;
    for_each_difference_in(page, twin, lines, |start, end| {
        write_number(out, start - previous_end);
        write_number(out, end - start);
        out.extend_from_slice(&page[start..end]);
        previous_end = end;
    });
}

/// Calls `run(start, end)` for each maximal run of bytes in which `a` and `b` differ, in order.
pub fn for_each_difference(a: &[u8], b: &[u8], run: impl FnMut(usize, usize)) {
    for_each_difference_in(a, b, different_lines(a, b), run);
}

fn different_lines<'a>(a: &'a [u8], b: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let lines = a.chunks(LINE_BYTES).zip(b.chunks(LINE_BYTES)).enumerate();
    lines.filter(|(_, (line_a, line_b))| line_a != line_b).map(|(index, _)| index)
}

/// Looks at the given lines alone, which ascend.
fn for_each_difference_in(
    a: &[u8],
    b: &[u8],
    lines: impl Iterator<Item = usize>,
    mut run: impl FnMut(usize, usize),
) {
    assert_eq!(a.len(), b.len(), "a page and its twin have the same length");
    let mut open: Option<usize> = None;
    let mut looked_to = 0;
    for line in lines {
        let line_start = line * LINE_BYTES;
        let line_end = (line_start + LINE_BYTES).min(a.len());
        if line_start > looked_to
            && let Some(start) = open.take()
        {
            run(start, looked_to);
        }
        for at in line_start..line_end {
            match (open, a[at] != b[at]) {
                (None, true) => open = Some(at),
                (Some(start), false) => {
                    run(start, at);
                    open = None;
                }
                _ => {}
            }
        }
        looked_to = line_end;
    }
    if let Some(start) = open {
        run(start, looked_to);
    }
}

/// The diff of one word, whole, whether its bytes differ or not.
pub fn word(offset: u32, value: u64) -> Vec<u8> {
    let mut runs = Vec::new();
    write_number(&mut runs, offset as usize);
    write_number(&mut runs, size_of::<u64>());
    runs.extend(value.to_ne_bytes());
    runs
}

/// Checks a diff that came from another node and calls `write(offset, bytes)` for each run; nothing is written
/// when any run is bad.
pub fn apply(runs: &[u8], page_bytes: usize, mut write: impl FnMut(usize, &[u8])) -> Result<(), DiffError> {
    check(runs, page_bytes)?;
    Runs { rest: runs, position: 0 }.flatten().for_each(|(offset, bytes)| write(offset, bytes));
    Ok(())
}

/// The changed bytes of a diff that was checked or made here.
pub fn ranges(runs: &[u8]) -> Vec<std::ops::Range<u32>> {
    let runs = Runs { rest: runs, position: 0 }.flatten();
    runs.map(|(offset, bytes)| offset as u32..(offset + bytes.len()) as u32).collect()
}

/// Checks that a diff decodes and stays within a page of `page_bytes` bytes.
pub fn check(runs: &[u8], page_bytes: usize) -> Result<(), DiffError> {
    for run in (Runs { rest: runs, position: 0 }) {
        let (offset, bytes) = run?;
        let end = offset.saturating_add(bytes.len());
        if end > page_bytes {
            return Err(DiffError::OutOfPage { page_bytes, end });
        }
    }
    Ok(())
}

struct Runs<'a> {
    rest: &'a [u8],
    position: usize,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Result<(usize, &'a [u8]), DiffError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let run = self.read_run();
        if run.is_err() {
            self.rest = &[];
        }
        Some(run)
    }
}

impl<'a> Runs<'a> {
    fn read_run(&mut self) -> Result<(usize, &'a [u8]), DiffError> {
        let gap = read_number(&mut self.rest).ok_or(DiffError::Truncated)?;
        let length = read_number(&mut self.rest).ok_or(DiffError::Truncated)?;
        if length == 0 {
            return Err(DiffError::EmptyRun);
        }
        let bytes = self.rest.split_off(..length).ok_or(DiffError::Truncated)?;
        let offset = self.position.saturating_add(gap);
        self.position = offset.saturating_add(length);
        Ok((offset, bytes))
    }
}

fn write_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Numbers in a diff are below 2^21 (the largest page), so three bytes must do.
fn read_number(rest: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let byte = *rest.split_off_first()?;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn applied(twin: &[u8], runs: &[u8]) -> Vec<u8> {
        let mut page = twin.to_vec();
        apply(runs, page.len(), |offset, bytes| page[offset..offset + bytes.len()].copy_from_slice(bytes))
            .unwrap();
        page
    }

    #[test]
    fn equal_pages_have_an_empty_diff() {
        let mut runs = Vec::new();
        encode(&[7; 4096], &[7; 4096], &mut runs);
        assert!(runs.is_empty());
    }

    #[test]
    fn a_run_may_be_the_whole_page_and_cross_lines() {
        let mut runs = Vec::new();
        encode(&[1; 4096], &[0; 4096], &mut runs);
        assert_eq!(applied(&[0; 4096], &runs), [1; 4096]);
        assert_eq!(runs.len(), 4096 + 3);
    }

    #[test]
    fn the_diff_of_a_word_writes_the_word() {
        let mut wanted = [7; 4096];
        wanted[4080..4088].copy_from_slice(&99u64.to_ne_bytes());
        assert_eq!(applied(&[7; 4096], &word(4080, 99)), wanted);
    }

    #[test]
    fn bad_diffs_are_refused_whole() {
        let bad: [(&[u8], DiffError); 4] = [
            (&[0], DiffError::Truncated),
            (&[0, 5, 1], DiffError::Truncated),
            (&[3, 0], DiffError::EmptyRun),
            (&[0, 1, 9, 0xff, 0x1f, 1, 9], DiffError::OutOfPage { page_bytes: 4096, end: 4097 }),
        ];
        for (runs, error) in bad {
            assert_eq!(apply(runs, 4096, |_, _| panic!("a run of a bad diff was written")), Err(error));
        }
    }

    proptest! {
        #[test]
        fn a_diff_restores_the_page_and_touches_nothing_else(
            twin in proptest::collection::vec(any::<u8>(), 512),
            changes in proptest::collection::vec((0usize..512, any::<u8>()), 0..80),
        ) {
            let mut page = twin.clone();
            for (at, value) in changes {
                page[at] = value;
            }
            let mut runs = Vec::new();
            encode(&page, &twin, &mut runs);
            prop_assert_eq!(&applied(&twin, &runs), &page);
            let changed = different_lines(&page, &twin).fold(0, |word, line| word | 1 << line);
            let mut by_lines = Vec::new();
            encode_lines(&page, &twin, &[changed], &mut by_lines);
            prop_assert_eq!(&by_lines, &runs);
            apply(&runs, 512, |offset, bytes| {
                for (index, byte) in bytes.iter().enumerate() {
                    assert_ne!(twin[offset + index], *byte, "an unchanged byte is in the diff");
                }
            }).unwrap();
        }

        #[test]
        fn arbitrary_bytes_never_panic(runs in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = apply(&runs, 512, |offset, bytes| assert!(offset + bytes.len() <= 512));
        }
    }
}
