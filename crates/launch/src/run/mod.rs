//! `hiroba run`: checks the options, starts the nodes, watches them, and reports how the run went.

mod agent;
mod channel;
mod deaths;
mod debug;
mod endpoints;
mod evidence;
mod executable;
pub mod executables;
pub mod guardian;
mod handover;
mod homecoming;
mod hosts;
mod lacks;
pub mod limits;
mod liveness;
mod loaded;
mod local;
mod openmp;
pub mod options;
mod output;
mod preload;
pub mod processors;
mod races;
pub mod remarks;
mod remote;
mod resolve;
pub mod signals;
mod small_library;
mod spawn;
mod start;
mod status;
mod supervise;
mod tls_filler;
mod trace_directory;
mod waiting;

use std::io::Write;
use std::path::PathBuf;

use hiroba_trace::{RunStatistics, Totals};
use hiroba_wire::control::FaultSourceChoice;

use crate::columns;
use crate::explanation;
use crate::failure::{Failure, STATUS_HIROBA, say};
use crate::output_file::{OutputFile, Purpose};
use crate::progress;
use crate::run::options::RunOptions;
use crate::statistics_table;
use crate::symbols::Symboliser;
pub use agent::serve as serve_as_agent;
use debug::Debugger;
use guardian::Front;
use start::{Plan, Started};
use supervise::{Outcome, Stop};
use trace_directory::TraceDirectory;

/// The file of `--stats=json:FILE`.
const STATISTICS: Purpose = Purpose { what: "the statistics", flag: "--stats=json:", status: STATUS_HIROBA };

/// Runs the program and returns the job's exit status.
pub fn run(options: &RunOptions) -> Result<u8, Failure> {
    refuse_valgrind()?;
    let prepared = executables::prepare(options)?;
    let options = prepared.as_ref().unwrap_or(options);
    let hosts = options.hosts.as_ref().map(hosts::find).transpose()?.unwrap_or_default();
    let debugger = Debugger::find(options)?;
    let plan = Plan { options, hosts: &hosts, debugger: debugger.as_ref() };
    remarks::make(options);
    guardian::run_guarded(None, |front| match supervise(&plan, front) {
        Ok(status) => status,
        Err(failure) => {
            say(&failure.sentence);
            failure.status
        }
    })
}

/// Refuses to run under valgrind, which preloads a library of its own: the launcher's processes would not
/// end.
fn refuse_valgrind() -> Result<(), Failure> {
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !preloaded.to_string_lossy().contains("vgpreload_") {
        return Ok(());
    }
    Err(Failure::new(
        "expected a launcher that runs natively, got one under valgrind; run it without, and build the program with \
         -fsanitize=address or -fsanitize=undefined to find its errors"
            .to_owned(),
    ))
}

/// Returns how many processors this process may use.
fn cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX))
}

/// Checks that the nodes will have what they need, and chooses their fault source.
///
/// A debugger must know which signal means a fault, so under one the source is chosen here.
fn check_nodes_needs(options: &RunOptions, debugging: bool) -> Result<FaultSourceChoice, Failure> {
    let attempt = |choice| hiroba_node::preflight(options.nodes, choice, options.coherence.write_tracking);
    attempt(options.coherence.fault_source).map_err(|error| Failure::new(error.to_string()))?;
    hiroba_node::check_swap(&options.coherence).map_err(|error| Failure::new(error.to_string()))?;
    if !debugging || options.coherence.fault_source != FaultSourceChoice::Automatic {
        return Ok(options.coherence.fault_source);
    }
    let choices = [FaultSourceChoice::Event, FaultSourceChoice::Sigbus, FaultSourceChoice::Sigsegv];
    let usable = choices.into_iter().find(|choice| attempt(*choice).is_ok());
    Ok(usable.unwrap_or(FaultSourceChoice::Automatic))
}

fn supervise(plan: &Plan, front: Front) -> Result<u8, Failure> {
    let options = plan.options;
    // Checked before the job starts, so that an hour's run is not lost to a typing error.
    let file = options
        .reports
        .statistics_json
        .as_deref()
        .map(|path| OutputFile::open(path, STATISTICS))
        .transpose()?;
    let trace =
        options.reports.trace.as_deref().map(|path| TraceDirectory::open(path, options)).transpose()?;
    let stopped = match start::start(plan, trace.as_ref(), front) {
        Ok(Started { supervisor, gate, nodes, wakefulness: _awake }) => match supervisor.run(gate) {
            Ok(outcome) => {
                let traced = trace.map(|trace| trace.conclude(nodes, outcome.status));
                if let Some(Err(failure)) = traced {
                    say(&failure.sentence);
                }
                return Ok(conclude(options, nodes, &outcome, file));
            }
            Err(stop) => stop,
        },
        Err(stop) => stop,
    };
    guardian::kill_descendants();
    if let Some(trace) = trace {
        trace.discard();
    }
    match stopped {
        Stop::NotExecuted(errno) => {
            let path = resolve::resolve(&options.program).unwrap_or_else(|_| PathBuf::from(&options.program));
            Err(resolve::refused(&options.program, &path, &std::io::Error::from_raw_os_error(errno)))
        }
        Stop::Failed(failure) => Err(failure),
        Stop::FrontGone => Ok(STATUS_HIROBA),
    }
}

/// Writes the account of the run to every requested place.
///
/// The account of a job that died contains the nodes that had left it.
fn conclude(options: &RunOptions, nodes: u16, outcome: &Outcome, file: Option<OutputFile>) -> u8 {
    let account = RunStatistics {
        program: options.program.to_string_lossy().into_owned(),
        nodes,
        threads_per_node: options.threads_per_node,
        protocol: options.coherence.protocol.clone(),
        fabric: options.transport.fabric.name().to_owned(),
        page_bytes: u32::from(options.coherence.page_size),
        wall_s: outcome.wall.as_secs_f64(),
        per_node: outcome.accounts.values().cloned().collect(),
        total: Totals::default(),
    }
    .with_totals();
    if options.reports.statistics_table {
        if account.per_node.is_empty() {
            let why = if outcome.started { "no node left the job properly" } else { "no job was started" };
            say(&format!("no statistics: {why}"));
        } else {
            let columns = progress::terminal_columns(std::io::stderr()).unwrap_or(statistics_table::COLUMNS);
            let mut text = statistics_table::render(&account, columns);
            let advice = explanation::lines(&account, &Symboliser::default(), columns.max(columns::COLUMNS));
            if !advice.is_empty() {
                text.push_str(&format!("\n{}\n", advice.join("\n")));
            }
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
    match file.map(|file| write_statistics(file, &account)) {
        Some(Err(failure)) => {
            say(&failure.sentence);
            if outcome.status == 0 { failure.status } else { outcome.status }
        }
        _ => outcome.status,
    }
}

fn write_statistics(file: OutputFile, account: &RunStatistics) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(account).map_err(|error| Failure::new(error.to_string()))?;
    file.write(format!("{text}\n").as_bytes())
}
