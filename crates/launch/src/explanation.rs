//! The advice that `--stats` prints below its tables when a large part of a run was avoidable waiting: for
//! which region, what happens to it, and what to do.
//!
//! The advice rests on counts of pages, not on guesses about the program. Where pages change hands in bulk
//! and in order, nothing can be improved and nothing is printed.

use std::collections::BTreeMap;

use hiroba_trace::{RegionStatistics, RunStatistics};

use crate::columns::broken;
use crate::quantities::{bytes, thousands};
use crate::symbols::Symboliser;

/// Advice is given when more than this part of the run is avoidable waiting.
const AVOIDABLE_SHARE_MIN: f64 = 1.0 / 3.0;

/// A region with less than this part of the run gets no advice.
const REGION_SHARE_MIN: f64 = 0.1;

/// The number of regions that get advice.
const REGIONS_MAX: usize = 3;

/// What happens to the pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Several nodes store to a page between two barriers.
    FalselyShared,
    /// Pages follow locks from node to node.
    Migratory,
    /// One node stores to a page in one phase, another in the next.
    PassedOn,
    /// Stores are made on nodes that are not the pages' homes.
    HomedElsewhere,
    /// Pages are fetched one at a time.
    Scattered,
}

/// Returns the advice in lines of at most `columns` columns; none if there is nothing to improve.
pub fn lines(account: &RunStatistics, symbols: &Symboliser, columns: usize) -> Vec<String> {
    let all_s = account.total.time_s.sum();
    let regions = summed(account);
    let with_locks: u64 = regions.iter().map(|region| region.lost_with_locks).sum();
    let mut told: Vec<(f64, Pattern, &RegionStatistics)> = regions
        .iter()
        .filter_map(|region| {
            let pattern = Pattern::of(region)?;
            let lock_s = match with_locks {
                0 => 0.0,
                _ => account.total.time_s.lock * region.lost_with_locks as f64 / with_locks as f64,
            };
            Some(((region.fault_s + region.release_s + lock_s) / all_s, pattern, region))
        })
        .filter(|(share, ..)| share.is_finite())
        .collect();
    if told.iter().map(|(share, ..)| share).sum::<f64>() <= AVOIDABLE_SHARE_MIN {
        return Vec::new();
    }
    told.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
    told.retain(|(share, ..)| *share >= REGION_SHARE_MIN);
    told.truncate(REGIONS_MAX);
    let sentences = told.iter().map(|(share, pattern, region)| {
        let share = (100.0 * share.min(1.0)).round();
        let what = pattern.describe(region);
        let advice = pattern.advice(account);
        format!("{share} % of the run is waiting for {}: {what}. {advice}.", name(region, symbols))
    });
    sentences.flat_map(|sentence| marked(&sentence, columns)).collect()
}

/// Sums what nodes report about the same regions.
fn summed(account: &RunStatistics) -> Vec<RegionStatistics> {
    let mut regions: BTreeMap<u64, RegionStatistics> = BTreeMap::new();
    for told in account.per_node.iter().flat_map(|node| &node.regions) {
        let Some(sum) = regions.get_mut(&told.address) else {
            regions.insert(told.address, told.clone());
            continue;
        };
        sum.fault_s += told.fault_s;
        sum.release_s += told.release_s;
        sum.fetched_singly += told.fetched_singly;
        sum.fetched_together += told.fetched_together;
        sum.diffs += told.diffs;
        sum.falsely_shared += told.falsely_shared;
        sum.lost_with_locks += told.lost_with_locks;
        sum.lost_after_stores += told.lost_after_stores;
    }
    regions.into_values().collect()
}

fn name(region: &RegionStatistics, symbols: &Symboliser) -> String {
    let size = bytes(region.bytes);
    match (region.arena_of, &region.site) {
        (Some(node), _) => format!("blocks of node {node}'s hiroba_malloc"),
        (None, Some(site)) => format!("the {size} allocated at {}", symbols.name_of_call(site)),
        (None, None) => format!("the {size} allocated at address 0x{:x}", region.address),
    }
}

impl Pattern {
    /// Returns `None` if no better way is known than what the run did.
    fn of(region: &RegionStatistics) -> Option<Pattern> {
        let fetched = region.fetched_singly + region.fetched_together;
        let lost = region.falsely_shared + region.lost_with_locks + region.lost_after_stores;
        if lost > 0 && lost * 2 >= fetched {
            let most = [
                (region.falsely_shared, Pattern::FalselyShared),
                (region.lost_with_locks, Pattern::Migratory),
                (region.lost_after_stores, Pattern::PassedOn),
            ];
            return most.into_iter().max_by_key(|(count, _)| *count).map(|(_, pattern)| pattern);
        }
        let kept = region.diffs.saturating_sub(lost);
        if region.release_s > region.fault_s {
            return (kept * 2 >= region.diffs).then_some(Pattern::HomedElsewhere);
        }
        (region.fetched_singly * 2 >= fetched && fetched > 0).then_some(Pattern::Scattered)
    }

