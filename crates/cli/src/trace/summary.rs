//! `hiroba trace summary DIR`: counts the events of a trace.

use std::collections::BTreeMap;
use std::fmt::Write;

use hiroba_base::{NodeId, printable};
use hiroba_trace::{Activity, Ending, Event, Trace};

use super::{each_record, warn_of_ending};
use hiroba_launch::failure::Failure;
use hiroba_launch::quantities::counted;

/// The number of nodes above which all nodes are shown in one column.
const COLUMNS_MAX: u16 = 8;
/// The widths of the names of rows, and of a number.
const NAME_WIDTH: usize = 24;
const CELL_WIDTH: usize = 14;

/// Counts of the events in a node's trace.
#[derive(Default)]
struct Counts {
    records: u64,
    /// By name.
    events: BTreeMap<&'static str, u64>,
    message_bytes: u64,
    duration_ns: u64,
    cut_off: bool,
}

/// Formats the table in `columns` columns, in several parts if these are too few for all nodes.
pub fn of(trace: &Trace, columns: usize) -> Result<String, Failure> {
    let job = trace.job();
    let mut nodes = Vec::new();
    for node in NodeId::all(job.nodes) {
        let mut counts = Counts::default();
        let ending = each_record(trace, node, |record| counts.add(record.at_ns, &record.event))?;
        warn_of_ending(node, ending);
        counts.cut_off = ending != Ending::Complete;
        nodes.push(counts);
    }
    let mut text = String::new();
    let status = job.exit_status.map_or("end unknown".to_owned(), |status| format!("exit status {status}"));
    let threads = match job.threads_per_node {
        1 => String::new(),
        threads => format!(" with {threads} threads each"),
    };
    let _ = writeln!(
        text,
        "{} on {}{threads}, {} over {}, {status}",
        printable(&job.program),
        counted(&job.nodes.to_string(), "node", "nodes"),
        printable(&job.protocol),
        printable(&job.fabric)
    );
    let total = Counts::sum(&nodes);
    let mut shown: Vec<(String, &Counts)> = Vec::new();
    if job.nodes <= COLUMNS_MAX {
        shown.extend(nodes.iter().enumerate().map(|(node, counts)| (format!("node {node}"), counts)));
    }
    shown.push(("total".to_owned(), &total));
    let fitting = (columns.saturating_sub(NAME_WIDTH) / CELL_WIDTH).max(1);
    for (number, part) in shown.chunks(fitting).enumerate() {
        if number > 0 {
            text.push('\n');
        }
        table(&mut text, part, &total);
    }
    Ok(text)
}

/// Formats columns of the same rows, which are those of `total`.
fn table(text: &mut String, columns: &[(String, &Counts)], total: &Counts) {
    let mut row = |name: &str, value: &dyn Fn(&(String, &Counts)) -> String| {
        let _ = write!(text, "{name:<NAME_WIDTH$}");
        for column in columns {
            let _ = write!(text, "{:>CELL_WIDTH$}", value(column));
        }
        text.push('\n');
    };
    row("", &|(name, _)| name.clone());
    row("seconds", &|(_, counts)| format!("{:.3}", counts.duration_ns as f64 / 1e9));
    row("records", &|(_, counts)| counts.records.to_string());
    for name in total.events.keys().copied() {
        row(name, &|(_, counts)| counts.events.get(name).copied().unwrap_or(0).to_string());
    }
    row("bytes of messages sent", &|(_, counts)| counts.message_bytes.to_string());
    row("complete", &|(_, counts)| if counts.cut_off { "no" } else { "yes" }.to_owned());
}

impl Counts {
    fn add(&mut self, at_ns: u64, event: &Event) {
        self.records += 1;
        self.duration_ns = self.duration_ns.max(at_ns);
        if let Event::Sent { bytes, .. } = event {
            self.message_bytes += u64::from(*bytes);
        }
        if let Some(name) = name_of(event) {
            *self.events.entry(name).or_default() += 1;
        }
    }

    fn sum(nodes: &[Counts]) -> Counts {
        let mut total = Counts::default();
        for counts in nodes {
            total.records += counts.records;
            total.message_bytes += counts.message_bytes;
            total.duration_ns = total.duration_ns.max(counts.duration_ns);
            total.cut_off |= counts.cut_off;
            counts.events.iter().for_each(|(name, count)| *total.events.entry(name).or_default() += count);
        }
        total
    }
}

/// Returns `None` for an event that was already counted at its beginning.
fn name_of(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Leave => return None,
        Event::Enter(activity) => match activity {
            Activity::Fault { .. } => "faults",
            Activity::Acquire(_) => "calls: lock",
            Activity::Release(_) => "calls: unlock",
            Activity::Wait(..) => "calls: wait",
            Activity::Signal(_) => "calls: signal",
            Activity::Barrier => "calls: barrier",
            Activity::Collective => "calls: collective",
            Activity::Atomic { .. } => "calls: atomic",
            Activity::Publish(_) => "calls: free elsewhere",
            Activity::Other => "calls: other",
            Activity::Serve { .. } => return None,
        },
        Event::Sent { .. } => "messages sent",
        Event::Received { .. } => "messages received",
        Event::Acquired { .. } => "locks acquired",
        Event::Released { .. } => "locks released",
        Event::Met { .. } => "threads met",
        Event::Published { .. } => "publications",
        Event::PublicationSeen { .. } => "publications seen",
        Event::Posted { .. } => "messages to ports",
        Event::Taken { .. } => "messages taken off ports",
        Event::Atomic { .. } => "atomic operations",
        Event::Load { .. } => "loads",
        Event::Store { .. } => "stores",
        Event::Region { .. } => "regions",
        Event::Access { .. } => "changes of access",
        Event::Holds { .. } => "copies received",
        Event::Applied { .. } => "diffs applied",
        Event::Diffed { .. } => "diffs made",
        Event::Twinned { .. } => "twins made",
        Event::Closed { .. } => "intervals",
        Event::Seen { .. } => "news received",
        Event::Moved { .. } => "homes moved",
        Event::Converted { .. } => "pages put under sequential consistency",
    })
}
