//! Measures the plain programs of `apps/plain`: each on the threads of one process, and on the nodes of jobs,
//! in turn.
//!
//! A round runs all forms of a program one after another, so that a disturbance of the machine affects all of
//! them. The result is the median over the rounds of the ratios within a round.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

pub(crate) mod figures;
pub(crate) mod report;

use figures::{Form, FormRuns, Program, Run};

/// The longest time of a run, in seconds.
const RUN_SECONDS_MAX: u64 = 600;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Measures the plain programs of apps/plain on nodes against threads of one process
#[derive(Parser)]
#[command(bin_name = "cargo xtask yardstick", max_term_width = 100)]
struct Arguments {
    /// Programs of apps/plain, by name [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    programs: Vec<String>,
    /// Fabrics: udp, tcp, shm
    #[arg(long, value_name = "FABRIC,...", value_delimiter = ',', default_value = "udp")]
    #[arg(value_parser = ["udp", "tcp", "shm"])]
    fabric: Vec<String>,
    /// Protocols as 'hiroba run --protocol' takes them; 'default' leaves the option out
    #[arg(long, value_name = "PROTOCOL,...", value_delimiter = ',', default_value = "default")]
    protocols: Vec<String>,
    /// Nodes of a job, and threads of the process that it is compared with
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Rounds, in each of which every form runs once
    #[arg(long, value_name = "N", default_value_t = 9)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Run the programs with --large: about four times the data
    #[arg(long)]
    large: bool,
    /// Run the programs with --init-all: every thread initialises its own part
    #[arg(long)]
    init_all: bool,
    /// End a run on nodes that takes longer, and skip that form of the program from then on
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=RUN_SECONDS_MAX))]
    skip_after: Option<u64>,
    /// Write all figures of all runs to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the tables in Markdown
    #[arg(long)]
    markdown: bool,
    /// Use target/release/hiroba as it is
    #[arg(long)]
    no_build: bool,
}

/// The paths that the task uses.
struct Workshop {
    hiroba: PathBuf,
    sources: PathBuf,
    /// For executables, and for the output of a run.
    directory: PathBuf,
}

/// Runs the task with the arguments after its name.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let name = OsString::from("yardstick");
    let arguments = Arguments::try_parse_from(std::iter::once(name).chain(arguments));
    let mut arguments = arguments.unwrap_or_else(|error| error.exit());
    let source = crate::source();
    if !arguments.no_build {
        crate::build(source)?;
    }
    let workshop = Workshop::open(source)?;
    workshop.choose(&mut arguments.programs)?;
    if let Some(path) = &arguments.json {
        // If the file cannot be written, the user should learn that before the measurements.
        File::options().append(true).create(true).open(path).map_err(|error| unwritten(path, &error))?;
    }
    arguments.programs.iter().try_for_each(|program| workshop.compile(program))?;
    let mut measured = Vec::new();
    for (index, name) in arguments.programs.iter().enumerate() {
        eprintln!("yardstick: {name} ({} of {})", index + 1, arguments.programs.len());
        measured.push(workshop.measure(name, &arguments)?);
    }
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", report::json(&settings(&arguments), &measured));
        fs::write(path, text).map_err(|error| unwritten(path, &error))?;
    }
    print!("{}", report::tables(&measured, arguments.markdown));
    Ok(())
}

fn unwritten(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn settings(arguments: &Arguments) -> Value {
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "nodes": arguments.nodes,
        "rounds": arguments.rounds,
        "large": arguments.large,
        "init_all": arguments.init_all,
    })
}

impl Workshop {
    fn open(source: &Path) -> Result<Workshop, String> {
        let executable =
            std::env::current_exe().map_err(|error| format!("cannot find the build: {error}"))?;
        let built = executable.parent().unwrap_or(Path::new("/"));
        let hiroba = built.join("hiroba");
        if !hiroba.is_file() {
            return Err(format!("{} was not found; run 'cargo build --release' first", hiroba.display()));
        }
        let directory = built.parent().unwrap_or(built).join("yardstick");
        fs::create_dir_all(&directory).map_err(|error| unwritten(&directory, &error))?;
        Ok(Workshop { hiroba, sources: source.join("apps/plain"), directory })
    }

