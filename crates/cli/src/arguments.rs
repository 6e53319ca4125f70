//! The command line: what is known, what is available, and one sentence for everything else.

mod habits;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
use hiroba_base::{MAX_NODES, PageSize};
use hiroba_node::{HomePolicy, Protocol};
use hiroba_wire::control::{FaultSourceChoice, InjectedFaults, WriteTrackingChoice};
use serde::de::DeserializeOwned;

use self::values::*;
use crate::bench::{BenchOptions, BenchPlan, Group, UnsealedJob};
use crate::compiler::Language;
use crate::failure::{Failure, STATUS_BAD_INPUT};
use crate::reproduce::{LATER_PAPERS, PAPERS, ReproduceOptions, Scale};
use crate::trace::TraceCommand;
use hiroba_wire::FabricKind;

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

/// How the user names the machines to run on.
#[derive(Debug, Clone, PartialEq)]
pub enum HostsGiven {
    /// In a file.
    File(PathBuf),
    /// On the command line, with commas between them.
    List(String),
}

/// `hiroba run`, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Nodes of the job; of one on several hosts, only when they are known.
    pub nodes: u16,
    /// The same if it was given.
    pub nodes_asked: Option<u16>,
    /// Program threads a node.
    pub threads_per_node: u16,
    /// The coherence protocol.
    pub protocol: String,
    /// How homes move.
    pub home_migration: String,
    /// Whether pages may come before anybody has faulted on them.
    pub prefetch: bool,
    /// The fabric.
    pub fabric: FabricKind,
    /// The coherence unit.
    pub page_size: PageSize,
    /// Where faults come from.
    pub fault_source: FaultSourceChoice,
    /// How writes are found.
    pub write_tracking: WriteTrackingChoice,
    /// Whether to report data races between nodes.
    pub races: bool,
    /// The node that runs under a debugger.
    pub debug: Option<u16>,
    /// Whether to print the table of statistics.
    pub statistics_table: bool,
    /// Where to write the statistics as JSON.
    pub statistics_json: Option<PathBuf>,
    /// The directory for the run's trace.
    pub trace: Option<PathBuf>,
    /// Variables to set in the nodes' environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether to show live rates on the terminal.
    pub progress: bool,
    /// Whether to put the node in front of each line of output.
    pub label: bool,
    /// Faults to inflict on the fabric.
    pub inject: Option<InjectedFaults>,
    /// Whether to keep the processors awake while the job runs; `None`: where it is allowed.
    pub low_latency: Option<bool>,
    /// Whether each node gets processors of its own, where there are enough.
    pub bind: bool,
    /// How long a node or a host may be silent before it is taken for dead, zero for ever; `None`: the default.
    pub dead_after: Option<Duration>,
    /// The machines to run on, if not this one alone.
    pub hosts: Option<HostsGiven>,
    /// The command that starts a program on another machine, instead of ssh.
    pub launcher: Option<String>,
    /// Messages bear no seal: never by a command line, see [`UnsealedJob`].
    pub without_seal: bool,
    /// The program as the user named it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
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
99th percentile. 'raw' is the same exchange over plain sockets (or mapped memory), or the same bytes \
moved by plain loads, measured in the same run; 'ratio' is ours over raw, and 'raw, sealed' the plain \
exchange with the fabric's seal on every message. 'home idle' waits for the answer awake, 'home \
computing' runs the program meanwhile. Rows are printed as they are measured; where nodes got less \
than 0.9 of a core while they could run, it is said below them.";

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
    /// What carries the messages: udp, tcp or shm (between processes of one machine)
    #[arg(long, value_name = "FABRIC", default_value = "udp")]
    fabric: String,
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
    /// Run this node under gdb, or $HIROBA_DEBUGGER, on the terminal; the other nodes run on
    #[arg(long, value_name = "NODE", allow_hyphen_values = true)]
    debug: Option<String>,
    /// Show where the time went when the job has ended, and whether nodes got the cores that they could have used; =json:FILE writes it to FILE (give both for both)
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
    /// Run on the machines that FILE lists, one a line as HOST [slots=N] [address=IP], reached by ssh; see below
    #[arg(long, value_name = "FILE", conflicts_with = "host_list")]
    hosts: Option<PathBuf>,
    /// Run on these machines, as --hosts does on those of a file
    #[arg(short = 'H', value_name = "HOST[:SLOTS],...")]
    host_list: Option<String>,
    /// Start programs on other machines by CMD HOST PROGRAM ARGS instead of ssh
    #[arg(long, value_name = "CMD")]
    launcher: Option<String>,
    #[command(flatten)]
    unavailable: UnavailableFlags,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Args)]
