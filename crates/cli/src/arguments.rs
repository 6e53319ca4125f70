//! The command line: what is known, what is available, and one sentence for everything else.

mod habits;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use hiroba_base::MAX_NODES;
use hiroba_base::PageSize;
use hiroba_node::{HomePolicy, Protocol};
use hiroba_paging::{PolicyKind, UnknownPolicy};
use serde::de::DeserializeOwned;

use self::values::*;
use crate::bench::{BenchOptions, BenchPlan, Group, UnsealedJob};
use crate::compiler::Language;
use crate::failure::{Failure, STATUS_BAD_INPUT};
use crate::reproduce::{LATER_PAPERS, PAPERS, ReproduceOptions, Scale};
use crate::run::options::{HostsGiven, ReportOptions, RunOptions};
use crate::trace::TraceCommand;
use hiroba_wire::FabricKind;
use hiroba_wire::control::{CoherenceChoices, MemoryLimit, TransportChoices};

/// What the user asked for, checked.
#[derive(Debug)]
pub enum Command {
    /// Print help or the version.
    Show {
        /// What to print.
        text: String,
    },
    /// Run a program.
    Run(Box<RunOptions>),
    /// Start and watch nodes of a job whose launcher runs on another host.
    Agent,
    /// Call a compiler.
    Compile {
        /// Which one.
        language: Language,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
    /// Measure what Hiroba costs here.
    Bench(Box<BenchOptions>),
    /// Be one of the nodes that `bench` measures with.
    BenchNode(BenchPlan),
    /// Run the nodes of a measurement without seals.
    BenchJob(Box<UnsealedJob>),
    /// Show a first run.
    Demo {
        /// How many nodes to compare with one.
        nodes: u16,
    },
    /// Look at a trace.
    Trace(TraceCommand),
    /// Judge a traced run.
    Check {
        /// The trace's directory.
        directory: PathBuf,
        /// Whether to print the verdict as JSON.
        json: bool,
    },
    /// Be a node that runs a program of the checker's language.
    Litmus(crate::litmus::LitmusArguments),
    /// Make a paper's tables.
    Reproduce(ReproduceOptions),
    /// Write manual pages and completions.
    Generate {
        /// The directory `share` of the prefix.
        share: PathBuf,
    },
    /// Say what this machine offers and lacks.
    Doctor,
}

const AFTER_HELP: &str = "\
On several machines (--hosts, -H) nodes are numbered host by host, in the given order; a host \
without slots gets an equal share of -n, else a node for each of its cores divided by THREADS. \
Program and working directory must be there under the same paths, and hiroba of the same build (its \
path there: $HIROBA_AGENT, if another). The environment of nodes on other machines is that of a \
login there, and the variables HIROBA_*, OMP_* and -x. Node 0 reads standard input only on this machine.

Words of mpirun are understood: -np, --np, -host, --hostfile, -machinefile, --tag-output (--label), \
--bind-to (--bind), --oversubscribe.

Exit status: that of node 0 if it is not zero, else the first other node's that is not; 125 a fault \
of Hiroba's or of its arguments, 126 the program cannot be executed, 127 it was not found, 128+S a \
node was killed by signal S. Data races that --races reports do not change it.

A job in which every thread waits for another is ended with 125 and a report of who waits for what.";

const AFTER_BENCH_HELP: &str = "\
Times are of single operations, measured one by one after a warm-up; p50 is the median, p99 the \
99th percentile. 'raw' is the same exchange over plain sockets, sealed as the fabric seals its \
messages, or through mapped memory, or the same bytes moved by plain loads, measured in the same \
run; 'ratio' is the figure over raw. 'home idle' waits for the answer awake, 'home computing' runs \
the program meanwhile. 'program' measures a C program, compiled by 'hiroba cc', and is left out \
where that fails. Rows are printed as they are measured; where nodes got less than 0.9 of a core \
while they could run, it is said below them.";

const AFTER_REPRODUCE_HELP: &str = "\
Compiles the papers' programs with $HIROBA_CC, $CC or cc, with Hiroba and without, and runs both. A \
run whose checks do not pass is an error and never a figure. Every figure says how it was obtained: \
by the clock, or, where nodes share cores, from processor seconds, which know no waiting and so give \
an upper bound. Leave the machine alone meanwhile: figures by the clock of a busy one bear a '!'.

Exit status: 0, 2 an unknown paper or a file that cannot be written, 125 a run failed or a paper is \
not available yet, 127 there is no compiler.";

const AFTER_CHECK_HELP: &str = "\
Every run is judged by what its nodes did to pages; accesses that a program makes through \
hiroba_traced_load and hiroba_traced_store are judged byte by byte as well.

Exit status: 0 the run keeps every promise, 1 it breaks one, 125 the trace cannot be read, or it is \
cut off and what there is of it keeps every promise. Data races are the program's own and do not \
change it.";

const USAGE_CC: &str = "hiroba cc [--showme] [COMPILER ARGS]...";
const USAGE_CXX: &str = "hiroba cxx [--showme] [COMPILER ARGS]...";
const USAGE_FC: &str = "hiroba fc [--showme] [COMPILER ARGS]...";

/// The help of a compiler wrapper, with the variables and the compiler of its language.
macro_rules! after_compiler_help {
    ($own:literal, $variable:literal, $compiler:literal, $command:literal) => {
        concat!(
            "--showme (or -show) prints the command instead of running it, --showme:compile and --showme:link print \
             what is added to it. All other arguments go to the compiler; its own help is printed by '",
            $compiler,
            " --help'.\n\nThe compiler is the one that $",
            $own,
            " names, else $",
            $variable,
            ", else ",
            $compiler,
            ". A $",
            $variable,
            " that is hiroba itself is passed over. So build tools can be told to use it:\n\n  make ",
            $variable,
            "='hiroba ",
            $command,
            "'\n  ",
            $variable,
            "='hiroba ",
            $command,
            "' cmake -B build\n  ",
            $variable,
            "='hiroba ",
            $command,
            "' meson setup build"
        )
    };
}

const AFTER_CC_HELP: &str = after_compiler_help!("HIROBA_CC", "CC", "cc", "cc");
const AFTER_CXX_HELP: &str = after_compiler_help!("HIROBA_CXX", "CXX", "c++", "cxx");
const AFTER_FC_HELP: &str = after_compiler_help!("HIROBA_FC", "FC", "gfortran", "fc");

const AFTER_DOCTOR_HELP: &str = "\
Changes nothing. Exit status: 0, or 125 when jobs of several nodes cannot run here.";

#[derive(Parser)]
#[command(
    name = "hiroba",
    version,
    about = "One address space over several nodes: runs shared-memory programs on a software distributed shared memory",
    max_term_width = 100
)]
struct CommandLine {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Run a program on several nodes
    #[command(after_help = AFTER_HELP)]
    Run(Box<RunArguments>),
    /// Compile or link a C program: calls $HIROBA_CC, $CC or cc with hiroba.h and the library
    #[command(disable_help_flag = true, override_usage = USAGE_CC, after_help = AFTER_CC_HELP)]
    Cc(CompilerArguments),
    /// Compile or link a C++ program: calls $HIROBA_CXX, $CXX or c++
    #[command(disable_help_flag = true, override_usage = USAGE_CXX, after_help = AFTER_CXX_HELP)]
    Cxx(CompilerArguments),
    /// Compile or link a Fortran program: calls $HIROBA_FC, $FC or gfortran
    #[command(disable_help_flag = true, override_usage = USAGE_FC, after_help = AFTER_FC_HELP)]
    Fc(CompilerArguments),
    /// Measure what faults, locks, barriers, releases and diffs cost on this machine
    #[command(after_help = AFTER_BENCH_HELP)]
    Bench(BenchArguments),
    #[command(hide = true, disable_help_flag = true)]
    BenchNode { plan: String },
    #[command(hide = true, disable_help_flag = true)]
    BenchJob { job: String },
    #[command(hide = true, disable_help_flag = true)]
    Agent,
    /// Compile a small simulation, run it on one node and on several, and show where the time went
    Demo {
        /// How many nodes to compare with one
        #[arg(short, value_name = "NODES", default_value = "4", allow_hyphen_values = true)]
        nodes: String,
    },
    /// Look at what 'run --trace DIR' has recorded
    #[command(subcommand)]
    Trace(TraceSubcommands),
    /// Tell what this machine offers and lacks, what is lost by that, and what to do about it
    #[command(after_help = AFTER_DOCTOR_HELP)]
    Doctor,
    /// Hold a run that 'run --trace DIR' has recorded against what its protocol promises
    #[command(after_help = AFTER_CHECK_HELP)]
    Check {
        /// The directory after --trace
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Print the verdict as JSON
        #[arg(long)]
        json: bool,
    },
    #[command(hide = true, disable_help_flag = true)]
    Generate { share: PathBuf },
    #[command(hide = true)]
    Litmus(crate::litmus::LitmusArguments),
    #[command(hide = true, disable_help_flag = true)]
    Analyze(UnavailableArguments),
    #[command(hide = true, disable_help_flag = true)]
    Calibrate(UnavailableArguments),
    #[command(hide = true, disable_help_flag = true)]
    Top(UnavailableArguments),
    /// Run what a paper measured, and show its tables and figures with ours beside the paper's
    #[command(after_help = AFTER_REPRODUCE_HELP)]
    Reproduce(ReproduceArguments),
}

