//! Reports data races between nodes: each one once, with the lines of the program that caused it, and what
//! was searched.

use std::collections::{BTreeMap, HashSet};

use hiroba_base::CodeSite;
use hiroba_wire::control::{RaceAccount, RaceReport, RaceSide};

use crate::symbols::Symboliser;

/// The number of races that are printed; further ones are counted, since one begins with the first.
const TOLD_MAX: usize = 20;
/// The number of races that are remembered to recognise repeated ones; beyond it, none is counted any more.
const REMEMBERED_MAX: usize = 1 << 16;

type Sites = (bool, Option<CodeSite>, Option<CodeSite>);

/// Identifies a race: two reports with the same key are the same race.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    sites: [Sites; 2],
    allocation: String,
    address: u64,
}

impl Key {
    fn of(report: &RaceReport) -> Key {
        let sites = |side: &RaceSide| (side.has_read, side.site.clone(), side.interval_end.clone());
        let mut sites = [sites(&report.sides[0]), sites(&report.sides[1])];
        // Which of the two was seen first is arbitrary.
        let order = |(has_read, touch, end): &Sites| {
            let place = |site: &Option<CodeSite>| site.as_ref().map(|it| (it.module.clone(), it.offset));
            (*has_read, place(touch), place(end))
        };
        sites.sort_by_key(order);
        Key { sites, allocation: report.allocation.clone(), address: report.address }
    }
}

/// The races of a job so far.
#[derive(Debug, Default)]
pub struct RaceLog {
    seen: HashSet<Key>,
    /// What nodes have searched, of those that have reported it.
    looked: BTreeMap<usize, RaceAccount>,
}

impl RaceLog {
    /// Records a race. Returns the message to print if it is new and within the limit.
    pub fn note(&mut self, report: &RaceReport, symbols: &Symboliser) -> Option<Vec<String>> {
        if self.seen.len() >= REMEMBERED_MAX || !self.seen.insert(Key::of(report)) {
            return None;
        }
        (self.seen.len() <= TOLD_MAX).then(|| describe(report, symbols))
    }

    /// Records what a node has searched.
    pub fn note_looked(&mut self, node: usize, account: RaceAccount) {
        self.looked.insert(node, account);
    }

    /// Returns a sentence with the number of races in a job of `nodes` nodes, and lines on what was searched.
    /// `of_executable` is true if only the long blocks of the program are.
    pub fn summary(&self, nodes: usize, of_executable: bool) -> (String, Vec<String>) {
        if nodes == 1 {
            let alone = "one node has no data races with others, and --races looks at no others; give it -n 2 or more";
            return (alone.to_owned(), Vec::new());
        }
        let found = self.seen.len();
        let told =
            if found > TOLD_MAX { format!("; the first {TOLD_MAX} are shown above") } else { String::new() };
        let head = match found {
            0 => "no data races between nodes found in what was searched".to_owned(),
            1 => "1 data race found".to_owned(),
            REMEMBERED_MAX.. => format!("{found} or more data races found{told}"),
            _ => format!("{found} data races found{told}"),
        };
        (head, self.describe_looked(nodes, of_executable))
    }

