//! `--progress`: a line on the terminal that shows what the job is doing while it runs.
//!
//! The launcher asks every node for its account at intervals; the differences between two accounts are the
//! node's rates. It asks and draws only if the user wants it and standard error is a terminal. The line makes
//! room for Hiroba's own messages and labelled lines, and is removed when the job ends. A program that writes
//! to the terminal itself overwrites the line.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hiroba_trace::NodeStatistics;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::quantities::{bytes, thousands};

/// The interval at which nodes are asked and the line is drawn.
const EVERY: Duration = Duration::from_millis(500);
/// Jobs shorter than this show no line.
const SILENT_FOR: Duration = Duration::from_millis(950);
/// The width if the terminal does not know its own.
const COLUMNS: usize = 80;

/// The line on the terminal, if one is drawn. Code that writes to the terminal must call [`give_way`].
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes to the terminal while the line is removed.
pub fn give_way(write: impl FnOnce()) {
    match DRAWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

/// Returns the width of the terminal behind a stream, if it is a terminal and knows its width.
pub fn terminal_columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Numbers of nodes.
#[derive(Clone, Copy, Debug)]
pub struct NodeCounts {
    /// All nodes of the job.
    pub all: usize,
    /// Nodes that have joined.
    pub joined: usize,
    /// Nodes that have not ended.
    pub alive: usize,
}

/// A node's latest two accounts.
#[derive(Clone, Debug, Default)]
struct Samples {
    before: Option<NodeStatistics>,
    latest: Option<NodeStatistics>,
}

/// What the launcher knows of a running job.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    next: Instant,
    nodes: Vec<Samples>,
}

impl Progress {
    /// Returns the progress of a job of `nodes` nodes, or `None` if nobody could see it.
    pub fn on_terminal(nodes: usize) -> Option<Progress> {
        let can_draw = std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        if !can_draw || !std::io::stderr().is_terminal() {
            return None;
        }
        Some(Progress::new(nodes))
    }

    fn new(nodes: usize) -> Progress {
        let began = Instant::now();
        Progress { began, next: began + EVERY, nodes: vec![Samples::default(); nodes] }
    }

    /// Returns when to draw next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns true if it is time to draw.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + EVERY;
        }
        due
    }

    /// Takes a node's current account.
    pub fn take(&mut self, number: usize, account: NodeStatistics) {
        let samples = &mut self.nodes[number];
        samples.before = samples.latest.replace(account);
    }

    /// Draws the line, if the job has run for long enough and the terminal accepts output.
    pub fn show(&self, nodes: NodeCounts) {
        let elapsed = self.began.elapsed();
        // The launcher must not wait for a stopped terminal (Ctrl-S).
        let stderr = rustix::stdio::stderr();
        let writable = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default()));
        if elapsed < SILENT_FOR || writable != Ok(1) {
            return;
        }
        let columns = terminal_columns(std::io::stderr()).unwrap_or(COLUMNS);
        let text = line(elapsed, nodes, &Rates::between(&self.nodes), columns);
        let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.get_or_insert_with(new_line).set_message(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = DRAWN.lock().unwrap_or_else(PoisonError::into_inner).take() {
            line.finish_and_clear();
        }
    }
}

fn new_line() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    line.set_style(ProgressStyle::with_template("{msg}").expect("a template that stands here"));
    line
}

/// What all nodes together do in a second, according to their latest two accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    faults: f64,
    messages: f64,
    bytes: f64,
    barriers: f64,
    locks: f64,
    /// The part of all threads' time that the program's own code used.
    computing: f64,
}

impl Rates {
    /// Returns the sums of the nodes' rates, without nodes that have sent fewer than two accounts; `None` if
    /// no node has sent two.
    fn between(nodes: &[Samples]) -> Option<Rates> {
        let (mut rates, mut time_s, mut known) = (Rates::default(), 0.0, 0.0);
        for samples in nodes {
            let (Some(before), Some(latest)) = (&samples.before, &samples.latest) else { continue };
            let passed_s = latest.wall_s - before.wall_s;
            if passed_s <= 0.0 {
                continue;
            }
            let rate = |before: u64, latest: u64| latest.saturating_sub(before) as f64 / passed_s;
            let (b, l) = (&before.counters, &latest.counters);
            rates.faults += rate(b.read_faults + b.write_faults, l.read_faults + l.write_faults);
            rates.messages += rate(b.messages_sent, l.messages_sent);
            rates.bytes += rate(b.bytes_sent, l.bytes_sent);
            rates.barriers += rate(b.barriers, l.barriers);
            rates.locks += rate(b.lock_acquires, l.lock_acquires);
            rates.computing += latest.time_s.compute - before.time_s.compute;
            time_s += latest.time_s.sum() - before.time_s.sum();
            known += 1.0;
        }
        if known == 0.0 {
            return None;
        }
        // All nodes pass the same barriers.
        rates.barriers /= known;
        rates.computing = if time_s > 0.0 { (rates.computing / time_s).clamp(0.0, 1.0) } else { 0.0 };
        Some(rates)
    }
}

