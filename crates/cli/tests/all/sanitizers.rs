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
fn programs_with_thread_sanitizer_are_refused_with_a_way_out() {
    for called in run_with("thread", "lock.c") {
        assert_ne!(called.status, 0, "{called:?}");
        assert!(called.stderr.contains("hiroba run --races"), "{called:?}");
    }
}
