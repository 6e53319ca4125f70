//! Calls the command as a user would, within time limits.

pub mod control_group;
pub mod forms;
pub mod sample;
pub mod terminal;

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time limit of a call; only a hanging one takes as long, even if other work takes most of the
/// processors.
const CALL_LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The result of a call.
#[derive(Debug)]
pub struct Called {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Called {
    /// Asserts the exit status, that standard error is one sentence of Hiroba with `phrase`, and that
    /// standard output is empty.
    #[track_caller]
    pub fn says(&self, status: i32, phrase: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(
            self.stderr.starts_with("hiroba: ") && self.stderr.contains(phrase),
            "expected {phrase:?}: {self:?}"
        );
        assert_eq!(self.stdout, "", "{self:?}");
    }
}

/// Returns the command with arguments; standard input is empty.
pub fn hiroba(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hiroba"));
    command.args(arguments).stdin(Stdio::null()).env_remove("HIROBA_CONTROL_FD");
    heed_the_keyboard(&mut command);
    command
}

/// Returns a shell that runs `script` with the command as `$H`.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("H", env!("CARGO_BIN_EXE_hiroba")).stdin(Stdio::null());
    heed_the_keyboard(&mut command);
    command
}

/// Restores the handling of Ctrl-C, Ctrl-\ and hangups of a user's foreground, even if these tests run in a
/// shell's background, which ignores the first two, or under `nohup`.
fn heed_the_keyboard(command: &mut Command) {
    let heed = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: a system call that removes a handler, of which this child has none.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: system calls only, which are allowed between fork and exec.
    unsafe { command.pre_exec(heed) };
}

/// Starts `command` with piped output.
pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

/// Waits for a child that was started, and kills it if it hangs.
#[track_caller]
pub fn finish(mut child: Child) -> Called {
    let mut streams = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let out = std::thread::spawn(move || text(&mut streams.0));
    let error = std::thread::spawn(move || text(&mut streams.1));
    let limit = Instant::now() + CALL_LIMIT;
    let status = loop {
        match child.try_wait().expect("the child is ours") {
            Some(status) => break status,
            None if Instant::now() > limit => {
                let _ = child.kill();
                panic!("the command hangs");
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    Called {
        status: status.code().unwrap_or(-1),
        stdout: out.join().expect("reads"),
        stderr: error.join().expect("reads"),
    }
}

fn text(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs `hiroba` with `arguments`.
#[track_caller]
pub fn call(arguments: &[&str]) -> Called {
    finish(start(&mut hiroba(arguments)))
}

/// Waits until `holds` returns true.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + CALL_LIMIT;
    while !holds() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Calls a function for each item, as many at once as there are processors.
pub fn side_by_side<T: Send>(items: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    let queue = Mutex::new(items.into_iter().collect::<VecDeque<T>>());
    let next = || queue.lock().expect("nobody panics with it").pop_front();
    let work = || {
        while let Some(item) = next() {
            each(item);
        }
    };
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    // A scope panics if one of its threads does.
    std::thread::scope(|scope| (0..at_once).for_each(|_| _ = scope.spawn(work)));
}

/// Counts processes whose command line or environment contains `mark`, except zombies, which have neither.
pub fn processes_marked(mark: &str) -> usize {
    let holds = |file: &Path| {
        std::fs::read(file).is_ok_and(|bytes| bytes.windows(mark.len()).any(|part| part == mark.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries
        .filter(|entry| holds(&entry.path().join("cmdline")) || holds(&entry.path().join("environ")))
        .count()
}

/// Returns a word that marks the processes of one test.
pub fn mark(test: &str) -> String {
    format!("hiroba-test-{test}-{}", std::process::id())
}

/// Sends a signal to a child that has not been waited for.
pub fn send(child: &Child, signal: i32) {
    // SAFETY: kill touches no memory; the child is not waited for yet, so the pid is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Compiles a program of `tests/programs`, which exists as long as the directory.
pub fn compiled(source: &str) -> (tempfile::TempDir, PathBuf) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(source);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program");
    let mut command = hiroba(&["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    let called = finish(start(command.arg(&program).arg(&source)));
    assert_eq!(called.status, 0, "{called:?}");
    (directory, program)
}

/// Writes an executable shell script into a directory, and returns its path. A separate process writes it: if
/// this one had the file open for writing, so would any process that another test starts in that moment, and
/// the script could not be run meanwhile.
pub fn script(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name).to_str().expect("a UTF-8 path").to_owned();
    let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let called = finish(start(shell(write).args(["sh", &path, text])));
    assert_eq!(called.status, 0, "{called:?}");
    path
}

/// Returns the processes with `mark` in their environment or command line, by their numbers, with their
/// command lines.
pub fn marked(mark: &str) -> Vec<(i32, String)> {
    let holds = |file: &Path| {
        std::fs::read(file).is_ok_and(|bytes| bytes.windows(mark.len()).any(|part| part == mark.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let marked = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let path = entry.path();
        let ours = holds(&path.join("cmdline")) || holds(&path.join("environ"));
        let line = std::fs::read(path.join("cmdline")).ok().filter(|_| ours)?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    marked.collect()
}

/// Sends a signal to a process that may be gone.
pub fn send_to(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory; the caller has just seen the process among its own.
    unsafe { libc::kill(pid, signal) };
}

/// Reads a child's standard output up to the end of its first line.
pub fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0u8; 1];
    let stream = child.stdout.as_mut().expect("piped");
    while stream.read(&mut byte).expect("reads") == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).into_owned()
}
