//! Runs programs alternately and repeatedly, and chooses the median run of each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use hiroba_trace::RunStatistics;

use super::Scale;
use super::children::{Children, Ended};
use super::programs::{Program, write_headers};
use super::report::Measured;
use super::stopped::Stopped;
use super::watch::Watch;
use crate::bench;
use hiroba_launch::core_share::{ENOUGH, least_with_cores};
use hiroba_launch::failure::Failure;
use hiroba_launch::run::remarks;

/// The name under which a program prints its time by the clock.
pub const SECONDS: &str = "seconds";
/// The name of the processor time of all threads of the node that used most.
pub const PROCESSOR_SECONDS: &str = "processor seconds";

/// The name of the least share that a run's processes got of the processor time that they could have used.
/// Runs with more nodes than cores, and kernels that do not count, have none.
pub const CORE_SHARE: &str = "share of a core";

/// How a program is run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Compiled without Hiroba.
    Sequential,
    /// Run by `hiroba run`.
    Nodes {
        /// The number of nodes.
        nodes: u16,
        /// The value of `--protocol`.
        protocol: &'static str,
        /// The value of `--fabric`.
        fabric: &'static str,
        /// The value of `--page-size`.
        page_size: &'static str,
        /// Whether pages may be fetched before a fault.
        prefetch: bool,
    },
}

/// A run that is measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The program.
    pub program: &'static Program,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// How it is run.
    pub form: Form,
}

impl Job {
    /// Describes a program without Hiroba. `arguments` are separated by blanks.
    pub fn sequential(program: &'static Program, arguments: &str) -> Job {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Job { program, arguments, form: Form::Sequential }
    }

    /// Returns the same job in another form.
    pub fn in_form(&self, form: Form) -> Job {
        Job { form, ..self.clone() }
    }

    /// Returns the number of processes.
    pub fn nodes(&self) -> u16 {
        match self.form {
            Form::Sequential => 1,
            Form::Nodes { nodes, .. } => nodes,
        }
    }

    /// Describes the job for people.
    pub fn describe(&self) -> String {
        let program = [&[self.program.name.to_owned()], &self.arguments[..]].concat().join(" ");
        match &self.form {
            Form::Sequential => format!("{program}, sequential"),
            Form::Nodes { nodes: 1, protocol, fabric, .. } => {
                format!("{program} on 1 node, {protocol} over {fabric}")
            }
            Form::Nodes { nodes, protocol, fabric, .. } => {
                format!("{program} on {nodes} nodes, {protocol} over {fabric}")
            }
        }
    }
}

/// The numbers that a program has printed, by their names.
pub type Fields = HashMap<String, f64>;

/// Why a program's output is no measurement.
#[derive(Debug, PartialEq, Eq)]
pub enum Unverified {
    /// It did not say that its checks had passed.
    NotPassed,
}

/// Parses the program's lines: a name, two or more blanks, a value. A run that does not verify is never a
/// figure.
pub fn parse(output: &str) -> Result<Fields, Unverified> {
    let lines = || {
        output
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(name, value)| (name.trim(), value.trim()))
    };
    if !lines().any(|line| line == ("checks", "passed")) {
        return Err(Unverified::NotPassed);
    }
    let numbers = lines().filter_map(|(name, value)| Some((name.to_owned(), value.parse::<f64>().ok()?)));
    Ok(numbers.filter(|(_, value)| value.is_finite()).collect())
}

/// The results of all jobs.
#[derive(Debug, Default)]
pub struct Results {
    runs: HashMap<Job, Vec<Fields>>,
}

impl Results {
    /// Returns the run of a job with the median of the number `name`, so that numbers of one run stay
    /// together.
    pub fn middle(&self, job: &Job, name: &str) -> Option<&Fields> {
        let mut runs: Vec<&Fields> =
            self.runs.get(job)?.iter().filter(|run| run.contains_key(name)).collect();
        runs.sort_by(|one, other| one[name].total_cmp(&other[name]));
        runs.get(runs.len() / 2).copied()
    }

    /// Returns all runs of a job.
    pub fn all(&self, job: &Job) -> &[Fields] {
        self.runs.get(job).map_or(&[], Vec::as_slice)
    }

