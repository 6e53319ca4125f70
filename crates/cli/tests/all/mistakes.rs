//! Errors of programs that are caught: deadlocks, data races, accesses to unallocated memory, calls that a
//! correct program does not make.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::{Called, call, finish, hiroba, start};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs")
        .join(name)
        .canonicalize()
        .expect("a program")
}

/// Returns a directory of compiled programs, with debug information, which exists as long as the test
/// process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY
        .get_or_init(|| {
            let directory = tempfile::tempdir().expect("a temporary directory");
            for name in ["bounds", "deadlock", "misuse", "race"] {
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

/// Returns where the program says `HERE: what`, as `file.c:line`.
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

/// Asserts the report's first line and, for each node, where it waits.
#[track_caller]
fn reports(called: &Called, waits: &[(&str, &str)]) {
    assert_eq!(called.status, 125, "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert!(lines[0].starts_with("hiroba: deadlock: every thread"), "{called:?}");
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
    assert_eq!(lines.len(), 6, "{called:?}");
    assert!(lines[0].starts_with("hiroba: data race: nodes 0 and 1 both wrote "), "{called:?}");
    for (node, line) in lines[1..3].iter().enumerate() {
        assert!(line.starts_with(&format!("  node {node}: ")), "{called:?}");
        assert!(line.contains(&here("race.c", "end")), "where the interval ended: {called:?}");
    }
    assert_eq!(lines[3], "hiroba: 1 data race found");
    says_what_was_looked_at(&lines[4..], &called);
}

/// Asserts that the summary says what it rests on, and what was not searched.
#[track_caller]
fn says_what_was_looked_at(lines: &[&str], called: &Called) {
    let [looked, not_looked] = lines else { panic!("expected two lines: {called:?}") };
    assert!(looked.starts_with("  searched: what stores changed, byte by byte ("), "{called:?}");
    assert!(not_looked.starts_with("  not searched: other loads, "), "{called:?}");
}

/// The load and the byte are named: the fault gives both, from every source.
#[test]
fn a_node_that_reads_what_another_writes_is_told_of() {
    for source in SOURCES.into_iter().filter(|source| has(source)) {
        let called = run(&["-n", "2", "--races", "--fault-source", source], "race", "read");
        assert_eq!(called.status, 0, "{source}: {called:?}");
        let lines: Vec<&str> = called.stderr.lines().collect();
        assert_eq!(lines.len(), 6, "{source}: {called:?}");
        assert!(
            lines[0].starts_with("hiroba: data race: node 1 read the byte at ")
                && lines[0].ends_with("that node 0 wrote without synchronisation"),
            "{source}: {called:?}"
        );
        let load = here("race.c", "load");
        assert!(lines[2].starts_with("  node 1: load ") && lines[2].contains(&load), "{source}: {called:?}");
    }
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
        let lines: Vec<&str> = called.stderr.lines().collect();
        let none = "hiroba: no data races between nodes found in what was searched";
        assert_eq!((called.status, lines.first().copied()), (0, Some(none)), "{called:?}");
        says_what_was_looked_at(&lines[1..], &called);
    }
    let called = run(&["-n", "2"], "race", "race");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "nobody asked: {called:?}");
}

const SOURCES: [&str; 3] = ["event", "sigbus", "sigsegv"];

/// Returns true if the machine and this user have the fault source; prints a message otherwise.
fn has(source: &str) -> bool {
    let called = run(&["-n", "2", "--fault-source", source], "race", "in-order");
    if called.status != 0 {
        eprintln!("{source} is not tested: {}", called.stderr);
    }
    called.status == 0
}

/// Asserts that the program's access to an address ends the job by SIGSEGV, after two lines: one that names
/// node, address and `place`, and the launcher's.
#[track_caller]
fn dies(flags: &[&str], how: &str, node: usize, place: &str) {
    let called = run(flags, "bounds", how);
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{flags:?} {how}: {called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{flags:?} {how}: {called:?}");
    let touched = called.stdout.lines().next().expect("the program printed the address");
    // A program that walks prints where it begins.
    let address = if how == "walk" { "0x" } else { touched };
    let said = format!("hiroba: node {node}: segmentation fault at shared address {address}");
    assert!(lines[0].starts_with(&said) && lines[0].contains(place), "expected {said}… {place}: {called:?}");
    assert!(
        lines[1].contains(&format!("node {node} ")) && lines[1].contains("killed by signal 11 (SIGSEGV)"),
        "{called:?}"
    );
}

#[test]
fn a_touch_beyond_a_region_is_named() {
    let region =
        "past the end of the region of 5000 bytes that collective allocation 1 gave at 0x400000000000";
    let wild = "past the end of the region of 1 bytes that collective allocation 2 gave";
    let touches = [
        ("load", region),
        ("store", region),
        ("walk", region),
        ("thread", region),
        ("run", region),
        ("large", wild),
        ("wild", wild),
    ];
    for source in SOURCES.into_iter().filter(|source| has(source)) {
        for (how, place) in touches {
            dies(&["-n", "2", "-t", "2", "--fault-source", source], how, 1, place);
        }
    }
    for (how, place) in touches {
        dies(&["-n", "1", "-t", "2"], how, 0, place);
    }
}

#[test]
fn a_touch_after_the_end_is_named() {
    let gone = "shared memory is gone after hiroba_finalize";
    for how in ["after-finalize", "block-after-finalize"] {
        for source in SOURCES.into_iter().filter(|source| has(source)) {
            dies(&["-n", "3", "--fault-source", source], how, 2, gone);
        }
        dies(&["-n", "1"], how, 0, gone);
    }
}

#[test]
fn other_bad_pointers_are_not_taken_for_shared_ones() {
    for source in SOURCES.into_iter().filter(|source| has(source)) {
        is_told_as_private(&run(&["-n", "2", "--fault-source", source], "bounds", "private"));
    }
    is_told_as_private(&run(&["-n", "1"], "bounds", "private"));
}

/// Asserts that the address is named, and not as one of shared memory.
#[track_caller]
fn is_told_as_private(called: &Called) {
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
    let told =
        called.stderr.contains("segmentation fault at address 0x") && called.stderr.contains("bounds.c:");
    assert!(told && !called.stderr.contains("shared address"), "{called:?}");
    assert_eq!(called.stderr.lines().count(), 2, "{called:?}");
}

/// Errors: the name, threads per node that it needs, the node that makes it on 3 nodes (0 or 2), and the
/// message.
const MISUSES: &[(&str, &str, usize, &str)] = &[
    ("unlock-unheld", "1", 2, "hiroba_unlock: lock 17 is not held by this thread"),
    ("unlock-anothers", "1", 2, "hiroba_unlock: lock 17 is not held by this thread"),
    ("unlock-siblings", "1", 2, "hiroba_unlock: lock 17 is not held by this thread"),
    ("lock-twice", "1", 2, "hiroba_lock: lock 17 is already held by this thread"),
    ("wait-without-lock", "1", 2, "hiroba_cond_wait: lock 17 is not held by this thread"),
    ("finalize-with-lock", "1", 2, "hiroba_finalize: lock 17 is still held by a thread of this node"),
    ("free-twice", "1", 0, "hiroba_free: block of 40 bytes at 0x480000000000 was already freed on node 0"),
    (
        "free-twice-remotely",
        "1",
        0,
        "hiroba_free on node 2: block of 40 bytes at 0x480000000000 was already freed on node 2",
    ),
    (
        "free-after-anothers",
        "1",
        0,
        "hiroba_free: block of 40 bytes at 0x480000000000 was already freed on node 2",
    ),
    ("free-inside", "1", 0, "0x480000000010, which is 16 bytes into the block of 40 bytes at 0x480000000000"),
    ("free-region", "1", 2, "expected the address of a live block from hiroba_malloc"),
    ("free-private", "1", 2, "expected the address of a live block from hiroba_malloc"),
    (
        "realloc-freed",
        "1",
        0,
        "hiroba_realloc: block of 40 bytes at 0x480000000000 was already freed on node 0",
    ),
    ("atomic-unaligned", "1", 2, "hiroba_fetch_add: expected the address of an 8-byte-aligned word"),
    ("atomic-private", "1", 2, "hiroba_store: expected the address of an 8-byte-aligned word"),
    ("two-threads", "1", 2, "hiroba_barrier: another thread of this node waits in hiroba_barrier already"),
];

#[test]
fn misuse_is_named_with_who_made_it() {
    for (how, threads, node, phrase) in MISUSES {
        let called = run(&["-n", "3", "-t", threads], "misuse", how);
        called.says(125, phrase);
        assert!(called.stderr.starts_with(&format!("hiroba: node {node}: ")), "{how}: {called:?}");
    }
    // An error that does not involve another node or a second thread also occurs in a job of one node.
    let alone = |how: &&str| {
        !matches!(*how, "unlock-anothers" | "free-twice-remotely" | "free-after-anothers" | "two-threads")
    };
    for (how, _, _, phrase) in MISUSES.iter().filter(|(how, ..)| alone(how)) {
        let phrase = phrase.replace("on node 2", "on node 0");
        run(&["-n", "1"], "misuse", how).says(125, &phrase);
    }
    let nothing = run(&["-n", "3", "-t", "2"], "misuse", "nothing");
    assert_eq!(
        (nothing.status, nothing.stderr.as_str()),
        (3, ""),
        "without a mistake there is none: {nothing:?}"
    );
}

#[test]
fn collectives_that_differ_between_nodes_are_named() {
    // The message blames the node that comes last, so the order of the words is open.
    let mistakes: [(&str, &[&str]); 3] = [
        (
            "return-early",
            &["node 2 ended its program (by exit, or by returning from main)", "hiroba_barrier"],
        ),
        ("sizes-differ", &["called hiroba_alloc of 10", "waits in hiroba_alloc of 10"]),
        ("barrier-or-alloc", &["node 2", "hiroba_alloc of 100 bytes", "hiroba_barrier"]),
    ];
    for (how, words) in mistakes {
        let called = run(&["-n", "3"], "misuse", how);
        for word in words {
            called.says(125, word);
        }
        called.says(125, "every node must make the same collective calls in the same order");
    }
}

#[test]
fn collectives_that_differ_between_threads_are_named() {
    for (how, calls) in [
        ("run-differs", ["hiroba_barrier", "hiroba_alloc of 100 bytes"]),
        ("run-ends-early", ["hiroba_barrier", "the end of hiroba_run's function"]),
        ("run-sizes-differ", ["hiroba_alloc of 10", "bytes placed block"]),
    ] {
        for nodes in ["1", "2"] {
            let called = run(&["-n", nodes, "-t", "2"], "misuse", how);
            for word in calls {
                called.says(125, word);
            }
            called.says(
                125,
                "inside hiroba_run every thread must make the same collective calls in the same order",
            );
        }
    }
}

#[test]
fn calls_outside_the_job_are_named() {
    let early = run(&["-n", "1"], "misuse", "before-init");
    assert_eq!(early.status, 125, "{early:?}");
    let outside = "expected a call between hiroba_init and hiroba_finalize, got one outside";
    assert!(early.stderr.starts_with(&format!("hiroba: hiroba_lock: {outside}")), "{early:?}");
    for nodes in ["1", "3"] {
        let late = run(&["-n", nodes], "misuse", "after-finalize");
        assert_eq!(late.status, 125, "{late:?}");
        assert!(late.stderr.starts_with(&format!("hiroba: hiroba_barrier: {outside}")), "{late:?}");
    }
}
