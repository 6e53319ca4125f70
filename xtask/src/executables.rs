//! Measures executables that were not built for Hiroba: the programs of `apps/openmp` and `apps/pthread`,
//! each natively and on nodes, in turn. Their outputs must be equal.
//!
//! A native run counts from start to end. A run on nodes counts from the moment at which the nodes have met
//! to the end, because starting a job takes a tenth of a second whatever it does afterwards.

mod costs;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use clap::Parser;

use crate::yardstick::figures::{Spread, geometric_mean};
use crate::yardstick::report::{short, table};

/// Measures executables that were not built for Hiroba, on nodes against the same threads of one process
#[derive(Parser)]
#[command(bin_name = "cargo xtask executables", max_term_width = 100)]
struct Arguments {
    /// Programs by name [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    programs: Vec<String>,
    /// The size of the programs of OpenMP that have the sizes of the NAS parallel benchmarks
    #[arg(long, value_name = "CLASS", default_value = "W", value_parser = ["S", "W", "A"])]
    class: String,
    /// Compilers: gcc, clang
    #[arg(long, value_name = "NAME", default_value = "gcc", value_parser = ["gcc", "clang"])]
    compiler: String,
    /// Fabric: udp, tcp, shm
    #[arg(long, value_name = "FABRIC", default_value = "udp", value_parser = ["udp", "tcp", "shm"])]
    fabric: String,
    /// Jobs: nodes x threads of a node, and a protocol as 'hiroba run --protocol' takes it; 'default' leaves
    /// the option out
    #[arg(long, value_name = "NxT:PROTOCOL,...", value_delimiter = ',', value_parser = Job::parse)]
    #[arg(default_value = "2x1:default,2x1:sc,2x1:adaptive,1x2:default")]
    jobs: Vec<Job>,
    /// Rounds, in each of which every job runs once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// End a run on nodes that takes longer, and skip that job of the program from then on
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    skip_after: u64,
    /// Print what executables lose on two nodes instead: coarse programs, plain programs, and a mutex
    #[arg(long, conflicts_with_all = ["programs", "jobs"])]
    costs: bool,
    /// Print the table in Markdown
    #[arg(long)]
    markdown: bool,
    /// Print the table of the guide: seconds of the programs of OpenMP on two nodes of a thread each
    #[arg(long, conflicts_with_all = ["programs", "jobs"])]
    guide: bool,
    /// Use target/release/hiroba as it is
    #[arg(long)]
    no_build: bool,
}

impl Arguments {
    /// Returns the first row of the table.
    fn head(&self) -> Vec<String> {
        if self.guide {
            let protocols = GUIDE_PROTOCOLS.map(|protocol| format!("`{protocol}`"));
            return ["program".into(), "two threads of one process".into()]
                .into_iter()
                .chain(protocols)
                .collect();
        }
        let head = ["program", "native s"].map(String::from).into_iter();
        head.chain(self.jobs.iter().map(Job::name)).collect()
    }
}

/// The protocols in the guide's table.
const GUIDE_PROTOCOLS: [&str; 3] = ["sc", "hlrc", "adaptive"];

/// A way to run an executable on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    nodes: u16,
    threads_per_node: u16,
    protocol: String,
}

impl Job {
    fn parse(text: &str) -> Result<Job, String> {
        let parts = text.split_once(':').and_then(|(size, protocol)| Some((size.split_once('x')?, protocol)));
        let count = |text: &str| text.parse().ok().filter(|count: &u16| (1..=64).contains(count));
        match parts.map(|((nodes, threads), protocol)| (count(nodes), count(threads), protocol)) {
            Some((Some(nodes), Some(threads_per_node), protocol)) if !protocol.is_empty() => {
                Ok(Job { nodes, threads_per_node, protocol: protocol.to_owned() })
            }
            _ => Err("expected nodes, threads of a node and a protocol, such as 2x1:hlrc".into()),
        }
    }

    fn of_guide(protocol: &str) -> Job {
        Job { nodes: 2, threads_per_node: 1, protocol: protocol.to_owned() }
    }

    fn name(&self) -> String {
        format!("{}x{} {}", self.nodes, self.threads_per_node, self.protocol)
    }

    fn threads(&self) -> u16 {
        self.nodes * self.threads_per_node
    }
}

