//! The three forms of an example program: on the nodes of a job, on one thread, and on the threads of one
//! process.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Called, finish, hiroba, sample, side_by_side, start};

const STRICT: [&str; 6] = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

pub fn apps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps").canonicalize().expect("the repository has it")
}

/// Makes threads of a native OpenMP program sleep while they wait: there may be more than processors.
pub const PASSIVE: [(&str, &str); 1] = [("OMP_WAIT_POLICY", "passive")];

/// How a source is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Hiroba,
    Sequential,
    OpenMp,
}

impl Form {
    pub const ALL: [Form; 3] = [Form::Hiroba, Form::Sequential, Form::OpenMp];

    fn compiler(self) -> Command {
        let defined: &[&str] = match self {
            Form::Hiroba => return hiroba(&["cc"]),
            Form::Sequential => &["-DSEQUENTIAL"],
            Form::OpenMp => &["-DOPENMP", "-fopenmp"],
        };
        let mut command = Command::new("cc");
        command.args(defined);
        command
    }

    #[track_caller]
    pub fn compile(self, source: &Path, program: &Path) {
        let mut command = self.compiler();
        command.args(STRICT).arg("-o").arg(program).arg(source).arg("-lm");
        let called = finish(start(&mut command));
        assert_eq!(called.status, 0, "{self:?} form of {}: {called:?}", source.display());
    }
}

/// Returns the path of a program that was compiled into a directory in a form.
pub fn program(directory: &Path, name: &str, form: Form) -> PathBuf {
    directory.join(format!("{name}-{form:?}"))
}

/// Returns the checksum of a run that passed its checks.
#[track_caller]
pub fn checksum(called: &Called) -> String {
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stdout.lines().any(|line| line == "checks                   passed"), "{called:?}");
    let line = called.stdout.lines().find_map(|line| line.strip_prefix("checksum "));
    line.unwrap_or_else(|| panic!("no checksum: {called:?}")).trim().to_owned()
}

/// Compiles all forms of some programs into a directory.
pub fn compile_all<'a>(names: impl IntoIterator<Item = &'a str>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let wanted = names.into_iter().flat_map(|name| Form::ALL.map(|form| (name, form)));
    side_by_side(wanted, |(name, form)| {
        form.compile(&apps().join(name).with_extension("c"), &program(directory.path(), name, form));
    });
    directory
}

/// Runs a program of that directory on nodes.
pub fn run_job(directory: &Path, options: &[&str], name: &str, given: &[&str]) -> Called {
    let mut command = hiroba(&["run"]);
    command.args(options).arg("--").arg(program(directory, name, Form::Hiroba)).args(given);
    finish(start(&mut command))
}

/// Runs it without a launcher.
pub fn run_alone(directory: &Path, form: Form, name: &str, given: &[&str]) -> Called {
    let mut command = Command::new(program(directory, name, form));
    command.args(given).env("OMP_NUM_THREADS", "3").envs(PASSIVE).env_remove("HIROBA_CONTROL_FD");
    finish(start(&mut command))
}

/// Returns what every job should find, from the form without threads, and checks that the other forms find
/// the same without nodes.
#[track_caller]
pub fn expected_checksum(directory: &Path, name: &str, given: &[&str]) -> String {
    let expected = checksum(&run_alone(directory, Form::Sequential, name, given));
    assert_eq!(checksum(&run_alone(directory, Form::OpenMp, name, given)), expected, "{name} under OpenMP");
    let sequential = [given, &["--sequential"]].concat();
    let alone = run_alone(directory, Form::Hiroba, name, &sequential);
    assert_eq!(checksum(&alone), expected, "{name} --sequential");
    expected
}

/// Compares jobs of several shapes with what one thread finds.
#[track_caller]
pub fn check_every_job(directory: &Path, problems: &[(&str, &[&str])]) {
    let shapes = [("1", "1"), ("2", "1"), ("3", "1"), ("3", "2")];
    let ways: Vec<_> = shapes.iter().flat_map(|shape| ["udp", "shm"].map(|fabric| (shape, fabric))).collect();
    for (number, (name, given)) in problems.iter().enumerate() {
        let expected = expected_checksum(directory, name, given);
        for ((nodes, threads), fabric) in sample::one_of_every(2, number, &ways) {
            let options = ["-n", nodes, "-t", threads, "--fabric", fabric];
            let called = run_job(directory, &options, name, given);
            assert_eq!(checksum(&called), expected, "{name} with {options:?}");
        }
    }
}

/// Asserts that a program has refused bad input before any work, with one line.
pub fn check_refusal(called: &Called, name: &str, phrase: &str) {
    assert_eq!((called.status, called.stdout.as_str()), (2, ""), "{called:?}");
    assert_eq!(called.stderr.lines().count(), 1, "one node speaks: {called:?}");
    assert!(called.stderr.starts_with(&format!("{name}: ")), "{called:?}");
    assert!(called.stderr.contains(phrase), "expected {phrase:?}: {called:?}");
}

/// Asserts that a program has printed its usage.
pub fn check_help(called: &Called, name: &str) {
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{called:?}");
    assert!(called.stdout.starts_with(&format!("usage: {name} ")), "{called:?}");
}