#[derive(Subcommand)]
enum TraceSubcommands {
    /// Count what a trace holds
    Summary {
        /// The directory after --trace
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Write a trace in the Trace Event Format, which ui.perfetto.dev shows
    Export {
        /// The directory after --trace
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The file to write
        #[arg(short, value_name = "FILE")]
        output: PathBuf,
    },
}

impl From<TraceSubcommands> for TraceCommand {
    fn from(given: TraceSubcommands) -> TraceCommand {
        match given {
            TraceSubcommands::Summary { directory } => TraceCommand::Summary { directory },
            TraceSubcommands::Export { directory, output } => TraceCommand::Export { directory, output },
        }
    }
}

#[derive(Args)]
struct UnavailableArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

#[derive(Args)]
struct CompilerArguments {
    /// Arguments for the compiler
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMPILER ARGS")]
    arguments: Vec<OsString>,
}

#[derive(Args)]
struct RunArguments {
    /// Nodes of the job, 1 to 4096 [default: the usable cores divided by THREADS, at least 2]
    #[arg(short, value_name = "NODES", allow_hyphen_values = true)]
    nodes: Option<String>,
    /// Threads that hiroba_run starts on each node, 1 to 256
    #[arg(short, value_name = "THREADS", default_value = "1", allow_hyphen_values = true)]
    threads_per_node: String,
    #[command(flatten)]
    coherence: CoherenceArguments,
    /// What carries the messages: udp, tcp or shm (between processes of one machine)
    #[arg(long, value_name = "FABRIC", default_value = "udp")]
    fabric: String,
    #[command(flatten)]
    tracking: TrackingArguments,
    /// Run this node under gdb, or $HIROBA_DEBUGGER, on the terminal; the other nodes run on
    #[arg(long, value_name = "NODE", allow_hyphen_values = true)]
    debug: Option<String>,
    #[command(flatten)]
    reports: ReportArguments,
    /// Set a variable for the nodes, or pass it to other machines as it is; may be repeated
    #[arg(short = 'x', value_name = "VAR[=VALUE]")]
    variables: Vec<OsString>,
    /// Inflict faults on the network, for tests: probabilities and a seed
    #[arg(long, value_name = "loss=P,reorder=P,dup=P,seed=N")]
    inject: Option<String>,
    /// Promise that what travels over a network is encrypted (it is so in any case, since the cipher is faster that way)
    #[arg(long)]
    encrypt: bool,
    /// Keep the processors from sleeping deeply while the job runs: on or off [default: on where it is allowed]
    #[arg(long, value_name = "on|off")]
    low_latency: Option<String>,
    /// Give each node processors of its own, where there are enough for all threads: on or off
    #[arg(long, value_name = "on|off", default_value = "on")]
    bind: String,
    /// Take a node for dead when nothing has been heard of it for so long; 0 never does [default: 3 on one machine, 10 on several]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    dead_after: Option<String>,
    #[command(flatten)]
    hosts: HostArguments,
    #[command(flatten)]
    memory: MemoryArguments,
    #[command(flatten)]
    unavailable: UnavailableFlags,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Which protocol keeps memory coherent, and what it may do of its own accord.
#[derive(Args)]
struct CoherenceArguments {
    /// Coherence protocol: hlrc (home-based lazy release consistency), adaptive (hlrc whose homes move, and whose pages come unasked, as the program needs them), aurc (hlrc with stores that go
    /// to large pieces of another node's memory at once over shm, and else leave in the background), lrc (the same without homes), erc-invalidate or erc-update (eager release consistency) or sc (sequential
    /// consistency)
    #[arg(long, value_name = "PROTOCOL", default_value = "hlrc")]
    protocol: String,
    /// When the home of a page moves: off, modification (at barriers, to who has modified most of it) or faults (to who faults on it most); under
    /// hlrc, aurc (but for pages that all nodes have mapped) and the eager protocols
    #[arg(long, value_name = "POLICY", default_value = "off")]
    home_migration: String,
    /// Fetch pages ahead of the program, as it says or as its faults show: on or off (a fault for every page)
    #[arg(long, value_name = "on|off", default_value = "on")]
    prefetch: String,
}

/// What pages are, and how accesses to them are seen.
#[derive(Args)]
struct TrackingArguments {
    /// Coherence unit of regions that choose none: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", allow_hyphen_values = true)]
    page_size: String,
    /// How page faults are caught: event, sigbus or sigsegv [default: the best that is allowed here]
    #[arg(long, value_name = "SOURCE")]
    fault_source: Option<String>,
    /// How writes are found: async (the kernel notes them, Linux 6.7; those to pages of 64 KiB or more fault all the same) or fault [default: the best that is allowed here]
    #[arg(long, value_name = "TRACKING")]
    write_tracking: Option<String>,
    /// Report bytes that two nodes wrote, or one wrote and one read, without synchronisation, with the lines of the program (build it with -g). Stores are seen byte by byte, of loads those that are a node's first touch of a page after a synchronisation
    #[arg(long)]
    races: bool,
}

/// How much memory a node gives to shared pages.
#[derive(Args)]
struct MemoryArguments {
    /// Memory that shared pages may take on each node, as 512M or 4G: beyond it copies of other nodes'
    /// pages leave, and come back when they are touched; under hlrc, with homes that stay [default: all
    /// that there is]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory_limit: Option<String>,
    /// Which copies leave: fifo, clock, lru-scan, lirs, s3-fifo or sieve
    #[arg(long, value_name = "POLICY", default_value = "clock")]
    replacement: String,
}

/// What the user is told of a run.
#[derive(Args)]
struct ReportArguments {
    /// Show where the time went when the job has ended, and whether nodes got the cores that they could have
    /// used; =json:FILE writes it to FILE (give both for both)
    #[arg(long, value_name = "json:FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    stats: Vec<OsString>,
    /// Record faults, messages and synchronisation of every node in DIR, which must be new or empty
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Show on the terminal, once a job has run for a second, what it is doing: a line on standard error that is gone at the end
    #[arg(long)]
    progress: bool,
    /// Put the number of the node in front of each line that the program writes
    #[arg(long)]
    label: bool,
}

/// Where nodes run, if not on this machine alone.
#[derive(Args)]
struct HostArguments {
    /// Run on the machines that FILE lists, one a line as HOST [slots=N] [address=IP], reached by ssh; see below
    #[arg(long, value_name = "FILE", conflicts_with = "host_list")]
    hosts: Option<PathBuf>,
    /// Run on these machines, as --hosts does on those of a file
    #[arg(short = 'H', value_name = "HOST[:SLOTS],...")]
    host_list: Option<String>,
    /// Start programs on other machines by CMD HOST PROGRAM ARGS instead of ssh
    #[arg(long, value_name = "CMD")]
    launcher: Option<String>,
}

#[derive(Args)]
struct BenchArguments {
    /// What to measure: fault, barrier, lock, release, ports, updates, program, diff, atomic, compute, stream
    /// or all [default: all]
    #[arg(value_name = "WHAT")]
    groups: Vec<String>,
    /// Nodes of the measured job, 2 to 4096
    #[arg(short, value_name = "NODES", default_value = "2", allow_hyphen_values = true)]
    nodes: String,
    /// What carries the messages: udp, tcp or shm
    #[arg(long, value_name = "FABRIC", default_value = "udp")]
    fabric: String,
    /// How page faults are caught: event, sigbus or sigsegv [default: the best that is allowed here]
    #[arg(long, value_name = "SOURCE")]
    fault_source: Option<String>,
    /// How writes are found: async or fault [default: the best that is allowed here]
    #[arg(long, value_name = "TRACKING")]
    write_tracking: Option<String>,
    /// Fewer repetitions
    #[arg(long)]
    quick: bool,
    /// Measure with messages that bear no seal, to see what the seal costs; there is no such thing for programs
    #[arg(long)]
    without_seal: bool,
    /// Print the rows as Markdown tables, below a line that names the machine
    #[arg(long)]
    markdown: bool,
    /// Write the rows to FILE as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct ReproduceArguments {
    /// 000 (Barli, Watanabe, Sakai, Tanaka: four protocols), 001 (Midorikawa, Ito, Iizuka: UDP instead of
    /// TCP), 002 (Hattori, Yamamoto, Amano: local memory paged into shared memory, by a model) or 004
    /// (Sugawara and others: messages to ports)
    #[arg(value_name = "PAPER")]
    paper: Option<String>,
    /// Fewer runs, some of them shorter: two minutes at most on two cores
    #[arg(long)]
    quick: bool,
    /// As little as shows that everything works, for tests
    #[arg(long, hide = true)]
    tiny: bool,
    /// Write the figures to FILE as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots to FILE, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Flags with a settled name and meaning that this version cannot honour.
#[derive(Args)]
struct UnavailableFlags {
    #[arg(long, hide = true)]
    swap: Option<String>,
    #[arg(long, hide = true)]
    slow: Option<String>,
    #[arg(long = "virtual", hide = true)]
    virtual_cluster: Option<String>,
}

impl UnavailableFlags {
    /// The first flag given, with what to do instead.
    fn first_given(&self) -> Option<(&'static str, &'static str)> {
        let flags = [
            (self.swap.is_some(), "--swap", "leave it out: pages stay in memory"),
            (self.slow.is_some(), "--slow", "leave it out: every node runs at full speed"),
            (self.virtual_cluster.is_some(), "--virtual", "use -n to run nodes on this machine"),
        ];
        flags.into_iter().find(|flag| flag.0).map(|flag| (flag.1, flag.2))
    }
}

/// The command line as it is described to readers of manuals and to shells.
pub fn described() -> clap::Command {
    CommandLine::command()
}

/// Parses and checks the command line.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    let line = match CommandLine::try_parse_from(habits::translate(arguments.collect())?) {
        Ok(line) => line,
        Err(error) => return explain(&error),
    };
    match line.command {
        Subcommands::Run(arguments) => Ok(Command::Run(Box::new(check_run(*arguments)?))),
        Subcommands::Cc(given) => Ok(compile(Language::C, given)),
        Subcommands::Cxx(given) => Ok(compile(Language::Cxx, given)),
        Subcommands::Fc(given) => Ok(compile(Language::Fortran, given)),
        Subcommands::Demo { nodes } => Ok(Command::Demo { nodes: check_nodes(&nodes)? }),
        Subcommands::Bench(given) => Ok(Command::Bench(Box::new(check_bench(given)?))),
        Subcommands::BenchNode { plan } => check_plan(&plan, Command::BenchNode),
        Subcommands::BenchJob { job } => check_plan(&job, |job| Command::BenchJob(Box::new(job))),
        Subcommands::Agent => Ok(Command::Agent),
        Subcommands::Check { directory, json } => Ok(Command::Check { directory, json }),
        Subcommands::Litmus(given) => Ok(Command::Litmus(given)),
        Subcommands::Analyze(given) => unavailable("analyze", &given),
        Subcommands::Calibrate(given) => unavailable("calibrate", &given),
        Subcommands::Top(given) => unavailable("top", &given),
        Subcommands::Reproduce(given) => Ok(Command::Reproduce(check_reproduce(given)?)),
        Subcommands::Trace(given) => Ok(Command::Trace(given.into())),
        Subcommands::Generate { share } => Ok(Command::Generate { share }),
        Subcommands::Doctor => Ok(Command::Doctor),
    }
}

fn compile(language: Language, given: CompilerArguments) -> Command {
    if given.arguments.iter().any(|argument| argument == "--help") {
        let mut all = CommandLine::command();
        all.build();
        let wrapper = all.find_subcommand_mut(language.command()).expect("a command for each language");
        return Command::Show { text: wrapper.render_help().to_string() };
    }
    Command::Compile { language, arguments: given.arguments }
}

fn unavailable(name: &str, _given: &UnavailableArguments) -> Result<Command, Failure> {
    Err(Failure::new(format!(
        "the command {name} is not available yet; see 'hiroba --help' for those that are"
    )))
}

fn check_run(given: RunArguments) -> Result<RunOptions, Failure> {
    if let Some((flag, instead)) = given.unavailable.first_given() {
        return Err(Failure::new(format!("{flag} is not available yet; {instead}")));
    }
    let threads_per_node = check_threads(&given.threads_per_node)?;
    let nodes_asked = given.nodes.as_deref().map(check_nodes).transpose()?;
    let nodes = nodes_asked.unwrap_or_else(|| default_nodes(threads_per_node));
    let hosts = given.hosts.hosts.map(HostsGiven::File).or(given.hosts.host_list.map(HostsGiven::List));
    if given.hosts.launcher.is_some() && hosts.is_none() {
        return Err(Failure::new(
            "--launcher starts programs on other machines; say which with --hosts FILE or -H HOST,HOST",
        ));
    }
    // How many nodes the hosts have is known when they have answered.
    let nodes_max = if hosts.is_some() { nodes_asked.unwrap_or(MAX_NODES) } else { nodes };
    if given.reports.label && given.debug.is_some() {
        return Err(Failure::new(
            "--label and --debug do not go together, as the debugger needs the terminal to itself; leave --label out",
        ));
    }
    if given.reports.progress && given.debug.is_some() {
        return Err(Failure::new(
            "--progress and --debug do not go together, as the debugger needs the terminal to itself; leave --progress out",
        ));
    }
    let fabric = check_fabric(given.fabric)?;
    if given.inject.is_some() && !fabric.carries_datagrams() {
        return Err(Failure::new(format!(
            "--inject inflicts faults on datagrams, and there are none with --fabric {}; \
             use --fabric udp, or leave --inject out",
            fabric.name()
        )));
    }
    let protocol = check_protocol(&given.coherence.protocol)?;
    let name = protocol.name();
    if protocol.needs_write_faults() && given.tracking.write_tracking.as_deref() == Some("async") {
        return Err(Failure::new(format!(
            "--protocol {name} needs every first store to fault, so it goes with --write-tracking fault only; leave --write-tracking out",
        )));
    }
    if protocol != Protocol::Hlrc && given.tracking.races {
        return Err(Failure::new(format!(
            "--races holds the intervals of home-based release consistency against each other, and --protocol {name} keeps none of that kind; use --protocol hlrc",
        )));
    }
    let home_migration = check_home_migration(&given.coherence.home_migration, protocol)?;
    if home_migration != HomePolicy::Fixed.name() && given.tracking.races {
        return Err(Failure::new(
            "--races needs homes that stay where they are; leave --home-migration out, or --races",
        ));
    }
    let page_size = check_page_size(&given.tracking.page_size)?;
    let memory_limit = check_memory_limit(&given.memory, page_size)?;
    let homes_stay = home_migration == HomePolicy::Fixed.name();
    refuse_with_limit(memory_limit.as_ref(), protocol, homes_stay, given.tracking.races)?;
    if memory_limit.is_some() && nodes_max == 1 {
        return Err(Failure::new(
            "--memory-limit has pages leave for other nodes, and this job has one node; use -n 2 or more, or leave it out",
        ));
    }
    let mut program = given.program.into_iter();
    let (statistics_table, statistics_json) = check_statistics(given.reports.stats)?;
    Ok(RunOptions {
        nodes,
        nodes_asked,
        threads_per_node,
        coherence: CoherenceChoices {
            protocol: name.to_owned(),
            home_migration,
            prefetch: check_switch("--prefetch", &given.coherence.prefetch)?,
            page_size,
            fault_source: check_fault_source(given.tracking.fault_source.as_deref())?,
            write_tracking: check_write_tracking(given.tracking.write_tracking.as_deref())?,
            races: given.tracking.races,
            memory_limit,
        },
        transport: TransportChoices {
            fabric,
            inject: given.inject.as_deref().map(check_inject).transpose()?,
            without_seal: false,
        },
        debug: given.debug.as_deref().map(|node| check_debug(node, nodes_max)).transpose()?,
        reports: ReportOptions {
            statistics_table,
            statistics_json,
            trace: given.reports.trace,
            progress: given.reports.progress,
            label: given.reports.label,
        },
        variables: check_variables(given.variables)?,
        low_latency: given
            .low_latency
            .as_deref()
            .map(|word| check_switch("--low-latency", word))
            .transpose()?,
        bind: check_switch("--bind", &given.bind)?,
        dead_after: given.dead_after.as_deref().map(check_dead_after).transpose()?,
        hosts,
        launcher: given.hosts.launcher,
        program: program.next().ok_or_else(|| Failure::new(NO_PROGRAM))?,
        arguments: program.collect(),
    })
}

/// A thread's fault may bring many pages, each perhaps with a twin, before one of them is used.
const LIMIT_PAGES_MIN: u64 = 256;

fn check_memory_limit(given: &MemoryArguments, page_size: PageSize) -> Result<Option<MemoryLimit>, Failure> {
    let replacement: PolicyKind = given
        .replacement
        .parse()
        .map_err(|error: UnknownPolicy| Failure::new(format!("{error}, after --replacement")))?;
    let Some(size) = &given.memory_limit else { return Ok(None) };
    let bytes = parse_size(size).ok_or_else(|| {
        Failure::new(format!("expected a size such as 512M or 4G after --memory-limit, got '{size}'"))
    })?;
    let least = LIMIT_PAGES_MIN * page_size.bytes() as u64;
    if bytes < least {
        return Err(Failure::new(format!(
            "expected {LIMIT_PAGES_MIN} pages ({}K) or more after --memory-limit, got '{size}'",
            least >> 10
        )));
    }
    Ok(Some(MemoryLimit { bytes, replacement: replacement.name().to_owned() }))
}

/// What copies cannot leave under.
fn refuse_with_limit(
    limit: Option<&MemoryLimit>,
    protocol: Protocol,
    homes_stay: bool,
    races: bool,
) -> Result<(), Failure> {
    let sentence = match limit {
        None => return Ok(()),
        Some(_) if protocol != Protocol::Hlrc || !homes_stay => {
            "--memory-limit has copies leave under --protocol hlrc with homes that stay; leave the limit out, or              other protocols and --home-migration"
        }
        Some(_) if races => {
            "--races keeps what it compares, so no copy may leave; leave --memory-limit out, or --races"
        }
        Some(_) => return Ok(()),
    };
    Err(Failure::new(sentence))
}

fn check_bench(given: BenchArguments) -> Result<BenchOptions, Failure> {
    let nodes = check_nodes(&given.nodes)?;
    if nodes < 2 {
        return Err(Failure::new(
            "expected 2 nodes or more after -n, got '1'; what one node costs is measured with any number",
        ));
    }
    let fabric = check_fabric(given.fabric)?;
    if given.without_seal && !fabric.is_sealed() {
        let sealed = FabricKind::ALL.into_iter().filter(|kind| kind.is_sealed()).map(FabricKind::name);
        return Err(Failure::new(format!(
            "nothing is sealed over {}; use --without-seal with --fabric {}",
            fabric.name(),
            sealed.collect::<Vec<_>>().join(" or ")
        )));
    }
    // Passed on as they were given, once they have been checked.
    check_fault_source(given.fault_source.as_deref())?;
    check_write_tracking(given.write_tracking.as_deref())?;
    Ok(BenchOptions {
        groups: check_groups(&given.groups)?,
        nodes,
        fabric,
        fault_source: given.fault_source,
        write_tracking: given.write_tracking,
        quick: given.quick,
        without_seal: given.without_seal,
        markdown: given.markdown,
        json: given.json,
    })
}

fn check_reproduce(given: ReproduceArguments) -> Result<ReproduceOptions, Failure> {
    let (last, others) = PAPERS.split_last().expect("some papers can be made");
    let now = format!("{} or {last}", others.join(", "));
    let bad_input = |sentence| Failure { status: STATUS_BAD_INPUT, sentence };
    let wanted = given
        .paper
        .ok_or_else(|| bad_input(format!("expected a paper, as in 'hiroba reproduce 000'; use {now}")))?;
    if LATER_PAPERS.contains(&wanted.as_str()) {
        return Err(Failure::new(format!("paper {wanted} is not available yet; use {now}")));
    }
    let Some(paper) = PAPERS.into_iter().find(|paper| *paper == wanted) else {
        return Err(bad_input(format!("there is no paper '{wanted}'; use {now}")));
    };
    let scale = match (given.tiny, given.quick) {
        (true, _) => Scale::Tiny,
        (false, true) => Scale::Quick,
        (false, false) => Scale::Full,
    };
    Ok(ReproduceOptions { paper, scale, json: given.json, html: given.html })
}

/// In the order in which they are measured, each once.
fn check_groups(given: &[String]) -> Result<Vec<Group>, Failure> {
    let known = || Group::ALL.iter().map(|group| group.name()).collect::<Vec<_>>().join(", ");
    for name in given {
        match name.as_str() {
            "all" => {}
            name if Group::ALL.iter().any(|group| group.name() == name) => {}
            name => {
                return Err(Failure::new(format!(
                    "there is nothing called '{name}' to measure; use one of {} or all",
                    known()
                )));
            }
        }
    }
    let all = given.is_empty() || given.iter().any(|name| name == "all");
    let asked = |group: &Group| all || given.iter().any(|name| name == group.name());
    Ok(Group::ALL.iter().copied().filter(asked).collect())
}

fn check_plan<T: DeserializeOwned>(given: &str, command: impl Fn(T) -> Command) -> Result<Command, Failure> {
    serde_json::from_str(given)
        .map(command)
        .map_err(|error| Failure::new(format!("expected the plan of a measurement, got '{given}': {error}")))
}

const NO_PROGRAM: &str =
    "expected a program to run, as in 'hiroba run -n 4 ./program'; see 'hiroba run --help'";

/// Turns clap's report, which is several lines, into help to print or one sentence.
fn explain(error: &clap::Error) -> Result<Command, Failure> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" or "),
        _ => String::new(),
    };
    let argument = text(ContextKind::InvalidArg);
    let flag = argument.split([' ', '=']).next().unwrap_or("").to_owned();
    let sentence = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return Ok(Command::Show { text: error.render().to_string() });
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "expected a command, as in 'hiroba run -n 4 ./program'; see 'hiroba --help'".to_owned()
        }
        ErrorKind::MissingRequiredArgument => NO_PROGRAM.to_owned(),
        ErrorKind::UnknownArgument => match text(ContextKind::SuggestedArg) {
            near if near.is_empty() => format!("there is no flag '{argument}'; see 'hiroba run --help'"),
            near => format!("there is no flag '{argument}'; did you mean '{near}'? see 'hiroba run --help'"),
        },
        ErrorKind::InvalidSubcommand => {
            let name = text(ContextKind::InvalidSubcommand);
            match text(ContextKind::SuggestedSubcommand) {
                near if near.is_empty() => format!(
                    "there is no command '{name}'; to run a program write 'hiroba run {name}'; see 'hiroba --help'"
                ),
                near => format!("there is no command '{name}'; did you mean '{near}'? see 'hiroba --help'"),
            }
        }
        ErrorKind::ArgumentConflict => match text(ContextKind::PriorArg).split([' ', '=']).next() {
            Some(other) if !other.is_empty() && other != flag => {
                format!("{flag} and {other} do not go together; leave one of them out")
            }
            _ => format!("{flag} may be given only once; see 'hiroba run --help'"),
        },
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            format!("expected a value after {flag}; see 'hiroba run --help'")
        }
        ErrorKind::InvalidUtf8 => "expected arguments in UTF-8 before the program's name".to_owned(),
        _ => {
            let words = error.render().to_string();
            let first = words.lines().next().unwrap_or("").trim_start_matches("error: ").to_owned();
            format!("{first}; see 'hiroba --help'")
        }
    };
    Err(Failure::new(sentence))
}

#[cfg(test)]
mod tests;
