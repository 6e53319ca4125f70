//! `hiroba demo`: a first run for a newcomer, with the commands that it takes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hiroba_trace::{NodeStatistics, RunStatistics, TimeBreakdown};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use hiroba_launch::core_share;
use hiroba_launch::failure::{Failure, system_words};
use hiroba_launch::quantities::counted;
use hiroba_launch::run::remarks;
use hiroba_launch::run::signals::{self, Inherited, SignalDescriptor};
use hiroba_launch::silence::Meanwhile;

/// The program that is run, in the source tree.
const SOURCE: &str = "apps/nbody.c";
/// Compiler flags: the inner loop needs the machine's full vector width.
const COMPILER_FLAGS: [&str; 3] = ["-O3", "-march=native", "-fno-math-errno"];
/// The number of bodies: it computes for a few seconds on one core, with little to store.
const BODIES: &str = "16384";
/// The number of time steps.
const STEPS: &str = "20";
/// The length of the longest bar in columns.
const BAR_COLUMNS: f64 = 40.0;

/// Compiles the program, runs it on one node and on `nodes`, and compares.
pub fn demo(nodes: u16) -> Result<u8, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("cannot show the demo: {}", system_words(&error)));
    let source = find_source()?;
    let directory = tempfile::Builder::new().prefix("hiroba-demo-").tempdir().map_err(failed)?;
    // Signals are blocked from here on, so that Ctrl-C is an event and the directory is always removed.
    let inherited = signals::block().map_err(failed)?;
    let caller = Caller {
        hiroba: std::env::current_exe().map_err(failed)?,
        directory: directory.path().to_owned(),
        arrivals: SignalDescriptor::open().map_err(failed)?,
        inherited,
    };
    match show(&caller, &source, nodes) {
        Ok(()) => Ok(0),
        Err(Stopped::Failed(failure)) => Err(failure),
        Err(Stopped::Status(status)) => Ok(status),
    }
}

/// The reason why the demo ended early.
enum Stopped {
    Failed(Failure),
    /// A command failed and has printed the reason, or the user ended it.
    Status(u8),
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Stopped {
        Stopped::Failed(Failure::new(format!("cannot show the demo: {}", system_words(&error))))
    }
}

fn find_source() -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().unwrap_or_default();
    let in_tree = executable.ancestors().skip(1).map(|directory| directory.join(SOURCE));
    let installed = executable.ancestors().nth(2).map(|prefix| prefix.join("share/hiroba").join(SOURCE));
    let built_from =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|directory| directory.join(SOURCE));
    installed.into_iter().chain(in_tree).chain(built_from).find(|source| source.is_file()).ok_or_else(|| {
        Failure::new(format!(
            "{SOURCE} was not found near {}; run the demo in the source tree, or install it with 'cargo xtask install'",
            executable.display()
        ))
    })
}

fn show(caller: &Caller, source: &Path, nodes: u16) -> Result<(), Stopped> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let ideal = usize::from(nodes).min(cores);
    print(&format!(
        "Hiroba {}: {SOURCE},\nthe gravity between all pairs of {BODIES} bodies, {STEPS} steps.\n{}\n",
        env!("CARGO_PKG_VERSION"),
        explain_cores(nodes, cores)
    ))?;

    let mut arguments: Vec<&OsStr> = vec!["cc".as_ref()];
    arguments.extend(COMPILER_FLAGS.iter().map(OsStr::new));
    arguments.extend(["-o".as_ref(), "nbody".as_ref(), source.as_os_str(), "-lm".as_ref()]);
    caller.call("compiling", &arguments)?;
    let alone = run(caller, 1)?;
    let together = if nodes == 1 { None } else { Some(run(caller, nodes)?) };

    let glyphs = Glyphs::for_this_terminal();
    let mut text = String::new();
    if let Some(together) = &together {
        text.push_str(&speed_up(&alone, together, ideal, &glyphs));
    }
    let runs = [Some(&alone), together.as_ref()];
    text.push_str(&who_got_too_little(runs.into_iter().flatten().map(|run| &run.account)));
    text.push_str(&where_time_went(&together.unwrap_or(alone).account, cores, &glyphs));
    print(&text)
}