    /// Checks that the requested programs exist. Without any, chooses all programs.
    fn choose(&self, asked: &mut Vec<String>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot read {}: {error}", self.sources.display());
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.sources).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if let (Some("c"), Some(stem)) = (path.extension().and_then(|end| end.to_str()), stem) {
                all.push(stem.to_owned());
            }
        }
        all.sort_unstable();
        if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
            return Err(format!("no plain program is called '{unknown}'; there are {}", all.join(", ")));
        }
        if asked.is_empty() {
            *asked = all;
        }
        Ok(())
    }

    fn executable(&self, program: &str, is_threads: bool) -> PathBuf {
        self.directory.join(if is_threads { format!("{program}-threads") } else { program.to_owned() })
    }

    /// Compiles both forms of a program, by the same compiler.
    fn compile(&self, program: &str) -> Result<(), String> {
        let mut with_threads = Command::new("cc");
        with_threads.args(["-O2", "-DTHREADS", "-pthread"]);
        let mut with_hiroba = Command::new(&self.hiroba);
        with_hiroba.env("HIROBA_CC", "cc").args(["cc", "-O2"]);
        for (mut compiler, is_threads) in [(with_threads, true), (with_hiroba, false)] {
            compiler.arg("-o").arg(self.executable(program, is_threads));
            compiler.arg(self.sources.join(program).with_extension("c")).arg("-lm");
            crate::succeed(&mut compiler)?;
        }
        Ok(())
    }

    /// Runs all rounds of one program.
    fn measure(&self, name: &str, arguments: &Arguments) -> Result<Program, String> {
        let forms = arguments.fabric.iter().flat_map(|fabric| {
            arguments
                .protocols
                .iter()
                .map(|protocol| Form { fabric: fabric.clone(), protocol: protocol.clone() })
        });
        let mut program = Program::new(name, forms.collect());
        for round in 1..=arguments.rounds {
            let run = self.run_threads(name, arguments)?;
            let mut told = format!("  round {round} of {}: threads {:.3} s", arguments.rounds, run.seconds);
            program.accept(&run, "threads")?;
            let of_threads = run.seconds;
            program.threads.push(run);
            for index in 0..program.forms.len() {
                if program.forms[index].is_skipped {
                    continue;
                }
                let form = program.forms[index].form.clone();
                match self.run_nodes(name, &form, arguments)? {
                    Some(run) => {
                        program.accept(&run, &form.to_string())?;
                        told += &format!(", {form} {:.3} s ({:.2})", run.seconds, of_threads / run.seconds);
                        program.forms[index].runs.push(run);
                    }
                    None => {
                        told += &format!(", {form} ended, and skipped from now on");
                        program.forms[index] = FormRuns { form, runs: Vec::new(), is_skipped: true };
                    }
                }
            }
            eprintln!("{told}");
        }
        Ok(program)
    }

    fn run_threads(&self, program: &str, arguments: &Arguments) -> Result<Run, String> {
        let mut command = Command::new(self.executable(program, true));
        command.args(["--threads", &arguments.nodes.to_string()]);
        let what = format!("{program} on threads");
        let limit = Duration::from_secs(RUN_SECONDS_MAX);
        let text = self.output_of(command, arguments, &what, limit)?;
        let text = text.ok_or(format!("{what} ran for more than {RUN_SECONDS_MAX} seconds"))?;
        Run::from_output(&text).map_err(|sentence| format!("{what}: {sentence}"))
    }

    /// Runs a program on nodes. Returns `None` if it took longer than `--skip-after` allows.
    fn run_nodes(&self, program: &str, form: &Form, arguments: &Arguments) -> Result<Option<Run>, String> {
        let statistics = self.directory.join("statistics.json");
        let mut stats = OsString::from("--stats=json:");
        stats.push(&statistics);
        let mut command = Command::new(&self.hiroba);
        command.args(["run", "-n", &arguments.nodes.to_string(), "--fabric", &form.fabric]).arg(stats);
        if form.protocol != "default" {
            command.args(["--protocol", &form.protocol]);
        }
        command.arg("--").arg(self.executable(program, false));
        let what = format!("{program} on {form}");
        let limit = Duration::from_secs(arguments.skip_after.unwrap_or(RUN_SECONDS_MAX));
        let Some(text) = self.output_of(command, arguments, &what, limit)? else {
            return match arguments.skip_after {
                Some(_) => Ok(None),
                None => Err(format!("{what} ran for more than {RUN_SECONDS_MAX} seconds")),
            };
        };
        let mut run = Run::from_output(&text).map_err(|sentence| format!("{what}: {sentence}"))?;
        let account = fs::read_to_string(&statistics)
            .map_err(|error| format!("cannot read {}: {error}", statistics.display()))?;
        let account =
            serde_json::from_str(&account).map_err(|error| format!("{what}: statistics: {error}"))?;
        run.take_account(&account);
        Ok(Some(run))
    }

    /// Returns the output of a program that succeeded, or `None` if it did not end in time.
    fn output_of(
        &self,
        mut command: Command,
        arguments: &Arguments,
        what: &str,
        limit: Duration,
    ) -> Result<Option<String>, String> {
        let (out, error) = (self.directory.join("stdout"), self.directory.join("stderr"));
        let file = |path: &Path| File::create(path).map_err(|error| unwritten(path, &error));
        if arguments.large {
            command.arg("--large");
        }
        if arguments.init_all {
            command.arg("--init-all");
        }
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&error)?);
        let mut child = command.spawn().map_err(|error| format!("{what}: cannot be executed: {error}"))?;
        let Some(status) = wait(&mut child, limit).map_err(|error| format!("{what}: {error}"))? else {
            return Ok(None);
        };
        let text = |path: &Path| {
            let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
        };
        match status.success() {
            true => text(&out).map(Some),
            false => Err(format!("{what} failed, {status}: {}", text(&error)?.trim_end())),
        }
    }
}

