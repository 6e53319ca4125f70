//! The programs: their sources are embedded in this executable, and are compiled for the machine they run on.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::children::{Children, Ended};
use super::stopped::Stopped;
use super::watch::Watch;
use hiroba_launch::compiler::{self, Language};
use hiroba_launch::failure::Failure;

/// A program that the papers measured.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Its name, and that of its executable.
    pub name: &'static str,
    source: &'static str,
    /// Whether it can be compiled without Hiroba.
    has_sequential_form: bool,
}

macro_rules! app {
    ($name:literal) => {
        Program {
            name: $name,
            source: include_str!(concat!("../../../../apps/", $name, ".c")),
            has_sequential_form: true,
        }
    };
}

/// A Fourier transform in six steps.
pub static FFT: Program = app!("fft");
/// The factorisation of a matrix.
pub static LU: Program = app!("lu");
/// Currents in an ocean.
pub static OCEAN: Program = app!("ocean");
/// Molecules of water.
pub static WATER: Program = app!("water");
/// Gravity between stars.
pub static NBODY: Program = app!("nbody");
/// The Mandelbrot set.
pub static MANDELBROT: Program = app!("mandelbrot");
/// The Fourier transform of a cube.
pub static FFT3D: Program = app!("fft3d");
/// The functions of SMS, one by one.
pub static FUNCTIONS: Program =
    Program { name: "functions", source: include_str!("functions.c"), has_sequential_form: false };

/// Messages to ports.
pub static MESSAGES: Program =
    Program { name: "messages", source: include_str!("messages.c"), has_sequential_form: false };

/// The headers that the programs include.
const HEADERS: [(&str, &str); 6] = [
    ("common.h", include_str!("../../../../apps/common.h")),
    ("grids.h", include_str!("../../../../apps/grids.h")),
    ("multigrid.h", include_str!("../../../../apps/multigrid.h")),
    ("picture.h", include_str!("../../../../apps/picture.h")),
    ("queues.h", include_str!("../../../../apps/queues.h")),
    ("third_party/stb_image_write.h", include_str!("../../../../apps/third_party/stb_image_write.h")),
];

/// Compiler flags for measuring: with the machine's vector width, as the programs recommend.
pub const COMPILER_FLAGS: [&str; 3] = ["-O3", "-march=native", "-fno-math-errno"];
/// Compiler flags for tests.
pub const TEST_COMPILER_FLAGS: [&str; 1] = ["-O1"];

impl Program {
    /// Returns the file that runs with Hiroba.
    pub fn executable(&self, directory: &Path) -> PathBuf {
        directory.join(self.name)
    }

    /// Returns the file that runs without.
    pub fn sequential_executable(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}-sequential", self.name))
    }

    /// Writes the source and compiles its forms.
    pub fn compile(
        &self,
        children: &Children,
        directory: &Path,
        flags: &[&str],
        watch: &mut Watch,
    ) -> Result<(), Stopped> {
        let source = directory.join(format!("{}.c", self.name));
        std::fs::write(&source, self.source)?;
        let arguments = |output: PathBuf, more: &[&str]| {
            let mut arguments: Vec<OsString> = flags.iter().chain(more).map(OsString::from).collect();
            arguments.extend(
                [OsStr::new("-o"), output.as_os_str(), source.as_os_str(), OsStr::new("-lm")]
                    .map(OsString::from),
            );
            arguments
        };
        let with = arguments(self.executable(directory), &[]);
        let with =
            compiler::command(Language::C, &with.iter().collect::<Vec<_>>()).map_err(Stopped::Failed)?;
        self.call_compiler(children, directory, &with, watch)?;
        if self.has_sequential_form {
            let mut without = compiler::choose(Language::C).map_err(Stopped::Failed)?.words;
            without.extend(arguments(self.sequential_executable(directory), &["-DSEQUENTIAL"]));
            self.call_compiler(children, directory, &without, watch)?;
        }
        Ok(())
    }

    fn call_compiler(
        &self,
        children: &Children,
        directory: &Path,
        line: &[OsString],
        watch: &mut Watch,
    ) -> Result<(), Stopped> {
        let mut command = Command::new(&line[0]);
        // Temporary files go to the directory that is removed.
        command.args(&line[1..]).env("TMPDIR", directory);
        match children.call(command, &mut |line| watch.pass_on(line)) {
            Ok(Ended { status: 0, .. }) => Ok(()),
            Ok(Ended { status, .. }) => Err(Stopped::Failed(Failure::new(format!(
                "the compiler '{}' ended with status {status} for {}.c; name another one in ${}",
                line[0].to_string_lossy(),
                self.name,
                Language::C.own_variable()
            )))),
            Err(Stopped::NotStarted(error)) => {
                Err(Stopped::Failed(compiler::cannot_call(Language::C, &line[0], &error)))
            }
            Err(other) => Err(other),
        }
    }
}

/// Writes the headers that the programs include.
pub fn write_headers(directory: &Path) -> std::io::Result<()> {
    for (name, text) in HEADERS {
        let path = directory.join(name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, text)?;
    }
    Ok(())
}
