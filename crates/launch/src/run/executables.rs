//! Executables that were not built for Hiroba (`--pthread`, and those of OpenMP): examines them, and refuses
//! those that cannot run so.
//!
//! Everything that would give wrong results is refused here, before `main`, with the reason.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::executable::Executable;
use super::loaded::Loaded;
use super::openmp;
use super::resolve;
use super::small_library::SmallLibrary;
use super::tls_filler;
use crate::compiler;
use crate::failure::Failure;
use crate::run::options::RunOptions;

/// Tells nodes, and the agents that start them, that the program is such an executable.
const PTHREAD_VARIABLE: &str = "HIROBA_PTHREAD";
/// Tells nodes, and the agents that start them, whether the job has one node, so that nothing must be shared.
const SINGLE_VARIABLE: &str = "HIROBA_SINGLE";
/// The variable by which the user has a job of one node share its memory as larger jobs do.
const ONE_NODE_VARIABLE: &str = "HIROBA_ONE_NODE";
/// Tells a node how many processors it has for the program.
const THREADS_VARIABLE: &str = "HIROBA_THREADS_PER_NODE";

/// Tells nodes, and the agents that start them, that it is one of OpenMP, and for which library.
const OPENMP_VARIABLE: &str = "HIROBA_OPENMP";
/// Tells nodes the names of LLVM's library by which the program needs it.
pub const NAMES_VARIABLE: &str = "HIROBA_OPENMP_NAMES";
/// Tells the OpenMP library that the program has tasks.
const TASKS_VARIABLE: &str = "HIROBA_OPENMP_TASKS";

/// Returns true for variables that [`prepare`] sets. A launcher that a program of another job has started
/// inherits that job's, which mean nothing for its own nodes.
pub fn is_set_for_job(name: &OsStr) -> bool {
    let set = [
        PTHREAD_VARIABLE,
        SINGLE_VARIABLE,
        THREADS_VARIABLE,
        OPENMP_VARIABLE,
        NAMES_VARIABLE,
        TASKS_VARIABLE,
    ];
    set.iter().any(|variable| name == *variable)
}

/// Returns the options of a job whose program was not built for Hiroba as its nodes need them, if the program
/// can run so.
pub fn prepare(options: &RunOptions) -> Result<Option<RunOptions>, Failure> {
    if !options.pthread {
        return Ok(None);
    }
    let path = resolve::resolve(&options.program)?;
    let name = options.program.to_string_lossy();
    let what = if options.openmp { "the OpenMP program" } else { "--pthread cannot run" };
    let refuse = |why: &str| match options.openmp {
        true => Failure::new(format!("{what} {name} cannot be run on several nodes: {why}")),
        false => Failure::new(format!("{what} {name}: {why}")),
    };
    let program = Loaded::read(&path, &options.variables).map_err(|why| refuse(&why))?;
    if let Some(why) = program.executable.why_not() {
        return Err(refuse(&why));
    }
    program.with_thread_locals().map_err(|why| refuse(&why))?;
    let mut options = options.clone();
    let single = is_single(&options);
    let mut own = vec![
        (PTHREAD_VARIABLE, "1".to_owned()),
        (SINGLE_VARIABLE, u8::from(single).to_string()),
        (THREADS_VARIABLE, options.threads_per_node.to_string()),
    ];
    if !single {
        // Symbols that the loader resolved later would be written into the data of one node.
        own.push(("LD_BIND_NOW", "1".to_owned()));
    }
    if options.openmp {
        let provided = provided();
        if provided.is_empty() {
            let library = compiler::OPENMP_LIBRARY;
            return Err(refuse(&format!(
                "expected {library} beside libhiroba.so, found none; build or install Hiroba anew"
            )));
        }
        let library = program.library().map_err(|why| refuse(&why))?;
        let mut missing: Vec<&str> = program.parts().flat_map(|part| part.missing(&provided)).collect();
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            return Err(refuse(&openmp::sentence_of_missing(&missing)));
        }
        openmp::check_threads(&options)?;
        let has_tasks =
            program.parts().any(|part| openmp::TASKS.iter().any(|prefix| part.imports_any(prefix)));
        own.push((OPENMP_VARIABLE, library.name().to_owned()));
        own.push((NAMES_VARIABLE, program.names_of_llvm().collect::<Vec<_>>().join(":")));
        own.push((TASKS_VARIABLE, u8::from(has_tasks).to_string()));
    }
    let own = own.into_iter().map(|(variable, value)| (OsString::from(variable), OsString::from(value)));
    options.variables.extend(own);
    Ok(Some(options))
}