/// An executable. `THREADS` in its arguments is the number of threads.
struct Program {
    name: &'static str,
    source: &'static str,
    /// Of the classes S, W and A; the programs of threads have one size.
    arguments: [&'static str; 3],
}

const fn program(name: &'static str, source: &'static str, arguments: [&'static str; 3]) -> Program {
    Program { name, source, arguments }
}

const PROGRAMS: [Program; 10] = [
    program("ep", "apps/openmp/ep.c", ["24", "25", "28"]),
    program("cg", "apps/openmp/cg.c", ["1400 375", "7000 375", "14000 375"]),
    program("is", "apps/openmp/is.c", ["16", "20", "23"]),
    program("mg", "apps/openmp/mg.c", ["S", "W", "A"]),
    program("ft", "apps/openmp/ft.c", ["S", "W", "A"]),
    program("lu", "apps/openmp/lu.c", ["S", "W", "A"]),
    program("tasks", "apps/openmp/tasks.c", ["20000 7", "200000 10", "2000000 11"]),
    program("matmul", "apps/pthread/matmul.c", ["-n 1024 -t THREADS"; 3]),
    program("pipeline", "apps/pthread/pipeline.c", ["20000 1"; 3]),
    program("sort", "apps/pthread/sort.c", ["4000000 1"; 3]),
];

impl Program {
    fn is_openmp(&self) -> bool {
        self.source.starts_with("apps/openmp/")
    }

    fn arguments(&self, class: &str, threads: u16) -> Vec<String> {
        let class = ["S", "W", "A"].iter().position(|of| *of == class).expect("a class of the command line");
        let words = self.arguments[class].split_whitespace();
        words.map(|word| word.replace("THREADS", &threads.to_string())).collect()
    }
}

/// The measurements of a program in one job.
struct Measured {
    ratios: Vec<f64>,
    is_skipped: bool,
}

/// Runs the task with the arguments after its name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let name = OsString::from("executables");
    let arguments = Arguments::try_parse_from(std::iter::once(name).chain(arguments));
    let mut arguments = arguments.unwrap_or_else(|error| error.exit());
    let source = crate::source();
    let mut programs = chosen(&arguments.programs)?;
    if arguments.guide {
        programs.retain(|program| program.is_openmp());
        arguments.jobs = GUIDE_PROTOCOLS.map(Job::of_guide).to_vec();
        arguments.markdown = true;
    }
    if !arguments.no_build {
        crate::build(source)?;
    }
    let bench = Bench::open()?;
    if arguments.costs {
        return costs::run(&bench, source, &arguments);
    }
    let mut rows = vec![arguments.head()];
    let mut medians = vec![Vec::new(); arguments.jobs.len()];
    for program in programs {
        let executable = bench.compile(source, program, &arguments.compiler)?;
        let (native, jobs) = bench.measure(program, &executable, &arguments)?;
        let mut row = vec![program.name.to_owned(), format!("{native:.3}")];
        for (Measured { ratios, is_skipped }, medians) in jobs.into_iter().zip(&mut medians) {
            let median = Spread::of(ratios).filter(|_| !is_skipped).map(|spread| spread.median);
            let shown = |ratio| if arguments.guide { format!("{:.3}", native / ratio) } else { short(ratio) };
            row.push(median.map_or("-".into(), shown));
            medians.extend(median);
        }
        rows.push(row);
    }
    if arguments.guide {
        print!("{}", table(&rows, 1, true));
        return Ok(());
    }
    let means = medians.into_iter().map(|of| geometric_mean(of).map_or("-".into(), short));
    rows.push(["geometric mean".into(), String::new()].into_iter().chain(means).collect());
    print!("{}", table(&rows, 1, arguments.markdown));
    println!("\nratio: native seconds, with as many threads, over seconds on nodes; medians of the rounds");
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Program>, String> {
    let all = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = names.iter().find(|name| PROGRAMS.iter().all(|program| program.name != **name)) {
        return Err(format!("no program is called '{unknown}'; there are {}", all()));
    }
    let is_chosen = |program: &&Program| names.is_empty() || names.iter().any(|name| name == program.name);
    Ok(PROGRAMS.iter().filter(is_chosen).collect())
}

/// The command, and the directory of the executables.
struct Bench {
    hiroba: PathBuf,
    directory: PathBuf,
}

impl Bench {
    fn open() -> Result<Bench, String> {
        let executable =
            std::env::current_exe().map_err(|error| format!("cannot find the build: {error}"))?;
        let built = executable.parent().unwrap_or(Path::new("/"));
        let directory = built.parent().unwrap_or(built).join("executables");
        let unmade = |error| format!("cannot make {}: {error}", directory.display());
        fs::create_dir_all(&directory).map_err(unmade)?;
        Ok(Bench { hiroba: built.join("hiroba"), directory })
    }

    fn compile(&self, source: &Path, program: &Program, compiler: &str) -> Result<PathBuf, String> {
        let executable = self.directory.join(format!("{}-{compiler}", program.name));
        let model = if program.is_openmp() { "-fopenmp" } else { "-pthread" };
        let mut command = Command::new(compiler);
        command.args(["-O2", model, "-o"]).arg(&executable).arg(source.join(program.source)).arg("-lm");
        crate::succeed(&mut command)?;
        Ok(executable)
    }

    /// Runs all rounds. Returns the median of the native seconds with the first job's threads, and the ratios
    /// of all jobs.
    fn measure(
        &self,
        program: &Program,
        executable: &Path,
        arguments: &Arguments,
    ) -> Result<(f64, Vec<Measured>), String> {
        let unmeasured = || Measured { ratios: Vec::new(), is_skipped: false };
        let mut jobs: Vec<Measured> = arguments.jobs.iter().map(|_| unmeasured()).collect();
        let mut native_seconds = Vec::new();
        for round in 1..=arguments.rounds {
            let mut told = format!("{} {round} of {}:", program.name, arguments.rounds);
            for (job, measured) in arguments.jobs.iter().zip(&mut jobs) {
                if measured.is_skipped {
                    continue;
                }
                let words = program.arguments(&arguments.class, job.threads());
                let (native, expected) = self.run_natively(executable, &words, job.threads())?;
                if *job == arguments.jobs[0] {
                    native_seconds.push(native);
                }
                match self.run_job(program, executable, &words, job, arguments, &expected)? {
                    Some(seconds) => {
                        measured.ratios.push(native / seconds);
                        told += &format!(" {} {seconds:.3} s of {native:.3},", job.name());
                    }
                    None => {
                        measured.is_skipped = true;
                        told += &format!(" {} ended, and skipped from now on,", job.name());
                    }
                }
            }
            eprintln!("{}", told.trim_end_matches(','));
        }
        Ok((Spread::of(native_seconds).map_or(f64::NAN, |spread| spread.median), jobs))
    }

    fn run_natively(
        &self,
        executable: &Path,
        words: &[String],
        threads: u16,
    ) -> Result<(f64, Vec<u8>), String> {
        let mut command = Command::new(executable);
        command.args(words).env("OMP_NUM_THREADS", threads.to_string());
        let began = Instant::now();
        let output = succeeded(&mut command)?;
        Ok((began.elapsed().as_secs_f64(), output.stdout))
    }

    /// Returns the seconds that the job took, or `None` if it took too long. Its output must be as expected.
    fn run_job(
        &self,
        program: &Program,
        executable: &Path,
        words: &[String],
        job: &Job,
        arguments: &Arguments,
        expected: &[u8],
    ) -> Result<Option<f64>, String> {
        let account = self.directory.join("account.json");
        let mut command = Command::new("timeout");
        command.arg(arguments.skip_after.to_string()).arg(&self.hiroba);
        command.args(["run", "-n", &job.nodes.to_string(), "-t", &job.threads_per_node.to_string()]);
        command.args(["--fabric", &arguments.fabric]).arg(format!("--stats=json:{}", account.display()));
        if job.protocol != "default" {
            command.args(["--protocol", &job.protocol]);
        }
        if !program.is_openmp() {
            command.arg("--pthread");
        }
        command.arg("--").arg(executable).args(words);
        const TIMED_OUT: i32 = 124;
        let output = match run_to_end(&mut command)? {
            output if output.status.code() == Some(TIMED_OUT) => return Ok(None),
            output => succeed(&command, output)?,
        };
        if output.stdout != expected {
            return Err(format!("{} on {} printed something else than natively", program.name, job.name()));
        }
        let text = fs::read_to_string(&account);
        let text = text.map_err(|error| format!("cannot read {}: {error}", account.display()))?;
        let account: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| format!("{} is no account: {error}", account.display()))?;
        let seconds = account["wall_s"].as_f64();
        seconds.map(Some).ok_or("expected 'wall_s' in the account, got none".into())
    }
}

fn run_to_end(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|error| format!("cannot execute {name}: {error}"))
}

