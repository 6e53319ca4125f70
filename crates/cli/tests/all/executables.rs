//! Executables that were not built for Hiroba (`hiroba run --pthread`): the programs of `apps/pthread` and
//! `tests/programs/executable.c`, built by the stock compilers, print on 1, 2 and 4 nodes what they print
//! natively, and end as they end natively.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::support::{Called, call, finish, hiroba, script, start};

/// A program in a directory that is removed with it.
struct Program {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn build(compiler: &str, source: &str, options: &[&str]) -> Program {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&path).arg(&source).args(options);
    let called = finish(start(&mut command));
    assert_eq!(called.status, 0, "{called:?}");
    Program { _directory: directory, path }
}

/// Returns true if this user may get faults inside system calls reported. Otherwise `--pthread` refuses to
/// start.
pub fn may_run() -> bool {
    static MAY_RUN: OnceLock<bool> = OnceLock::new();
    *MAY_RUN.get_or_init(|| {
        let called = test_program().on("2", &[], &["memory"]);
        let may = !called.stderr.contains("expected permission to open a userfaultfd");
        if !may {
            eprintln!("executables are not run: {}", called.stderr);
        }
        may
    })
}

fn test_program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| build("cc", "tests/programs/executable.c", &["-pthread"]))
}

/// The options by which a job of one node shares its memory as larger jobs do.
const SHARED: &[&str] = &["-x", "HIROBA_ONE_NODE=shared"];

impl Program {
    fn natively(&self, given: &[&str]) -> Called {
        finish(start(Command::new(&self.path).args(given).stdin(Stdio::null())))
    }

    fn on(&self, nodes: &str, options: &[&str], given: &[&str]) -> Called {
        let mut command = hiroba(&["run", "--pthread", "-n", nodes]);
        finish(start(command.args(options).arg("--").arg(&self.path).args(given)))
    }

    /// Asserts that the program prints and returns the same on nodes as natively.
    #[track_caller]
    fn is_as_natively(&self, given: &[&str]) {
        if !may_run() {
            return;
        }
        let native = self.natively(given);
        assert!(!native.stdout.is_empty(), "{native:?}");
        for (nodes, fabric) in [("1", "udp"), ("2", "udp"), ("2", "tcp"), ("2", "shm"), ("4", "udp")] {
            let called = self.on(nodes, &["--fabric", fabric], given);
            assert_eq!(called.status, native.status, "{given:?}, {nodes} nodes over {fabric}: {called:?}");
            assert_eq!(called.stdout, native.stdout, "{given:?}, {nodes} nodes over {fabric}: {called:?}");
        }
        let called = self.on("1", SHARED, given);
        assert_eq!(called.status, native.status, "{given:?}, one node that shares: {called:?}");
        assert_eq!(called.stdout, native.stdout, "{given:?}, one node that shares: {called:?}");
    }
}

#[test]
fn a_matrix_product_is_as_natively() {
    build("cc", "apps/pthread/matmul.c", &["-pthread"]).is_as_natively(&["-n", "192", "-t", "4"]);
}

#[test]
fn producers_and_consumers_are_as_natively() {
    build("cc", "apps/pthread/pipeline.c", &["-pthread"]).is_as_natively(&["400", "2"]);
}

#[test]
fn a_merge_sort_is_as_natively() {
    build("cc", "apps/pthread/sort.c", &["-pthread"]).is_as_natively(&["100000"]);
}

#[test]
fn threads_and_exceptions_of_cxx_are_as_natively() {
    build("c++", "apps/pthread/workers.cpp", &["-std=c++17", "-pthread"]).is_as_natively(&[]);
}

#[test]
fn all_writable_memory_is_shared() {
    test_program().is_as_natively(&["memory"]);
}

#[test]
fn thread_local_variables_of_the_executable_are_shared() {
    build("cc", "tests/programs/executable_tls.c", &["-pthread"]).is_as_natively(&[]);
}

