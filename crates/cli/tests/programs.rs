//! Every program of `tests/programs` and `apps` in real jobs: compiled by `hiroba cc`, run by `hiroba run`.
//!
//! The programs verify themselves; what is asserted here is that they end with status 0 within bounded time, on 1 to 8
//! nodes, over every fault source that this machine and user may have, and on a network that loses,
//! reorders and duplicates datagrams.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hiroba_trace::RunStatistics;

const HIROBA: &str = env!("CARGO_BIN_EXE_hiroba");

/// No program takes nearly as long, even on a crowded machine.
const LIMIT: Duration = Duration::from_secs(120);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// Compiled programs, for the life of the test process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY.get_or_init(|| tempfile::tempdir().expect("a temporary directory")).path()
}

fn compile(source: &str) -> PathBuf {
    let source = repository().join(source);
    let name = source.file_stem().expect("a file name").to_os_string();
    let program = workshop().join(name).with_extension(unique());
    let cxx = source.extension().is_some_and(|extension| extension == "cpp");
    let mut command = Command::new(HIROBA);
    let standard = if cxx { ["cxx", "-std=c++11"] } else { ["cc", "-std=c11"] };
    command.args(standard).args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg("-o").arg(&program).arg(&source).arg("-lm");
    let output = command.output().expect("hiroba starts");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    program
}

fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// Runs a command, and kills it when it takes too long.
fn finish(command: &mut Command) -> Output {
    let describe = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the command starts");
    let id = child.id();
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait_with_output()));
    let began = Instant::now();
    let output = receiver.recv_timeout(LIMIT).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("{describe} has not ended after {} s", began.elapsed().as_secs())
    });
    waiter.join().expect("the waiting thread ends").expect("the receiver is there");
    output.expect("the command's output")
}

fn run(nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(HIROBA);
    command.args(["run", "-n", &nodes.to_string()]).args(options).arg("--").arg(program).args(arguments);
    let output = finish(&mut command);
    assert!(
        output.status.success(),
        "{command:?}: {}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The fault sources that this machine and user may have; the rest are named on stderr.
fn fault_sources() -> &'static [&'static str] {
    static SOURCES: OnceLock<Vec<&'static str>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let program = compile("tests/programs/init.c");
        let usable = |source: &&str| {
            let mut command = Command::new(HIROBA);
            command.args(["run", "-n", "2", "--fault-source", source]).arg(&program);
            let output = finish(&mut command);
            if !output.status.success() {
                eprintln!("fault source {source} not tested: {}", String::from_utf8_lossy(&output.stderr));
            }
            output.status.success()
        };
        let sources: Vec<_> = ["event", "sigbus", "sigsegv"].into_iter().filter(usable).collect();
        assert!(sources.contains(&"sigsegv"), "every kernel has sigsegv");
        sources
    })
}

/// On 1, 2, 3, 4 and 8 nodes with the default fault source, on 3 with each, and on 4 over a bad network.
fn in_many_jobs(source: &str, arguments: &[&str]) {
    let program = compile(source);
    for nodes in [1, 2, 3, 4, 8] {
        run(nodes, &[], &program, arguments);
    }
    for fault_source in fault_sources() {
        run(3, &["--fault-source", fault_source], &program, arguments);
    }
    run(4, &["--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=7"], &program, arguments);
}

macro_rules! programs {
    ($($name:ident: $source:literal $(, $argument:literal)*;)*) => {
        $(#[test]
        fn $name() {
            in_many_jobs(concat!("tests/programs/", $source), &[$($argument),*]);
        })*
    };
}

programs! {
    allocation_is_zeroed_and_at_one_address: "alloc.c";
    placement_options_are_honoured: "placement.c";
    the_malloc_family_works_across_nodes: "malloc.c";
    barriers_order_everything: "barrier.c", "200";
    locks_exclude_and_publish: "lock.c";
    trylock_excludes: "trylock.c";
    condition_variables_wake_everyone_once: "cond.c";
    atomic_words_add_up: "atomics.c";
    different_bytes_of_a_page_may_be_written_at_once: "false_sharing.c", "200";
    large_arrays_travel: "big.c", "16";
    pointers_are_good_everywhere: "pointers.c";
    run_calls_every_thread: "run.c";
    tsm_programs_run: "tsm.c";
    sms_programs_run: "sms.c";
    random_race_free_programs_agree_with_one_machine: "random.c", "42", "12";
    handlers_of_signals_may_touch_shared_memory: "signals.c";
    the_header_is_cxx: "cxx.cpp";
}