    fn describe(self, region: &RegionStatistics) -> String {
        match self {
            Pattern::FalselyShared => format!(
                "several nodes store to the same pages between two barriers ({} times)",
                thousands(region.falsely_shared)
            ),
            Pattern::Migratory => format!(
                "its pages go from node to node with locks ({} times)",
                thousands(region.lost_with_locks)
            ),
            Pattern::PassedOn => format!(
                "different nodes store to its pages in turn ({} times)",
                thousands(region.lost_after_stores)
            ),
            Pattern::HomedElsewhere => format!(
                "its pages are stored to on nodes that are not their homes ({} diffs)",
                thousands(region.diffs)
            ),
            Pattern::Scattered => {
                format!("its pages are fetched one at a time ({} times)", thousands(region.fetched_singly))
            }
        }
    }

    fn advice(self, account: &RunStatistics) -> String {
        let adapts = account.protocol == "adaptive";
        let page_bytes = u64::from(account.page_bytes);
        match self {
            Pattern::FalselyShared if page_bytes > 4096 => {
                format!(
                    "Give each node's part pages of its own, or try pages smaller than {}",
                    bytes(page_bytes)
                )
            }
            Pattern::FalselyShared => {
                "Give each node's part pages of its own, by padding or another layout".to_owned()
            }
            Pattern::Migratory => {
                "Do more each time a lock is held, or give what one lock protects pages of its own".to_owned()
            }
            Pattern::PassedOn => "Let the same node store to the same part in each phase".to_owned(),
            Pattern::HomedElsewhere if adapts => {
                "Allocate it with HIROBA_PLACEMENT_FIRST_TOUCH, and let each node initialise its part"
                    .to_owned()
            }
            Pattern::HomedElsewhere => {
                "Try --protocol adaptive, or allocate it with HIROBA_PLACEMENT_FIRST_TOUCH and let each node \
                 initialise its part"
                    .to_owned()
            }
            Pattern::Scattered => format!(
                "Announce what will be read with hiroba_prefetch, or try pages larger than {}",
                bytes(page_bytes)
            ),
        }
    }
}

/// Formats a sentence as an item of a list.
fn marked(sentence: &str, columns: usize) -> Vec<String> {
    let mut lines = broken(sentence, columns - 2);
    for (number, line) in lines.iter_mut().enumerate() {
        line.insert_str(0, if number == 0 { "* " } else { "  " });
    }
    lines
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;
    use hiroba_trace::{NodeStatistics, TimeBreakdown, Totals};

    use super::*;

    fn account(regions: &[RegionStatistics], lock_s: f64) -> RunStatistics {
        let per_node = NodeId::all(2).map(|node| NodeStatistics {
            node,
            wall_s: 1.0,
            core_share: None,
            shares_cores: false,
            others_share: None,
            time_s: TimeBreakdown { compute: 1.0 - lock_s, lock: lock_s, ..TimeBreakdown::default() },
            counters: Default::default(),
            regions: regions.to_vec(),
        });
        RunStatistics {
            program: "prog".to_owned(),
            nodes: 2,
            threads_per_node: 1,
            protocol: "hlrc".to_owned(),
            fabric: "udp".to_owned(),
            page_bytes: 4096,
            wall_s: 1.0,
            per_node: per_node.collect(),
            total: Totals::default(),
        }
        .with_totals()
    }

    fn told(regions: &[RegionStatistics], lock_s: f64) -> String {
        lines(&account(regions, lock_s), &Symboliser::default(), 80).join("\n")
    }

    fn waited(fault_s: f64, release_s: f64) -> RegionStatistics {
        RegionStatistics { address: 0x1000, bytes: 3 << 20, fault_s, release_s, ..Default::default() }
    }

    #[test]
    fn nothing_is_said_of_what_costs_little_or_cannot_be_helped() {
        let singly = RegionStatistics { fetched_singly: 100, ..waited(0.3, 0.0) };
        assert_eq!(told(&[singly], 0.0), "");
        let together = RegionStatistics { fetched_singly: 10, fetched_together: 1000, ..waited(0.9, 0.0) };
        assert_eq!(told(&[together], 0.0), "");
        assert_eq!(told(&[], 0.9), "");
    }

    #[test]
    fn each_pattern_is_told_with_what_to_do() {
        let base = waited(0.3, 0.2);
        for (region, words) in [
            (
                RegionStatistics { falsely_shared: 900, fetched_together: 1000, ..base.clone() },
                "pages of its own, by padding",
            ),
            (
                RegionStatistics { lost_with_locks: 900, fetched_singly: 1000, ..base.clone() },
                "from node to node with locks (1800 times)",
            ),
            (RegionStatistics { lost_after_stores: 900, fetched_singly: 1000, ..base.clone() }, "in turn"),
            (RegionStatistics { fetched_singly: 1000, ..base.clone() }, "hiroba_prefetch"),
            (RegionStatistics { diffs: 500, release_s: 0.4, ..base.clone() }, "--protocol adaptive"),
        ] {
            let text = told(std::slice::from_ref(&region), 0.0);
            assert!(text.replace("\n  ", " ").contains(words), "{words}: {text}");
            assert!(
                text.starts_with("* ") && text.contains("the 3 MiB allocated at address 0x1000"),
                "{text}"
            );
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        }
    }

    #[test]
    fn locks_count_for_the_regions_that_go_with_them() {
        let region = RegionStatistics { lost_with_locks: 10, fetched_singly: 10, ..waited(0.1, 0.0) };
        let text = told(&[region], 0.5);
        assert!(text.starts_with("* 60 % of the run is waiting for the 3 MiB"), "{text}");
    }
}