/// Variables of a library that is loaded at the start, alone, and beside those of the executable.
#[test]
fn thread_local_variables_of_libraries_are_shared() {
    let source = "tests/programs/executable_tls_library.c";
    let library = build("cc", source, &["-fPIC", "-shared", "-DLIBRARY"]);
    let path = library.path.to_str().expect("a path that is text");
    for own in ["-UOWN", "-DOWN"] {
        build("cc", source, &["-pthread", own, path]).is_as_natively(&[]);
    }
}

#[test]
fn files_streams_and_processes_are_the_jobs() {
    build("cc", "tests/programs/executable_files.c", &["-pthread"]).is_as_natively(&[]);
    build("c++", "tests/programs/executable_streams.cpp", &["-pthread"]).is_as_natively(&[]);
    // As distributions build: with checks of lengths.
    let checked = ["-pthread", "-D_FORTIFY_SOURCE=2"];
    build("cc", "tests/programs/executable_files.c", &checked).is_as_natively(&[]);
}

#[test]
fn threads_are_cancelled_and_signalled_between_nodes() {
    build("cc", "tests/programs/executable_cancel.c", &["-pthread"]).is_as_natively(&[]);
}

#[test]
fn calls_that_wait_end_when_their_thread_is_cancelled() {
    build("cc", "tests/programs/executable_interrupted.c", &["-pthread"]).is_as_natively(&[]);
}

#[test]
fn signals_and_the_locale_are_the_jobs() {
    build("cc", "tests/programs/executable_signals.c", &["-pthread"]).is_as_natively(&[]);
}

#[test]
fn objects_of_the_locale_can_be_used_by_threads_of_all_nodes() {
    let program = build("cc", "tests/programs/executable_locale.c", &["-pthread"]);
    program.is_as_natively(&[]);
    let program = build("c++", "tests/programs/executable_locale.cpp", &["-pthread"]);
    program.is_as_natively(&[]);
    if may_run() {
        let called = program.on("2", &[], &[]);
        assert!(called.stderr.contains("std::locale: only threads of node 1"), "{called:?}");
    }
}

#[test]
fn a_locale_that_another_node_lacks_is_not_set() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_locale_lacking.c", &["-pthread"]);
    let called = program.on("2", &[], &[]);
    let phrase = "setlocale: node 1 cannot set the locale C.UTF-8, which node 0 has";
    assert!(called.stderr.contains(phrase), "{called:?}");
    assert_eq!(called.stdout, "set: no\nhere: C\nthere: not UTF-8\n", "{called:?}");
}

/// A stack that grows too long meets a guard, and does not run into another thread's memory.
#[test]
fn a_stack_that_overflows_ends_the_program() {
    if !may_run() {
        return;
    }
    let program = test_program();
    for nodes in ["1", "2"] {
        let called = program.on(nodes, &[], &["overflow"]);
        assert_eq!(called.status, 128 + libc::SIGSEGV, "{called:?}");
        assert!(called.stderr.contains(" by deep in "), "{called:?}");
    }
}

/// The windows of threads consist of small pages, whatever the job's are.
#[test]
fn long_pages_and_many_threads_one_after_another() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_tls.c", &["-pthread"]);
    let called = program.on("2", &["--page-size", "65536"], &["200"]);
    assert_eq!(called.stdout, program.natively(&["200"]).stdout, "{called:?}");
}

#[test]
fn objects_of_pthreads_work_between_nodes() {
    let program = test_program();
    program.is_as_natively(&["objects"]);
    program.is_as_natively(&["timed"]);
}

#[test]
fn waits_with_a_deadline_end_in_time_and_lose_no_wake_up() {
    build("cc", "tests/programs/executable_timed.c", &["-pthread"]).is_as_natively(&[]);
}

/// Words in data and in long blocks, which under `hlrc` are under release consistency.
#[test]
fn futexes_work_between_nodes() {
    let program = build("cc", "tests/programs/executable_futex.c", &["-pthread"]);
    program.is_as_natively(&[]);
    if may_run() {
        let called = program.on("2", &["--protocol", "hlrc"], &[]);
        assert_eq!(called.stdout, program.natively(&[]).stdout, "{called:?}");
    }
}