    /// Returns the median of the number `name`.
    pub fn median(&self, job: &Job, name: &str) -> Option<f64> {
        Some(self.middle(job, name)?[name])
    }

    /// Returns the least share of a core in the runs of some jobs with the median of the number `name`.
    pub fn core_share(&self, jobs: &[&Job], name: &str) -> Option<f64> {
        let shares = jobs.iter().filter_map(|job| self.middle(job, name)?.get(CORE_SHARE).copied());
        shares.min_by(f64::total_cmp)
    }

    /// Returns how much faster a job is than the sequential program: by the clock if every node had a core of
    /// its own, else by the processor time of the node that used most.
    pub fn speed_up(&self, sequential: &Job, job: &Job, cores: u16) -> Measured {
        let ratio = |name| Some(self.median(sequential, name)? / self.median(job, name)?);
        if job.nodes() > cores {
            return ratio(PROCESSOR_SECONDS).map_or(Measured::none(), Measured::cpu);
        }
        let share = self.core_share(&[sequential, job], SECONDS);
        let measured = if share.is_none_or(|share| share >= ENOUGH) {
            ratio(SECONDS).map_or(Measured::none(), Measured::wall)
        } else {
            ratio(PROCESSOR_SECONDS).map_or(Measured::none(), Measured::cpu)
        };
        measured.with_share(share)
    }

    #[cfg(test)]
    pub fn note(&mut self, job: &Job, fields: &[(&str, f64)]) {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.runs.entry(job.clone()).or_default().push(fields);
    }
}

/// Compiles and runs programs.
pub struct Workshop<'a> {
    children: &'a Children,
    directory: PathBuf,
    compiler_flags: &'static [&'static str],
    hiroba: PathBuf,
}

impl<'a> Workshop<'a> {
    /// Opens the workshop in a directory that the caller removes.
    pub fn open(
        children: &'a Children,
        directory: PathBuf,
        compiler_flags: &'static [&'static str],
    ) -> Result<Workshop<'a>, Stopped> {
        write_headers(&directory)?;
        Ok(Workshop { children, directory, compiler_flags, hiroba: std::env::current_exe()? })
    }

    /// Returns an error if the user has interrupted the command.
    pub fn check_interruption(&self) -> Result<(), Stopped> {
        self.children.check_interruption(None)
    }

    /// Compiles each program once, and runs the jobs of each group alternately, `rounds` times each.
    pub fn measure(&self, groups: &[Vec<Job>], rounds: usize, watch: &mut Watch) -> Result<Results, Stopped> {
        let mut compiled: Vec<&Program> = Vec::new();
        for program in groups.iter().flatten().map(|job| job.program) {
            if !compiled.contains(&program) {
                watch.say(&format!("compiling {}", program.name));
                program.compile(self.children, &self.directory, self.compiler_flags, watch)?;
                compiled.push(program);
            }
        }
        let mut left = Left::new(groups, rounds);
        let mut results = Results::default();
        for group in groups {
            for _ in 0..rounds {
                for job in group {
                    watch.show(left.done(), left.all, left.estimate(), &job.describe());
                    let began = Instant::now();
                    let fields = self.run(job, watch)?;
                    left.note(job, began.elapsed());
                    results.runs.entry(job.clone()).or_default().push(fields);
                }
            }
        }
        Ok(results)
    }

    /// Runs a group of `hiroba bench` on two nodes, and returns its rows.
    pub fn bench(
        &self,
        group: &str,
        fabric: &str,
        scale: Scale,
        watch: &mut Watch,
    ) -> Result<Vec<bench::Row>, Stopped> {
        let file = self.directory.join(ROWS);
        let mut command = Command::new(&self.hiroba);
        command.args(["bench", group, "--fabric", fabric, "--json"]).arg(&file);
        if scale != Scale::Full {
            command.arg("--quick");
        }
        let tell = &mut |line: &str| {
            if !line.starts_with(MEASURING) {
                watch.pass_on(line);
            }
        };
        let failed = |what: String| {
            Stopped::Failed(Failure::new(format!("cannot measure {group} over {fabric}: {what}")))
        };
        match self.children.call(command, tell)? {
            Ended { status: 0, .. } => {}
            Ended { status, .. } => {
                return Err(failed(format!("expected status 0, got {status}; its messages are above")));
            }
        }
        let text = std::fs::read_to_string(&file)?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// Returns the least share of a core that a node of the last job got.
    fn share_of_job(&self) -> Option<f64> {
        let text = std::fs::read_to_string(self.directory.join(ACCOUNT)).ok()?;
        let account: RunStatistics = serde_json::from_str(&text).ok()?;
        least_with_cores(&account.per_node)
    }

    fn run(&self, job: &Job, watch: &mut Watch) -> Result<Fields, Stopped> {
        let mut command = match &job.form {
            Form::Sequential => Command::new(job.program.sequential_executable(&self.directory)),
            Form::Nodes { nodes, protocol, fabric, page_size, prefetch } => {
                let mut command = Command::new(&self.hiroba);
                remarks::omit_those_of_allocations(&mut command);
                command.args(["run", "-n", &nodes.to_string(), "--protocol", protocol, "--fabric", fabric]);
                command.arg(format!("--stats=json:{}", self.directory.join(ACCOUNT).display()));
                command.args([
                    "--page-size",
                    page_size,
                    "--prefetch",
                    if *prefetch { "on" } else { "off" },
                    "--",
                ]);
                command.arg(job.program.executable(&self.directory));
                command
            }
        };
        command.args(&job.arguments).current_dir(&self.directory);
        let what = job.describe();
        match self.children.call(command, &mut |line| watch.pass_on(line))? {
            Ended { status: 0, output, core_share } => {
                let mut fields = parse(&output).map_err(|Unverified::NotPassed| {
                    Stopped::Failed(Failure::new(format!(
                        "expected {what} to print that its checks passed, but it did not; such a run is no measurement"
                    )))
                })?;
                let share = match job.form {
                    Form::Sequential => core_share,
                    Form::Nodes { .. } => self.share_of_job(),
                };
                fields.extend(share.map(|share| (CORE_SHARE.to_owned(), share)));
                Ok(fields)
            }
            Ended { status, .. } => Err(Stopped::Failed(Failure::new(format!(
                "expected {what} to end with status 0, but it ended with {status}; its messages are above"
            )))),
        }
    }
}