fn explain_cores(nodes: u16, cores: usize) -> String {
    let has = format!("This machine has {}", counted(&cores.to_string(), "core", "cores"));
    match (usize::from(nodes), cores) {
        (nodes, 1) if nodes > 1 => {
            format!("{has}: {nodes} nodes share it, so they cannot be faster than one.")
        }
        (nodes, _) if nodes > cores => format!(
            "{has}: {nodes} nodes share them,\nso {cores} times as fast as one node is the most there can be."
        ),
        (1, _) => format!("{has}: 1 node can have one."),
        (nodes, _) => format!("{has}: {nodes} nodes can have one each."),
    }
}

/// A run of the program: its output and its statistics.
struct Shown {
    account: RunStatistics,
    seconds: f64,
    energy: Option<String>,
}

fn run(caller: &Caller, nodes: u16) -> Result<Shown, Stopped> {
    let file = caller.directory.join(format!("{nodes}.json"));
    let statistics = format!("--stats=json:{}", file.display());
    let count = nodes.to_string();
    let line: [&str; 9] = ["run", "-n", &count, &statistics, "./nbody", "-n", BODIES, "-s", STEPS];
    let what = format!("computing on {}", counted(&count, "node", "nodes"));
    let output = caller.call(&what, &line.map(OsStr::new))?;
    let account: RunStatistics =
        serde_json::from_str(&std::fs::read_to_string(&file)?).map_err(std::io::Error::from)?;
    let fields = fields(&output);
    // The program measures its loop, which excludes starting and stopping processes.
    let measured = fields.get("seconds").and_then(|value| value.parse::<f64>().ok());
    let seconds = measured.filter(|seconds| *seconds > 0.0).unwrap_or(account.wall_s);
    Ok(Shown { account, seconds, energy: fields.get("final energy").cloned() })
}

/// Parses the program's lines: a name, two or more blanks, a value.
fn fields(output: &str) -> HashMap<String, String> {
    let pairs = output.lines().filter_map(|line| line.split_once("  "));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

fn speed_up(alone: &Shown, together: &Shown, ideal: usize, glyphs: &Glyphs) -> String {
    let nodes = together.account.nodes;
    let ratio = alone.seconds / together.seconds;
    let longest = alone.seconds.max(together.seconds);
    let ideal_in_words = match ideal {
        1 => "as fast as one would be ideal".to_owned(),
        more => format!("{more} would be ideal"),
    };
    let bar =
        |seconds: f64| glyphs.full.to_string().repeat((BAR_COLUMNS * seconds / longest).round() as usize);
    let width = format!("{nodes} nodes").len();
    let same = match (&alone.energy, &together.energy) {
        (Some(one), Some(other)) if one == other => {
            "Both runs end with the same energy, to the last digit.\n"
        }
        (Some(_), Some(_)) => "The two runs end with different energies.\n",
        _ => "",
    };
    format!(
        "\nspeed-up\n  {:<width$}  {:>7.3} s  {}\n  {:<width$}  {:>7.3} s  {}\n\
         {nodes} nodes are {ratio:.2} times as fast as one; {ideal_in_words} on this machine.\n{same}",
        "1 node",
        alone.seconds,
        bar(alone.seconds),
        format!("{nodes} nodes"),
        together.seconds,
        bar(together.seconds),
    )
}

/// Remarks on nodes that got too little of a core: figures of a busy machine say little about Hiroba.
fn who_got_too_little<'a>(runs: impl Iterator<Item = &'a RunStatistics>) -> String {
    let told = |run: &RunStatistics| {
        let nodes = counted(&run.nodes.to_string(), "node", "nodes");
        Some(format!("  {nodes}: {}\n", core_share::remark(&run.per_node)?))
    };
    let lines: String = runs.filter_map(told).collect();
    if lines.is_empty() { lines } else { format!("\ncores\n{lines}") }
}

/// The characters of a bar, one for each class of time.
struct Glyphs {
    full: char,
    classes: [char; 7],
}

impl Glyphs {
    fn for_this_terminal() -> Glyphs {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
        let locale = locale.unwrap_or_default().to_lowercase();
        let full = if locale.contains("utf-8") || locale.contains("utf8") { '█' } else { '#' };
        Glyphs { full, classes: [full, 'r', 'w', 'b', 'l', 's', '.'] }
    }
}

/// The number of nodes above which not every node is shown.
const BARS_MAX: usize = 16;

