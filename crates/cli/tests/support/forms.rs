//! The three forms of an example program: on the nodes of a job, on one thread, and on the threads of one process.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Called, finish, hiroba, start};

const STRICT: [&str; 6] = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

pub fn apps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps").canonicalize().expect("the repository has it")
}

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

/// Where the form of a program lies that was compiled into a directory.
pub fn program(directory: &Path, name: &str, form: Form) -> PathBuf {
    directory.join(format!("{name}-{form:?}"))
}

/// The checksum of a run that passed its checks.
#[track_caller]
pub fn checksum(called: &Called) -> String {
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stdout.lines().any(|line| line == "checks                   passed"), "{called:?}");
    let line = called.stdout.lines().find_map(|line| line.strip_prefix("checksum "));
    line.unwrap_or_else(|| panic!("no checksum: {called:?}")).trim().to_owned()
}
