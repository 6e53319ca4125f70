//! Pages of a program's data that belong to its large variables alone.

use std::ops::Range;

const PAGE_BYTES: usize = 4096;

/// Returns the whole pages of `data` that are inside `variables` and contain nothing that is `named`, in runs
/// by ascending address.
pub fn whole_pages(
    data: &[Range<usize>],
    mut variables: Vec<Range<usize>>,
    named: &[Range<usize>],
) -> Vec<Range<usize>> {
    variables.sort_unstable_by_key(|variable| variable.start);
    let mut pages = Vec::new();
    for variable in joined(variables) {
        for part in data {
            let start = variable.start.max(part.start).next_multiple_of(PAGE_BYTES);
            let end = variable.end.min(part.end) & !(PAGE_BYTES - 1);
            let mut next = start;
            let mut inside: Vec<_> =
                named.iter().filter(|place| place.start < end && start < place.end).collect();
            inside.sort_unstable_by_key(|place| place.start);
            for place in inside {
                pages.push(next..(place.start & !(PAGE_BYTES - 1)).max(next));
                next = next.max(place.end.next_multiple_of(PAGE_BYTES));
            }
            pages.push(next..end);
        }
    }
    pages.retain(|run| !run.is_empty());
    pages.sort_unstable_by_key(|run| run.start);
    pages
}

/// Joins ranges that touch or overlap. They are ordered by their beginnings.
fn joined(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => all.push(range),
        }
    }
    all
}
