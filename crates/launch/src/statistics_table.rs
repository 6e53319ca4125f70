//! `--stats`: the account of a run as tables for people.
//!
//! The tables have a column for each node, as many as fit the terminal, and one for all of them. With more
//! nodes they show the extremes and the median, the node that waited least for the others, and, up to
//! `ROWS_MAX` nodes, a short line for each. Rows of zeros are left out.

use std::fmt::Write;

use hiroba_base::printable;
use hiroba_trace::{Counters, NodeStatistics, RunStatistics, TimeBreakdown};

use crate::core_share;
use crate::quantities::{bytes, duration, seconds, thousands};

/// The width if standard error is no terminal.
pub const COLUMNS: usize = 100;
/// The number of nodes above which not every node is shown.
const ROWS_MAX: usize = 16;
/// The width of the names of rows.
const NAME_WIDTH: usize = 15;
/// The width of a column: a quantity, and for times their share.
const CELL_WIDTH: usize = 16;
/// The part of a column that the share takes.
const SHARE_WIDTH: usize = 6;

/// Formats the tables, each line with its newline, in `columns` columns if that is 80 or more.
pub fn render(account: &RunStatistics, columns: usize) -> String {
    let mut text = head(account);
    let fitting = (columns.saturating_sub(NAME_WIDTH) / CELL_WIDTH).max(4);
    let all = &account.per_node;
    let table = Table { account, columns: choose_columns(account, fitting) };
    table.write(&mut text);
    let shown = table.columns.iter().filter(|column| matches!(column, Column::Node(_))).count();
    if shown < all.len() {
        if let Some(busiest) = waited_least(account) {
            let node = busiest.node.0;
            let _ = writeln!(
                text,
                "\n* node {node} spent least of its time in barriers and locks: others waited for it"
            );
        }
        if all.len() <= ROWS_MAX {
            short_table(&mut text, account);
        }
    }
    text
}

fn head(account: &RunStatistics) -> String {
    let nodes = account.nodes;
    let plural = if nodes == 1 { "" } else { "s" };
    // The classes of time sum to threads × wall time.
    let threads = match account.threads_per_node {
        1 => String::new(),
        threads => format!(" of {threads} threads"),
    };
    let mut text = format!(
        "hiroba: {} on {nodes} node{plural}{threads} ({} over {}, pages of {}): {}\n",
        printable(&account.program),
        account.protocol,
        account.fabric,
        bytes(u64::from(account.page_bytes)),
        duration(account.wall_s),
    );
    let left = account.per_node.len();
    if left < usize::from(nodes) {
        let _ = writeln!(text, "{left} of {nodes} nodes left the job and sent an account");
    }
    if let Some(remark) = core_share::remark(&account.per_node) {
        let _ = writeln!(text, "{remark}");
    }
    text.push('\n');
    text
}

/// Chooses one of the nodes' values, or computes one of them.
type Choose = fn(&mut [f64]) -> f64;

