//! `hiroba bench`: what Hiroba's primitives cost on this machine.
//!
//! The command runs jobs of itself: the nodes' program is the hidden subcommand `bench-node`, which calls the runtime directly and
//! sends its rows through standard output. The same nodes exchange the same bytes without Hiroba in the same run (`raw/`), so
//! that a ratio compares like with like however the machine feels today.

mod backing;
mod compute;
mod diff;
mod locks;
mod node;
mod plan;
mod raw;
mod samples;
mod shared;
mod streams;
mod table;
mod unsealed;
mod updates;

use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use hiroba_node::{CoreShare, Protocol};
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{FaultSourceChoice, WriteTrackingChoice};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::columns;
use crate::core_share;
use crate::failure::{Failure, STATUS_HIROBA, say, system_words};
use crate::lines::read_lines;
use crate::output_file::{OutputFile, Purpose};
use crate::quantities::counted;
use crate::run::remarks;
pub use node::serve_as_node;
pub use plan::{BenchOptions, BenchPlan, Group};
pub use unsealed::{UnsealedJob, run_without_seal};

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// What carried the messages; empty when there were none.
    pub fabric: String,
    /// In which state of the nodes and pages.
    pub state: String,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Ours over the raw one (of bandwidths: ours as a part of it).
    pub ratio: Option<f64>,
    /// How many times it was measured.
    pub repetitions: usize,
    /// How many times it was done before, unmeasured.
    pub warm_up: usize,
    /// The least share of the processors that a process of the measurement got of what it could have used,
    /// over all that was measured together; `None` where the kernel does not count it.
    #[serde(default)]
    pub core_share: Option<f64>,
    /// Threads that waited for a core did so for others of the measurement.
    #[serde(default)]
    pub shares_cores: bool,
}

/// What a row says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figures {
    /// The times of single operations, in microseconds.
    Time {
        /// The median.
        p50_us: f64,
        /// The 99th percentile.
        p99_us: f64,
        /// The median of the same without Hiroba.
        raw_us: Option<f64>,
        /// Its 99th percentile.
        raw_p99_us: Option<f64>,
        /// Our 99th percentile over that.
        ratio_p99: Option<f64>,
    },
    /// Bytes moved in a time, in 10⁹ bytes a second.
    Bandwidth {
        /// With Hiroba.
        gb_per_s: f64,
        /// Without.
        raw_gb_per_s: Option<f64>,
    },
}

/// What a node says on standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Report {
    /// What is being measured now.
    Progress(String),
    /// A result.
    Row(Row),
    /// The node is about to leave: what it got of the processors, among others.
    Account(NodeStatistics),
}

