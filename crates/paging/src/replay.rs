//! Runs a trace against a policy: counts the pages that come in and go out.

use hiroba_base::PageId;
use rustc_hash::FxHashSet;

use crate::Policy;

/// A use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The page.
    pub page: PageId,
    /// True if the page was changed.
    pub is_store: bool,
}

/// The traffic of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Uses of pages.
    pub references: u64,
    /// Pages that came in, each page's first time included.
    pub page_ins: u64,
    /// Changed pages that were written out when they left. Pages in memory at the end do not count.
    pub page_outs: u64,
}

/// Runs a trace in memory of `frames` pages, at least one. The policy is informed of each use.
pub fn replay(policy: &mut dyn Policy, frames: usize, trace: impl IntoIterator<Item = Reference>) -> Traffic {
    assert!(frames > 0, "a page that is used must be in memory");
    let (mut here, mut dirty) = (FxHashSet::default(), FxHashSet::default());
    let mut traffic = Traffic::default();
    for Reference { page, is_store } in trace {
        traffic.references += 1;
        if here.contains(&page) {
            policy.reference(page);
        } else {
            if here.len() == frames {
                let gone = policy.evict(&mut |_| true).expect("any page may leave");
                here.remove(&gone);
                traffic.page_outs += u64::from(dirty.remove(&gone));
            }
            policy.admit(page);
            here.insert(page);
            traffic.page_ins += 1;
        }
        if is_store {
            dirty.insert(page);
        }
    }
    traffic
}