/// Returns true if the job has one node, and nobody wants to know what such a job shares: the program's
/// memory and threads are then the C library's. OpenMP's library is always Hiroba's.
fn is_single(options: &RunOptions) -> bool {
    let wants_shared = || {
        let set = options.variables.iter().rev().find(|(variable, _)| variable == ONE_NODE_VARIABLE);
        let value = set.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(ONE_NODE_VARIABLE));
        value.is_some_and(|value| value == "shared")
    };
    let nodes = if options.hosts.is_some() { options.nodes_asked } else { Some(options.nodes) };
    nodes == Some(1) && !options.openmp && options.reports.trace.is_none() && !wants_shared()
}

/// The libraries that nodes load before all others, by what their environment says.
pub fn preloaded(value: impl Fn(&str) -> Option<OsString>) -> Vec<&'static str> {
    let mut libraries = Vec::new();
    if value(OPENMP_VARIABLE).is_some() {
        libraries.push(compiler::OPENMP_LIBRARY);
    }
    if value(PTHREAD_VARIABLE).is_some() {
        let single = value(SINGLE_VARIABLE).is_some_and(|value| value == "1");
        libraries.push(if single { compiler::SINGLE_LIBRARY } else { compiler::PTHREAD_LIBRARY });
    }
    libraries
}

/// Returns true if the program, or a library that it loads, calls OpenMP's library. Libraries count with
/// `--pthread` only.
pub fn loads_openmp(program: &OsStr, variables: &[(OsString, OsString)]) -> bool {
    let read = |path: std::path::PathBuf| Loaded::read(&path, variables).ok();
    resolve::resolve(program).ok().and_then(read).is_some_and(|it| it.is_openmp())
}

/// Whether the program was built for OpenMP's library, GNU's or LLVM's, and knows nothing of Hiroba.
pub fn is_openmp(program: &OsStr) -> bool {
    let read = |path: std::path::PathBuf| Executable::read(&path).ok();
    resolve::resolve(program).ok().and_then(read).is_some_and(|it| it.is_openmp())
}

/// Returns true if the program creates threads and does not use Hiroba, so that `--pthread` might be meant.
pub fn has_own_threads(program: &OsStr) -> bool {
    let read = |path: std::path::PathBuf| Executable::read(&path).ok();
    let executable = resolve::resolve(program).ok().and_then(read);
    executable.is_some_and(|it| it.imports("pthread_create") && !it.imports_any("hiroba_"))
}

/// What the loader of an executable must load before all other libraries.
#[derive(Debug, Default)]
pub struct First {
    /// The program's libraries, if their thread-local variables are shared.
    pub of_program: Vec<PathBuf>,
    /// Libraries without code: those that fill up thread-local storage, and those that have the names of
    /// LLVM's OpenMP library, as [`NAMES_VARIABLE`] lists them.
    pub small: Vec<SmallLibrary>,
}

/// Returns what the loader of an executable must load first. An executable that cannot be read has no
/// libraries.
pub fn loaded_first(
    path: &Path,
    names: Option<&OsStr>,
    variables: &[(OsString, OsString)],
) -> io::Result<First> {
    let program = Loaded::read(path, variables).unwrap_or_default();
    let libraries = program.with_thread_locals().unwrap_or_default();
    let all = std::iter::once(program.executable.thread_locals)
        .chain(libraries.iter().map(|(_, thread_locals)| *thread_locals));
    let mut small = tls_filler::fillers(all)?;
    let names = names.unwrap_or_default().to_string_lossy();
    for name in names.split(':').filter(|name| openmp::is_of_llvm(name)) {
        small.push(openmp::named(name)?);
    }
    let of_program = libraries.iter().map(|(path, _)| path.to_path_buf()).collect();
    Ok(First { of_program, small })
}

/// The functions of the library that stands in for GNU's and LLVM's.
fn provided() -> Vec<String> {
    let path = compiler::library_file().map(|library| library.with_file_name(compiler::OPENMP_LIBRARY));
    let library = path.and_then(|path| Executable::read(&path).ok());
    library.map_or_else(Vec::new, |library| library.exported)
}
