//! Large static arrays of executables, which follow `--protocol` like long blocks: right on all numbers of
//! nodes, and cheaper than under sequential consistency where threads share their pages falsely.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::executables::may_run;
use crate::support::{Called, finish, hiroba, start};

const SOURCE: &str = "executable_statics.c";

/// A program in a directory that is removed with it.
struct Program {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn build(compiler: &str, source: &str, options: &[&str]) -> Program {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-o"]).arg(&path).arg(&source).args(options);
    let called = finish(start(command.current_dir(directory.path())));
    assert_eq!(called.status, 0, "{called:?}");
    Program { _directory: directory, path }
}

fn is_there(compiler: &str) -> bool {
    let called = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    called.is_ok_and(|status| status.success())
}

impl Program {
    fn natively(&self, given: &[&str]) -> Called {
        let mut command = Command::new(&self.path);
        finish(start(command.args(given).env("OMP_NUM_THREADS", "2").stdin(Stdio::null())))
    }

    /// Runs the program in a job, and returns the job's account, too.
    fn on(&self, options: &str, given: &[&str]) -> (Called, Value) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut command = hiroba(&["run"]);
        command.args(options.split(' ')).arg(format!("--stats=json:{}", file.path().display()));
        let called =
            finish(start(command.arg("--").arg(&self.path).args(given).env_remove("OMP_NUM_THREADS")));
        let account = std::fs::read_to_string(file.path()).expect("the account");
        (called, serde_json::from_str(&account).unwrap_or_default())
    }

    /// Asserts that the program prints with these options what it prints natively.
    #[track_caller]
    fn is_right_on(&self, options: &str, given: &[&str]) -> Value {
        let native = self.natively(given);
        assert!(!native.stdout.is_empty() && !native.stdout.contains("WRONG"), "{native:?}");
        let (called, account) = self.on(options, given);
        assert_eq!((called.status, &called.stdout), (0, &native.stdout), "{options} {given:?}: {called:?}");
        account
    }
}

fn total(account: &Value, name: &str) -> u64 {
    account["total"][name].as_u64().expect("a count")
}

#[test]
fn large_static_arrays_are_right_under_every_protocol() {
    if !may_run() {
        return;
    }
    let program = build("cc", SOURCE, &["-pthread"]);
    for options in [
        "--pthread -n 2 --protocol hlrc --fabric udp",
        "--pthread -n 2 --protocol hlrc --fabric shm",
        "--pthread -n 2 --protocol hlrc --page-size 64K",
        "--pthread -n 4 --protocol hlrc --fabric tcp",
        "--pthread -n 2 --protocol sc",
        "--pthread -n 2 --protocol adaptive",
        "--pthread -n 4 --protocol adaptive --fabric shm",
    ] {
        program.is_right_on(options, &[]);
    }
}

/// Data below 16 MiB, and another compiler's code.
#[test]
fn executables_at_fixed_addresses_have_large_static_arrays() {
    if !may_run() {
        return;
    }
    let compilers = ["cc", "clang"].into_iter().filter(|compiler| is_there(compiler));
    for compiler in compilers {
        let program = build(compiler, SOURCE, &["-pthread", "-no-pie", "-fno-pie"]);
        for nodes in ["2", "4"] {
            program.is_right_on(&format!("--pthread -n {nodes} --protocol hlrc"), &[]);
        }
    }
}

/// Arrays of a library, one of which has a copy in the executable.
#[test]
fn libraries_have_large_static_arrays() {
    if !may_run() {
        return;
    }
    let library = build("cc", "executable_statics_library.c", &["-fPIC", "-shared"]);
    let path = library.path.to_str().expect("a path that is text");
    let program = build("cc", SOURCE, &["-pthread", "-DLIBRARY", path]);
    for nodes in ["2", "4"] {
        let account = program.is_right_on(&format!("--pthread -n {nodes} --protocol hlrc"), &["library"]);
        assert!(total(&account, "diffs_made") > 0 && total(&account, "pages_converted") > 0, "{account}");
    }
}

