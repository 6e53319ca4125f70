//! `--stats`: the account of a run as a table for people, 100 columns wide at most.

use std::fmt::Write;

use hiroba_trace::{Counters, NodeStatistics, RunStatistics, TimeBreakdown};

use crate::quantities::{bytes, seconds, thousands};

/// With more nodes than this, extremes and medians are shown instead of every node.
const ROWS_MAX: usize = 16;
/// Width of the column that names the row.
const NAME_WIDTH: usize = 6;
/// Width of a class of time: seconds and share.
const TIME_WIDTH: usize = 12;
/// Width of the wall time's column.
const WALL_WIDTH: usize = 9;

/// The table, with a newline behind each line.
pub fn render(account: &RunStatistics) -> String {
    let mut text = String::new();
    let nodes = account.nodes;
    let plural = if nodes == 1 { "" } else { "s" };
    // Their classes of time sum to threads × wall time.
    let threads = match account.threads_per_node {
        1 => String::new(),
        threads => format!(" of {threads} threads"),
    };
    let _ = writeln!(
        text,
        "hiroba: {} on {nodes} node{plural}{threads} ({} over {}, pages of {}): {} s",
        account.program,
        account.protocol,
        account.fabric,
        bytes(u64::from(account.page_bytes)),
        seconds(account.wall_s),
    );
    if account.per_node.len() < usize::from(nodes) {
        let _ =
            writeln!(text, "{} of {nodes} nodes left the job and are accounted for", account.per_node.len());
    }
    time_table(&mut text, account);
    counter_table(&mut text, account);
    text
}

/// Picks one of the nodes' values.
type Choose = fn(&mut [f64]) -> f64;

/// A row of a table: its name and the node it shows, or a choice over all nodes, column by column.
enum Row<'a> {
    Node(&'a NodeStatistics),
    Choice(&'static str, Choose),
}

fn rows(account: &RunStatistics) -> Vec<Row<'_>> {
    let all = &account.per_node;
    if all.len() <= ROWS_MAX {
        return all.iter().map(Row::Node).collect();
    }
    let choices: [(&str, Choose); 3] = [
        ("min", |values| values.iter().copied().fold(f64::INFINITY, f64::min)),
        ("median", |values| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        }),
        ("max", |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ];
    let ends = [&all[0], &all[all.len() - 1]];
    let choices = choices.into_iter().map(|(name, choose)| Row::Choice(name, choose));
    ends.into_iter().map(Row::Node).chain(choices).collect()
}

fn column(account: &RunStatistics, value: impl Fn(&NodeStatistics) -> f64) -> Vec<f64> {
    account.per_node.iter().map(value).collect()
}

fn time_table(text: &mut String, account: &RunStatistics) {
    let _ = write!(text, "\n{:>NAME_WIDTH$}{:>WALL_WIDTH$}", "node", "wall s");
    for (name, _) in TimeBreakdown::default().classes() {
        let _ = write!(text, "{:>TIME_WIDTH$}", name.replace('_', " "));
    }
    text.push('\n');
    for row in rows(account) {
        match row {
            Row::Node(node) => time_row(text, &node.node.to_string(), &seconds(node.wall_s), &node.time_s),
            Row::Choice(name, choose) => {
                let wall = choose(&mut column(account, |node| node.wall_s));
                let _ = write!(text, "{name:>NAME_WIDTH$}{:>WALL_WIDTH$}", seconds(wall));
                for class in 0..TimeBreakdown::default().classes().len() {
                    let value = choose(&mut column(account, |node| node.time_s.classes()[class].1));
                    // Chosen column by column, the values of such a row are no parts of one whole.
                    let _ = write!(text, "{:>1$}", seconds(value) + "     ", TIME_WIDTH);
                }
                text.truncate(text.trim_end().len());
                text.push('\n');
            }
        }
    }
    if account.per_node.len() > 1 {
        time_row(text, "all", "", &account.total.time_s);
    }
}

fn time_row(text: &mut String, name: &str, wall: &str, time: &TimeBreakdown) {
    let _ = write!(text, "{name:>NAME_WIDTH$}{wall:>WALL_WIDTH$}");
    let sum = time.sum();
    for (_, value) in time.classes() {
        let share = if sum > 0.0 { 100.0 * value / sum } else { 0.0 };
        let _ = write!(text, "{:>1$}", format!("{} {share:3.0}%", seconds(value)), TIME_WIDTH);
    }
    text.push('\n');
}

