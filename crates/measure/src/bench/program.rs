//! Primitives as a C program sees them: a program of plain loops, compiled by `hiroba cc` and run like any
//! other. Its rows must agree with those of the runtime's own calls.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use hiroba_trace::{NodeStatistics, RunStatistics};
use tempfile::TempDir;

use super::job::{Job, wait_for};
use super::samples::Taken;
use super::{Row, row};
use hiroba_launch::failure::{Failure, system_words};

const SOURCE: &str = include_str!("program.c");
/// The number of times each operation is measured.
const TIMES: usize = 2000;
const TIMES_QUICK: usize = 500;
/// The same number as in the program.
const WARM_UP: usize = 32;
/// The program's names of its measurements, with the names and states of their rows.
const MEASURED: [(&str, &str, &str); 3] = [
    ("barrier", "barrier of a C program", "nothing written"),
    ("lock", "lock of a C program, taken from its last holder", "that one waits"),
    ("fetch", "read fault of a C program, page fetched", "into a fresh frame, home idle"),
];

/// The results of a run of the program.
pub struct Measured {
    pub rows: Vec<Row>,
    pub nodes: Vec<NodeStatistics>,
}

/// The compiled program, in a directory that is removed with it.
pub struct Program {
    directory: TempDir,
}

impl Program {
    /// Compiles the program. Returns `None` if that fails, in which case the compiler or the wrapper has
    /// printed the reason.
    pub fn compile() -> std::io::Result<Option<Program>> {
        let directory = tempfile::Builder::new().prefix("hiroba-bench-").tempdir()?;
        let source = directory.path().join("program.c");
        std::fs::write(&source, SOURCE)?;
        let program = Program { directory };
        let mut compiler = Command::new(std::env::current_exe()?);
        compiler.args(["cc", "-O2", "-o"]).arg(program.path()).arg(&source);
        let status = compiler.stdin(Stdio::null()).status()?;
        Ok(status.success().then_some(program))
    }

    /// Returns the path of the executable.
    fn path(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// Runs it as a job. Returns its results, or the exit status of a job that failed.
    pub fn measure(&self, job: &Job<'_>) -> Result<Result<Measured, u8>, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot measure a C program: {}", system_words(&error)))
        };
        let times = if job.options.quick { TIMES_QUICK } else { TIMES }.to_string();
        let account = self.directory.path().join("account.json");
        let options = [format!("--stats=json:{}", account.display())];
        let path = self.path();
        let mut command = job.command_of(&options, [path.as_os_str(), times.as_ref()]).map_err(failed)?;
        let mut child = command.spawn().map_err(failed)?;
        let mut text = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut text).map_err(failed)?;
        if let Err(status) = wait_for(child).map_err(failed)? {
            return Ok(Err(status));
        }
        let rows = MEASURED.iter().map(|(key, name, state)| {
            let state = format!("{}, {state}", job.setting.describe());
            let taken = Taken::new(times_of(key, &text), WARM_UP);
            row(name, job.options.fabric.name(), &state, taken, None)
        });
        let account = std::fs::read_to_string(&account).map_err(failed)?;
        let account: RunStatistics = serde_json::from_str(&account).map_err(|error| failed(error.into()))?;
        Ok(Ok(Measured { rows: rows.collect(), nodes: account.per_node }))
    }
}

/// Returns the times of one operation in the program's output, in nanoseconds.
fn times_of(key: &str, text: &str) -> Vec<f64> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs.filter(|(name, _)| *name == key).filter_map(|(_, ns)| ns.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_by_their_names() {
        let text = "barrier\t12\nlock\t7\nbarrier\t13\nnot a time\nlock\tx\n";
        assert_eq!(times_of("barrier", text), [12.0, 13.0]);
        assert_eq!(times_of("lock", text), [7.0]);
        assert!(times_of("fetch", text).is_empty());
    }

    #[test]
    fn the_program_measures_what_is_told() {
        for (key, ..) in MEASURED {
            assert!(SOURCE.contains(&format!("report(\"{key}\"")), "{key}");
        }
        assert!(SOURCE.contains(&format!("WARM_UP = {WARM_UP},")));
    }
}