struct BenchArguments {
    /// What to measure: fault, barrier, lock, release, updates, diff, atomic, compute, stream or all [default: all]
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
    /// Write the rows to FILE as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct ReproduceArguments {
    /// 000 (Barli, Watanabe, Sakai, Tanaka: four protocols) or 001 (Midorikawa, Ito, Iizuka: UDP instead of TCP)
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
    memory_limit: Option<String>,
    #[arg(long, hide = true)]
    swap: Option<String>,
    #[arg(long, hide = true)]
    replacement: Option<String>,
    #[arg(long, hide = true)]
    slow: Option<String>,
    #[arg(long = "virtual", hide = true)]
    virtual_cluster: Option<String>,
}

impl UnavailableFlags {
    /// The first flag given, with what to do instead.
    fn first_given(&self) -> Option<(&'static str, &'static str)> {
        let flags = [
            (
                self.memory_limit.is_some(),
                "--memory-limit",
                "leave it out: a node may use all memory of its machine",
            ),
            (self.swap.is_some(), "--swap", "leave it out: pages stay in memory"),
            (self.replacement.is_some(), "--replacement", "leave it out: no page is replaced"),
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
    let hosts = given.hosts.map(HostsGiven::File).or(given.host_list.map(HostsGiven::List));
    if given.launcher.is_some() && hosts.is_none() {
        return Err(Failure::new(
            "--launcher starts programs on other machines; say which with --hosts FILE or -H HOST,HOST",
        ));
    }
    // How many nodes the hosts have is known when they have answered.
    let nodes_max = if hosts.is_some() { nodes_asked.unwrap_or(MAX_NODES) } else { nodes };
    if given.label && given.debug.is_some() {
        return Err(Failure::new(
            "--label and --debug do not go together, as the debugger needs the terminal to itself; leave --label out",
        ));
    }
    if given.progress && given.debug.is_some() {
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
    let protocol = check_protocol(&given.protocol)?;
    let name = protocol.name();
    if protocol.needs_write_faults() && given.write_tracking.as_deref() == Some("async") {
        return Err(Failure::new(format!(
            "--protocol {name} needs every first store to fault, so it goes with --write-tracking fault only; leave --write-tracking out",
        )));
    }
    if protocol != Protocol::Hlrc && given.races {
        return Err(Failure::new(format!(
            "--races holds the intervals of home-based release consistency against each other, and --protocol {name} keeps none of that kind; use --protocol hlrc",
        )));
    }
    let home_migration = check_home_migration(&given.home_migration, protocol)?;
    if home_migration != HomePolicy::Fixed.name() && given.races {
        return Err(Failure::new(
            "--races needs homes that stay where they are; leave --home-migration out, or --races",
        ));
    }
    let mut program = given.program.into_iter();
    let (statistics_table, statistics_json) = check_statistics(given.stats)?;
    Ok(RunOptions {
        nodes,
        nodes_asked,
        threads_per_node,
        protocol: name.to_owned(),
        home_migration,
        prefetch: check_switch("--prefetch", &given.prefetch)?,
        fabric,
        page_size: check_page_size(&given.page_size)?,
        fault_source: check_fault_source(given.fault_source.as_deref())?,
        write_tracking: check_write_tracking(given.write_tracking.as_deref())?,
        races: given.races,
        debug: given.debug.as_deref().map(|node| check_debug(node, nodes_max)).transpose()?,
        statistics_table,
        statistics_json,
        trace: given.trace,
        variables: check_variables(given.variables)?,
        progress: given.progress,
        label: given.label,
        inject: given.inject.as_deref().map(check_inject).transpose()?,
        low_latency: given
            .low_latency
            .as_deref()
            .map(|word| check_switch("--low-latency", word))
            .transpose()?,
        bind: check_switch("--bind", &given.bind)?,
        dead_after: given.dead_after.as_deref().map(check_dead_after).transpose()?,
        hosts,
        launcher: given.launcher,
        without_seal: false,
        program: program.next().ok_or_else(|| Failure::new(NO_PROGRAM))?,
        arguments: program.collect(),
    })
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
        json: given.json,
    })
}

fn check_reproduce(given: ReproduceArguments) -> Result<ReproduceOptions, Failure> {
    let now = PAPERS.join(" or ");
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
    let known = || Group::ALL.map(Group::name).join(", ");
    for name in given {
        match name.as_str() {
            "all" => {}
            "ports" => {
                return Err(Failure::new(format!(
                    "bench ports is not available yet; use one of {}",
                    known()
                )));
            }
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
    Ok(Group::ALL.into_iter().filter(asked).collect())
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