#[test]
fn waits_of_cxx20_work_between_nodes() {
    build("c++", "tests/programs/executable_waits.cpp", &["-std=c++20", "-pthread"]).is_as_natively(&[]);
}

#[test]
fn atomics_and_flags_work_between_nodes() {
    test_program().is_as_natively(&["atomics"]);
}

#[track_caller]
fn checksum(called: &Called) -> String {
    assert_eq!(called.status, 0, "{called:?}");
    let (_, sum) = called.stdout.split_once(" checksum ").expect("a line with the checksum");
    sum.to_owned()
}

#[test]
fn a_plain_program_runs_without_a_change() {
    if !may_run() {
        return;
    }
    let program = build("cc", "apps/plain/tasks.c", &["-std=gnu11", "-DTHREADS", "-pthread", "-lm"]);
    let native = checksum(&program.natively(&[]));
    for protocol in ["sc", "hlrc", "adaptive"] {
        assert_eq!(checksum(&program.on("2", &["--protocol", protocol], &[])), native, "{protocol}");
    }
}

/// Threads synchronise by an atomic counter in the program's own data, and pass long blocks to each other.
#[test]
fn flags_order_long_blocks_under_lazy_protocols() {
    if !may_run() {
        return;
    }
    let program = build("cc", "apps/plain/radix.c", &["-std=gnu11", "-DTHREADS", "-pthread", "-lm"]);
    let given = ["--threads", "2", "-n", "120000"];
    let native = checksum(&program.natively(&given));
    for protocol in ["hlrc", "adaptive"] {
        for fabric in ["udp", "shm"] {
            let called = program.on("2", &["--protocol", protocol, "--fabric", fabric], &given);
            assert_eq!(checksum(&called), native, "{protocol} over {fabric}");
        }
    }
}

/// Atomic variables and flags in long blocks, which are under release consistency.
#[test]
fn atomics_and_flags_work_in_long_blocks_under_release_consistency() {
    if !may_run() {
        return;
    }
    let options = ["-std=c++17", "-pthread"];
    let program = build("c++", "tests/programs/executable_atomics.cpp", &options);
    let expected = program.natively(&[]).stdout;
    assert!(expected.lines().count() > 10 && !expected.contains("WRONG"), "{expected}");
    for (nodes, fabric) in
        [("1", "udp"), ("2", "udp"), ("2", "tcp"), ("2", "shm"), ("4", "udp"), ("4", "shm")]
    {
        let called = program.on(nodes, &["--protocol", "hlrc", "--fabric", fabric], &[]);
        assert_eq!(called.stdout, expected, "{nodes} nodes over {fabric}: {called:?}");
    }
    let called = program.on("2", &["--protocol", "sc"], &["counters"]);
    assert_eq!(called.stdout, "counters ok\n", "{called:?}");
    // A page that an atomic instruction operates on changes its protocol as a whole.
    for page_size in ["64K", "2M"] {
        let called = program.on("2", &["--protocol", "hlrc", "--page-size", page_size], &[]);
        assert_eq!(called.stdout, expected, "pages of {page_size}: {called:?}");
    }
}

/// Each turn took up to 256 ms of processor time before the state of waiting threads was compared.
#[test]
fn loops_that_are_hard_to_recognise_end() {
    if !may_run() {
        return;
    }
    for optimised in ["-O0", "-O2"] {
        let program = build("cc", "tests/programs/executable_opaque.c", &["-pthread", optimised]);
        let called = program.on("2", &["--protocol", "hlrc"], &[]);
        assert_eq!(called.stdout, program.natively(&[]).stdout, "{called:?}");
    }
}

