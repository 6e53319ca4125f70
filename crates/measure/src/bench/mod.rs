//! `hiroba bench`: what Hiroba's primitives cost on this machine.
//!
//! The command runs jobs of itself: the nodes' program is the hidden subcommand `bench-node`, which calls the
//! runtime directly and sends its rows through standard output. The same nodes exchange the same bytes
//! without Hiroba in the same run (`raw/`), so that a ratio compares like with like, however busy the machine
//! is.

mod backing;
mod compute;
mod diff;
mod job;
#[cfg(feature = "legs")]
mod legs;
mod locks;
mod machine;
mod markdown;
mod node;
mod plan;
mod ports;
mod program;
mod raw;
mod samples;
mod shared;
pub mod stages;
mod streams;
mod table;
mod told;
mod updates;

use hiroba_node::{CoreShare, Protocol};
use hiroba_trace::NodeStatistics;
use hiroba_wire::control::{FaultSourceChoice, WriteTrackingChoice};
use serde::{Deserialize, Serialize};

use hiroba_launch::failure::{Failure, STATUS_HIROBA, system_words};
use hiroba_launch::output_file::{OutputFile, Purpose};
use hiroba_launch::quantities::counted;
use job::Job;
pub use node::serve_as_node;
pub use plan::{BenchOptions, BenchPlan, Group, UnsealedJob};
use program::Program;
use told::Told;

/// One row of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The fabric that carried the messages; empty if there were none.
    pub fabric: String,
    /// The state of nodes and pages.
    pub state: String,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// Ours divided by the raw figure (of bandwidths: ours as a part of it).
    pub ratio: Option<f64>,
    /// The number of measured repetitions.
    pub repetitions: usize,
    /// The number of unmeasured repetitions before.
    pub warm_up: usize,
    /// The least share of the processors that a process of the measurement got of what it could have used;
    /// `None` if the kernel does not count it.
    #[serde(default)]
    pub core_share: Option<f64>,
    /// Whether threads waited for cores that others of the measurement used.
    #[serde(default)]
    pub shares_cores: bool,
}

/// The figures of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figures {
    /// The mean time of a part of an operation, in microseconds: means of parts add up.
    Mean {
        /// The mean.
        mean_us: f64,
    },
    /// The times of single operations, in microseconds.
    Time {
        /// The median.
        p50_us: f64,
        /// The 99th percentile.
        p99_us: f64,
        /// The median without Hiroba.
        raw_us: Option<f64>,
        /// The 99th percentile without Hiroba.
        raw_p99_us: Option<f64>,
        /// Our 99th percentile divided by that.
        ratio_p99: Option<f64>,
    },
    /// Bytes moved per time, in 10⁹ bytes per second.
    Bandwidth {
        /// With Hiroba.
        gb_per_s: f64,
        /// Without Hiroba.
        raw_gb_per_s: Option<f64>,
    },
}

/// The kind of a row's figures; each has a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Time,
    Mean,
    Bandwidth,
}

impl Figures {
    fn kind(self) -> Kind {
        match self {
            Figures::Time { .. } => Kind::Time,
            Figures::Mean { .. } => Kind::Mean,
            Figures::Bandwidth { .. } => Kind::Bandwidth,
        }
    }
}

/// What a node writes to standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Report {
    /// What is being measured now.
    Progress(String),
    /// A result.
    Row(Row),
    /// Where the time of an operation goes on this node.
    #[cfg(feature = "legs")]
    Legs(legs::OfNode),
    /// The node is about to leave: its account contains its share of the processors.
    Account(Box<NodeStatistics>),
}

/// Measures the requested groups, prints the table, and writes the JSON.
pub fn bench(options: &BenchOptions) -> Result<u8, Failure> {
    const JSON: Purpose = Purpose { what: "the rows", flag: "--json", status: STATUS_HIROBA };
    let json = options.json.as_deref().map(|path| OutputFile::open(path, JSON)).transpose()?;
    let setting = Setting::choose(options)?;
    let mut told = Told::new(&heading(options, &setting), &setting.describe(), options.markdown);
    for group in &options.groups {
        // A job that failed has printed the reason.
        if let Err(status) = measure(*group, options, &setting, &mut told)? {
            return Ok(status);
        }
    }
    if let Some(json) = json {
        let text =
            serde_json::to_string_pretty(&told.rows).map_err(|error| Failure::new(error.to_string()))?;
        json.write(format!("{text}\n").as_bytes())?;
    }
    Ok(0)
}