fn where_time_went(account: &RunStatistics, cores: usize, glyphs: &Glyphs) -> String {
    let mut text = String::from("\nwhere the time went\n");
    let longest = account.per_node.iter().map(|node| node.wall_s).fold(0.0, f64::max);
    for node in account.per_node.iter().take(BARS_MAX) {
        text.push_str(&format!(
            "  node {:<3} {:>7.3} s  {:<3$} {4:>3.0}% computing\n",
            node.node.0,
            node.wall_s,
            bar(node, longest, glyphs),
            BAR_COLUMNS as usize,
            100.0 * node.time_s.compute / node.time_s.sum().max(f64::MIN_POSITIVE),
        ));
    }
    if account.per_node.len() > BARS_MAX {
        let more = (account.per_node.len() - BARS_MAX).to_string();
        text.push_str(&format!("  and {} more\n", counted(&more, "node", "nodes")));
    }
    let names = TimeBreakdown::default().classes();
    let legend = names
        .iter()
        .zip(glyphs.classes)
        .map(|((name, _), glyph)| format!("{glyph} {}", name.replace('_', " ")));
    text.push_str(&format!("  {}\n", legend.collect::<Vec<_>>().join("  ")));
    if usize::from(account.nodes) > cores {
        text.push_str("  A node that waits for a core is counted as computing.\n");
    }
    text.push_str("\nThe same numbers for any program: hiroba run --stats -n 4 ./program\n");
    text
}

/// Formats a node's time as a bar. Rounding errors are carried over, so that every class ends in the right
/// column.
fn bar(node: &NodeStatistics, longest: f64, glyphs: &Glyphs) -> String {
    let whole = node.time_s.sum();
    if whole <= 0.0 || longest <= 0.0 {
        return String::new();
    }
    let columns = BAR_COLUMNS * node.wall_s / longest;
    let mut bar = String::new();
    let (mut sum, mut drawn) = (0.0, 0);
    for ((_, value), glyph) in node.time_s.classes().into_iter().zip(glyphs.classes) {
        sum += value;
        let end = (columns * sum / whole).round() as usize;
        bar.extend(std::iter::repeat_n(glyph, end.saturating_sub(drawn)));
        drawn = drawn.max(end);
    }
    bar
}

fn print(text: &str) -> Result<(), Stopped> {
    let mut out = std::io::stdout();
    // A closed standard output (`| head`) is no error.
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|_| Stopped::Status(0))
}

/// Calls `hiroba` as a user would.
struct Caller {
    hiroba: PathBuf,
    directory: PathBuf,
    arrivals: SignalDescriptor,
    inherited: Inherited,
}