/// The file in which a job writes its account.
const ACCOUNT: &str = "account.json";
/// The file in which a measurement writes its rows.
const ROWS: &str = "rows.json";
/// What a measurement says of itself.
const MEASURING: &str = "hiroba: measuring: ";

/// The remaining runs, and how long they may take.
struct Left {
    all: usize,
    /// Remaining runs, by job.
    to_come: Vec<(Job, usize)>,
    /// The seconds of each finished run.
    taken: HashMap<Job, Vec<f64>>,
}

impl Left {
    fn new(groups: &[Vec<Job>], rounds: usize) -> Left {
        let to_come: Vec<(Job, usize)> = groups.iter().flatten().map(|job| (job.clone(), rounds)).collect();
        Left { all: to_come.len() * rounds, to_come, taken: HashMap::new() }
    }

    fn done(&self) -> usize {
        self.taken.values().map(Vec::len).sum()
    }

    fn note(&mut self, job: &Job, took: Duration) {
        self.taken.entry(job.clone()).or_default().push(took.as_secs_f64());
        if let Some((_, count)) = self.to_come.iter_mut().find(|(other, count)| other == job && *count > 0) {
            *count -= 1;
        }
    }

    /// Estimates the remaining time from finished runs of the same job, else of the same program, else any.
    fn estimate(&self) -> Option<Duration> {
        let mean = |belongs: &dyn Fn(&Job) -> bool| {
            let times: Vec<f64> = self
                .taken
                .iter()
                .filter(|(job, _)| belongs(job))
                .flat_map(|(_, times)| times)
                .copied()
                .collect();
            (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
        };
        let any = mean(&|_| true)?;
        let of = |job: &Job| {
            let same = mean(&|other| other == job);
            same.or_else(|| mean(&|other| other.program == job.program)).unwrap_or(any)
        };
        let seconds: f64 = self.to_come.iter().map(|(job, count)| *count as f64 * of(job)).sum();
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::programs::{FFT, NBODY};
    use super::*;

    const NODES: Form =
        Form::Nodes { nodes: 2, protocol: "hlrc", fabric: "udp", page_size: "8K", prefetch: true };

    #[test]
    fn only_verified_runs_have_numbers() {
        let text =
            "points                   262144\nchecksum                 beb8580465524a92\nseconds    0.5\n";
        assert_eq!(parse(text), Err(Unverified::NotPassed));
        let fields = parse(&format!("{text}processor seconds        0.25\nodd                      inf\nchecks                   passed\n")).unwrap();
        assert_eq!((fields["points"], fields[SECONDS], fields[PROCESSOR_SECONDS]), (262_144.0, 0.5, 0.25));
        assert_eq!(fields.len(), 3, "{fields:?}");
        assert_eq!(parse("checks                   failed\n"), Err(Unverified::NotPassed));
    }

    #[test]
    fn a_run_in_the_middle_keeps_its_numbers_together() {
        let job = Job::sequential(&FFT, "-n 16");
        let mut results = Results::default();
        for (seconds, barrier) in [(3.0, 0.1), (1.0, 0.3), (2.0, 0.2)] {
            results.note(&job, &[(SECONDS, seconds), ("barrier", barrier)]);
        }
        assert_eq!(results.median(&job, SECONDS), Some(2.0));
        assert_eq!(results.middle(&job, SECONDS).unwrap()["barrier"], 0.2);
        assert_eq!(results.median(&job, "no such"), None);
        assert_eq!(results.median(&Job::sequential(&FFT, "-n 64"), SECONDS), None);
    }

    #[test]
    fn speed_ups_say_which_clock_they_are_by() {
        let sequential = Job::sequential(&NBODY, "-n 100");
        let two = sequential.in_form(NODES);
        let mut results = Results::default();
        results.note(&sequential, &[(SECONDS, 4.0), (PROCESSOR_SECONDS, 3.0)]);
        results.note(&two, &[(SECONDS, 2.0), (PROCESSOR_SECONDS, 1.0)]);
        assert_eq!(results.speed_up(&sequential, &two, 2), Measured::wall(2.0));
        assert_eq!(results.speed_up(&sequential, &two, 1), Measured::cpu(3.0));
        // Other processes had the processors for a while, so the clock says nothing about the nodes.
        let busy = sequential.in_form(Form::Nodes {
            nodes: 2,
            protocol: "sc",
            fabric: "udp",
            page_size: "8K",
            prefetch: true,
        });
        results.note(&busy, &[(SECONDS, 8.0), (PROCESSOR_SECONDS, 1.5), (CORE_SHARE, 0.5)]);
        assert_eq!(results.speed_up(&sequential, &busy, 2), Measured::cpu(2.0).with_share(Some(0.5)));
        let quiet = sequential.in_form(Form::Nodes {
            nodes: 2,
            protocol: "lrc",
            fabric: "udp",
            page_size: "8K",
            prefetch: true,
        });
        results.note(&quiet, &[(SECONDS, 2.5), (PROCESSOR_SECONDS, 1.5), (CORE_SHARE, 0.95)]);
        assert_eq!(results.speed_up(&sequential, &quiet, 2), Measured::wall(1.6).with_share(Some(0.95)));
        let never_run = sequential.in_form(Form::Sequential);
        assert_eq!(results.speed_up(&never_run, &Job::sequential(&FFT, ""), 2), Measured::none());
    }

    #[test]
    fn what_is_left_is_estimated_from_what_was_done() {
        let (one, other) = (Job::sequential(&FFT, "-n 16"), Job::sequential(&FFT, "-n 64"));
        let mut left = Left::new(&[vec![one.clone(), other]], 2);
        assert_eq!((left.all, left.done(), left.estimate()), (4, 0, None));
        left.note(&one, Duration::from_secs(2));
        // One finished run of the same job, two of another job of the same program.
        assert_eq!((left.done(), left.estimate()), (1, Some(Duration::from_secs(6))));
    }
}
