//! The requirements on every policy: one suite, run over all of them.

use std::collections::BTreeSet;

use hiroba_base::{PageId, Prng, RngExt, seeded};
use hiroba_paging::{Opt, Policy, PolicyKind, Reference, Traffic, replay};

use crate::traces::{leavers, pages};

/// Makes every policy for a trace.
fn policies(trace: &[PageId]) -> Vec<Box<dyn Policy>> {
    let online = PolicyKind::ALL.into_iter().map(PolicyKind::make);
    online.chain([Box::new(Opt::over(trace.to_vec())) as Box<dyn Policy>]).collect()
}

/// Makes a trace of a thousand uses of forty pages, some of them used more than others.
fn trace(rng: &mut Prng) -> Vec<PageId> {
    (0..1000).map(|_| PageId(rng.random_range(0..40_u64).min(rng.random_range(0..40)))).collect()
}

#[test]
fn who_leaves_was_here_and_is_gone() {
    let numbers: Vec<u64> = trace(&mut seeded(1)).iter().map(|page| page.0).collect();
    for mut policy in policies(&pages(&numbers)) {
        // It checks during the run.
        assert!(!leavers(&mut *policy, 7, &numbers).is_empty(), "{}", policy.name());
    }
}

#[test]
fn nothing_leaves_where_nothing_is_or_may() {
    let trace = pages(&[1, 2, 3, 1, 1, 1, 2]);
    for mut policy in policies(&trace) {
        assert_eq!(policy.evict(&mut |_| true), None, "{}", policy.name());
        trace[..3].iter().for_each(|page| policy.admit(*page));
        trace[3..].iter().for_each(|page| policy.reference(*page));
        let mut asked = 0;
        let refused = policy.evict(&mut |_| {
            asked += 1;
            false
        });
        assert_eq!((refused, policy.resident()), (None, 3), "{}", policy.name());
        assert!((3..=12).contains(&asked), "{}: asked {asked} times about three pages", policy.name());
    }
}

#[test]
fn the_one_page_that_may_leave_is_found_wherever_it_is() {
    let trace = trace(&mut seeded(2));
    for free in 0..40 {
        for mut policy in policies(&trace) {
            let mut here = BTreeSet::new();
            for page in &trace {
                if !here.insert(*page) {
                    policy.reference(*page);
                    continue;
                }
                policy.admit(*page);
                if here.len() == 20 && here.contains(&PageId(free)) {
                    let left = policy.evict(&mut |page| page == PageId(free));
                    assert_eq!(left, Some(PageId(free)), "{}", policy.name());
                    here.remove(&PageId(free));
                }
            }
        }
    }
}

/// Pages are freed while others come and go, in memory whose size changes.
#[test]
fn pages_are_freed_and_budgets_change_at_any_time() {
    for seed in 0..30 {
        let trace = trace(&mut seeded(seed));
        for mut policy in policies(&trace) {
            let mut rng = seeded(seed + 1000);
            let (mut here, mut most) = (BTreeSet::new(), 0);
            for page in &trace {
                let frames = rng.random_range(1..20_usize);
                if here.contains(page) {
                    policy.reference(*page);
                } else {
                    while here.len() >= frames {
                        let pinned: PageId = *here.first().expect("a page is here");
                        let alone = here.len() == 1;
                        let left = policy.evict(&mut |page| alone || page != pinned);
                        let left = left.unwrap_or_else(|| panic!("{}: no page leaves", policy.name()));
                        assert!(here.remove(&left), "{}: {left} was not here", policy.name());
                    }
                    policy.admit(*page);
                    here.insert(*page);
                }
                if rng.random_ratio(1, 5) {
                    let freed = PageId(rng.random_range(0..40));
                    policy.forget(freed);
                    here.remove(&freed);
                }
                most = most.max(here.len());
                assert_eq!(policy.resident(), here.len(), "{}, seed {seed}", policy.name());
                assert!(policy.remembered() <= 2 * most, "{}, seed {seed}", policy.name());
            }
            for page in std::mem::take(&mut here) {
                policy.forget(page);
            }
            assert_eq!((policy.resident(), policy.remembered()), (0, 0), "{}", policy.name());
        }
    }
}

#[test]
fn a_run_repeats() {
    let trace = trace(&mut seeded(3));
    let numbers: Vec<u64> = trace.iter().map(|page| page.0).collect();
    let runs = || policies(&trace).into_iter().map(|mut policy| leavers(&mut *policy, 9, &numbers));
    assert!(runs().eq(runs()));
}

#[test]
fn where_all_fits_each_page_comes_once_and_none_leaves() {
    let trace = trace(&mut seeded(4));
    let different = trace.iter().collect::<BTreeSet<_>>().len() as u64;
    let stores = |page: &PageId| Reference { page: *page, is_store: true };
    for mut policy in policies(&trace) {
        let traffic = replay(&mut *policy, 40, trace.iter().map(stores));
        let expected = Traffic { references: 1000, page_ins: different, page_outs: 0 };
        assert_eq!(traffic, expected, "{}", policy.name());
    }
}

#[test]
fn only_changed_pages_go_out() {
    let uses = [(1, true), (2, false), (3, false), (4, true), (5, false), (1, false)];
    let trace = pages(&uses.map(|(page, _)| page));
    for mut policy in policies(&trace) {
        let uses = uses.map(|(page, is_store)| Reference { page: PageId(page), is_store });
        let traffic = replay(&mut *policy, 1, uses);
        let expected = Traffic { references: 6, page_ins: 6, page_outs: 2 };
        assert_eq!(traffic, expected, "{}", policy.name());
    }
}
