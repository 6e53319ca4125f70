//! `hiroba cc|cxx|fc`: calls the user's compiler with the flags that a Hiroba program needs.

mod choice;
mod schedules;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, say, system_words};
pub use choice::{Compiler, choose};

/// The library that a program is linked with.
const LIBRARY: &str = "libhiroba.so";
/// The library that is loaded before pthreads in executables that were not built for Hiroba; it lies beside
/// the other.
pub const PTHREAD_LIBRARY: &str = "libhiroba_pthread.so";
/// The library that is loaded in its place in jobs of one node; it lies beside the others.
pub const SINGLE_LIBRARY: &str = "libhiroba_single.so";
/// The library that replaces OpenMP's, GNU's or LLVM's, in executables that were built for one of them; it
/// lies beside the others.
pub const OPENMP_LIBRARY: &str = "libhiroba_gomp.so";
/// The header that a C program includes.
const HEADER: &str = "hiroba.h";

/// The language of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// C.
    C,
    /// C++.
    Cxx,
    /// Fortran.
    Fortran,
}

impl Language {
    /// Returns the command that compiles it.
    pub fn command(self) -> &'static str {
        match self {
            Language::C => "cc",
            Language::Cxx => "cxx",
            Language::Fortran => "fc",
        }
    }

    /// Returns the variable that names the compiler to build tools, which may set it to the wrapper itself.
    pub fn variable(self) -> &'static str {
        match self {
            Language::C => "CC",
            Language::Cxx => "CXX",
            Language::Fortran => "FC",
        }
    }

    /// Returns the variable that names the compiler to the wrapper only.
    pub fn own_variable(self) -> &'static str {
        match self {
            Language::C => "HIROBA_CC",
            Language::Cxx => "HIROBA_CXX",
            Language::Fortran => "HIROBA_FC",
        }
    }

    /// Returns the compiler that is called if no variable names another.
    pub fn default_compiler(self) -> &'static str {
        match self {
            Language::C => "cc",
            Language::Cxx => "c++",
            Language::Fortran => "gfortran",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Language::C => "gcc or clang",
            Language::Cxx => "g++ or clang",
            Language::Fortran => "gfortran",
        }
    }
}

/// What the wrapper prints instead of calling the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The command that it would run.
    Command,
    /// The flags that it adds for compiling.
    Compiling,
    /// The flags that it adds for linking.
    Linking,
}

impl Shown {
    /// Parses the options of mpicc, as Open MPI and MPICH name them.
    fn named(argument: &OsStr) -> Option<Shown> {
        match argument.as_bytes() {
            b"--showme" | b"-showme" | b"--show" | b"-show" => Some(Shown::Command),
            b"--showme:compile" | b"-showme:compile" | b"-compile_info" => Some(Shown::Compiling),
            b"--showme:link" | b"-showme:link" | b"-link_info" => Some(Shown::Linking),
            _ => None,
        }
    }
}

/// Replaces this process by the compiler. Returns only if that fails or the command was only shown.
pub fn compile(language: Language, arguments: &[OsString]) -> Result<u8, Failure> {
    let (shows, arguments): (Vec<&OsString>, Vec<&OsString>) =
        arguments.iter().partition(|argument| Shown::named(argument).is_some());
    let compiler = choose(language)?;
    let remark = compiler.remark(language);
    if let Some(shown) = shows.first().and_then(|argument| Shown::named(argument)) {
        let flags = Flags::find(language)?;
        let words = match shown {
            // Without arguments there is no input file, so everything that is ever added is shown.
            Shown::Command => {
                flags.command(&compiler, &arguments, arguments.is_empty() || links(&arguments))?
            }
            Shown::Compiling => flags.compiling.into_iter().collect(),
            Shown::Linking => flags.linking?,
        };
        remark.iter().for_each(|remark| say(remark));
        return Ok(show(&words));
    }
    let linking = links(&arguments);
    let command = Flags::find(language)?.command(&compiler, &arguments, linking)?;
    // Printed once for each program, not for each of its files.
    if linking {
        remark.iter().for_each(|remark| say(remark));
    }
    let mut commands = schedules::rewritten(language, command, compiler.words.len())?;
    let command = commands.pop().expect("one command at least");
    let called = |command: &[OsString]| {
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).env(choice::CALLED_VARIABLE, "1");
        process
    };
    for command in commands {
        let status = called(&command).status().map_err(|error| cannot_call(language, &command[0], &error))?;
        if !status.success() {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
    }
    let error = called(&command).exec();
    Err(cannot_call(language, &command[0], &error))
}

/// Prints words as a shell reads them. Words that every shell reads correctly are not quoted, since make
/// would keep the quotes.
fn show(words: &[OsString]) -> u8 {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte);
    let quoted = |word: &OsString| match shlex::bytes::try_quote(word.as_bytes()) {
        Ok(quoted) if !word.is_empty() && !word.as_bytes().iter().all(is_plain) => quoted.into_owned(),
        _ => word.as_bytes().to_vec(),
    };
    let mut line = words.iter().map(quoted).collect::<Vec<_>>().join(&b' ');
    line.push(b'\n');
    let _ = std::io::stdout().write_all(&line);
    0
}

/// Returns the error for a compiler that could not be called.
pub fn cannot_call(language: Language, compiler: &OsStr, error: &std::io::Error) -> Failure {
    let (name, variable) = (compiler.to_string_lossy(), language.own_variable());
    if error.kind() == std::io::ErrorKind::NotFound {
        let package = language.package();
        return Failure::not_found(format!(
            "the compiler '{name}' was not found; install {package}, or name another one in ${variable}"
        ));
    }
    let words = system_words(error);
    Failure::not_executable(format!(
        "the compiler '{name}' cannot be executed: {words}; name another one in ${variable}"
    ))
}

