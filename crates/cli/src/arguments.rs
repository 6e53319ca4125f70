//! The command line: parses and checks it, and answers everything unknown with one sentence.

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
use crate::trace::TraceCommand;
use hiroba_launch::compiler::Language;
use hiroba_launch::failure::{Failure, STATUS_BAD_INPUT};
use hiroba_launch::run::executables;
use hiroba_launch::run::options::{HostsGiven, ReportOptions, RunOptions};
use hiroba_measure::bench::{BenchOptions, BenchPlan, Group, UnsealedJob};
use hiroba_measure::reproduce::{LATER_PAPERS, PAPERS, ReproduceOptions, Scale};
use hiroba_wire::FabricKind;
use hiroba_wire::control::{
    CoherenceChoices, FaultSourceChoice, LendLimit, MemoryLimit, SwapPlace, TransportChoices,
};

/// A command of the user, with checked arguments.
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
        /// The language.
        language: Language,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
    /// Measure what Hiroba costs here.
    Bench(Box<BenchOptions>),
    /// Run one of the nodes that `bench` measures with.
    BenchNode(BenchPlan),
    /// Run the nodes of a measurement without seals.
    BenchJob(Box<UnsealedJob>),
    /// Introduce a newcomer to Hiroba with a first run.
    Demo {
        /// How many nodes to compare with one.
        nodes: u16,
    },
    /// Summarise or export a trace.
    Trace(TraceCommand),
    /// Check a traced run against its protocol's promises.
    Check {
        /// The trace's directory.
        directory: PathBuf,
        /// Whether to print the verdict as JSON.
        json: bool,
    },
    /// Run one node of a program in the checker's language.
    Litmus(crate::litmus::LitmusArguments),
    /// Produce the tables of a paper.
    Reproduce(ReproduceOptions),
    /// Write manual pages and completions.
    Generate {
        /// The directory `share` of the prefix.
        share: PathBuf,
    },
    /// Report what this machine offers and lacks.
    Doctor,
}

const AFTER_HELP: &str = "\
On several machines (--hosts, -H) nodes are numbered host by host, in the order given. A host \
without slots gets an equal share of -n, else a node for each of its cores divided by THREADS. \
The program, the working directory and the same build of hiroba must exist there under the same paths (set \
$HIROBA_AGENT if its path differs). Nodes on other machines have the environment of a login there and \
the variables HIROBA_*, OMP_* and -x. Node 0 reads standard input only if it runs on this machine.

These options of mpirun are accepted: -np, --np, -host, --hostfile, -machinefile, --tag-output (--label), \
--bind-to (--bind), --oversubscribe.

Exit status: that of node 0 if it is not zero, else the first nonzero one of another node; 125 an error \
in Hiroba or its arguments, 126 the program cannot be executed, 127 it was not found, 128+S a \
node was killed by signal S. Data races that --races reports do not change it.

A job in which every thread waits for another ends with 125 and a report of what each thread waits for.";

const AFTER_BENCH_HELP: &str = "\
Times are of single operations, measured one by one after a warm-up; p50 is the median, p99 the \
99th percentile. 'raw' is the same exchange over plain sockets, sealed as the fabric seals its \
messages, or through mapped memory, or the same bytes moved by plain loads, measured in the same \
run; 'ratio' is the figure divided by raw. With 'home idle' the home polls; with 'home computing' it runs \
a program. 'program' measures a C program, compiled by 'hiroba cc', and is left out \
if that fails. Rows are printed as they are measured; a note follows if nodes got less than 0.9 of \
a core while they were ready to run.";

const AFTER_REPRODUCE_HELP: &str = "\
Compiles the papers' programs with $HIROBA_CC, $CC or cc, with and without Hiroba, and runs both. A \
run whose checks fail is an error, not a figure. Every figure says how it was obtained: by the \
clock, or, where nodes share cores, from processor seconds, which exclude waiting and so give \
an upper bound. Run nothing else meanwhile: on a busy machine, figures by the clock are marked '!'.

