//! Mistakes of programs that are caught: waits that can never end, data races.

mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use support::{Called, call, finish, hiroba, start};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs")
        .join(name)
        .canonicalize()
        .expect("a program")
}

/// Compiled programs, with debug information, for the life of the test process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY
        .get_or_init(|| {
            let directory = tempfile::tempdir().expect("a temporary directory");
            for name in ["deadlock", "race"] {
                let (from, to) = (source(&format!("{name}.c")), directory.path().join(name));
                let (from, to) = (from.to_str().expect("a UTF-8 path"), to.to_str().expect("a UTF-8 path"));
                let flags = ["-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"];
                let mut line = vec!["cc"];
                line.extend(flags);
                line.extend(["-o", to, from]);
                let compiled = call(&line);
                assert_eq!(compiled.status, 0, "{compiled:?}");
            }
            directory
        })
        .path()
}

/// Where the program says `HERE: what`, as `file.c:line`.
fn here(name: &str, what: &str) -> String {
    let text = std::fs::read_to_string(source(name)).expect("a readable source");
    let marker = format!("HERE: {what} */");
    let line = text.lines().position(|line| line.contains(&marker)).expect("a marked line") + 1;
    format!("{name}:{line} ")
}

fn run(flags: &[&str], program: &str, how: &str) -> Called {
    let program = workshop().join(program);
    let mut line = vec!["run"];
    line.extend(flags);
    line.extend([program.to_str().expect("a UTF-8 path"), how]);
    finish(start(&mut hiroba(&line)))
}

/// The report's first line and, for each node, where it waits.
#[track_caller]
fn reports(called: &Called, waits: &[(&str, &str)]) {
    assert_eq!(called.status, 125, "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert!(lines[0].starts_with("hiroba: nobody can go on: every thread"), "{called:?}");
    assert_eq!(lines.len(), 1 + waits.len(), "{called:?}");
    for ((start, place), line) in waits.iter().zip(&lines[1..]) {
        assert!(
            line.trim_start().starts_with(start) && line.contains(place),
            "expected {start:?} {place:?}: {called:?}"
        );
    }
}

#[test]
fn two_locks_taken_crosswise() {
    let place = here("deadlock.c", "crossed");
    for flags in [["-n", "2", "--fault-source", "sigsegv"], ["-n", "2", "--write-tracking", "fault"]] {
        let called = run(&flags, "deadlock", "crossed");
        reports(
            &called,
            &[
                ("node 0 thread 0: hiroba_lock(2) at ", &place),
                ("node 1 thread 0: hiroba_lock(1) at ", &place),
            ],
        );
        assert!(called.stderr.contains("(crossed), held by node 1 thread 0"), "{called:?}");
        assert!(called.stderr.contains("(crossed), held by node 0 thread 0"), "{called:?}");
    }
}

#[test]
fn a_lock_held_across_a_barrier() {
    let (barrier, wanted) = (here("deadlock.c", "barrier"), here("deadlock.c", "wanted"));
    let called = run(&["-n", "3"], "deadlock", "lock-across-barrier");
    reports(
        &called,
        &[
            ("node 0 thread 0: hiroba_barrier() at ", &barrier),
            ("node 1 thread 0: hiroba_lock(5) at ", &wanted),
            ("node 2 thread 0: hiroba_lock(5) at ", &wanted),
        ],
    );
    assert!(called.stderr.contains(", held by node 0 thread 0"), "{called:?}");
}

#[test]
fn a_condition_that_nobody_signals() {
    let place = here("deadlock.c", "unsignalled");
    let wait = |node: &'static str| (node, place.as_str());
    let two =
        [wait("node 0 thread 0: hiroba_cond_wait(2, 1)"), wait("node 1 thread 0: hiroba_cond_wait(2, 1)")];
    reports(&run(&["-n", "2"], "deadlock", "unsignalled"), &two);
    let alone = [wait("thread 0: hiroba_cond_wait(2, 1)")];
    reports(&run(&["-n", "1"], "deadlock", "unsignalled"), &alone);
}

#[test]
fn threads_of_a_node_that_wait_for_each_other() {
    let called = run(&["-n", "2", "-t", "2"], "deadlock", "threads");
    assert_eq!(called.status, 125, "{called:?}");
    assert!(called.stderr.contains(&here("deadlock.c", "threads")), "{called:?}");
    assert_eq!(called.stderr.lines().filter(|line| line.contains("hiroba_lock(9)")).count(), 3, "{called:?}");
}

#[test]
fn a_node_that_leaves_while_others_wait_for_it() {
    let called = run(&["-n", "3"], "deadlock", "one-short");
    assert_eq!(called.status, 125, "{called:?}");
    assert!(called.stderr.contains("hiroba_barrier"), "{called:?}");
}

#[test]
fn who_takes_long_is_waited_for() {
    for nodes in ["1", "3"] {
        let called = run(&["-n", nodes], "deadlock", "slow");
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{called:?}");
    }
}

#[test]
fn nodes_that_write_the_same_word_are_told_of() {
    let called = run(&["-n", "2", "--races"], "race", "race");
    assert_eq!(called.status, 0, "a race does not change the status: {called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{called:?}");
    assert!(lines[0].starts_with("hiroba: data race: nodes 0 and 1 both wrote "), "{called:?}");
    for (node, line) in lines[1..3].iter().enumerate() {
        assert!(line.starts_with(&format!("  node {node}: ")), "{called:?}");
        assert!(line.contains(&here("race.c", "end")), "where the interval ended: {called:?}");
    }
    assert_eq!(lines[3], "hiroba: 1 data race found");
}

#[test]
fn the_store_is_named_where_a_fault_told_of_it() {
    let flags = ["-n", "2", "--races", "--write-tracking", "fault", "--fault-source", "sigsegv"];
    let called = run(&flags, "race", "race");
    assert!(called.stderr.contains(&here("race.c", "store")), "{called:?}");
}

#[test]
fn locks_that_are_not_the_same_do_not_order() {
    let called = run(&["-n", "2", "--races"], "race", "two-locks");
    assert_eq!(called.status, 0, "{called:?}");
    assert!(
        called.stderr.contains("data race: nodes 0 and 1") && !called.stderr.contains("no data races"),
        "{called:?}"
    );
}

#[test]
fn programs_in_good_order_have_no_races() {
    for flags in [&["-n", "4", "--races"][..], &["-n", "3", "--races", "--write-tracking", "fault"]] {
        let called = run(flags, "race", "in-order");
        assert_eq!(
            (called.status, called.stderr.as_str()),
            (0, "hiroba: no data races between nodes found\n"),
            "{called:?}"
        );
    }
    let called = run(&["-n", "2"], "race", "race");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "nobody asked: {called:?}");
}
