//! Examines programs that some commands call.

use std::ffi::OsStr;
use std::path::PathBuf;

use rustix::fs::Access;

use super::Finding;
use hiroba_launch::compiler::{self, Language};

pub(super) fn examine() -> Vec<Finding> {
    let compilers = [
        (
            Language::C,
            "hiroba cc does not compile C programs",
            "install a C compiler (Debian: gcc libc6-dev)",
        ),
        (Language::Cxx, "hiroba cxx does not compile C++ programs", "install a C++ compiler (Debian: g++)"),
        (Language::Fortran, "hiroba fc does not compile Fortran programs", "install one (Debian: gfortran)"),
    ];
    let others = [
        ("gdb", "HIROBA_DEBUGGER", "--debug does not work", "install a debugger (Debian: gdb)"),
        ("ssh", "", "--hosts needs another --launcher", "install a client (Debian: openssh-client)"),
    ];
    let compilers = compilers.map(|(language, lost, remedy)| compiler(language, lost, remedy));
    let others = others.map(|(name, variable, lost, remedy)| {
        let chosen = (!variable.is_empty()).then(|| std::env::var_os(variable)).flatten();
        tool(name, chosen.as_deref().map(|value| (variable, value)), lost, remedy)
    });
    compilers.into_iter().chain(others).collect()
}

fn compiler(language: Language, lost: &str, remedy: &str) -> Finding {
    let name = language.default_compiler();
    match compiler::choose(language) {
        Ok(chosen) => {
            let of_user = chosen.variable.map(|variable| (variable, chosen.words[0].as_os_str()));
            tool(name, of_user, lost, remedy)
        }
        Err(failure) => {
            let variable = language.own_variable();
            let remedy = format!("correct ${variable}, or unset it");
            Finding::lacking(name, failure.sentence, lost, remedy)
        }
    }
}

/// Looks for a program, or for the one that the user's variable names instead.
fn tool(name: &str, of_user: Option<(&str, &OsStr)>, lost: &str, remedy: &str) -> Finding {
    let wanted = of_user.map_or(OsStr::new(name), |(_, value)| value);
    match (find(wanted), of_user) {
        (Some(path), _) => Finding::good(name, path.display().to_string()),
        (None, Some((variable, _))) => Finding::lacking(
            name,
            format!("${variable} is {}, which was not found", wanted.to_string_lossy()),
            lost,
            format!("correct ${variable}, or {remedy}"),
        ),
        (None, None) => Finding::lacking(name, "not found in PATH", lost, remedy),
    }
}

/// Returns the executable file that the first word of `command` names.
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
