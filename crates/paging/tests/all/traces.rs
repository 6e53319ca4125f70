//! Traces for tests: random ones with the patterns of programs, and runs of a policy over them.

use hiroba_base::PageId;
use hiroba_paging::{Policy, Reference};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns the pages of a trace.
pub fn pages(numbers: &[u64]) -> Vec<PageId> {
    numbers.iter().copied().map(PageId).collect()
}

/// Returns a trace of loads.
pub fn loads(numbers: &[u64]) -> Vec<Reference> {
    numbers.iter().map(|page| Reference { page: PageId(*page), is_store: false }).collect()
}

/// Loops, scans and hot pages, one after another.
pub fn habits() -> impl Strategy<Value = Vec<u64>> {
    let piece = prop_oneof![
        vec(0..12_u64, 1..30),
        (0..20_u64, 1..14_u64, 1..5_usize)
            .prop_map(|(first, count, times)| (first..first + count).collect::<Vec<_>>().repeat(times)),
        (0..20_u64, 1..8_usize).prop_map(|(page, times)| vec![page; times]),
    ];
    vec(piece, 1..10).prop_map(|pieces| pieces.concat())
}

/// Returns the pages that left, in order, when a trace runs in memory of `frames` pages. Checks the count
/// during the run.
pub fn leavers(policy: &mut dyn Policy, frames: usize, trace: &[u64]) -> Vec<u64> {
    let mut here = std::collections::BTreeSet::new();
    let mut gone = Vec::new();
    for page in pages(trace) {
        if here.contains(&page) {
            policy.reference(page);
        } else {
            if here.len() == frames {
                let left = policy.evict(&mut |_| true).expect("any page may leave");
                assert!(here.remove(&left), "{}: {left} was not here", policy.name());
                gone.push(left.0);
            }
            policy.admit(page);
            here.insert(page);
        }
        assert_eq!(policy.resident(), here.len(), "{}", policy.name());
        assert!(policy.remembered() <= 2 * frames, "{}: {}", policy.name(), policy.remembered());
    }
    gone
}
