//! `hiroba cc|cxx|fc`: calls the user's compiler with what a Hiroba program needs.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, system_words};

/// The file a program is linked with.
const LIBRARY: &str = "libhiroba.so";
/// The file a C program includes.
const HEADER: &str = "hiroba.h";

/// What is compiled.
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
    fn variable(self) -> &'static str {
        match self {
            Language::C => "CC",
            Language::Cxx => "CXX",
            Language::Fortran => "FC",
        }
    }

    fn default_compiler(self) -> &'static str {
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

    /// `$CC`, `$CXX` or `$FC`, which may hold arguments, or the default.
    pub fn compiler(self) -> Vec<OsString> {
        let given = std::env::var_os(self.variable()).unwrap_or_default();
        let words = given.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
        if words.is_empty() { vec![self.default_compiler().into()] } else { words }
    }
}

/// Replaces this process by the compiler; comes back only when that fails, or to have shown the command.
pub fn compile(language: Language, arguments: &[OsString]) -> Result<u8, Failure> {
    let (shows, arguments): (Vec<&OsString>, Vec<&OsString>) =
        arguments.iter().partition(|argument| *argument == "-show" || *argument == "--show");
    let command = command(language, &arguments)?;
    if !shows.is_empty() {
        let mut line = command.join(OsStr::new(" ")).into_vec();
        line.push(b'\n');
        let _ = std::io::stdout().write_all(&line);
        return Ok(0);
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    Err(cannot_call(language, &command[0], &error))
}

/// The sentence for a compiler that could not be called.
pub fn cannot_call(language: Language, compiler: &OsStr, error: &std::io::Error) -> Failure {
    let (name, variable) = (compiler.to_string_lossy(), language.variable());
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

/// The whole command: compiler, include directory, the user's arguments and, when it links, the library.
pub fn command(language: Language, arguments: &[&OsString]) -> Result<Vec<OsString>, Failure> {
    let executable = std::env::current_exe().map_err(|error| {
        Failure::new(format!("cannot tell where hiroba is installed: {}", system_words(&error)))
    })?;
    let home = executable.parent().unwrap_or(Path::new("/"));
    let mut command = language.compiler();
    let prefixed = |prefix: &str, path: &Path| {
        let mut argument = OsString::from(prefix);
        argument.push(path);
        argument
    };
    match include_directory(home) {
        Some(directory) => command.push(prefixed("-I", &directory)),
        // Fortran programs declare what they call themselves.
        None if language == Language::Fortran => {}
        None => return Err(not_found(HEADER, home)),
    }
    command.extend(arguments.iter().map(|argument| (*argument).clone()));
    if links(arguments) {
        let directory = library_directory(home).ok_or_else(|| not_found(LIBRARY, home))?;
        command.push(prefixed("-L", &directory));
        command.push("-lhiroba".into());
        command.push(prefixed("-Wl,-rpath,", &directory));
    }
    Ok(command)
}

fn not_found(file: &str, home: &Path) -> Failure {
    let home = home.display();
    Failure::new(format!(
        "{file} was not found near {home}; in the source tree run 'cargo build --release' first"
    ))
}

/// Where `hiroba.h` is: installed beside `bin`, or in the source tree around the build directory.
fn include_directory(home: &Path) -> Option<PathBuf> {
    let installed = home.parent().map(|prefix| prefix.join("include"));
    let in_tree = home.ancestors().map(|directory| directory.join("crates/capi/include"));
    // With a build directory elsewhere, the tree that the command was built from.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("capi").join("include");
    installed.into_iter().chain(in_tree).chain([source]).find(|directory| directory.join(HEADER).is_file())
}

/// The library that programs are linked with, if it is where this command expects it.
pub fn library_file() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    Some(library_directory(executable.parent()?)?.join(LIBRARY))
}

/// Where `libhiroba.so` is: beside the command, among the build's dependencies, or installed beside `bin`. Cargo
/// refreshes the one beside the command only when the library itself is what it was asked to build: the newest counts.
fn library_directory(home: &Path) -> Option<PathBuf> {
    let lib = home.parent().map(|prefix| prefix.join("lib"));
    let places = [home.join("deps"), home.to_owned()].into_iter().chain(lib);
    let built =
        |directory: &PathBuf| directory.join(LIBRARY).metadata().and_then(|file| file.modified()).ok();
    places.filter(|directory| built(directory).is_some()).max_by_key(built)
}

/// Options whose value is the next argument, so that the value is no input file.
const WITH_VALUE: [&str; 16] = [
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
];

/// Whether the compiler will link: it has an input and nothing stops it before.
fn links(arguments: &[&OsString]) -> bool {
    let stops = |argument: &OsStr| {
        matches!(argument.as_bytes(), b"-c" | b"-S" | b"-E" | b"-M" | b"-MM" | b"-fsyntax-only")
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
        for line in
            ["", "-c a.c", "a.c -S", "-E a.c", "-MM a.c", "--version", "-v", "-o a", "-print-prog-name=ld"]
        {
            assert!(!links_line(line), "{line}");
        }
    }
}