/// Only the page of the words whose addresses the program computes changes its protocol. An instruction on
/// a fixed address keeps its page under sequential consistency from the start, and short memory stays what
/// it is.
#[test]
fn few_pages_are_converted_and_no_short_one() {
    if !may_run() {
        return;
    }
    let program = build("cc", SOURCE, &["-pthread"]);
    // Four words of one array, one of another.
    for protocol in ["hlrc", "adaptive"] {
        let account = program.is_right_on(&format!("--pthread -n 2 --protocol {protocol}"), &["atomics"]);
        assert_eq!(total(&account, "pages_converted"), 5, "{account}");
        assert_eq!(total(&account, "exclusive_atomics"), 0, "{account}");
    }
}

/// Without a symbol table, and in arrays below 128 KiB, all stays under sequential consistency.
#[test]
fn what_is_not_known_to_be_large_is_short_memory() {
    if !may_run() {
        return;
    }
    let large = build("cc", SOURCE, &["-pthread"]);
    let stripped = build("cc", SOURCE, &["-pthread", "-s"]);
    let small = build("cc", SOURCE, &["-pthread", "-DSHARED_WORDS=30000"]);
    let diffs = |program: &Program, protocol: &str| {
        let options = format!("--pthread -n 2 --protocol {protocol}");
        total(&program.is_right_on(&options, &["shared"]), "diffs_made")
    };
    assert!(diffs(&large, "hlrc") > 0);
    assert_eq!(diffs(&large, "sc"), 0);
    assert_eq!(diffs(&stripped, "hlrc"), 0);
    assert_eq!(diffs(&small, "hlrc"), 0);
}

/// `--races` searches them.
#[test]
fn races_in_large_static_arrays_are_found() {
    if !may_run() {
        return;
    }
    let program = build("cc", SOURCE, &["-pthread", "-g"]);
    let (called, _) = program.on("--pthread -n 2 --races", &["flags"]);
    assert!(called.stderr.contains("data race") && called.stderr.contains("pass_on"), "{called:?}");
    let (called, _) = program.on("--pthread -n 2 --races", &["atomics"]);
    assert!(called.stderr.contains("no data races"), "{called:?}");
}

/// Twenty loops in which threads of two nodes store to neighbouring elements of an array of a module and of
/// one of a common block.
#[test]
fn falsely_shared_arrays_of_fortran_cost_few_messages() {
    if !may_run() || !is_there("gfortran") {
        return;
    }
    let program = build("gfortran", "executable_statics.f90", &["-fopenmp"]);
    program.is_right_on("-n 4 --protocol hlrc", &[]);
    let [lazy, sequential] =
        ["hlrc", "sc"].map(|protocol| program.is_right_on(&format!("-n 2 --protocol {protocol}"), &[]));
    // Not faults: under write tracking by faults each interval has some, which need no other node. Pages of
    // runs share their messages under both protocols.
    let pages = |account: &Value| total(account, "pages_fetched") + total(account, "pages_prefetched");
    let messages = |account: &Value| total(account, "messages_sent");
    for [few, many] in [[&lazy, &sequential].map(pages), [&lazy, &sequential].map(messages)] {
        assert!(few * 3 < many * 2, "{few} pages, or messages, under hlrc, {many} under sc");
    }
}

/// Random scatter in programs of OpenMP.
#[test]
fn scattered_stores_to_static_arrays_cost_few_messages() {
    if !may_run() {
        return;
    }
    for compiler in ["cc", "clang"].into_iter().filter(|compiler| is_there(compiler)) {
        let program = build(compiler, "executable_scatter.c", &["-fopenmp"]);
        program.is_right_on("-n 4 --protocol hlrc", &[]);
        let [lazy, sequential] =
            ["hlrc", "sc"].map(|protocol| program.is_right_on(&format!("-n 2 --protocol {protocol}"), &[]));
        let [few, many] = [&lazy, &sequential].map(|account| total(account, "messages_sent"));
        assert!(few * 2 < many, "{few} messages under hlrc, {many} under sc");
    }
}
