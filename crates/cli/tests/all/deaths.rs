//! Output that a program printed before a node died arrives, in whole lines, and the death is explained.

use std::path::Path;

use crate::support::{Called, call, finish, hiroba, start};

fn run(how: &str) -> Called {
    run_with(&[], how)
}

fn run_with(flags: &[&str], how: &str) -> Called {
    let (_directory, program) = compile();
    call(&[&["run", "-n", "3"], flags, &[&program, how]].concat())
}

/// Returns the program of these deaths, with debug information, which exists as long as the directory.
pub(crate) fn compile() -> (tempfile::TempDir, String) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/deaths.c");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program").to_str().expect("a UTF-8 path").to_owned();
    let source = source.to_str().expect("a UTF-8 path");
    let compiled = call(&["cc", "-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-o", &program, source]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    (directory, program)
}

/// Asserts that every line that was printed before the death arrived, of all three nodes.
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
        ["node 1: segmentation fault at address 0x0 (a null pointer)", "deaths.c:10 (store);", "--debug 1"]
    {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
}

#[test]
fn a_death_inside_the_c_library_is_told_with_the_line_that_called_it() {
    let called = run("library");
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
    has_all_lines(&called);
    for part in [" by ", "libc", ", called from ", "deaths.c:15 (measure);"] {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
}

/// The message names what killed the node, not what the search for its callers met.
#[test]
fn a_broken_stack_hides_no_death() {
    let called = run("lost");
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
    has_all_lines(&called);
    assert_eq!(called.stderr.matches("segmentation fault").count(), 1, "{called:?}");
    for part in ["segmentation fault at address 0x0 (a null pointer)", " by ", "libc"] {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
    let way_back = called.stderr.contains(", called from ");
    assert_eq!(way_back, !cfg!(target_arch = "x86_64"), "elsewhere the stack is whole: {called:?}");
}

#[test]
fn half_a_line_is_not_lost_either() {
    let called = run("half");
    assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
    assert_eq!(called.stdout.matches("half a line").count(), 1, "{called:?}");
    assert!(called.stderr.contains("deaths.c:10 (store);"), "{called:?}");
}

#[test]
fn what_was_printed_before_joining_is_not_lost() {
    let called = run_with(&["--label"], "early");
    assert_eq!(called.status, 128 + libc::SIGKILL, "{called:?}");
    // The others may have been ended before they printed.
    assert!(called.stdout.lines().any(|line| line == "[1] before"), "{called:?}");
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
    let told = "node 1 ended its program (by exit, or by returning from main)";
    assert!(called.stderr.contains(told) && !called.stderr.contains("hiroba_finalize"), "{called:?}");
}

/// Asserts fifty lines of each of three nodes, each of one letter.
#[track_caller]
fn has_whole_long_lines(called: &Called) {
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
    let long: Vec<&str> = called.stdout.lines().filter(|line| line.len() > 20).collect();
    assert_eq!(long.len(), 150);
    for line in long {
        assert!(line.len() == 30000 && line.bytes().all(|byte| byte == line.as_bytes()[0]), "a mixed line");
    }
}

#[test]
fn long_lines_of_several_nodes_are_not_mixed() {
    has_whole_long_lines(&run("long"));
}

/// While the reader does not read, nodes are not read either, which is not a pause of theirs.
#[test]
fn a_slow_reader_gets_whole_lines() {
    let (_directory, program) = compile();
    let child = start(&mut hiroba(&["run", "-n", "3", &program, "long"]));
    // Time must pass here: no event tells that a reader has been slow for long enough.
    std::thread::sleep(std::time::Duration::from_secs(1));
    has_whole_long_lines(&finish(child));
}

/// Python and Fortran do not write through the C library's buffer; variables of their own control them.
#[test]
fn other_languages_hand_on_lines_at_once_unless_the_user_says_otherwise() {
    let print = "echo \"$PYTHONUNBUFFERED,$GFORTRAN_UNBUFFERED_PRECONNECTED\"";
    let told = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = hiroba(&[&["run", "-n", "1"], flags, &["sh", "-c", print]].concat());
        command.env_remove("PYTHONUNBUFFERED").env_remove("GFORTRAN_UNBUFFERED_PRECONNECTED");
        finish(start(command.envs(variables.iter().copied()))).stdout
    };
    assert_eq!(told(&[], &[]), "1,y\n");
    assert_eq!(told(&[("PYTHONUNBUFFERED", ""), ("GFORTRAN_UNBUFFERED_PRECONNECTED", "n")], &[]), ",n\n");
    assert_eq!(told(&[], &["-x", "GFORTRAN_UNBUFFERED_PRECONNECTED=n"]), "1,n\n");
}

#[test]
fn what_a_python_node_printed_before_its_death_arrives() {
    if !std::process::Command::new("python3").arg("--version").output().is_ok_and(|out| out.status.success())
    {
        println!("python3 is not installed here: not tried");
        return;
    }
    let script = "import os, signal\nprint('before')\nos.kill(os.getpid(), signal.SIGKILL)";
    let printed = |variables: &[(&str, &str)]| {
        let mut command = hiroba(&["run", "-n", "1", "python3", "-c", script]);
        let called = finish(start(command.env_remove("PYTHONUNBUFFERED").envs(variables.iter().copied())));
        assert_eq!(called.status, 128 + libc::SIGKILL, "{called:?}");
        called.stdout
    };
    assert_eq!(printed(&[]), "before\n");
    assert_eq!(printed(&[("PYTHONUNBUFFERED", "")]), "", "the user wants its buffer");
}