Exit status: 0, 2 an unknown paper or a file that cannot be written, 125 a run failed or a paper is \
not available yet, 127 there is no compiler.";

const AFTER_CHECK_HELP: &str = "\
Checks every run by what its nodes did to pages. Accesses that a program makes through \
hiroba_traced_load and hiroba_traced_store are also checked byte by byte.

Exit status: 0 the run keeps every promise, 1 it breaks one, 125 the trace cannot be read, or it is \
cut off and the part that was recorded keeps every promise. Data races are errors of the program and do not \
change the status.";

const USAGE_CC: &str = "hiroba cc [--showme] [COMPILER ARGS]...";
const USAGE_CXX: &str = "hiroba cxx [--showme] [COMPILER ARGS]...";
const USAGE_FC: &str = "hiroba fc [--showme] [COMPILER ARGS]...";

/// The help of a compiler wrapper, with the variables and the compiler of its language.
macro_rules! after_compiler_help {
    ($own:literal, $variable:literal, $compiler:literal, $command:literal, $more:literal) => {
        concat!(
            "--showme (or -show) prints the command instead of running it, --showme:compile and --showme:link print \
             what is added to it. All other arguments go to the compiler; its own help is printed by '",
            $compiler,
            " --help'.",
            $more,
            "\n\nThe compiler is the one that $",
            $own,
            " names, else $",
            $variable,
            ", else ",
            $compiler,
            ". A $",
            $variable,
            " that is hiroba itself is ignored, so a build tool can be told to use the wrapper:\n\n  make ",
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

const AFTER_CC_HELP: &str = after_compiler_help!(
    "HIROBA_CC",
    "CC",
    "cc",
    "cc",
    " schedule(profiled, ...), schedule(factoring, ...) and schedule(awf, ...) may be written in pragmas of OpenMP."
);
const AFTER_CXX_HELP: &str = after_compiler_help!(
    "HIROBA_CXX",
    "CXX",
    "c++",
    "cxx",
    " schedule(profiled, ...), schedule(factoring, ...) and schedule(awf, ...) may be written in pragmas of OpenMP."
);
const AFTER_FC_HELP: &str = after_compiler_help!(
    "HIROBA_FC",
    "FC",
    "gfortran",
    "fc",
    " schedule(profiled, ...), schedule(factoring, ...) and schedule(awf, ...) may be written in directives of OpenMP."
);

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
    /// Summarise or export what 'run --trace DIR' has recorded
    #[command(subcommand)]
    Trace(TraceSubcommands),
    /// Report what this machine offers and lacks, what that costs, and what to do about it
    #[command(after_help = AFTER_DOCTOR_HELP)]
    Doctor,
    /// Check a run that 'run --trace DIR' has recorded against its protocol's promises
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
    /// Repeat a paper's measurements, and show its tables and figures beside ours
    #[command(after_help = AFTER_REPRODUCE_HELP)]
    Reproduce(ReproduceArguments),
}

#[derive(Subcommand)]
enum TraceSubcommands {
    /// Count the events of a trace
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
    /// Fabric that carries the messages: udp, tcp or shm (between processes of one machine)
    #[arg(long, value_name = "FABRIC", default_value = "udp")]
    fabric: String,
    #[command(flatten)]
    tracking: TrackingArguments,
    /// Run an executable that was not built for Hiroba: its threads run on all nodes, in one address space
    /// (programs of OpenMP are run so without it)
    #[arg(long)]
    pthread: bool,
    /// Run this node under gdb, or $HIROBA_DEBUGGER, on the terminal; the other nodes run on
    #[arg(long, value_name = "NODE", allow_hyphen_values = true)]
    debug: Option<String>,
    #[command(flatten)]
    reports: ReportArguments,
    /// Set a variable for the nodes, or pass it to other machines as it is; may be repeated
    #[arg(short = 'x', value_name = "VAR[=VALUE]")]
    variables: Vec<OsString>,
    /// Inject network faults, for tests: probabilities and a seed
    #[arg(long, value_name = "loss=P,reorder=P,dup=P,seed=N")]
    inject: Option<String>,
    /// Require that network traffic is encrypted (it always is: authentication alone would not be faster)
    #[arg(long)]
    encrypt: bool,
    /// Keep the processors out of deep sleep while the job runs: on or off [default: on where allowed]
    #[arg(long, value_name = "on|off")]
    low_latency: Option<String>,
    /// Give each node processors of its own if there are enough for all threads: on or off
    #[arg(long, value_name = "on|off", default_value = "on")]
    bind: String,
    /// Consider a node dead after this many seconds of silence; 0 disables this [default: 3 on one machine,
    /// 10 on several]
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

/// The coherence protocol and what it may do on its own initiative.
#[derive(Args)]
struct CoherenceArguments {
    /// Coherence protocol: hlrc (home-based lazy release consistency), adaptive (hlrc whose homes move to
    /// the nodes that write the pages, and whose pages come together with locks), aurc (hlrc whose stores to
    /// large pieces of another node's memory go there directly over shm, and otherwise leave in the
    /// background), lrc (the same without homes), erc-invalidate or erc-update (eager release consistency)
    /// or sc (sequential consistency) [default: adaptive; hlrc with --races, --home-migration or --pthread,
    /// and for OpenMP programs. Executables run under hlrc, adaptive or sc, where hlrc honours atomic
    /// variables and flags with the exceptions that docs/EXECUTABLES.md names]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,
    /// When the home of a page moves: off, modification (at barriers, to the node that has modified most of
    /// it) or faults (to the node that faults on it most); under hlrc, aurc (except pages that all nodes have
    /// mapped) and the eager protocols
    #[arg(long, value_name = "POLICY", default_value = "off")]
    home_migration: String,
    /// Fetch pages before the program needs them, as its hints say or its faults suggest: on or off (one
    /// fault per page)
    #[arg(long, value_name = "on|off", default_value = "on")]
    prefetch: String,
}

/// Properties of pages, and how accesses to them are detected.
#[derive(Args)]
struct TrackingArguments {
    /// Coherence unit of regions that set none: a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", allow_hyphen_values = true)]
    page_size: String,
    /// How page faults are caught: event, sigbus or sigsegv [default: the best that is allowed here]
    #[arg(long, value_name = "SOURCE")]
    fault_source: Option<String>,
    /// How writes are detected: async (the kernel records them, Linux 6.7; pages of 64 KiB or more still
    /// fault) or fault [default: the best that is allowed here]
    #[arg(long, value_name = "TRACKING")]
    write_tracking: Option<String>,
    /// Report bytes that two nodes wrote, or that one wrote and one read, without synchronisation, with the
    /// lines of the program (build it with -g). Every byte stored is seen; of loads, only a node's first
    /// access to a page after a synchronisation. Of executables, blocks and static variables of 128 KiB
    /// and more are searched, with OpenMP 32 KiB
    #[arg(long)]
    races: bool,
}

/// Memory that a node provides for shared pages.
#[derive(Args)]
struct MemoryArguments {
    /// Memory that shared pages may take on each node, as 512M or 4G, or none: above it, copies of other
    /// nodes' pages are evicted, and fetched again when they are touched; under hlrc and adaptive
    /// [default: three quarters of the machine's memory, or of its control group's limit if that is lower,
    /// divided by the nodes on the machine]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory_limit: Option<String>,
    /// Which pages are evicted: fifo, clock, lru-scan, lirs, s3-fifo or sieve
    #[arg(long, value_name = "POLICY", default_value = "s3-fifo")]
    replacement: String,
    /// Where evicted pages go that are homed on the node itself, when evicting copies is not enough for
    /// --memory-limit: a directory on each node's disk, as /var/tmp, and how much of it a node may use, as
    /// /var/tmp:8G. The file there has no name, is encrypted, and disappears with the job
    #[arg(long, value_name = "DIR[:SIZE]")]
    swap: Option<String>,
    /// Memory that each node lends to nodes that are short of it, as 512M, or as 50% of its --memory-limit:
    /// there evicted pages go first that are homed on the node itself. A node lends only what it does not
    /// need, and takes it back when it does [default: 50% with --memory-limit or on several machines, without
    /// --swap, and not over shm; otherwise 0]
    #[arg(long, value_name = "SIZE|PERCENT%")]
    lend: Option<String>,
}

/// What is reported of a run.
#[derive(Args)]
struct ReportArguments {
    /// Show where the time went when the job has ended, and whether nodes got the cores that they could have
    /// used; =json:FILE writes it to FILE (give both for both)
    #[arg(long, value_name = "json:FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    stats: Vec<OsString>,
    /// Record faults, messages and synchronisation of every node in DIR, which must be new or empty
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Show what the job is doing in a line on standard error, on a terminal, once it has run for a second;
    /// the line is removed at the end
    #[arg(long)]
    progress: bool,
    /// Put the number of the node in front of each line that the program writes
    #[arg(long)]
    label: bool,
}

/// Where nodes run, other than on this machine.
#[derive(Args)]
struct HostArguments {
    /// Run on the machines that FILE lists, one per line as HOST [slots=N] [address=IP], reached by ssh; see
    /// below
    #[arg(long, value_name = "FILE", conflicts_with = "host_list")]
    hosts: Option<PathBuf>,
    /// Run on these machines, listed as in a file for --hosts
    #[arg(short = 'H', value_name = "HOST[:SLOTS],...")]
    host_list: Option<String>,
    /// Start programs on other machines by CMD HOST PROGRAM ARGS instead of ssh
    #[arg(long, value_name = "CMD")]
    launcher: Option<String>,
}

#[derive(Args)]
struct BenchArguments {
    /// What to measure: fault, barrier, lock, release, ports, stages, updates, program, diff, atomic,
    /// compute, stream or all [default: all]
    #[arg(value_name = "WHAT")]
    groups: Vec<String>,
    /// Nodes of the measured job, 2 to 4096
    #[arg(short, value_name = "NODES", default_value = "2", allow_hyphen_values = true)]
    nodes: String,
    /// Fabric that carries the messages: udp, tcp or shm
    #[arg(long, value_name = "FABRIC", default_value = "udp")]
    fabric: String,
    /// How page faults are caught: event, sigbus or sigsegv [default: the best that is allowed here]
    #[arg(long, value_name = "SOURCE")]
    fault_source: Option<String>,
    /// How writes are detected: async or fault [default: the best that is allowed here]
    #[arg(long, value_name = "TRACKING")]
    write_tracking: Option<String>,
    /// Repeat fewer times
    #[arg(long)]
    quick: bool,
    /// Measure with messages that are not encrypted, to see what encryption costs; programs cannot run this
    /// way
    #[arg(long)]
    without_seal: bool,
    /// Print the rows as Markdown tables, below a line that names the machine
    #[arg(long)]
    markdown: bool,
    /// Also write the rows to FILE as JSON
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
    /// Run fewer jobs, some of them shorter: two minutes at most on two cores
    #[arg(long)]
    quick: bool,
    /// Run the least that shows that everything works, for tests
    #[arg(long, hide = true)]
    tiny: bool,
    /// Also write the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write a page with plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Flags whose name and meaning are settled, but which this version does not support.
#[derive(Args)]
struct UnavailableFlags {
    #[arg(long, hide = true)]
    slow: Option<String>,
    #[arg(long = "virtual", hide = true)]
    virtual_cluster: Option<String>,
}

impl UnavailableFlags {
    /// Returns the first flag given, with what to do instead.
    fn first_given(&self) -> Option<(&'static str, &'static str)> {
        let flags = [
            (self.slow.is_some(), "--slow", "leave it out: every node runs at full speed"),
            (self.virtual_cluster.is_some(), "--virtual", "use -n to run nodes on this machine"),
        ];
        flags.into_iter().find(|flag| flag.0).map(|flag| (flag.1, flag.2))
    }
}

/// Returns the description of the command line, for manual pages and shell completions.
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
    // With hosts, the number of nodes is known only when they have answered.
    let nodes_max = if hosts.is_some() { nodes_asked.unwrap_or(MAX_NODES) } else { nodes };
    if given.reports.label && given.debug.is_some() {
        return Err(Failure::new(
            "--label and --debug exclude each other, since the debugger needs the terminal to itself; leave --label out",
        ));
    }
    if given.reports.progress && given.debug.is_some() {
        return Err(Failure::new(
            "--progress and --debug exclude each other, since the debugger needs the terminal to itself; leave --progress out",
        ));
    }
    let fabric = check_fabric(given.fabric)?;
    if given.inject.is_some() && !fabric.carries_datagrams() {
        return Err(Failure::new(format!(
            "--inject loses, doubles and reorders datagrams, and --fabric {} sends none; \
             use --fabric udp, or leave --inject out",
            fabric.name()
        )));
    }
    let variables = check_variables(given.variables)?;
    let openmp = given.program.first().is_some_and(|program| {
        executables::is_openmp(program) || (given.pthread && executables::loads_openmp(program, &variables))
    });
    // Such a program joins no job by itself: its threads are run on all nodes.
    let pthread = given.pthread || openmp;
    let protocol = match &given.coherence.protocol {
        Some(name) => check_protocol(name)?,
        // What these ask for, the adaptive protocol does not do.
        None if given.tracking.races || given.coherence.home_migration != HomePolicy::Fixed.name() => {
            Protocol::Hlrc
        }
        None => Protocol::Adaptive,
    };
    let name = protocol.name();
    let fault_source = check_fault_source(given.tracking.fault_source.as_deref())?;
    let fault_source = if pthread {
        let what = if openmp { "an OpenMP program" } else { "--pthread" };
        check_pthread(what, protocol, fault_source)?
    } else {
        fault_source
    };
    if protocol.needs_write_faults() && given.tracking.write_tracking.as_deref() == Some("async") {
        return Err(Failure::new(format!(
            "--protocol {name} needs every first store to fault, so it requires --write-tracking fault; leave --write-tracking out",
        )));
    }
    // Their atomic variables and flags may order data in pages of this protocol. That needs stores that
    // fault: none may slip into an interval while it is closed (`protocol/src/hlrc/ordered.rs`).
    // A search for races takes such uses of plain stores for races.
    let races = given.tracking.races;
    let orders_fetches = pthread && protocol.converts_pages() && nodes_max > 1 && !races;
    let write_tracking =
        given.tracking.write_tracking.as_deref().or_else(|| orders_fetches.then_some("fault"));
    if openmp && given.tracking.races {
        return Err(Failure::new(
            "--races does not know how the threads of an OpenMP executable synchronise; leave it out, or build \
             the program for Hiroba",
        ));
    }
    if !protocol.finds_races() && given.tracking.races {
        return Err(Failure::new(format!(
            "--races compares the intervals of home-based release consistency, and --protocol {name} has none; use --protocol hlrc",
        )));
    }
    let home_migration = check_home_migration(&given.coherence.home_migration, protocol)?;
    if home_migration != HomePolicy::Fixed.name() && given.tracking.races {
        return Err(Failure::new(
            "--races needs homes that do not move; leave out --home-migration or --races",
        ));
    }
    let page_size = check_page_size(&given.tracking.page_size)?;
    let memory_limit = check_memory_limit(&given.memory, page_size)?;
    let asked_lend = given.memory.lend.as_deref().map(check_lend).transpose()?;
    let lend = asked_lend.flatten();
    if lend.is_some() && memory_limit.is_none() {
        return Err(Failure::new(
            "--lend is for nodes that are short of memory at their limit, and --memory-limit none sets none; leave out one of them",
        ));
    }
    let why_not = why_no_page_leaves(protocol, given.tracking.races, nodes_max);
    let memory_limit = match (memory_limit, why_not) {
        (Some(limit), Some(sentence)) if limit.bytes.is_some() || limit.swap.is_some() || lend.is_some() => {
            return Err(Failure::new(sentence));
        }
        (limit, None) => limit,
        (_, Some(_)) => None,
    };
    let has_lenders = lends_by_default(memory_limit.as_ref(), fabric, hosts.is_some());
    let lend = if asked_lend.is_none() && has_lenders { Some(LEND_BY_DEFAULT) } else { lend };
    let mut program = given.program.into_iter();
    let (statistics_table, statistics_json) = check_statistics(given.reports.stats)?;
    Ok(RunOptions {
        nodes,
        nodes_asked,
        threads_per_node,
        coherence: CoherenceChoices {
            protocol: name.to_owned(),
            program_protocol: pthread.then(|| Protocol::Sc.name().to_owned()),
            home_migration,
            prefetch: check_switch("--prefetch", &given.coherence.prefetch)?,
            page_size,
            fault_source,
            write_tracking: check_write_tracking(write_tracking)?,
            races: given.tracking.races,
            lend,
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
        variables,
        pthread,
        openmp,
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

/// Checks what an executable that was not built for Hiroba needs: a protocol under which other nodes see
/// stores in order, and a fault source whose faults the kernel waits for in system calls and on the program's
/// own stack.
fn check_pthread(
    what: &str,
    protocol: Protocol,
    source: FaultSourceChoice,
) -> Result<FaultSourceChoice, Failure> {
    if !protocol.runs_executables() {
        return Err(Failure::new(format!(
            "{what} expects sc, hlrc or adaptive after --protocol, got {}; leave --protocol out",
            protocol.name()
        )));
    }
    match source {
        FaultSourceChoice::Automatic | FaultSourceChoice::Event => Ok(FaultSourceChoice::Event),
        _ => Err(Failure::new(format!(
            "{what} needs --fault-source event, since the program's stacks are shared; leave --fault-source out",
        ))),
    }
}

/// The lowest memory limit, in pages: a thread's fault may bring many pages, each perhaps with a twin, before
/// one of them is used.
const LIMIT_PAGES_MIN: u64 = 256;

fn check_memory_limit(given: &MemoryArguments, page_size: PageSize) -> Result<Option<MemoryLimit>, Failure> {
    let replacement: PolicyKind = given
        .replacement
        .parse()
        .map_err(|error: UnknownPolicy| Failure::new(format!("{error}, after --replacement")))?;
    let replacement = replacement.name().to_owned();
    if given.memory_limit.as_deref() == Some("none") {
        return match &given.swap {
            Some(_) => Err(Failure::new(
                "--swap takes pages that a node evicts at its limit, and --memory-limit none lets none leave; leave out one of them",
            )),
            None => Ok(None),
        };
    }
    let bytes = given.memory_limit.as_deref().map(|size| check_limit(size, page_size)).transpose()?;
    let swap = given.swap.as_deref().map(|place| check_swap(place, page_size)).transpose()?;
    Ok(Some(MemoryLimit { bytes, replacement, swap }))
}

fn check_limit(size: &str, page_size: PageSize) -> Result<u64, Failure> {
    let bytes = parse_size(size).ok_or_else(|| {
        Failure::new(format!(
            "expected a size such as 512M or 4G, or none, after --memory-limit, got '{size}'"
        ))
    })?;
    let least = LIMIT_PAGES_MIN * page_size.bytes() as u64;
    if bytes < least {
        return Err(Failure::new(format!(
            "expected {LIMIT_PAGES_MIN} pages ({}K) or more after --memory-limit, got '{size}'",
            least >> 10
        )));
    }
    Ok(bytes)
}

/// What a node lends at most if nothing is said.
const LEND_BY_DEFAULT: LendLimit = LendLimit::Percent(50);

/// Returns true if nodes lend each other memory if nothing is said: where that may gain something. The nodes
/// of one machine share its memory, unless the user limits it. A disk that is given is used alone.
fn lends_by_default(limit: Option<&MemoryLimit>, fabric: FabricKind, has_hosts: bool) -> bool {
    limit.is_some_and(|limit| limit.swap.is_none() && (limit.bytes.is_some() || has_hosts))
        && !fabric.shares_memory()
}

/// Parses how much memory a node lends at most.
fn check_lend(given: &str) -> Result<Option<LendLimit>, Failure> {
    let limit = match given.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|percent| *percent <= 100).map(LendLimit::Percent),
        None => parse_size(given).or((given == "0").then_some(0)).map(LendLimit::Bytes),
    };
    let limit = limit.ok_or_else(|| {
        Failure::new(format!(
            "expected a size such as 512M or a part such as 50% after --lend, got '{given}'"
        ))
    })?;
    Ok(Some(limit).filter(|limit| !matches!(limit, LendLimit::Bytes(0) | LendLimit::Percent(0))))
}

/// Parses a directory and how much of it a node may use. What follows the last colon is a size, unless it
/// contains a slash.
fn check_swap(given: &str, page_size: PageSize) -> Result<SwapPlace, Failure> {
    let (directory, size) = match given.rsplit_once(':') {
        Some((directory, size)) if !size.contains('/') => (directory, Some(size)),
        _ => (given, None),
    };
    let expected = |what: &str| Failure::new(format!("expected {what} after --swap, got '{given}'"));
    if directory.is_empty() {
        return Err(expected("a directory, as /var/tmp or /var/tmp:8G,"));
    }
    let bytes_max = size
        .map(|size| {
            parse_size(size).ok_or_else(|| expected("DIR or DIR:SIZE, with a size such as 512M or 8G,"))
        })
        .transpose()?;
    if bytes_max.is_some_and(|bytes| bytes < page_size.bytes() as u64) {
        return Err(expected(&format!("a size of one page ({}K) or more", page_size.bytes() >> 10)));
    }
    // Nodes may have another working directory than the launcher.
    let absolute = std::path::absolute(directory).map_err(|error| {
        Failure::new(format!("expected a working directory to resolve --swap against, got: {error}"))
    })?;
    let directory = absolute.to_str().ok_or_else(|| expected("a directory whose path is UTF-8"))?.to_owned();
    Ok(SwapPlace { directory, bytes_max })
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
            "nothing is encrypted over {}; use --without-seal with --fabric {}",
            fabric.name(),
            sealed.collect::<Vec<_>>().join(" or ")
        )));
    }
    // These are passed to the nodes as they were given, once they have been checked.
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

/// Returns the groups in the order in which they are measured, each once.
fn check_groups(given: &[String]) -> Result<Vec<Group>, Failure> {
    let known = || Group::ALL.iter().map(|group| group.name()).collect::<Vec<_>>().join(", ");
    for name in given {
        match name.as_str() {
            "all" => {}
            name if Group::ALL.iter().any(|group| group.name() == name) => {}
            name => {
                return Err(Failure::new(format!(
                    "there is no group '{name}' to measure; use one of {} or all",
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
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => "hiroba".to_owned(),
    };
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    let names = usage.split(' ').take_while(|word| word.chars().all(|letter| letter.is_ascii_lowercase()));
    let command = names.collect::<Vec<_>>().join(" ");
    let sentence = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return Ok(Command::Show { text: error.render().to_string() });
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "expected a command, as in 'hiroba run -n 4 ./program'; see 'hiroba --help'".to_owned()
        }
        ErrorKind::MissingRequiredArgument if argument.contains("PROGRAM") => NO_PROGRAM.to_owned(),
        ErrorKind::MissingRequiredArgument => format!("expected {argument}, as in '{usage}'"),
        ErrorKind::UnknownArgument => match text(ContextKind::SuggestedArg) {
            near if near.is_empty() => format!("there is no flag '{argument}'; see '{command} --help'"),
            near => format!("there is no flag '{argument}'; did you mean '{near}'? see '{command} --help'"),
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
                format!("{flag} and {other} exclude each other; leave one of them out")
            }
            _ => format!("{flag} may be given only once; see '{command} --help'"),
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
