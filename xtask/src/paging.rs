//! Measures a node that is short of memory: beside the same work with memory enough, the same pages fetched
//! from their home, the same disk without Hiroba, and another pager over userfaultfd.
//!
//! A round runs both sides of every comparison one after the other, so that a disturbance of the machine
//! affects both. The result is the median over the rounds of the ratios within a round. Node 0 works; the
//! others only lend it memory. All nodes are on this machine.

mod policies;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

use self::policies::Programs;

/// Measures nodes with less memory than they use, against the goals
#[derive(Parser)]
#[command(bin_name = "cargo xtask paging", max_term_width = 100)]
struct Arguments {
    /// Rounds, in each of which every comparison runs once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The directory on a disk for the swap file, and for the file that is read without Hiroba
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,
    /// Compare replacement policies instead, by the pages that programs bring in: those of apps/plain, or
    /// those of apps/ that are fitted to pages
    #[arg(long, value_name = "PROGRAMS", value_enum, num_args = 0..=1, default_missing_value = "plain")]
    policies: Option<Programs>,
    /// Use target/release/hiroba as it is
    #[arg(long)]
    no_build: bool,
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Goal {
    fn holds(self, ratio: f64) -> &'static str {
        match self {
            Goal::AtMost(most) if ratio > most => "no",
            Goal::AtLeast(least) if ratio < least => "no",
            Goal::None => "",
            _ => "yes",
        }
    }

    fn words(self) -> String {
        match self {
            Goal::AtMost(most) => format!("at most {most}"),
            Goal::AtLeast(least) => format!("at least {least}"),
            Goal::None => String::new(),
        }
    }
}

/// The quantity that is compared. A rate is the inverse of a time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Time,
    Rate,
}

impl Of {
    /// Returns our figure as a multiple of the other one's.
    fn ratio(self, our_seconds: f64, other_seconds: f64) -> f64 {
        match self {
            Of::Time => our_seconds / other_seconds,
            Of::Rate => other_seconds / our_seconds,
        }
    }
}

/// Two runs of the program. Their options and arguments are separated by spaces; `DIR` is the directory on
/// the disk.
struct Comparison {
    name: &'static str,
    ours: [&'static str; 2],
    other: [&'static str; 2],
    of: Of,
    goal: Goal,
}

/// Enough memory for everything.
const ENOUGH: &str = "-n 5 --fabric udp --memory-limit 1G";
/// Enough memory, and one page at a time.
const ENOUGH_ALONE: &str = "-n 5 --fabric udp --memory-limit 1G --prefetch off";
/// A quarter of the matrices, and less than half of the region that is read; lenders for the rest.
const LENT: &str = "-n 5 --fabric udp --memory-limit 24M --lend 100%";
const LENT_ALONE: &str = "-n 5 --fabric udp --memory-limit 24M --lend 100% --prefetch off";
/// A tenth of the region that is read.
const SWAPPED: &str = "-n 2 --fabric udp --memory-limit 25M --lend 0 --swap DIR";

const COMPARISONS: [Comparison; 9] = [
    Comparison {
        name: "multiplication, a quarter in memory, prefetch off: time / time with all in memory",
        ours: [LENT_ALONE, "multiply 2048"],
        other: [ENOUGH, "multiply 2048"],
        of: Of::Time,
        goal: Goal::AtMost(1.37),
    },
    Comparison {
        name: "the same with prefetch",
        ours: [LENT, "multiply 2048"],
        other: [ENOUGH, "multiply 2048"],
        of: Of::Time,
        goal: Goal::AtMost(1.15),
    },
    Comparison {
        name: "the same: time / time under a userfaultfd pager, a page at each fault",
        ours: [LENT, "multiply 2048"],
        other: ["-n 2", "paged-multiply 2048 DIR 24 1"],
        of: Of::Time,
        goal: Goal::None,
    },
    Comparison {
        name: "lent pages, one at a time: time / time of pages fetched from their home, one at a time",
        ours: [LENT_ALONE, "hops 64 0"],
        other: [ENOUGH_ALONE, "hops 64 1"],
        of: Of::Time,
        goal: Goal::AtMost(1.1),
    },
    Comparison {
        name: "stream of lent pages: rate / rate of pages from their home",
        ours: [LENT, "order 64 0"],
        other: [ENOUGH, "order 64 1"],
        of: Of::Rate,
        goal: Goal::AtLeast(0.8),
    },
    Comparison {
        name: "scan of ten times the memory from the swap file: rate / the disk's",
        ours: [SWAPPED, "order 256 0"],
        other: ["-n 2", "raw 256 DIR"],
        of: Of::Rate,
        goal: Goal::AtLeast(0.5),
    },
    Comparison {
        name: "the same: rate / that of a mapped file, which the kernel brings in",
        ours: [SWAPPED, "order 256 0"],
        other: ["-n 2", "mapped 256 DIR"],
        of: Of::Rate,
        goal: Goal::None,
    },
    Comparison {
        name: "the same: rate / that under a userfaultfd pager, a page at each fault",
        ours: [SWAPPED, "order 256 0"],
        other: ["-n 2", "paged 256 DIR 25 1"],
        of: Of::Rate,
        goal: Goal::None,
    },
    Comparison {
        name: "the same: rate / that under the same pager, 256 pages at each fault",
        ours: [SWAPPED, "order 256 0"],
        other: ["-n 2", "paged 256 DIR 25 256"],
        of: Of::Rate,
        goal: Goal::None,
    },
];

/// Runs the task with the arguments after its name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let name = OsString::from("paging");
    let arguments = Arguments::try_parse_from(std::iter::once(name).chain(arguments));
    let arguments = arguments.unwrap_or_else(|error| error.exit());
    let source = crate::source();
    if !arguments.no_build {
        crate::build(source)?;
    }
    let bench = Bench::open(source, &arguments.swap)?;
    if let Some(programs) = arguments.policies {
        return policies::compare(&bench, source, programs);
    }
    let mut ratios = vec![Vec::new(); COMPARISONS.len()];
    for round in 1..=arguments.rounds {
        for (comparison, ratios) in COMPARISONS.iter().zip(&mut ratios) {
            let [ours, other] = [bench.seconds(comparison.ours)?, bench.seconds(comparison.other)?];
            eprintln!("round {round}: {}: {ours:.3} s, {other:.3} s", comparison.name);
            ratios.push(comparison.of.ratio(ours, other));
        }
    }
    println!("| comparison | ratio | goal | holds |\n|---|---:|---:|---|");
    for (comparison, ratios) in COMPARISONS.iter().zip(&mut ratios) {
        let (ratio, goal) = (median(ratios), comparison.goal);
        println!("| {} | {ratio:.2} | {} | {} |", comparison.name, goal.words(), goal.holds(ratio));
    }
    Ok(())
}

fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// The program, and what runs it.
struct Bench {
    hiroba: PathBuf,
    program: PathBuf,
    disk: String,
}

impl Bench {
    fn open(source: &Path, disk: &Path) -> Result<Bench, String> {
        let executable =
            std::env::current_exe().map_err(|error| format!("cannot find the build: {error}"))?;
        let built = executable.parent().unwrap_or(Path::new("/"));
        let mut bench = Bench {
            hiroba: built.join("hiroba"),
            program: PathBuf::new(),
            disk: disk.to_str().ok_or("expected a directory whose path is UTF-8 after --swap")?.to_owned(),
        };
        bench.program = bench.compile(&source.join("xtask/src/paging/paging.c"), "figures")?;
        Ok(bench)
    }

