//! `--debug NODE`: one node under a debugger.
//!
//! The debugger takes the node's place and starts the program itself. It gets the terminal's standard input
//! and its Ctrl-C (the other nodes run in process groups of their own). The launcher judges by processes and
//! their messages, never by their silence, so a program may be stopped in the debugger for any time.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use hiroba_base::NodeId;
use hiroba_wire::control::FaultSourceChoice;

use super::preload::PRELOAD_VARIABLE;
use super::resolve;
use crate::failure::Failure;
use crate::run::options::RunOptions;

/// Names the debugger, perhaps with arguments of its own.
const DEBUGGER_VARIABLE: &str = "HIROBA_DEBUGGER";
/// The debugger if the variable names none.
const DEFAULT_DEBUGGER: &str = "gdb";

/// The debugger of a job.
#[derive(Clone, Debug)]
pub struct Debugger {
    /// The node that runs under it.
    pub node: NodeId,
    path: PathBuf,
    words: Vec<OsString>,
    is_gdb: bool,
}

impl Debugger {
    /// Finds the debugger that the user wants, if any.
    pub fn find(options: &RunOptions) -> Result<Option<Debugger>, Failure> {
        let Some(node) = options.debug else { return Ok(None) };
        let given = std::env::var_os(DEBUGGER_VARIABLE).unwrap_or_default();
        Debugger::parse(NodeId(node), &given).map(Some)
    }

    fn parse(node: NodeId, given: &OsStr) -> Result<Debugger, Failure> {
        let words = given.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
        if words.is_empty() {
            words.push(DEFAULT_DEBUGGER.into());
        }
        let path = resolve::resolve(&words[0]).map_err(|failure| {
            let name = words[0].to_string_lossy();
            let why = if failure.status == crate::failure::STATUS_NOT_FOUND {
                "was not found".to_owned()
            } else {
                "cannot be executed".to_owned()
            };
            Failure::new(format!(
                "the debugger '{name}' {why}; install gdb, or name another one in ${DEBUGGER_VARIABLE}"
            ))
        })?;
        let is_gdb = Path::new(&words[0]).file_name().is_some_and(|name| name.as_bytes().starts_with(b"gdb"));
        Ok(Debugger { node, path, words, is_gdb })
    }

    /// Returns the file to execute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the debugger makes only the program preload libraries, so that its own environment
    /// must not contain them.
    pub fn preloads(&self) -> bool {
        self.is_gdb
    }

    /// Returns the whole command: the debugger, its options, the program and its arguments.
    pub fn command(
        &self,
        program: &Path,
        arguments: &[OsString],
        source: FaultSourceChoice,
        preload: Option<&OsStr>,
    ) -> Vec<OsString> {
        let mut command = self.words.clone();
        if self.is_gdb {
            command.push("-q".into());
            if let Some(signal) = fault_signal(source) {
                // Such a signal is a page fault that the runtime serves, many times a second.
                command.extend(["-ex".into(), format!("handle {signal} nostop noprint pass").into()]);
            }
            if let Some(preload) = preload {
                let mut wrapper = OsString::from(format!("set exec-wrapper env {PRELOAD_VARIABLE}="));
                wrapper.push(quoted(preload));
                command.extend(["-ex".into(), wrapper]);
            }
            command.push("--args".into());
        }
        command.push(program.into());
        command.extend(arguments.iter().cloned());
        command
    }
}

/// Returns the signal that reports faults.
fn fault_signal(source: FaultSourceChoice) -> Option<&'static str> {
    match source {
        FaultSourceChoice::Automatic | FaultSourceChoice::Event => None,
        FaultSourceChoice::Sigbus => Some("SIGBUS"),
        FaultSourceChoice::Sigsegv => Some("SIGSEGV"),
    }
}

/// Quotes a word for the shell that gdb starts the program with.
fn quoted(word: &OsStr) -> OsString {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(given: &str, source: FaultSourceChoice, preload: Option<&str>) -> String {
        // Any executable will do: only its name matters.
        let debugger = Debugger {
            node: NodeId(1),
            path: "/bin/sh".into(),
            words: given.split(' ').map(OsString::from).collect(),
            is_gdb: given.starts_with("gdb"),
        };
        let command = debugger.command(
            Path::new("./a.out"),
            &["-n".into(), "a b".into()],
            source,
            preload.map(OsStr::new),
        );
        command.join(OsStr::new("|")).into_string().expect("plain words")
    }

    #[test]
    fn gdb_lets_faults_pass_and_the_program_preload() {
        assert_eq!(
            line("gdb -tui", FaultSourceChoice::Sigbus, Some("/it's here/libhiroba.so")),
            "gdb|-tui|-q|-ex|handle SIGBUS nostop noprint pass|-ex|\
             set exec-wrapper env LD_PRELOAD='/it'\\''s here/libhiroba.so'|--args|./a.out|-n|a b"
        );
        let with_events = line("gdb", FaultSourceChoice::Event, None);
        assert_eq!(with_events, "gdb|-q|--args|./a.out|-n|a b", "then a SIGSEGV is the program's own");
    }

    #[test]
    fn other_debuggers_get_the_program_behind_their_own_words() {
        let line = line("lldb --", FaultSourceChoice::Sigsegv, Some("x.so"));
        assert_eq!(line, "lldb|--|./a.out|-n|a b");
    }

    #[test]
    fn a_debugger_that_is_not_there_is_named() {
        let missing = Debugger::parse(NodeId(0), OsStr::new(" /no/such/debugger -x "));
        let sentence = missing.expect_err("there is none").sentence;
        assert!(sentence.contains("'/no/such/debugger' was not found; install gdb"), "{sentence}");
        let shell = Debugger::parse(NodeId(0), OsStr::new("/bin/sh")).expect("every system has one");
        assert!(!shell.preloads());
    }
}