/// The sites and what became of them are counted. Without other nodes nothing is replaced.
#[test]
fn atomic_instructions_are_counted() {
    if !may_run() {
        return;
    }
    let program = build("c++", "tests/programs/executable_atomics.cpp", &["-std=c++17", "-pthread"]);
    let counted = |nodes: &str, name: &str| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let stats = format!("--stats=json:{}", file.path().display());
        let called = program.on(nodes, &["--protocol", "hlrc", &stats], &["spin"]);
        assert_eq!(called.stdout, "spin lock ok\n", "{called:?}");
        let text = std::fs::read_to_string(file.path()).expect("the account");
        let account: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        account["per_node"][0][name].as_u64().expect("a count")
    };
    assert!(counted("2", "atomic_sites") > 20 && counted("2", "pages_converted") >= 1);
    assert_eq!(counted("1", "atomic_sites"), 0);
}

/// Both sides of a race are named, although another thread than the one that faults serves the fault.
#[test]
fn races_in_long_blocks_are_told_with_their_lines() {
    if !may_run() {
        return;
    }
    let source = "tests/programs/executable_race.c";
    let program = build("cc", source, &["-pthread", "-g"]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source);
    let text = std::fs::read_to_string(path).expect("the source");
    let place = |mark: &str| {
        let line = text.lines().position(|line| line.contains(&format!("HERE: {mark}")));
        format!("executable_race.c:{} ", line.expect("a marked line") + 1)
    };
    let searched = |nodes: &str, how: &str| {
        let called = program.on(nodes, &["--races"], &[how]);
        assert_eq!(called.status, 0, "{called:?}");
        assert!(called.stderr.contains("only long blocks and static variables are searched"), "{called:?}");
        assert!(!called.stderr.contains("interval ended"), "{called:?}");
        called.stderr
    };
    let names = |told: &str, side: &str, mark: &str| {
        told.lines().any(|line| line.contains(side) && line.contains(&place(mark)))
    };
    // Pages that move meanwhile may order the accesses of one run, or hide which store came first.
    let found = |how: &str, what: &str, sides: [(&str, &str); 2]| {
        let is_told =
            |told: &String| told.contains(what) && sides.iter().all(|(side, mark)| names(told, side, mark));
        let told: Vec<String> =
            (0..5).map(|_| searched("2", how)).take_while(|told| !is_told(told)).collect();
        assert!(told.len() < 5, "{how}: {told:?}");
    };
    let stores = [("node 0: first store ", "store"), ("node 1: first store ", "store")];
    found("both", "nodes 0 and 1 both wrote", stores);
    found("read", "node 0 read", [("node 0: load ", "load"), ("node 1: first store ", "store")]);
    for nodes in ["2", "3"] {
        let none = searched(nodes, "in-order");
        assert!(none.contains("no data races between nodes found"), "{none}");
    }
}

/// A thread that computes is interrupted twice in each millisecond of its processor time. Where the kernel
/// gives no event of that, as in some containers, the kernel's ticks must do.
#[test]
fn threads_are_interrupted_by_their_processor_time() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_computes.c", &["-pthread"]);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let stats = format!("--stats=json:{}", file.path().display());
    let called = program.on("2", &["--protocol", "hlrc", &stats], &[]);
    let least = if called.stdout == "with events\n" { 400 } else { 15 };
    let text = std::fs::read_to_string(file.path()).expect("the account");
    let account: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let interrupts = account["per_node"][0]["interrupts"].as_u64().expect("a count");
    assert!((least..=700).contains(&interrupts), "{interrupts} in 300 ms: {called:?}");
}

#[test]
fn a_process_ends_once_with_its_status() {
    if !may_run() {
        return;
    }
    let program = test_program();
    // Not held against a native run: there two calls of `exit` at once may print twice, or nothing.
    for (end, status, stdout) in [
        ("exit", 5, "the end\n"),
        ("return", 4, "the end\n"),
        ("main-exits", 0, "later\nthe end\n"),
        ("at-once", 6, ""),
        ("threads-at-once", 6, ""),
    ] {
        let called = program.on("2", &[], &[end]);
        assert_eq!((called.status, called.stdout.as_str()), (status, stdout), "{end}: {}", called.stderr);
    }
    // The launcher reports signals by the shell's numbers.
    for (end, status, phrase) in [("abort", 134, "SIGABRT"), ("signal", 143, "SIGTERM")] {
        let called = program.on("2", &[], &[end]);
        assert_eq!(called.status, status, "{end}: {called:?}");
        assert!(called.stderr.contains(phrase), "{end}: {called:?}");
    }
}

