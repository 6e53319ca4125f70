//! Data races between nodes: each told once, with the lines of the program that it comes from.

use std::collections::HashSet;

use hiroba_wire::control::{CodeSite, RaceReport, RaceWriter};

use crate::symbols::Symboliser;

/// More races than this are counted, not told: whoever has so many starts with the first.
const TOLD_MAX: usize = 20;
/// Races that are remembered to tell new ones from old; beyond, none is counted any more.
const REMEMBERED_MAX: usize = 1 << 16;

type Sites = (Option<CodeSite>, Option<CodeSite>);

/// Two reports with the same key are the same race.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    sites: [Sites; 2],
    allocation: String,
    address: u64,
}

impl Key {
    fn of(report: &RaceReport) -> Key {
        let sites = |writer: &RaceWriter| (writer.first_store.clone(), writer.interval_end.clone());
        let mut sites = [sites(&report.writers[0]), sites(&report.writers[1])];
        // Which of the two was seen first is chance.
        let order = |(store, end): &Sites| {
            let place = |site: &Option<CodeSite>| site.as_ref().map(|it| (it.module.clone(), it.offset));
            (place(store), place(end))
        };
        sites.sort_by_key(order);
        Key { sites, allocation: report.allocation.clone(), address: report.address }
    }
}

/// The races of a job so far.
#[derive(Debug, Default)]
pub struct RaceLog {
    seen: HashSet<Key>,
}

impl RaceLog {
    /// Notes a race: what to tell the user, if it is new and not one too many.
    pub fn note(&mut self, report: &RaceReport, symbols: &Symboliser) -> Option<Vec<String>> {
        if self.seen.len() >= REMEMBERED_MAX || !self.seen.insert(Key::of(report)) {
            return None;
        }
        (self.seen.len() <= TOLD_MAX).then(|| describe(report, symbols))
    }

    /// How many there were, as a sentence.
    pub fn summary(&self) -> String {
        let found = self.seen.len();
        let told =
            if found > TOLD_MAX { format!("; the first {TOLD_MAX} are told above") } else { String::new() };
        match found {
            0 => "no data races between nodes found".to_owned(),
            1 => "1 data race found".to_owned(),
            REMEMBERED_MAX.. => format!("{found} or more data races found{told}"),
            _ => format!("{found} data races found{told}"),
        }
    }
}

fn describe(report: &RaceReport, symbols: &Symboliser) -> Vec<String> {
    let [one, other] = &report.writers;
    let who = if one.node == other.node {
        format!("threads of node {}", one.node)
    } else {
        format!("nodes {} and {}", one.node.min(other.node), one.node.max(other.node))
    };
    let bytes = match report.bytes {
        0 | 1 => "the byte".to_owned(),
        many => format!("{many} bytes"),
    };
    let mut lines = vec![format!(
        "data race: {who} both wrote {bytes} at 0x{:x} ({}) without synchronisation",
        report.address, report.allocation
    )];
    let mut writers = [one, other];
    writers.sort_by_key(|writer| writer.node);
    lines.extend(writers.map(|writer| describe_writer(writer, symbols)));
    lines
}

fn describe_writer(writer: &RaceWriter, symbols: &Symboliser) -> String {
    let store = match &writer.first_store {
        Some(site) => {
            format!("first store to the page at {}", symbols.name(site))
        }
        None => "first store to the page not known".to_owned(),
    };
    match &writer.interval_end {
        Some(site) => {
            let end = symbols.name(site);
            format!("node {}: {store}, interval ended by the call at {end}", writer.node)
        }
        None => format!("node {}: {store}", writer.node),
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
        let writer = |node| RaceWriter {
            node: NodeId(node),
            first_store: site(u64::from(node)),
            interval_end: site(0x10 + u64::from(node)),
        };
        RaceReport {
            address,
            bytes: 8,
            allocation: "byte 16 of 100 bytes from hiroba_alloc".to_owned(),
            writers: nodes.map(writer),
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
        assert_eq!(log.summary(), "1 data race found");
        assert!(log.note(&race(0x4000_0000_0018, [0, 1]), &symbols).is_some(), "another place");
        assert!(log.note(&race(0x4000_0000_0010, [0, 2]), &symbols).is_some(), "another line");
        assert_eq!(log.summary(), "3 data races found");
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let mut report = race(1, [3, 3]);
        report.bytes = 1;
        report.writers[1].first_store = None;
        report.writers[1].interval_end = None;
        let lines = describe(&report, &Symboliser::default());
        assert!(
            lines[0].starts_with("data race: threads of node 3 both wrote the byte at 0x1 "),
            "{lines:?}"
        );
        assert_eq!(lines[2], "node 3: first store to the page not known");
    }

    #[test]
    fn many_races_are_counted() {
        let (mut log, symbols) = (RaceLog::default(), Symboliser::default());
        assert_eq!(log.summary(), "no data races between nodes found");
        let told = (0..1000).filter(|at| log.note(&race(*at, [0, 1]), &symbols).is_some()).count();
        assert_eq!(told, TOLD_MAX);
        assert_eq!(log.summary(), "1000 data races found; the first 20 are told above");
        (0..2 * REMEMBERED_MAX as u64).for_each(|at| _ = log.note(&race(at, [0, 1]), &symbols));
        assert_eq!(log.seen.len(), REMEMBERED_MAX);
        assert_eq!(log.summary(), "65536 or more data races found; the first 20 are told above");
    }
}