fn succeeded(command: &mut Command) -> Result<Output, String> {
    let output = run_to_end(command)?;
    succeed(command, output)
}

fn succeed(command: &Command, output: Output) -> Result<Output, String> {
    if output.status.success() {
        return Ok(output);
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed, {}: {}", output.status, told.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let given = Arguments::try_parse_from(["executables", "--jobs", "2x1:sc,1x2:default"]).unwrap();
        let job = |nodes, threads_per_node, protocol: &str| {
            let protocol = protocol.to_owned();
            Job { nodes, threads_per_node, protocol }
        };
        assert_eq!(given.jobs, [job(2, 1, "sc"), job(1, 2, "default")]);
        let guide = Arguments::try_parse_from(["executables", "--guide"]).unwrap();
        assert_eq!(guide.head(), ["program", "two threads of one process", "`sc`", "`hlrc`", "`adaptive`"]);
        assert!(Arguments::try_parse_from(["executables", "--guide", "--jobs", "2x1:sc"]).is_err());
        for wrong in ["2:sc", "2x0:sc", "2x1:", "2x1", "x1:sc"] {
            assert!(Arguments::try_parse_from(["executables", "--jobs", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn programs_are_known_by_name_and_exist() {
        for program in chosen(&[]).unwrap() {
            assert!(crate::source().join(program.source).is_file(), "{}", program.source);
        }
        let sentence = chosen(&["ep".into(), "pe".into()]).err().unwrap();
        assert!(sentence.starts_with("no program is called 'pe'; there are ep, cg,"), "{sentence}");
        assert_eq!(chosen(&["mg".into()]).unwrap()[0].arguments("A", 2), ["A"]);
        assert_eq!(chosen(&["matmul".into()]).unwrap()[0].arguments("S", 4), ["-n", "1024", "-t", "4"]);
    }
}