impl Caller {
    /// Prints the command, runs it, prints its output and returns it. Says `what` if that takes long.
    fn call(&self, what: &str, arguments: &[&OsStr]) -> Result<String, Stopped> {
        let words = arguments.iter().map(|word| word.to_string_lossy());
        // A user would not type where the demo keeps its statistics.
        let words: Vec<_> = words.filter(|word| !word.starts_with("--stats=")).collect();
        print(&format!("\n$ hiroba {}\n", words.join(" ")))?;
        let mut command = Command::new(&self.hiroba);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null()).stdout(Stdio::piped());
        remarks::omit_those_of_allocations(&mut command);
        let inherited = self.inherited;
        let prepare = move || {
            signals::restore(&inherited);
            // The job ends with the demo when that is killed.
            Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
        };
        // SAFETY: system calls only, which are allowed between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn()?;
        let waiting = Meanwhile::doing(what);
        let output = self.listen(&mut child)?;
        drop(waiting);
        let status = child.wait()?;
        match status.code() {
            Some(0) => Ok(output),
            Some(status) => Err(Stopped::Status(status as u8)),
            None => Err(Stopped::Status(hiroba_launch::failure::STATUS_HIROBA)),
        }
    }

    /// Prints the child's output until it closes it, and passes signals on meanwhile.
    fn listen(&self, child: &mut Child) -> Result<String, Stopped> {
        let Some(mut stdout) = child.stdout.take() else { return Ok(String::new()) };
        let mut output = Vec::new();
        let mut bytes = [0u8; 4096];
        loop {
            let mut fds = [PollFd::new(&stdout, PollFlags::IN), PollFd::new(&self.arrivals.0, PollFlags::IN)];
            if poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {
                continue;
            }
            let readable = !fds[0].revents().is_empty();
            while let Some(arrived) = self.arrivals.next() {
                // The terminal has signalled the child itself.
                if arrived.signal != libc::SIGCHLD && !arrived.from_terminal {
                    // SAFETY: kill touches no memory; the child is not waited for yet, so its pid is its own.
                    unsafe { libc::kill(child.id() as i32, arrived.signal) };
                }
            }
            if readable {
                match stdout.read(&mut bytes)? {
                    0 => break,
                    got => {
                        print(&String::from_utf8_lossy(&bytes[..got]))?;
                        output.extend_from_slice(&bytes[..got]);
                    }
                }
            }
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;
    use hiroba_trace::Counters;

    use super::*;

    #[test]
    fn bars_are_as_long_as_the_time() {
        let glyphs = Glyphs { full: '#', classes: ['#', 'r', 'w', 'b', 'l', 's', '.'] };
        let time_s =
            TimeBreakdown { compute: 0.5, read_fault: 0.25, barrier: 0.25, ..TimeBreakdown::default() };
        let node = NodeStatistics {
            node: NodeId(0),
            wall_s: 1.0,
            core_share: None,
            shares_cores: false,
            others_share: None,
            regions: Vec::new(),
            time_s,
            counters: Counters::default(),
        };
        let drawn = bar(&node, 2.0, &glyphs);
        assert_eq!(drawn, format!("{}{}{}", "#".repeat(10), "r".repeat(5), "b".repeat(5)));
        let idle = NodeStatistics { time_s: TimeBreakdown::default(), ..node };
        assert_eq!(bar(&idle, 2.0, &glyphs), "");
    }

    fn account(nodes: u16, core_share: Option<f64>, shares_cores: bool) -> RunStatistics {
        let of = |node| NodeStatistics {
            node,
            wall_s: 1000.0,
            core_share,
            shares_cores,
            others_share: None,
            regions: Vec::new(),
            time_s: TimeBreakdown { compute: 1000.0, ..TimeBreakdown::default() },
            counters: Counters::default(),
        };
        RunStatistics {
            program: "nbody".to_owned(),
            nodes,
            threads_per_node: 1,
            protocol: "hlrc".to_owned(),
            fabric: "udp".to_owned(),
            page_bytes: 4096,
            wall_s: 1000.0,
            per_node: NodeId::all(nodes).map(of).collect(),
            total: hiroba_trace::Totals::default(),
        }
    }

    #[test]
    fn who_got_too_little_of_the_cores_is_said_run_by_run() {
        let (quiet, busy) = (account(1, Some(0.99), false), account(2, Some(0.5), false));
        let told = who_got_too_little([&quiet, &busy].into_iter());
        assert_eq!(
            told,
            "\ncores\n  2 nodes: node 0 got 0.50 of a core for each ready thread: the machine is busy\n"
        );
        let crowd = account(64, Some(0.1), true);
        assert!(who_got_too_little([&crowd].into_iter()).ends_with("thread: they share cores\n"));
        assert_eq!(who_got_too_little([&quiet].into_iter()), "");
    }

    #[test]
    fn lines_fit_into_eighty_columns_and_count_in_words() {
        let glyphs = Glyphs { full: '#', classes: ['#', 'r', 'w', 'b', 'l', 's', '.'] };
        let shown = |nodes| Shown { account: account(nodes, Some(0.1), true), seconds: 999.0, energy: None };
        let mut text = explain_cores(64, 2) + "\n" + &explain_cores(3, 1) + "\n";
        for nodes in [2, 17, 64] {
            text += &speed_up(&shown(1), &shown(nodes), 2, &glyphs);
            text += &who_got_too_little([&shown(nodes).account].into_iter());
            text += &where_time_went(&shown(nodes).account, 2, &glyphs);
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("and 1 node more") && text.contains("and 48 nodes more"), "{text}");
        assert!(speed_up(&shown(1), &shown(3), 1, &glyphs).contains("; as fast as one would be ideal"));
        assert_eq!(explain_cores(1, 1), "This machine has 1 core: 1 node can have one.");
        assert!(explain_cores(3, 1).contains("cannot be faster than one"));
    }

    #[test]
    fn the_programs_lines_are_understood() {
        let fields = fields("seconds                  0.65\nfinal energy   -0.25\n\nplain words\n");
        assert_eq!(fields["seconds"], "0.65");
        assert_eq!(fields["final energy"], "-0.25");
        assert_eq!(fields.len(), 2);
    }
}
