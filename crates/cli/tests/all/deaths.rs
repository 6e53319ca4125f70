//! What a program printed before a node died arrives, in whole lines, and the death is explained.

use std::path::Path;

use crate::support::{Called, call};

fn run(how: &str) -> Called {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/deaths.c");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program");
    let (from, to) = (source.to_str().expect("a UTF-8 path"), program.to_str().expect("a UTF-8 path"));
    let compiled = call(&["cc", "-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-o", to, from]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    call(&["run", "-n", "3", to, how])
}

/// Every line that was printed before the death, of all three nodes.
#[track_caller]
fn has_all_lines(called: &Called) {
    let mut lines: Vec<&str> = called.stdout.lines().collect();
    lines.sort_unstable();
    let mut expected = vec!["before".to_owned(); 3];
    expected.extend((0..3).flat_map(|node| ["one", "two"].map(|word| format!("node {node} {word}"))));
    assert_eq!(lines, expected, "{called:?}");
}

#[test]
fn a_null_pointer_is_told_with_its_line_and_loses_no_output() {
    let called = run("null");
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
    has_all_lines(&called);
    for part in
        ["node 1: segmentation fault at address 0x0 (a null pointer)", "deaths.c:10 (store)", "--debug 1"]
    {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
}

#[test]
fn a_killed_node_loses_no_output() {
    let called = run("kill");
    assert_eq!(called.status, 128 + libc::SIGKILL, "{called:?}");
    has_all_lines(&called);
}

#[test]
fn exit_on_one_node_is_told_as_exit() {
    let called = run("exit");
    assert_eq!(called.status, 125, "{called:?}");
    has_all_lines(&called);
    let told = "exit (or returned from main)";
    assert!(called.stderr.contains(told) && !called.stderr.contains("hiroba_finalize"), "{called:?}");
}

#[test]
fn long_lines_of_several_nodes_are_not_mixed() {
    let called = run("long");
    assert_eq!(called.status, 0, "{called:?}");
    let long: Vec<&str> = called.stdout.lines().filter(|line| line.len() > 20).collect();
    assert_eq!(long.len(), 150);
    for line in long {
        assert!(line.len() == 30000 && line.bytes().all(|byte| byte == line.as_bytes()[0]), "a mixed line");
    }
}