/// Returns the whole command: compiler, include directory, the user's arguments and, when linking, the
/// library.
pub fn command(language: Language, arguments: &[&OsString]) -> Result<Vec<OsString>, Failure> {
    Flags::find(language)?.command(&choose(language)?, arguments, links(arguments))
}

/// The flags that a Hiroba program needs beside the user's.
struct Flags {
    /// Flags for compiling.
    compiling: Option<OsString>,
    /// Flags for linking.
    linking: Result<Vec<OsString>, Failure>,
}

impl Flags {
    fn find(language: Language) -> Result<Flags, Failure> {
        let executable = std::env::current_exe().map_err(|error| {
            Failure::new(format!("cannot tell where hiroba is installed: {}", system_words(&error)))
        })?;
        let home = executable.parent().unwrap_or(Path::new("/"));
        let prefixed = |prefix: &str, path: &Path| {
            let mut argument = OsString::from(prefix);
            argument.push(path);
            argument
        };
        let compiling = match include_directory(home) {
            Some(directory) => Some(prefixed("-I", &directory)),
            // Fortran programs declare the functions that they call.
            None if language == Language::Fortran => None,
            None => return Err(not_found(HEADER, home)),
        };
        let directory = library_directory(home).ok_or_else(|| not_found(LIBRARY, home));
        let linking = directory.map(|directory| {
            vec![prefixed("-L", &directory), "-lhiroba".into(), prefixed("-Wl,-rpath,", &directory)]
        });
        Ok(Flags { compiling, linking })
    }

    fn command(
        self,
        compiler: &Compiler,
        arguments: &[&OsString],
        linking: bool,
    ) -> Result<Vec<OsString>, Failure> {
        let mut command = compiler.words.clone();
        command.extend(self.compiling);
        command.extend(arguments.iter().map(|argument| (*argument).clone()));
        if linking {
            command.extend(self.linking?);
        }
        Ok(command)
    }
}

fn not_found(file: &str, home: &Path) -> Failure {
    let home = home.display();
    Failure::new(format!(
        "{file} was not found near {home}; in the source tree run 'cargo build --release' first"
    ))
}

/// Returns the directory of `hiroba.h`: installed beside `bin`, or in the source tree around the build
/// directory.
fn include_directory(home: &Path) -> Option<PathBuf> {
    let installed = home.parent().map(|prefix| prefix.join("include"));
    let in_tree = home.ancestors().map(|directory| directory.join("crates/capi/include"));
    // With a build directory elsewhere, the source tree that the command was built from is used.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("capi").join("include");
    installed.into_iter().chain(in_tree).chain([source]).find(|directory| directory.join(HEADER).is_file())
}

/// Returns the library that programs are linked with, if it exists.
pub fn library_file() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    Some(library_directory(executable.parent()?)?.join(LIBRARY))
}

/// Returns the directory of `libhiroba.so`: beside the command, among the build's dependencies, or installed
/// beside `bin`. Takes the newest, since Cargo updates the one beside the command only when it was asked to
/// build the library itself.
fn library_directory(home: &Path) -> Option<PathBuf> {
    let lib = home.parent().map(|prefix| prefix.join("lib"));
    let places = [home.join("deps"), home.to_owned()].into_iter().chain(lib);
    let built =
        |directory: &PathBuf| directory.join(LIBRARY).metadata().and_then(|file| file.modified()).ok();
    places.filter(|directory| built(directory).is_some()).max_by_key(built)
}

/// Options whose value is the next argument, which is therefore not an input file.
const WITH_VALUE: [&str; 21] = [
    "-o",
    "-I",
    "-L",
    "-l",
    "-D",
    "-U",
    "-x",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-MF",
    "-MT",
    "-MQ",
    "-J",
    "-T",
    "-u",
    "-z",
    "-Xlinker",
    "--param",
];

/// Returns true if the compiler will link: it has an input, and no option stops it earlier.
fn links(arguments: &[&OsString]) -> bool {
    let stops = |argument: &OsStr| {
        matches!(argument.as_bytes(), b"-c" | b"-S" | b"-E" | b"-M" | b"-MM" | b"-fsyntax-only" | b"-r")
    };
    let mut has_input = false;
    let mut is_value = false;
    for argument in arguments {
        if is_value {
            is_value = false;
        } else if WITH_VALUE.iter().any(|option| argument.as_os_str() == *option) {
            is_value = true;
        } else if stops(argument) {
            return false;
        } else if !argument.as_bytes().starts_with(b"-") || argument.as_os_str() == "-" {
            has_input = true;
        }
    }
    has_input
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links_line(line: &str) -> bool {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        links(&arguments.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_library_is_named_only_when_linking() {
        for line in ["a.c", "-O2 a.c -o a", "a.o b.o", "-x c -", "@file", "-MD -MF a.d a.c -o -c"] {
            assert!(links_line(line), "{line}");
        }
        for line in [
            "",
            "-c a.c",
            "a.c -S",
            "-E a.c",
            "-MM a.c",
            "--version",
            "-v",
            "-o a",
            "-print-prog-name=ld",
            "-r a.o b.o -o c.o",
        ] {
            assert!(!links_line(line), "{line}");
        }
    }
}