struct CounterColumn {
    heads: [&'static str; 2],
    value: fn(&Counters) -> u64,
    is_bytes: bool,
}

const fn count(heads: [&'static str; 2], value: fn(&Counters) -> u64) -> CounterColumn {
    CounterColumn { heads, value, is_bytes: false }
}

const fn size(heads: [&'static str; 2], value: fn(&Counters) -> u64) -> CounterColumn {
    CounterColumn { heads, value, is_bytes: true }
}

const COUNTER_COLUMNS: [CounterColumn; 12] = [
    count(["read", "faults"], |c| c.read_faults),
    count(["write", "faults"], |c| c.write_faults),
    count(["pages", "fetched"], |c| c.pages_fetched),
    count(["invali-", "dations"], |c| c.invalidations),
    count(["diffs", "made"], |c| c.diffs_made),
    size(["diff", "bytes"], |c| c.diff_bytes),
    count(["barri-", "ers"], |c| c.barriers),
    count(["", "locks"], |c| c.lock_acquires),
    count(["mes-", "sages"], |c| c.messages_sent),
    size(["bytes", "sent"], |c| c.bytes_sent),
    count(["sent", "again"], |c| c.retransmits),
    size(["memory", "(most)"], |c| c.resident_bytes_max),
];

impl CounterColumn {
    fn width(&self) -> usize {
        if self.is_bytes { 9 } else { 7 + usize::from(self.heads[1].len() > 6) }
    }

    fn cell(&self, value: u64) -> String {
        let cell = if self.is_bytes { bytes(value) } else { thousands(value) };
        format!("{cell:>0$}", self.width())
    }
}

fn counter_table(text: &mut String, account: &RunStatistics) {
    text.push('\n');
    for (line, name) in [(0, ""), (1, "node")] {
        let _ = write!(text, "{name:>NAME_WIDTH$}");
        for column in &COUNTER_COLUMNS {
            let _ = write!(text, "{:>1$}", column.heads[line], column.width());
        }
        text.push('\n');
    }
    for row in rows(account) {
        match row {
            Row::Node(node) => counter_row(text, &node.node.to_string(), &node.counters),
            Row::Choice(name, choose) => {
                let _ = write!(text, "{name:>NAME_WIDTH$}");
                for cells in &COUNTER_COLUMNS {
                    let mut values = column(account, |node| (cells.value)(&node.counters) as f64);
                    text.push_str(&cells.cell(choose(&mut values) as u64));
                }
                text.push('\n');
            }
        }
    }
    if account.per_node.len() > 1 {
        counter_row(text, "all", &account.total.counters);
    }
}

fn counter_row(text: &mut String, name: &str, counters: &Counters) {
    let _ = write!(text, "{name:>NAME_WIDTH$}");
    for column in &COUNTER_COLUMNS {
        text.push_str(&column.cell((column.value)(counters)));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;
    use hiroba_trace::Totals;

    use super::*;

    fn account(nodes: u16, large: bool) -> RunStatistics {
        let scale = if large { 1e6 } else { 1.0 };
        let per_node = NodeId::all(nodes).map(|node| {
            let time_s =
                TimeBreakdown { compute: 0.75 * scale, barrier: 0.25 * scale, ..TimeBreakdown::default() };
            let mut counters = Counters { barriers: 10, ..Counters::default() };
            if large {
                counters.bytes_sent = u64::MAX >> 14;
                counters.diff_bytes = 1023 << 40;
                counters.messages_sent = 999_999_999_999;
            }
            NodeStatistics { node, wall_s: scale, time_s, counters }
        });
        RunStatistics {
            program: "prog".to_owned(),
            nodes,
            threads_per_node: 1,
            protocol: "hlrc".to_owned(),
            fabric: "udp".to_owned(),
            page_bytes: 4096,
            wall_s: 1.5,
            per_node: per_node.collect(),
            total: Totals::default(),
        }
        .with_totals()
    }

    #[test]
    fn every_table_fits_and_its_columns_stay_apart() {
        for (nodes, large) in [(1, false), (4, false), (4, true), (1000, false), (4096, true)] {
            let text = render(&account(nodes, large));
            let tables: Vec<Vec<usize>> = text
                .split("\n\n")
                .skip(1)
                .map(|table| table.lines().map(|line| line.chars().count()).collect())
                .collect();
            assert_eq!(tables.len(), 2, "{text}");
            assert!(tables.iter().flatten().all(|columns| *columns <= 100), "{text}");
            assert!(text.lines().count() < 50, "{text}");
        }
    }

    #[test]
    fn shares_are_of_the_nodes_time() {
        let text = render(&account(2, false));
        assert!(text.contains("0.750  75%") && text.contains("0.250  25%"), "{text}");
        assert!(text.contains("1.500  75%"), "the sum over both nodes\n{text}");
    }

    #[test]
    fn threads_share_the_nodes_wall_time() {
        let mut account = account(2, false);
        account.threads_per_node = 4;
        for node in &mut account.per_node {
            node.wall_s = 0.25;
        }
        let text = render(&account);
        assert!(text.contains("prog on 2 nodes of 4 threads (hlrc"), "{text}");
        assert!(text.contains("0    0.250  0.750  75%"), "classes sum to threads times wall\n{text}");
    }
}