/// The content of a column.
enum Column<'a> {
    Node(&'a NodeStatistics),
    /// The node for which the others waited.
    Busiest(&'a NodeStatistics),
    /// A choice over all nodes, made row by row.
    Choice(&'static str, Choose),
    /// The sum over all nodes.
    All,
}

fn choose_columns(account: &RunStatistics, fitting: usize) -> Vec<Column<'_>> {
    let all = &account.per_node;
    if all.len() == 1 {
        return vec![Column::Node(&all[0])];
    }
    if all.len() < fitting {
        return all.iter().map(Column::Node).chain([Column::All]).collect();
    }
    let middle = Column::Choice("median", |values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    let largest = Column::Choice("max", |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    let smallest = Column::Choice("min", |values| values.iter().copied().fold(f64::INFINITY, f64::min));
    let busiest = waited_least(account).map(Column::Busiest);
    // Choices have no shares: three of them need the room of two nodes.
    [smallest, middle, largest].into_iter().chain(busiest).chain([Column::All]).collect()
}

/// Returns the node that waited least for others.
fn waited_least(account: &RunStatistics) -> Option<&NodeStatistics> {
    let waited = |node: &NodeStatistics| (node.time_s.barrier + node.time_s.lock) / node.time_s.sum();
    account.per_node.iter().min_by(|one, other| waited(one).total_cmp(&waited(other)))
}

impl Column<'_> {
    fn head(&self) -> String {
        match self {
            Column::Node(node) => format!("node {}", node.node.0),
            Column::Busiest(node) => format!("node {} *", node.node.0),
            Column::Choice(name, _) => (*name).to_owned(),
            Column::All => "all".to_owned(),
        }
    }

    fn width(&self) -> usize {
        match self {
            Column::Choice(..) => CELL_WIDTH - SHARE_WIDTH,
            _ => CELL_WIDTH,
        }
    }

    /// Returns true if the values of this column are parts of a whole.
    fn has_shares(&self) -> bool {
        !matches!(self, Column::Choice(..))
    }
}

/// A row's value in one account, from its times and counters.
type Value<'a> = &'a dyn Fn(&TimeBreakdown, &Counters) -> f64;

/// The names of the classes of time, in the order of [`TimeBreakdown::classes`].
const CLASS_NAMES: [&str; 7] =
    ["computing", "read faults", "write faults", "barriers", "locks", "serving others", "other"];

/// The unit of a row's values.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    Bytes,
    Seconds,
    Percent,
}

/// Reads one of the counters.
type CountOf = fn(&Counters) -> u64;

/// The counters that are shown, in groups.
const COUNTERS: [&[(&str, Unit, CountOf)]; 3] = [
    &[
        ("read faults", Unit::Count, |c| c.read_faults),
        ("write faults", Unit::Count, |c| c.write_faults),
        ("pages fetched", Unit::Count, |c| c.pages_fetched),
        ("fetched ahead", Unit::Count, |c| c.pages_prefetched),
        ("invalidated", Unit::Count, |c| c.invalidations),
        ("twins made", Unit::Count, |c| c.twins_made),
        ("diffs made", Unit::Count, |c| c.diffs_made),
        ("diff bytes", Unit::Bytes, |c| c.diff_bytes),
        ("sent early", Unit::Bytes, |c| c.early_diff_bytes),
        ("diffs applied", Unit::Count, |c| c.updates_applied),
        ("homes moved", Unit::Count, |c| c.home_migrations),
        ("evictions", Unit::Count, |c| c.evictions),
        ("saved ahead", Unit::Count, |c| c.pages_saved_ahead),
        ("swapped out", Unit::Count, |c| c.swap_outs),
        ("swapped in", Unit::Count, |c| c.swap_ins),
        ("swapped", Unit::Bytes, |c| c.swap_bytes),
        ("came apart", Unit::Count, |c| c.pages_in_apart),
        ("came ahead", Unit::Count, |c| c.pages_brought_ahead),
        ("in vain", Unit::Count, |c| c.pages_brought_in_vain),
        ("lent", Unit::Count, |c| c.pages_lent),
        ("borrowed", Unit::Count, |c| c.pages_borrowed),
        ("fetched back", Unit::Count, |c| c.pages_fetched_back),
        ("taken back", Unit::Count, |c| c.pages_taken_back),
    ],
    &[("barriers", Unit::Count, |c| c.barriers), ("locks taken", Unit::Count, |c| c.lock_acquires)],
    &[
        ("messages sent", Unit::Count, |c| c.messages_sent),
        ("bytes sent", Unit::Bytes, |c| c.bytes_sent),
        ("sent again", Unit::Count, |c| c.retransmits),
        ("rejected", Unit::Count, |c| c.datagrams_rejected),
        ("peak memory", Unit::Bytes, |c| c.resident_bytes_max),
        ("memory limit", Unit::Bytes, |c| c.memory_limit_bytes),
    ],
];

/// Reads one of the classes of time.
type TimeOf = fn(&TimeBreakdown) -> f64;

/// Mean times: the class of time, and the counter to divide it by.
const MEANS: [(&str, TimeOf, CountOf); 4] = [
    ("per read fault", |t| t.read_fault, |c| c.read_faults),
    ("per write fault", |t| t.write_fault, |c| c.write_faults),
    ("per barrier", |t| t.barrier, |c| c.barriers),
    ("per lock", |t| t.lock, |c| c.lock_acquires),
];

struct Table<'a> {
    account: &'a RunStatistics,
    columns: Vec<Column<'a>>,
}