/// Formats as much as fits, the most important items first.
fn line(elapsed: Duration, nodes: NodeCounts, rates: &Option<Rates>, columns: usize) -> String {
    let mut text = format!("hiroba: {}", clock(elapsed));
    let count = |count: f64| thousands(count.round() as u64);
    let mut items = vec![match nodes {
        NodeCounts { all, joined, .. } if joined < all => format!("{joined} of {all} nodes have joined"),
        NodeCounts { all, alive, .. } if alive < all => format!("{alive} of {all} nodes"),
        NodeCounts { all: 1, .. } => "1 node".to_owned(),
        NodeCounts { all, .. } => format!("{all} nodes"),
    }];
    if let Some(rates) = rates {
        items.push(format!("{:.0} % computing", 100.0 * rates.computing));
        items.push(format!("{} faults/s", count(rates.faults)));
        items.push(format!("{}/s", bytes(rates.bytes.round() as u64)));
        items.push(format!("{} messages/s", count(rates.messages)));
        items.push(format!("{} barriers/s", count(rates.barriers)));
        items.push(format!("{} locks/s", count(rates.locks)));
    }
    for item in items {
        // The last column stays free: some terminals begin a new line when it is written.
        if text.len() + ", ".len() + item.len() >= columns {
            break;
        }
        text.push_str(", ");
        text.push_str(&item);
    }
    text.truncate(columns.saturating_sub(1));
    text
}

/// "7 s", "3:07", "2:03:07".
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;
    use hiroba_trace::{Counters, TimeBreakdown};

    use super::*;

    fn account(node: u16, wall_s: f64, events: u64) -> NodeStatistics {
        let time_s =
            TimeBreakdown { compute: 0.75 * wall_s, lock: 0.25 * wall_s, ..TimeBreakdown::default() };
        let counters = Counters {
            read_faults: events,
            messages_sent: 10 * events,
            bytes_sent: 1024 * events,
            barriers: events,
            ..Counters::default()
        };
        NodeStatistics {
            node: NodeId(node),
            wall_s,
            core_share: None,
            shares_cores: false,
            others_share: None,
            regions: Vec::new(),
            time_s,
            counters,
        }
    }

    const TWO: NodeCounts = NodeCounts { all: 2, joined: 2, alive: 2 };

    #[test]
    fn rates_lie_between_two_accounts_of_each_node() {
        let mut progress = Progress::new(3);
        assert_eq!(Rates::between(&progress.nodes), None);
        progress.take(0, account(0, 1.0, 1000));
        assert_eq!(Rates::between(&progress.nodes), None, "one account is none");
        progress.take(0, account(0, 1.5, 1500));
        progress.take(1, account(1, 7.0, 0));
        progress.take(1, account(1, 9.0, 2000));
        let rates = Rates::between(&progress.nodes).expect("two nodes are known");
        assert_eq!((rates.faults, rates.messages, rates.bytes), (2000.0, 20_000.0, 2_048_000.0));
        assert_eq!((rates.barriers, rates.computing), (1000.0, 0.75), "a barrier is crossed by all");
        progress.take(1, account(1, 9.0, 2000));
        let rates = Rates::between(&progress.nodes).expect("one node is known");
        assert_eq!(rates.faults, 1000.0, "no time has passed on the other");
    }

    #[test]
    fn a_line_keeps_to_its_columns() {
        let rates = Some(Rates { faults: 8234.0, bytes: 47e6, computing: 0.775, ..Rates::default() });
        let whole = line(Duration::from_secs(12), TWO, &rates, 200);
        let expected = "hiroba: 12 s, 2 nodes, 78 % computing, 8234 faults/s, 44.8 MiB/s, 0 messages/s, 0 barriers/s, 0 locks/s";
        assert_eq!(whole, expected);
        for columns in 0..200 {
            let text = line(Duration::from_secs(12), TWO, &rates, columns);
            assert!(text.is_empty() || text.len() < columns, "{columns}: {text}");
            assert!(whole.starts_with(&text), "{columns}: {text}");
            assert!(columns <= 12 || !text.ends_with([',', ' ']), "{columns}: whole items only: {text}");
        }
    }

    #[test]
    fn nodes_and_time_are_told_in_words() {
        let of = |all, joined, alive| line(Duration::ZERO, NodeCounts { all, joined, alive }, &None, 80);
        assert_eq!(of(1, 1, 1), "hiroba: 0 s, 1 node");
        assert_eq!(of(4, 2, 4), "hiroba: 0 s, 2 of 4 nodes have joined");
        assert_eq!(of(4, 4, 3), "hiroba: 0 s, 3 of 4 nodes");
        assert_eq!(clock(Duration::from_millis(59_600)), "1:00");
        assert_eq!(clock(Duration::from_secs(187)), "3:07");
        assert_eq!(clock(Duration::from_secs(7387)), "2:03:07");
    }
}
