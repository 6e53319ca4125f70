//! Programs built with a sanitizer run, or are told why they cannot.

use std::path::Path;

use crate::support::{Called, call};

/// Compiles one of the test programs with a sanitizer and runs it with each fault source.
fn run_with(sanitizer: &str, program: &str) -> Vec<Called> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(program);
    let (from, to) = (source, directory.path().join("program"));
    let (from, to) = (from.to_str().expect("a UTF-8 path"), to.to_str().expect("a UTF-8 path"));
    let flag = format!("-fsanitize={sanitizer}");
    let compiled = call(&["cc", "-std=gnu11", "-g", "-O1", &flag, "-o", to, from, "-pthread"]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    ["sigbus", "sigsegv"].map(|source| call(&["run", "-n", "2", "--fault-source", source, to])).into()
}

#[test]
fn programs_with_address_sanitizer_run() {
    for called in run_with("address", "lock.c") {
        assert_eq!(called.status, 0, "{called:?}");
    }
}

#[test]
fn programs_with_undefined_behaviour_sanitizer_run() {
    for called in run_with("undefined", "lock.c") {
        assert_eq!(called.status, 0, "{called:?}");
    }
}

/// The command and program of a tool that watches others, or none where it is not installed.
fn under(tool: &[&str], program: &str) -> Option<Called> {
    let found = std::process::Command::new(tool[0]).arg("--version").output();
    if !found.is_ok_and(|found| found.status.success()) {
        println!("{} is not installed here: not tried", tool[0]);
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(program);
    let (from, to) = (source, directory.path().join("program"));
    let (from, to) = (from.to_str().expect("a UTF-8 path"), to.to_str().expect("a UTF-8 path"));
    let compiled = call(&["cc", "-std=gnu11", "-g", "-O1", "-o", to, from, "-pthread"]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    let log = directory.path().join("log");
    let log = log.to_str().expect("a UTF-8 path");
    let tool: Vec<&str> = tool.iter().map(|word| if *word == "LOG" { log } else { word }).collect();
    Some(call(&[&["run", "-n", "2", "--"], &tool[..], &[to]].concat()))
}

#[test]
fn programs_run_under_strace() {
    if let Some(called) = under(&["strace", "-f", "-o", "LOG"], "barrier.c") {
        assert_eq!(called.status, 0, "{called:?}");
    }
}

#[test]
fn programs_under_valgrind_are_refused_with_a_way_out() {
    if let Some(called) = under(&["valgrind", "-q"], "lock.c") {
        assert_ne!(called.status, 0, "{called:?}");
        assert!(called.stderr.contains("-fsanitize=address"), "{called:?}");
    }
}

#[test]
fn a_launcher_under_valgrind_is_refused_with_a_way_out() {
    let valgrind = std::process::Command::new("valgrind")
        .args(["-q", env!("CARGO_BIN_EXE_hiroba"), "run", "-n", "2", "true"])
        .output();
    let Ok(called) = valgrind else {
        println!("valgrind is not installed here: not tried");
        return;
    };
    assert_eq!(called.status.code(), Some(125), "{called:?}");
    assert!(String::from_utf8_lossy(&called.stderr).contains("-fsanitize=address"), "{called:?}");
}

#[test]
fn programs_with_thread_sanitizer_are_refused_with_a_way_out() {
    for called in run_with("thread", "lock.c") {
        assert_ne!(called.status, 0, "{called:?}");
        assert!(called.stderr.contains("hiroba run --races"), "{called:?}");
    }
}
