//! Programs built with a sanitizer run, or get a message why they cannot.

use std::path::Path;

use crate::support::{Called, call, finish, start};

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

/// Returns the command and program of a tool that watches others, or `None` if it is not installed.
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

/// Samples by the clock, which every machine has; whether this user may take samples is tried first.
const RECORD: [&str; 5] = ["perf", "record", "-q", "-e", "cpu-clock"];

fn may_record() -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut command = std::process::Command::new(RECORD[0]);
    command.args(&RECORD[1..]).arg("-o").arg(directory.path().join("tried")).arg("true");
    let may = command.output().is_ok_and(|recorded| recorded.status.success());
    if !may {
        println!("perf is not installed here, or may not record: not tried");
    }
    may
}

/// Returns the functions that a recording names.
fn functions(recording: &Path) -> String {
    let mut command = std::process::Command::new("perf");
    let report = command.args(["report", "--stdio", "--sort", "symbol", "-i"]).arg(recording).output();
    let report = report.expect("perf runs");
    assert!(report.status.success(), "{report:?}");
    String::from_utf8_lossy(&report.stdout).into_owned()
}

#[test]
fn perf_records_nodes_and_whole_jobs() {
    if !may_record() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program");
    let (source, program) = (directory.path().join("a.c"), program.to_str().expect("a UTF-8 path"));
    let text = "#include <hiroba.h>\n\
        volatile unsigned long sum;\n\
        __attribute__((noinline)) void compute(void) { for (long i = 0; i < 100000000; i++) sum += i; }\n\
        int main(int c, char **v) {\n\
        if (hiroba_init(&c, &v)) return 1;\n\
        compute(); hiroba_barrier(); hiroba_finalize(); return 0; }\n";
    std::fs::write(&source, text).expect("a writable directory");
    let compiled = call(&["cc", "-g", "-O1", "-o", program, source.to_str().expect("a UTF-8 path")]);
    assert_eq!(compiled.status, 0, "{compiled:?}");

    // Each node under perf, with a recording of its own.
    let own = directory.path().join("node");
    let script = format!("exec {} -o '{}.'$HIROBA_NODE '{program}'", RECORD.join(" "), own.display());
    let nodes = call(&["run", "-n", "2", "--", "sh", "-c", &script]);
    assert_eq!(nodes.status, 0, "{nodes:?}");
    // The launcher, and its children.
    let all = directory.path().join("all");
    let mut command = std::process::Command::new(RECORD[0]);
    command.args(&RECORD[1..]).arg("-o").arg(&all).arg(env!("CARGO_BIN_EXE_hiroba"));
    let job = finish(start(command.args(["run", "-n", "2", program]).stdin(std::process::Stdio::null())));
    assert_eq!(job.status, 0, "{job:?}");
    for recording in [own.with_extension("0"), own.with_extension("1"), all] {
        let functions = functions(&recording);
        assert!(functions.contains("compute"), "{}: {functions}", recording.display());
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