/// Measures what was asked for, prints the table, writes the JSON.
pub fn bench(options: &BenchOptions) -> Result<u8, Failure> {
    const JSON: Purpose = Purpose { what: "the rows", flag: "--json", status: STATUS_HIROBA };
    let json = options.json.as_deref().map(|path| OutputFile::open(path, JSON)).transpose()?;
    let setting = Setting::choose(options)?;
    let heading = format!(
        "hiroba bench: {} on {} over {}, {}\n",
        counted(&options.nodes.to_string(), "node", "nodes"),
        counted(&cores().to_string(), "core", "cores"),
        options.fabric.name(),
        setting.describe(),
    );
    let mut told = Told::new(&heading, &setting.describe());
    let alone = |group: &Group| matches!(group, Group::Compute);
    let here = |group: &Group| matches!(group, Group::Diff);
    for group in options.groups.iter().filter(|group| here(group)) {
        told.progress(group.name());
        let share = CoreShare::default();
        share.begin();
        for row in diff::measure(options.quick)? {
            told.row(row);
        }
        told.end_of_job(share.share(), None);
    }
    // A job each: a release costs by what is mapped, so what one group has mapped must not weigh on the next.
    for group in options.groups.iter().filter(|group| !here(group)) {
        let nodes = if alone(group) { 1 } else { options.nodes };
        let plan = BenchPlan {
            groups: vec![*group],
            quick: options.quick,
            fabric: options.fabric,
            setting: setting.describe(),
        };
        let compared = *group == Group::Updates;
        let protocols = if compared { updates::PROTOCOLS.to_vec() } else { vec![Protocol::Hlrc.name()] };
        for protocol in protocols {
            // A job that failed has said why.
            if let Err(status) = run_job(options, &setting, protocol, nodes, &plan, &mut told)? {
                return Ok(status);
            }
        }
    }
    if let Some(json) = json {
        let text =
            serde_json::to_string_pretty(&told.rows).map_err(|error| Failure::new(error.to_string()))?;
        json.write(format!("{text}\n").as_bytes())?;
    }
    Ok(0)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// How faults are caught and writes found in the measured jobs: named, so that each row can say it.
struct Setting {
    fault_source: &'static str,
    write_tracking: &'static str,
}

impl Setting {
    /// As asked for, else what a job would choose by itself.
    fn choose(options: &BenchOptions) -> Result<Setting, Failure> {
        let sources = [
            ("event", FaultSourceChoice::Event),
            ("sigbus", FaultSourceChoice::Sigbus),
            ("sigsegv", FaultSourceChoice::Sigsegv),
        ];
        let trackings = [("async", WriteTrackingChoice::Async), ("fault", WriteTrackingChoice::Fault)];
        let wanted = |given: &Option<String>, name: &str| given.as_deref().is_none_or(|given| given == name);
        let mut refused = None;
        for source in sources.iter().filter(|source| wanted(&options.fault_source, source.0)) {
            for tracking in trackings.iter().filter(|tracking| wanted(&options.write_tracking, tracking.0)) {
                match hiroba_node::preflight(options.nodes, source.1, tracking.1) {
                    Ok(()) => return Ok(Setting { fault_source: source.0, write_tracking: tracking.0 }),
                    Err(error) => refused = refused.or(Some(Failure::new(error.to_string()))),
                }
            }
        }
        Err(refused.unwrap_or_else(|| Failure::new("no way to catch page faults is left to choose from")))
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.fault_source, self.write_tracking)
    }
}

/// Runs a job of this very command and tells its rows as they come; or its exit status, when it failed.
fn run_job(
    options: &BenchOptions,
    setting: &Setting,
    protocol: &str,
    nodes: u16,
    plan: &BenchPlan,
    told: &mut Told,
) -> Result<Result<(), u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot run a job to measure: {}", system_words(&error)))
    };
    let hiroba = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(&hiroba);
    let text = |what: serde_json::Result<String>| what.map_err(|error| failed(error.into()));
    let choices = ["--fault-source", setting.fault_source, "--write-tracking", setting.write_tracking];
    let count = nodes.to_string();
    let job =
        ["-n", &count, "--fabric", options.fabric.name(), "--protocol", protocol].into_iter().chain(choices);
    if options.without_seal {
        let arguments = job.map(str::to_owned).collect();
        let job = UnsealedJob { arguments, plan: plan.clone() };
        command.arg("bench-job").arg(text(serde_json::to_string(&job))?);
    } else {
        command.arg("run").args(job).arg("--").arg(&hiroba).arg("bench-node");
        command.arg(text(serde_json::to_string(plan))?);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    remarks::omit_those_of_allocations(&mut command);
    // A measurement that is killed takes its job with it.
    let prepare = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: a system call only, which is allowed between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().map_err(failed)?;
    let mut accounts = Vec::new();
    read_lines(child.stdout.take().expect("piped"), failed, |line| {
        match serde_json::from_slice(line) {
            Ok(Report::Progress(what)) => told.progress(&what),
            Ok(Report::Row(mut row)) => {
                if options.without_seal && !row.fabric.is_empty() {
                    row.state += ", without seal";
                }
                told.row(row);
            }
            Ok(Report::Account(account)) => accounts.push(account),
            Err(error) => {
                return Err(Failure::new(format!("a measuring node said what is no row: {error}")));
            }
        }
        Ok(())
    })?;
    let status = child.wait().map_err(failed)?;
    told.clear_progress();
    if !status.success() {
        return Ok(Err(status.code().map_or(STATUS_HIROBA, |code| code as u8)));
    }
    accounts.sort_by_key(|account| account.node);
    let least = accounts.iter().filter_map(|account| account.core_share).min_by(f64::total_cmp);
    told.end_of_job(least, Some(&accounts));
    Ok(Ok(()))
}