#[test]
fn nodes_know_who_they_are() {
    let program = compile("tests/programs/init.c");
    for nodes in [1u16, 2, 5] {
        let number = nodes.to_string();
        run(nodes, &[], &program, &["--expect-nodes", &number, "two words"]);
    }
}

#[test]
fn a_touch_after_the_end_is_a_segmentation_fault() {
    let program = compile("tests/programs/late.c");
    for fault_source in fault_sources() {
        let mut command = Command::new(HIROBA);
        command.args(["run", "-n", "2", "--fault-source", fault_source]).arg(&program);
        let output = finish(&mut command);
        assert_eq!(output.status.code(), Some(128 + 11), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_writer_that_never_waits_queues_within_bounds() {
    let program = compile("tests/programs/backlog.c");
    run(2, &[], &program, &[]);
    run(2, &["--inject", "loss=0.02,seed=1"], &program, &[]);
}

#[test]
fn a_program_alone_is_a_job_of_one_node() {
    let program = compile("tests/programs/single.c");
    let output = finish(&mut Command::new(&program));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_header_compiles_as_c99_and_cxx_without_a_warning() {
    for header in ["hiroba.h", "sms.h", "tsm.h"] {
        for (compiler, standard, suffix) in [("cc", "-std=c99", "c"), ("cxx", "-std=c++11", "cpp")] {
            let source = workshop().join(format!("{header}.{}.{suffix}", unique()));
            std::fs::write(&source, format!("#include <{header}>\nint main(void) {{ return 0; }}\n"))
                .unwrap();
            let mut command = Command::new(HIROBA);
            command.args([
                compiler,
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-c",
                "-o",
                "/dev/null",
            ]);
            let output = command.arg(&source).output().expect("hiroba starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

fn energies(output: &Output) -> Vec<f64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.contains(" energy  "));
    lines.filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect()
}

#[test]
fn nbody_gives_the_same_energies_on_any_number_of_nodes() {
    let program = compile("apps/nbody.c");
    let input = repository().join("apps/data/solar-system.txt");
    let inputs: [Vec<&str>; 2] =
        [vec!["-n", "501", "-s", "20"], vec!["-i", input.to_str().expect("a UTF-8 path"), "-s", "40"]];
    for arguments in inputs {
        let expected = energies(&run(1, &[], &program, &arguments));
        assert_eq!(expected.len(), 2, "initial and final energy");
        for nodes in [2, 4, 8] {
            let got = energies(&run(nodes, &[], &program, &arguments));
            let close = |(a, b): (&f64, &f64)| ((a - b) / b).abs() <= 1e-12;
            assert!(got.len() == 2 && got.iter().zip(&expected).all(close), "{nodes}: {got:?} {expected:?}");
        }
    }
}

fn statistics(nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> RunStatistics {
    let file = workshop().join(format!("statistics.{}.json", unique()));
    let option = format!("--stats=json:{}", file.display());
    run(nodes, &[&[option.as_str()], options].concat(), program, arguments);
    serde_json::from_slice(&std::fs::read(file).expect("the statistics file")).expect("the contract's JSON")
}

#[test]
fn statistics_add_up_and_count_what_happened() {
    let program = compile("tests/programs/barrier.c");
    for fault_source in fault_sources() {
        let run = statistics(3, &["--fault-source", fault_source], &program, &["100"]);
        assert_eq!((run.nodes, run.threads_per_node, run.page_bytes), (3, 1, 4096));
        assert_eq!(run.per_node.len(), 3);
        for node in &run.per_node {
            let sum = node.time_s.sum();
            assert!((sum - node.wall_s).abs() <= 0.02 * node.wall_s, "{sum} of {}", node.wall_s);
            assert!(node.counters.barriers >= 100);
            assert!(node.counters.resident_bytes_max >= 4096);
        }
        let counters = &run.total.counters;
        assert!(counters.read_faults > 0 && counters.write_faults > 0, "{counters:?}");
        assert!(
            counters.pages_fetched > 0 && counters.messages_sent > counters.pages_fetched,
            "{counters:?}"
        );
        assert!(counters.bytes_sent > 0 && counters.invalidations > 0, "{counters:?}");
        let sum: u64 = run.per_node.iter().map(|node| node.counters.messages_sent).sum();
        assert_eq!(counters.messages_sent, sum);
    }
}

#[test]
fn injected_loss_is_repaired_and_counted() {
    let program = compile("tests/programs/barrier.c");
    let run = statistics(2, &["--inject", "loss=0.2,seed=3"], &program, &["100"]);
    assert!(run.total.counters.retransmits > 0);
}