/// Waits for a child up to a limit, then kills it.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let line = ["yardstick", "--programs", "fft,sor", "--fabric", "udp,shm", "--protocols", "default,sc"];
        let given = Arguments::try_parse_from(line).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((given.programs.len(), given.fabric.len(), given.protocols.len()), (2, 2, 2));
        for wrong in [["--fabric", "ucx"], ["--nodes", "0"], ["--rounds", "0"], ["--skip-after", "601"]] {
            let line = ["yardstick"].into_iter().chain(wrong);
            assert!(Arguments::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn programs_are_known_by_name() {
        let source = crate::source();
        let nowhere = PathBuf::new();
        let workshop =
            Workshop { hiroba: nowhere.clone(), sources: source.join("apps/plain"), directory: nowhere };
        let mut all = Vec::new();
        workshop.choose(&mut all).unwrap();
        assert!(all.len() >= 18 && all.contains(&"ocean-rows".to_owned()), "{all:?}");
        let sentence = workshop.choose(&mut vec!["fft".into(), "fourier".into()]).unwrap_err();
        assert!(
            sentence.starts_with("no plain program is called 'fourier'; there are barnes, cg,"),
            "{sentence}"
        );
    }

    #[test]
    fn a_run_without_end_is_ended() {
        let sleep = |seconds: &str| Command::new("sleep").arg(seconds).spawn().unwrap();
        let ended = wait(&mut sleep("1000"), Duration::from_millis(50)).unwrap();
        assert_eq!(ended, None);
        assert!(wait(&mut sleep("0"), Duration::from_secs(100)).unwrap().unwrap().success());
    }
}
