//! Runs tests that change limits, users or signal handlers, or that must die, each in a process of its own.
pub mod pager;

use std::{
    env,
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How a test's process must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Success,
    Signal(i32),
}

/// Set in the process that runs a test's body.
const INSIDE: &str = "HIROBA_TEST_INSIDE";
/// Printed just before the access that must kill: a death before it is a failure.
pub const LAST_WORDS: &str = "last words";
/// Far longer than any test's body takes.
const PATIENCE: Duration = Duration::from_secs(100);
const SKIPPED_STATUS: i32 = 77;

/// Runs `body` in a process of its own. `test` is the test's path, beginning with the name of its program.
pub fn isolated(test: &str, ending: Ending, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        body();
        return;
    }
    let (_, test) = test.split_once("::").expect("a path");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let out = thread::spawn(move || read_all(&mut out));
    let err = thread::spawn(move || read_all(&mut err));
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            let _ = child.wait();
            panic!("{test} hung\n{}\n{}", out.join().unwrap(), err.join().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    if status.code() == Some(SKIPPED_STATUS) {
        // Not eprintln, whose output the test harness discards when the test passes.
        let _ = std::io::stderr().write_all(format!("\nSKIPPED {test}: {}\n", err.trim()).as_bytes());
        return;
    }
    assert!(ended_as(status, ending, &out), "{test} ended with {status}, expected {ending:?}\n{out}\n{err}");
}

fn ended_as(status: ExitStatus, ending: Ending, out: &str) -> bool {
    match ending {
        // A filter that matches nothing succeeds too.
        Ending::Success => status.success() && out.contains("1 passed"),
        Ending::Signal(signal) => status.signal() == Some(signal) && out.contains(LAST_WORDS),
    }
}

fn read_all(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ends the test's process as skipped: this kernel or user does not support what is tested.
pub fn skip(reason: &str) -> ! {
    let _ = std::io::stderr().write_all(reason.as_bytes());
    std::process::exit(SKIPPED_STATUS)
}