#[test]
fn a_crash_tells_node_and_function() {
    if !may_run() {
        return;
    }
    let called = test_program().on("2", &[], &["crash"]);
    assert_eq!(called.status, 139, "{called:?}");
    assert!(called.stderr.contains("SIGSEGV") && called.stderr.contains("crash"), "{called:?}");
}

/// The unwinder's data are shared, so it may wait for a page that no thread serves any more.
#[test]
fn a_crash_is_reported_although_unwinding_does_not_end() {
    if !may_run() {
        return;
    }
    let options = ["-pthread", "-rdynamic"];
    let program = build("cc", "tests/programs/executable_endless_unwinding.c", &options);
    for nodes in ["1", "2"] {
        let called = program.on(nodes, &[], &[]);
        assert_eq!(called.status, 139, "{called:?}");
        assert!(called.stderr.contains("segmentation fault at address 0x8"), "{called:?}");
    }
}

/// Without unwinding, which reads data that are shared in such a job, while locks of the runtime are held.
#[test]
fn an_impossible_state_of_the_runtime_ends_the_job_at_once() {
    if may_run() {
        let called = test_program().on("2", &["--protocol", "hlrc"], &["break-the-runtime"]);
        called.says(125, "node 1: a fault of Hiroba's: a thread panicked at crates/");
    }
}

#[test]
fn other_processes_can_be_started_but_not_forked() {
    if !may_run() {
        return;
    }
    let called = test_program().on("2", &[], &["processes"]);
    assert_eq!(called.status, 0, "{called:?}");
    let expected = "fork: -1, Function not implemented\nsystem: 3\npopen: from a shell\nthe end\n";
    assert_eq!(called.stdout, expected, "{called:?}");
    assert!(called.stderr.contains("fork"), "{called:?}");
}

/// A job that a program of another job starts is a job of its own, with other options.
#[test]
fn a_job_can_be_started_inside_another() {
    if !may_run() {
        return;
    }
    let command = env!("CARGO_BIN_EXE_hiroba");
    let inner = format!("{command} run -n 2 --label -- sh -c 'echo $HIROBA_PTHREAD/$HIROBA_NODE'");
    let called = test_program().on("2", &[], &["starts", &inner]);
    assert_eq!(called.status, 0, "{called:?}");
    let mut lines: Vec<&str> = called.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] /0", "[1] /1", "status 0", "the end"], "{called:?}");
}

/// A lock that no other node wants costs no message: the engine does not even see its holds.
#[test]
fn objects_that_no_other_node_wants_cost_no_message() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_uncontended.c", &["-pthread"]);
    let sent = |rounds: &str| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let stats = format!("--stats=json:{}", file.path().display());
        let called = program.on("2", &[&stats], &[rounds]);
        assert_eq!((called.status, &*called.stdout), (0, "as it should be\n"), "{called:?}");
        let account = account_in(file.path());
        let [acquired, sent] = ["lock_acquires", "messages_sent"].map(|name| account[name].as_u64());
        (acquired.expect("a number"), sent.expect("a number"))
    };
    let (few, many) = (sent("10"), sent("20010"));
    // In a round one lock is taken for the mutex and one for the spin lock, four for the reader-writer lock,
    // and two for the semaphore.
    assert!((many.0 - few.0).abs_diff(8 * 20_000) < 100, "{few:?}, {many:?}");
    // Heartbeats, and pages that come late, are a few.
    assert!(many.1.abs_diff(few.1) < 500, "{few:?}, {many:?}");
}