/// What has been told: rows on standard output as they come; on standard error what is being measured, on a
/// terminal in one line that gives way.
struct Told {
    rows: Vec<Row>,
    /// Rows of the jobs that have ended.
    concluded: usize,
    table: table::Table,
    progress_shown: bool,
}

impl Told {
    fn new(heading: &str, setting: &str) -> Told {
        print(heading);
        Told {
            rows: Vec::new(),
            concluded: 0,
            table: table::Table::new(setting, columns::of_standard_output()),
            progress_shown: false,
        }
    }

    fn row(&mut self, row: Row) {
        self.clear_progress();
        print(&self.table.lines(&row));
        self.rows.push(row);
    }

    /// All rows since the last end of a job were measured together, and so was the share of the processors.
    fn end_of_job(&mut self, core_share: Option<f64>, nodes: Option<&[NodeStatistics]>) {
        let shares_cores = nodes.is_some_and(|nodes| nodes.iter().any(core_share::share_cores));
        for row in &mut self.rows[self.concluded..] {
            (row.core_share, row.shares_cores) = (core_share, shares_cores);
        }
        self.concluded = self.rows.len();
        let remark = match nodes {
            Some(nodes) => core_share::remark(nodes),
            None => core_share.and_then(core_share::remark_of_process),
        };
        if let Some(remark) = remark {
            print(&format!("  ({remark})\n"));
        }
    }

    fn progress(&mut self, what: &str) {
        let mut stderr = std::io::stderr();
        if stderr.is_terminal() {
            self.progress_shown = true;
            let _ = write!(stderr, "\r\x1b[Kmeasuring: {what} ");
            let _ = stderr.flush();
        } else {
            say(&format!("measuring: {what}"));
        }
    }

    fn clear_progress(&mut self) {
        if std::mem::take(&mut self.progress_shown) {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

fn print(text: &str) {
    let mut stdout = std::io::stdout();
    // A reader that has gone wants to see no more.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// What was measured, beside the same without Hiroba.
fn row(name: &str, fabric: &str, state: &str, taken: samples::Taken, raw: Option<&samples::Taken>) -> Row {
    let (p50_us, p99_us) = (taken.median_us(), taken.percentile_us(99));
    let (raw_us, raw_p99_us) = raw.map(|raw| (raw.median_us(), raw.percentile_us(99))).unzip();
    let over = |ours: f64, raw: Option<f64>| raw.filter(|raw| *raw > 0.0).map(|raw| ours / raw);
    let ratio_p99 = over(p99_us, raw_p99_us);
    Row {
        name: name.to_owned(),
        fabric: fabric.to_owned(),
        state: state.to_owned(),
        figures: Figures::Time { p50_us, p99_us, raw_us, raw_p99_us, ratio_p99 },
        ratio: over(p50_us, raw_us),
        repetitions: taken.len(),
        warm_up: taken.warm_up,
        core_share: None,
        shares_cores: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_contracts_names() {
        let taken = samples::Taken::new(vec![2000.0, 1000.0, 3000.0], 5);
        let raw = samples::Taken::new(vec![1000.0, 1000.0, 1500.0], 5);
        let time = serde_json::to_value(row("barrier", "udp", "idle", taken, Some(&raw))).unwrap();
        for (name, value) in [("p50_us", 2.0), ("p99_us", 3.0), ("raw_us", 1.0), ("ratio", 2.0)] {
            assert_eq!(time[name], value, "{time}");
        }
        assert_eq!((&time["raw_p99_us"], &time["ratio_p99"]), (&1.5.into(), &2.0.into()));
        for (name, value) in [("name", "barrier"), ("fabric", "udp"), ("state", "idle")] {
            assert_eq!(time[name], value, "{time}");
        }
        assert_eq!((&time["repetitions"], &time["warm_up"]), (&3.into(), &5.into()));

        let figures = Figures::Bandwidth { gb_per_s: 2.0, raw_gb_per_s: Some(4.0) };
        let stream = serde_json::to_value(figures).unwrap();
        assert_eq!((&stream["gb_per_s"], &stream["raw_gb_per_s"]), (&2.0.into(), &4.0.into()));
        let back: Figures = serde_json::from_value(stream).unwrap();
        assert_eq!(back, figures);
    }
}