    /// Compiles a program beside the command. Returns the executable.
    fn compile(&self, source: &Path, name: &str) -> Result<PathBuf, String> {
        let program = self.hiroba.with_file_name(format!("paging-{name}"));
        let mut compiler = Command::new(&self.hiroba);
        compiler.env("HIROBA_CC", "cc").args(["cc", "-O3", "-march=native", "-o"]).arg(&program);
        crate::succeed(compiler.arg(source).arg("-lm"))?;
        Ok(program)
    }

    /// Runs a program on two nodes. Returns its account.
    fn account(
        &self,
        options: &[&str],
        program: &Path,
        arguments: &str,
    ) -> Result<serde_json::Value, String> {
        let file = program.with_extension("json");
        let mut command = Command::new(&self.hiroba);
        command.args(["run", "-n", "2", "--fabric", "udp"]).args(options);
        command.arg(format!("--stats=json:{}", file.display())).arg("--").arg(program);
        command.args(arguments.split_whitespace());
        let output =
            command.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} failed: {}", program.display(), told.trim_end()));
        }
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let _ = std::fs::remove_file(&file);
        serde_json::from_str(&text).map_err(|error| format!("{} is no account: {error}", file.display()))
    }

    /// Returns the time that the program reports.
    fn seconds(&self, [options, arguments]: [&str; 2]) -> Result<f64, String> {
        let words =
            |text: &str| text.split(' ').map(|word| word.replace("DIR", &self.disk)).collect::<Vec<_>>();
        let mut command = Command::new(&self.hiroba);
        command.arg("run").args(words(options)).arg("--").arg(&self.program).args(words(arguments));
        let output = command.output().map_err(|error| format!("{arguments}: cannot be executed: {error}"))?;
        let told = String::from_utf8_lossy(&output.stdout);
        match told.trim().strip_prefix("seconds ").and_then(|figure| figure.parse().ok()) {
            Some(seconds) if output.status.success() => Ok(seconds),
            _ => Err(format!("{arguments} failed: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["paging", "--rounds", "0"]).is_err());
        let programs = |line: &[&str]| Arguments::try_parse_from(line).map(|parsed| parsed.policies).ok();
        assert_eq!(programs(&["paging", "--policies"]), Some(Some(Programs::Plain)));
        assert_eq!(programs(&["paging", "--policies", "fitted"]), Some(Some(Programs::Fitted)));
    }

    #[test]
    fn goals_are_compared_with_medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        let holds = |goal: Goal| [0.9, 1.1].map(|ratio| goal.holds(ratio));
        assert_eq!(holds(Goal::AtMost(1.0)), ["yes", "no"]);
        assert_eq!(holds(Goal::AtLeast(1.0)), ["no", "yes"]);
        assert_eq!(holds(Goal::None), ["", ""]);
    }

    #[test]
    fn twice_the_time_is_half_the_rate() {
        assert_eq!([Of::Time, Of::Rate].map(|of| of.ratio(2.0, 1.0)), [2.0, 0.5]);
        for comparison in &COMPARISONS {
            let is_consistent = match comparison.goal {
                Goal::AtMost(_) => comparison.of == Of::Time,
                Goal::AtLeast(_) => comparison.of == Of::Rate,
                Goal::None => true,
            };
            assert!(is_consistent, "{}", comparison.name);
        }
    }
}
