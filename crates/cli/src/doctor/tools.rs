//! Programs that some commands call.

use std::ffi::OsStr;
use std::path::PathBuf;

use rustix::fs::Access;

use super::Finding;

pub(super) fn examine() -> Vec<Finding> {
    [
        ("cc", "CC", "hiroba cc does not compile C programs", "install a C compiler (Debian: gcc libc6-dev)"),
        ("c++", "CXX", "hiroba cxx does not compile C++ programs", "install a C++ compiler (Debian: g++)"),
        ("gfortran", "FC", "hiroba fc does not compile Fortran programs", "install one (Debian: gfortran)"),
        ("gdb", "HIROBA_DEBUGGER", "--debug does not work", "install a debugger (Debian: gdb)"),
        ("ssh", "", "--hosts needs another --launcher", "install a client (Debian: openssh-client)"),
    ]
    .into_iter()
    .map(|(name, variable, lost, remedy)| tool(name, variable, lost, remedy))
    .collect()
}

fn tool(name: &str, variable: &str, lost: &str, remedy: &str) -> Finding {
    let chosen = (!variable.is_empty()).then(|| std::env::var_os(variable)).flatten();
    let wanted = chosen.as_deref().unwrap_or(OsStr::new(name));
    match find(wanted) {
        Some(path) => Finding::good(name, path.display().to_string()),
        None if chosen.is_some() => Finding::lacking(
            name,
            format!("${variable} is {}, which was not found", wanted.to_string_lossy()),
            lost,
            format!("correct ${variable}, or {remedy}"),
        ),
        None => Finding::lacking(name, "not found in PATH", lost, remedy),
    }
}

/// The first word of `command` as an executable file.
fn find(command: &OsStr) -> Option<PathBuf> {
    let text = command.to_str()?;
    let word = text.split_whitespace().next()?;
    let executable = |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    if word.contains('/') {
        return Some(PathBuf::from(word)).filter(executable);
    }
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|directory| directory.join(word)).find(executable)
}
