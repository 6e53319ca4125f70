//! `hiroba demo`: a newcomer's first run, which leaves nothing behind.

use std::io::{BufRead, BufReader};

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::support::{eventually, finish, hiroba, mark, processes_marked, script, send, start};

#[test]
fn one_node_and_several_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let called =
        finish(start(hiroba(&["demo", "-n", "3"]).env("TMPDIR", directory.path()).env("LC_ALL", "C")));
    assert_eq!(called.status, 0, "{called:?}");
    let says_what_it_does = |line: &str| line.starts_with("hiroba: com") && line.ends_with(" so far");
    assert!(called.stderr.lines().all(says_what_it_does), "{called:?}");
    for part in [
        "$ hiroba cc -O3",
        "$ hiroba run -n 1 ./nbody",
        "$ hiroba run -n 3 ./nbody",
        "times as fast as one",
        "the same energy, to the last digit",
        "\n  node 2 ",
        "# compute",
    ] {
        assert!(called.stdout.contains(part), "expected {part:?}\n{}", called.stdout);
    }
    assert!(called.stdout.is_ascii(), "no other glyphs where the locale has none");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), mark("demo"));
    let child = start(hiroba(&["demo"]).env("TMPDIR", directory.path()).env("HIROBA_TEST_MARK", &mark));
    // The demo, the launcher's two processes, the node.
    eventually("the program runs", || processes_marked(&mark) >= 4);
    send(&child, libc::SIGTERM);
    let called = finish(child);
    assert_ne!(called.status, 0, "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_long_silence_is_broken_by_what_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    mkfifoat(CWD, &gate, Mode::RUSR | Mode::WUSR).unwrap();
    // The compiler waits until the test has read what the demo says meanwhile.
    let compiler = script(directory.path(), "compiler", &format!("read word <'{}'; exit 7", gate.display()));
    let temporary = tempfile::tempdir().unwrap();
    let mut command = hiroba(&["demo"]);
    command.env("TMPDIR", temporary.path()).env("HIROBA_CC", compiler);
    let mut child = start(&mut command);
    let mut word = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut word).unwrap();
    assert!(word.starts_with("hiroba: compiling, for "), "{word:?}");
    std::fs::write(&gate, "go on\n").unwrap();
    assert_eq!(finish(child).status, 7);
}

#[test]
fn a_missing_compiler_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let called =
        finish(start(hiroba(&["demo"]).env("TMPDIR", directory.path()).env("CC", "no-such-compiler")));
    assert_eq!(called.status, 127);
    assert!(called.stderr.contains("'no-such-compiler' was not found; install"), "{called:?}");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}