/// With one node the threads, their objects and the memory are the C library's, and all works that works
/// natively. The process leaves the job however it ends, so that there is an account.
#[test]
fn one_node_runs_an_executable_natively() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_native.c", &["-pthread", "-Wno-unused-result"]);
    for (end, status) in [("return", 6), ("exit", 5), ("quick", 3), ("at-once", 4)] {
        let native = program.natively(&[end]);
        assert_eq!(native.status, status, "{native:?}");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let stats = format!("--stats=json:{}", file.path().display());
        let called = program.on("1", &[&stats], &[end]);
        assert_eq!((called.status, &called.stdout), (status, &native.stdout), "{end}: {called:?}");
        assert_eq!(called.stderr, "", "{end}");
        let account = account_in(file.path());
        assert!(account["wall_s"].as_f64().expect("a time") > 0.0, "{account}");
    }
    let called = test_program().on("1", SHARED, &["processes"]);
    assert!(called.stderr.contains("fork"), "{called:?}");
}

fn account_in(file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).expect("the account");
    let account: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    account["per_node"][0].clone()
}

/// Memory that the runtime's allocator gets while the program's code runs is its own: it must not ask the
/// runtime for a shared block.
#[test]
fn the_runtimes_allocator_needs_nothing_of_the_program() {
    if !may_run() {
        return;
    }
    let program = build("cc", "tests/programs/executable_inside.c", &["-pthread", "-ldl"]);
    let called = program.on("2", &[], &[]);
    assert_eq!((called.status, called.stdout.as_str()), (0, "refused\n"), "{called:?}");
}

/// No call of the program's objects passes through Hiroba, unless the job shares them or is traced.
#[test]
fn one_node_has_the_c_librarys_locks() {
    if !may_run() {
        return;
    }
    let program = build("cc", "apps/pthread/pipeline.c", &["-pthread"]);
    let locks = |options: &[&str]| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let stats = format!("--stats=json:{}", file.path().display());
        let called = program.on("1", &[options, &[&stats]].concat(), &["400", "2"]);
        assert_eq!(called.status, 0, "{called:?}");
        account_in(file.path())["lock_acquires"].as_u64().expect("a count")
    };
    assert_eq!(locks(&[]), 0);
    assert!(locks(SHARED) > 800);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("trace");
    assert!(locks(&["--trace", trace.to_str().expect("text")]) > 800);
}

#[test]
fn processors_are_those_of_the_job() {
    if !may_run() {
        return;
    }
    let program = test_program();
    assert_eq!(program.on("3", &["-t", "2"], &["processors"]).stdout, "6\nthe end\n");
    assert_eq!(program.on("1", &[], &["processors"]).stdout, "1\nthe end\n");
    assert_eq!(program.on("1", &["-t", "5"], &["processors"]).stdout, "5\nthe end\n");
}

#[test]
fn what_cannot_be_run_is_refused_before_it_starts() {
    let refusal = |program: &Program, phrase: &str| program.on("2", &[], &[]).says(125, phrase);
    refusal(&build("cc", "apps/pthread/sort.c", &["-pthread", "-static"]), "linked statically");
    refusal(&build("cc", "apps/pthread/sort.c", &["-pthread", "-static-pie"]), "static-pie");
    refusal(&build("cc", "apps/pthread/sort.c", &["-pthread", "-fsanitize=address"]), "sanitizer");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = script(directory.path(), "script", "exit 0");
    call(&["run", "--pthread", "-n", "2", &script]).says(125, "expected an executable");
    let program = test_program();
    program.on("2", &["--protocol", "lrc"], &["memory"]).says(125, "sc, hlrc or adaptive");
    program.on("2", &["--races", "--protocol", "sc"], &["memory"]).says(125, "use --protocol hlrc");
}

#[test]
fn without_the_option_it_is_named() {
    let program = test_program();
    let called = finish(start(hiroba(&["run", "-n", "2"]).arg(&program.path).arg("memory")));
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stderr.contains("--pthread"), "{called:?}");
}