impl Table<'_> {
    fn write(&self, text: &mut String) {
        self.row(text, "", |column| column.head());
        let wall_s = |column: &Column<'_>| match column {
            Column::Node(node) | Column::Busiest(node) => duration(node.wall_s),
            Column::Choice(_, choose) => {
                let mut values: Vec<f64> = self.account.per_node.iter().map(|node| node.wall_s).collect();
                duration(choose(&mut values))
            }
            Column::All => String::new(),
        };
        self.row(text, "wall time", wall_s);
        for (class, name) in CLASS_NAMES.into_iter().enumerate() {
            self.values(text, name, &|time, _| time.classes()[class].1, Unit::Seconds, true);
        }
        let before = text.len();
        for (name, time_of, count_of) in MEANS {
            let threads = f64::from(self.account.threads_per_node);
            // All threads of a node wait in its barriers, but each barrier is counted once.
            let per = if name == "per barrier" { threads } else { 1.0 };
            let mean =
                |time: &TimeBreakdown, counters: &Counters| time_of(time) / (count_of(counters) as f64 * per);
            self.values(text, name, &mean, Unit::Seconds, false);
        }
        if text.len() > before {
            text.insert(before, '\n');
        }
        for group in COUNTERS {
            let before = text.len();
            for (name, unit, count_of) in group {
                self.values(text, name, &|_, counters| count_of(counters) as f64, *unit, false);
                if *name == "borrowed" {
                    self.values(text, "compressed to", &compressed_percent, Unit::Percent, false);
                }
            }
            if text.len() > before {
                text.insert(before, '\n');
            }
        }
    }

    /// Adds a row of values, unless all of them are zero.
    fn values(&self, text: &mut String, name: &str, value: Value<'_>, unit: Unit, shares: bool) {
        let of = |node: &NodeStatistics| value(&node.time_s, &node.counters);
        let total = &self.account.total;
        if !self.account.per_node.iter().any(|node| of(node) > 0.0) {
            return;
        }
        self.row(text, name, |column| {
            let (shown, sum) = match column {
                Column::Node(node) | Column::Busiest(node) => (of(node), node.time_s.sum()),
                Column::All => (value(&total.time_s, &total.counters), total.time_s.sum()),
                Column::Choice(_, choose) => {
                    let values = self.account.per_node.iter().map(of);
                    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
                    (if values.is_empty() { f64::NAN } else { choose(&mut values) }, f64::NAN)
                }
            };
            let share =
                if shares && sum > 0.0 { format!("{:4.0} %", 100.0 * shown / sum) } else { String::new() };
            let share_width = if column.has_shares() { SHARE_WIDTH } else { 0 };
            format!("{}{share:<share_width$}", in_unit(shown, unit))
        });
    }

    fn row(&self, text: &mut String, name: &str, cell: impl Fn(&Column<'_>) -> String) {
        let _ = write!(text, "{name:<NAME_WIDTH$}");
        for column in &self.columns {
            let mut cell = cell(column);
            // Quantities without a share are aligned with those that have one.
            if column.has_shares() && !cell.ends_with([' ', '%']) {
                cell.push_str(&" ".repeat(SHARE_WIDTH));
            }
            let _ = write!(text, "{cell:>0$}", column.width());
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
}

/// Returns how long pages were that went to lenders, as a part of their whole length.
fn compressed_percent(_: &TimeBreakdown, counters: &Counters) -> f64 {
    let whole = counters.pages_borrowed as f64 * rustix::param::page_size() as f64;
    100.0 * counters.borrowed_bytes as f64 / whole
}

fn in_unit(value: f64, unit: Unit) -> String {
    match unit {
        _ if !value.is_finite() => "-".to_owned(),
        Unit::Count => thousands(value as u64),
        Unit::Bytes => bytes(value as u64),
        Unit::Seconds => duration(value),
        Unit::Percent => format!("{value:.0} %"),
    }
}

/// Adds a line for each node: where its time went, and its main counters.
fn short_table(text: &mut String, account: &RunStatistics) {
    const HEADS: [&str; 7] = ["comp.", "read", "write", "barr.", "locks", "serve", "other"];
    let _ = write!(text, "\nnode   wall s  % in");
    for head in HEADS {
        let _ = write!(text, "{head:>SHARE_WIDTH$}");
    }
    let _ = writeln!(text, "{:>8}{:>9}", "faults", "sent");
    for node in &account.per_node {
        let (sum, counters) = (node.time_s.sum(), &node.counters);
        let _ = write!(text, "{:>4}{:>9}      ", node.node.0, seconds(node.wall_s));
        for (_, value) in node.time_s.classes() {
            let share = if sum > 0.0 { 100.0 * value / sum } else { 0.0 };
            let _ = write!(text, "{share:>SHARE_WIDTH$.0}");
        }
        let faults = thousands(counters.read_faults + counters.write_faults);
        let _ = writeln!(text, "{faults:>8}{:>9}", bytes(counters.bytes_sent));
    }
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
            NodeStatistics {
                node,
                wall_s: scale,
                core_share: None,
                shares_cores: false,
                others_share: None,
                regions: Vec::new(),
                time_s,
                counters,
            }
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

    /// Returns true if the table has such a line, whatever the blanks between its words.
    fn has_line(text: &str, line: &str) -> bool {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        text.lines().any(|shown| words(shown) == words(line))
    }

    #[test]
    fn every_table_fits_and_its_columns_stay_apart() {
        for (nodes, large) in
            [(1, false), (2, true), (3, false), (4, true), (16, true), (1000, false), (4096, true)]
        {
            for columns in [0, 80, 100, 120, 300] {
                let text = render(&account(nodes, large), columns);
                let table = text.split_once("\n\n").expect("the head stands by itself").1;
                for line in table.lines() {
                    assert!(line.chars().count() < columns.max(80), "{columns} columns\n{text}");
                    let cells = line.get(NAME_WIDTH..).unwrap_or_default();
                    assert!(
                        line.len() <= NAME_WIDTH
                            || cells.starts_with(' ')
                            || line.starts_with(['*', 'n'])
                            || line.starts_with("  "),
                        "{text}"
                    );
                }
                assert!(text.lines().count() < 50, "{text}");
            }
        }
    }

    #[test]
    fn shares_are_of_the_nodes_time() {
        let text = render(&account(2, false), 80);
        for line in [
            "node 0 node 1 all",
            "computing 750 ms 75 % 750 ms 75 % 1.5 s 75 %",
            "barriers 250 ms 25 % 250 ms 25 % 500 ms 25 %",
            "per barrier 25 ms 25 ms 25 ms",
            "barriers 10 10 20",
        ] {
            assert!(has_line(&text, line), "expected {line:?} in\n{text}");
        }
        assert!(!text.contains("locks"), "nobody took any\n{text}");
        assert!(!text.contains("sent again"), "nothing was\n{text}");
    }

    #[test]
    fn a_busy_machine_is_told_in_the_head() {
        let mut account = account(2, false);
        account.per_node[1].core_share = Some(0.5);
        let text = render(&account, 80);
        let (head, _) = text.split_once("\n\n").expect("the head stands by itself");
        assert!(
            head.ends_with("\nnode 1 got 0.50 of a core for each ready thread: the machine is busy"),
            "{text}"
        );
        assert!(head.lines().all(|line| line.len() <= 80), "{text}");
        account.per_node[1].core_share = Some(0.95);
        assert!(!render(&account, 80).contains("busy"));
    }

    #[test]
    fn threads_share_the_nodes_wall_time() {
        let mut account = account(2, false);
        account.threads_per_node = 4;
        for node in &mut account.per_node {
            node.wall_s = 0.25;
        }
        let text = render(&account, 80);
        assert!(text.contains("prog on 2 nodes of 4 threads (hlrc"), "{text}");
        assert!(has_line(&text, "wall time 250 ms 250 ms"), "{text}");
        assert!(
            has_line(&text, "computing 750 ms 75 % 750 ms 75 % 1.5 s 75 %"),
            "classes sum to threads times wall\n{text}"
        );
        assert!(has_line(&text, "per barrier 6.25 ms 6.25 ms 6.25 ms"), "each thread waits in it\n{text}");
    }

    #[test]
    fn many_nodes_are_told_by_their_extremes_and_who_was_waited_for() {
        let mut account = account(8, false);
        account.per_node[5].time_s.compute = 0.875;
        account.per_node[5].time_s.barrier = 0.125;
        let account = account.with_totals();
        let text = render(&account, 80);
        for line in [
            "min median max node 5 * all",
            "computing 750 ms 750 ms 875 ms 875 ms 88 % 6.12 s 77 %",
            "* node 5 spent least of its time in barriers and locks: others waited for it",
            "5 1.000 88 0 0 12 0 0 0 0 0 B",
        ] {
            assert!(has_line(&text, line), "expected {line:?} in\n{text}");
        }
        assert!(render(&account, 200).contains("node 7 "), "room for all");
        assert!(!render(&self::account(17, false), 80).contains("% in"), "too many for a line each");
    }
}