/// Measures one group and prints its rows, or returns the exit status of a job that failed.
fn measure(
    group: Group,
    options: &BenchOptions,
    setting: &Setting,
    told: &mut Told,
) -> Result<Result<(), u8>, Failure> {
    match group {
        Group::Diff => {
            told.progress(group.name());
            let share = CoreShare::default();
            share.begin();
            for row in diff::measure(options.quick)? {
                told.row(row);
            }
            told.end_of_process(share.share());
            return Ok(Ok(()));
        }
        Group::Program => return measure_program(options, setting, told),
        _ => {}
    }
    // Each group has a job of its own: a release costs by what is mapped, so one group's memory must not slow
    // the next.
    let nodes = if group == Group::Compute { 1 } else { options.nodes };
    let plan = BenchPlan {
        groups: vec![group],
        quick: options.quick,
        fabric: options.fabric,
        setting: setting.describe(),
        without_seal: options.without_seal,
    };
    let compared = group == Group::Updates;
    let protocols = if compared { updates::PROTOCOLS.to_vec() } else { vec![Protocol::Hlrc.name()] };
    for protocol in protocols {
        if let Err(status) = (Job { options, setting, protocol, nodes }).measure(&plan, told)? {
            return Ok(Err(status));
        }
    }
    Ok(Ok(()))
}

fn measure_program(
    options: &BenchOptions,
    setting: &Setting,
    told: &mut Told,
) -> Result<Result<(), u8>, Failure> {
    if options.without_seal {
        told.remark("no C program was measured: messages of programs are always encrypted");
        return Ok(Ok(()));
    }
    told.progress(Group::Program.name());
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot compile the program that is measured: {}", system_words(&error)))
    };
    let Some(program) = Program::compile().map_err(failed)? else {
        told.remark("no C program was measured: it could not be compiled");
        return Ok(Ok(()));
    };
    let protocol = Protocol::Hlrc.name();
    let job = Job { options, setting, protocol, nodes: options.nodes };
    let measured = match program.measure(&job)? {
        Ok(measured) => measured,
        Err(status) => return Ok(Err(status)),
    };
    measured.rows.into_iter().for_each(|row| told.row(row));
    told.end_of_job(&measured.nodes);
    Ok(Ok(()))
}

/// Formats what all rows have in common. The Markdown form names the machine as well, since a document is
/// read elsewhere.
fn heading(options: &BenchOptions, setting: &Setting) -> String {
    let nodes = counted(&options.nodes.to_string(), "node", "nodes");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let cores = counted(&cores.to_string(), "core", "cores");
    let (fabric, setting) = (options.fabric.name(), setting.describe());
    if !options.markdown {
        return format!("hiroba bench: {nodes} on {cores} over {fabric}, {setting}\n");
    }
    let (source, tracking) = setting.split_once(", ").unwrap_or((&setting, ""));
    let seal = if options.without_seal { ", without seal" } else { "" };
    let machine = machine::describe(&cores);
    format!("{machine}. {nodes} over {fabric}{seal}, fault source {source}, write tracking {tracking}.\n")
}

/// How faults are caught and writes found in the measured jobs, named for the rows.
struct Setting {
    fault_source: &'static str,
    write_tracking: &'static str,
}

impl Setting {
    /// Takes the requested settings, else those that a job would choose by itself.
    fn choose(options: &BenchOptions) -> Result<Setting, Failure> {
        let sources = [
            ("sigbus", FaultSourceChoice::Sigbus),
            ("event", FaultSourceChoice::Event),
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
        Err(refused.unwrap_or_else(|| Failure::new("no way to catch page faults works here")))
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.fault_source, self.write_tracking)
    }
}

/// Makes a row of what was measured and the same without Hiroba.
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