    fn describe_looked(&self, nodes: usize, of_executable: bool) -> Vec<String> {
        let sum = |of: fn(&RaceAccount) -> u64| self.looked.values().map(of).sum::<u64>();
        let (writes, loads, forgotten) = (sum(|it| it.writes), sum(|it| it.loads), sum(|it| it.forgotten));
        let mut lines = vec![
            format!(
                "searched: what stores changed, byte by byte ({}); of loads one byte each, where they faulted, \
                 which is a node's first touch of a page after each synchronisation ({})",
                counted(writes, "page of an interval", "pages of intervals"),
                counted(loads, "load", "loads")
            ),
            "not searched: other loads, stores that did not change the value, atomic operations, \
             threads of one node"
                .to_owned(),
        ];
        if of_executable {
            lines.push(
                "of this executable only long blocks and static variables are searched (of 128 KiB and more, or \
                 32 KiB with OpenMP); what it keeps elsewhere may also order accesses that race \
                 (docs/EXECUTABLES.md)"
                    .to_owned(),
            );
        }
        if forgotten > 0 {
            let what = counted(forgotten, "of these was", "of these were");
            lines.push(format!(
                "{what} forgotten, or arrived too late, before everything that may race with them was known"
            ));
        }
        let silent: Vec<String> =
            (0..nodes).filter(|node| !self.looked.contains_key(node)).map(|node| node.to_string()).collect();
        if !silent.is_empty() {
            let who = if silent.len() == 1 { "node" } else { "nodes" };
            let list = silent.join(", ");
            lines.push(format!(
                "{who} {list} did not leave the job properly: their last accesses are not searched"
            ));
        }
        lines
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn describe(report: &RaceReport, symbols: &Symboliser) -> Vec<String> {
    let [one, other] = &report.sides;
    let bytes = match report.bytes {
        0 | 1 => "the byte".to_owned(),
        many => format!("{many} bytes"),
    };
    let place = format!("0x{:x} ({})", report.address, report.allocation);
    let what = match (one.has_read, other.has_read) {
        (true, false) => format!("node {} read {bytes} at {place} that node {} wrote", one.node, other.node),
        (false, true) => format!("node {} read {bytes} at {place} that node {} wrote", other.node, one.node),
        _ if one.node == other.node => {
            format!("threads of node {} both wrote {bytes} at {place}", one.node)
        }
        _ => {
            let (first, second) = (one.node.min(other.node), one.node.max(other.node));
            format!("nodes {first} and {second} both wrote {bytes} at {place}")
        }
    };
    let mut lines = vec![format!("data race: {what} without synchronisation")];
    let mut sides = [one, other];
    sides.sort_by_key(|side| side.node);
    lines.extend(sides.map(|side| describe_side(side, symbols)));
    lines
}

fn describe_side(side: &RaceSide, symbols: &Symboliser) -> String {
    let what = if side.has_read { "load" } else { "first store to the page" };
    let touch = match &side.site {
        Some(site) => format!("{what} at {}", symbols.name(site)),
        None => format!("{what} unknown"),
    };
    match &side.interval_end {
        Some(site) => {
            let end = symbols.name(site);
            format!("node {}: {touch}, interval ended by the call at {end}", side.node)
        }
        None => format!("node {}: {touch}", side.node),
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;

    use super::*;

    fn site(offset: u64) -> Option<CodeSite> {
        Some(CodeSite { module: "/no/such/program".to_owned(), offset })
    }

    fn race(address: u64, nodes: [u16; 2]) -> RaceReport {
        let side = |node| RaceSide {
            node: NodeId(node),
            has_read: false,
            site: site(u64::from(node)),
            interval_end: site(0x10 + u64::from(node)),
        };
        RaceReport {
            address,
            bytes: 8,
            allocation: "byte 16 of 100 bytes from hiroba_alloc".to_owned(),
            sides: nodes.map(side),
        }
    }

    #[test]
    fn a_race_is_told_once_whichever_way_round_it_comes() {
        let (mut log, symbols) = (RaceLog::default(), Symboliser::default());
        let told = log.note(&race(0x4000_0000_0010, [1, 0]), &symbols);
        assert_eq!(
            told.as_deref().unwrap_or_default(),
            [
                "data race: nodes 0 and 1 both wrote 8 bytes at 0x400000000010 \
                 (byte 16 of 100 bytes from hiroba_alloc) without synchronisation",
                "node 0: first store to the page at /no/such/program+0x0, \
                 interval ended by the call at /no/such/program+0x10",
                "node 1: first store to the page at /no/such/program+0x1, \
                 interval ended by the call at /no/such/program+0x11",
            ]
        );
        assert_eq!(log.note(&race(0x4000_0000_0010, [0, 1]), &symbols), None);
        assert_eq!(log.summary(2, false).0, "1 data race found");
        assert!(log.note(&race(0x4000_0000_0018, [0, 1]), &symbols).is_some(), "another place");
        assert!(log.note(&race(0x4000_0000_0010, [0, 2]), &symbols).is_some(), "another line");
        assert_eq!(log.summary(2, false).0, "3 data races found");
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let mut report = race(1, [3, 3]);
        report.bytes = 1;
        report.sides[1].site = None;
        report.sides[1].interval_end = None;
        let lines = describe(&report, &Symboliser::default());
        assert!(
            lines[0].starts_with("data race: threads of node 3 both wrote the byte at 0x1 "),
            "{lines:?}"
        );
        assert_eq!(lines[2], "node 3: first store to the page unknown");
    }

    #[test]
    fn many_races_are_counted() {
        let (mut log, symbols) = (RaceLog::default(), Symboliser::default());
        assert_eq!(log.summary(2, false).0, "no data races between nodes found in what was searched");
        let told = (0..1000).filter(|at| log.note(&race(*at, [0, 1]), &symbols).is_some()).count();
        assert_eq!(told, TOLD_MAX);
        assert_eq!(log.summary(2, false).0, "1000 data races found; the first 20 are shown above");
        (0..2 * REMEMBERED_MAX as u64).for_each(|at| _ = log.note(&race(at, [0, 1]), &symbols));
        assert_eq!(log.seen.len(), REMEMBERED_MAX);
        assert_eq!(log.summary(2, false).0, "65536 or more data races found; the first 20 are shown above");
    }

    #[test]
    fn a_load_is_told_as_one_and_is_another_race_than_a_store() {
        let (mut log, symbols) = (RaceLog::default(), Symboliser::default());
        let mut report = race(0x10, [0, 1]);
        log.note(&report, &symbols);
        (report.sides[0].has_read, report.bytes) = (true, 1);
        let told = log.note(&report, &symbols).unwrap_or_default();
        assert_eq!(
            told[..2],
            [
                "data race: node 0 read the byte at 0x10 (byte 16 of 100 bytes from hiroba_alloc) that node 1 wrote \
                 without synchronisation",
                "node 0: load at /no/such/program+0x0, interval ended by the call at /no/such/program+0x10",
            ]
        );
        report.sides.reverse();
        assert_eq!(log.note(&report, &symbols), None, "the same");
    }

    #[test]
    fn a_summary_says_what_it_rests_on() {
        let mut log = RaceLog::default();
        log.note_looked(0, RaceAccount { writes: 1, loads: 4, forgotten: 0 });
        log.note_looked(1, RaceAccount { writes: 11, loads: 0, forgotten: 0 });
        let (_, details) = log.summary(2, false);
        assert_eq!(details.len(), 2, "{details:?}");
        assert!(
            details[0].contains("(12 pages of intervals)") && details[0].ends_with("(4 loads)"),
            "{details:?}"
        );
        assert!(details[1].starts_with("not searched: other loads, "), "{details:?}");
        log.note_looked(1, RaceAccount { writes: 0, loads: 0, forgotten: 3 });
        let (_, details) = log.summary(4, false);
        assert!(details[2].starts_with("3 of these were forgotten"), "{details:?}");
        assert!(details[3].starts_with("nodes 2, 3 did not leave"), "{details:?}");
        let (_, details) = log.summary(2, true);
        assert!(
            details[2].starts_with("of this executable only long blocks and static variables are searched"),
            "{details:?}"
        );
        let (alone, details) = log.summary(1, false);
        assert!(alone.starts_with("one node has no data races with others") && details.is_empty(), "{alone}");
    }
}
