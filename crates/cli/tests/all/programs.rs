//! Every program of `tests/programs` and `apps` in real jobs: compiled by `hiroba cc`, run by `hiroba run`.
//!
//! The programs verify themselves; asserted here is that they end with status 0 within bounded time. The
//! jobs are a sample: every program runs on two of 1, 3, 4 and 8 nodes as a user would run it, on 2 nodes in
//! every second *way* (below), and on 4 nodes over a network that loses, reorders and duplicates datagrams;
//! what one program leaves out, the next takes. Programs that depend on the page size or the number of
//! threads also run with several of these. `HIROBA_MATRIX=all` runs everything in every way.
//!
//! A way is a fault source, a write tracking, and, if root runs the tests, an ordinary user as well as root.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hiroba_node::Protocol;
use hiroba_trace::RunStatistics;

use crate::support::sample;

const HIROBA: &str = env!("CARGO_BIN_EXE_hiroba");

/// The time limit of a program: no program takes nearly as long, even on a crowded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The user and group called `nobody`, for what root cannot prove.
const NOBODY: u32 = 65534;

const BAD_NETWORK: &[&str] = &["--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=7"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// Returns a directory of compiled programs, readable for all, which exists as long as the test process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        directory
    };
    DIRECTORY.get_or_init(make).path()
}

/// The library that `hiroba cc` links programs with.
fn library() -> PathBuf {
    let shown = Command::new(HIROBA).args(["cc", "-show", "a.c"]).output().expect("hiroba starts");
    let line = String::from_utf8(shown.stdout).expect("a UTF-8 path");
    let directory = line.split_whitespace().find_map(|word| word.strip_prefix("-L"));
    Path::new(directory.expect("a directory to link from")).join("libhiroba.so")
}

/// Returns a directory with the command and its library that an ordinary user can read, since the build
/// directory may be closed to others.
fn public_house() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = workshop().join("public");
        fs::create_dir(&directory).expect("a new directory");
        for (from, name) in [(PathBuf::from(HIROBA), "hiroba"), (library(), "libhiroba.so")] {
            let to = directory.join(name);
            fs::copy(&from, &to).expect("a copy");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
        directory
    })
}

/// Returns a compiled program of the repository. Tests share it: none may change it.
pub(crate) fn compile(source: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    let of_source = {
        let mut compiled = COMPILED.lock().expect("nobody panics with it");
        compiled.entry(source.to_owned()).or_default().clone()
    };
    of_source.get_or_init(|| compile_now(source)).clone()
}

fn compile_now(source: &str) -> PathBuf {
    let source = repository().join(source);
    let name = source.file_stem().expect("a file name").to_os_string();
    let program = workshop().join(name).with_extension(unique());
    let cxx = source.extension().is_some_and(|extension| extension == "cpp");
    let mut command = Command::new(HIROBA);
    let standard = if cxx { ["cxx", "-std=c++11"] } else { ["cc", "-std=c11"] };
    command.args(standard).args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]);
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

/// Runs a command, and kills it if it takes too long.
pub(crate) fn finish(command: &mut Command) -> Output {
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

#[track_caller]
fn succeeds(mut command: Command) -> Output {
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

fn job(hiroba: &Path, nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(hiroba);
    command.args(["run", "-n", &nodes.to_string()]).args(options).arg("--").arg(program).args(arguments);
    command
}

#[track_caller]
pub(crate) fn run(nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
    succeeds(job(Path::new(HIROBA), nodes, options, program, arguments))
}

/// How faults are caught, how writes are detected, and which user runs the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    source: &'static str,
    tracking: &'static str,
    /// Whether an ordinary user runs the job although root runs the tests.
    pub(crate) as_nobody: bool,
}

impl Way {
    pub fn options(&self) -> [&'static str; 4] {
        ["--fault-source", self.source, "--write-tracking", self.tracking]
    }

    pub(crate) fn job(&self, nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> Command {
        let options = [&self.options(), options].concat();
        if !self.as_nobody {
            return job(Path::new(HIROBA), nodes, &options, program, arguments);
        }
        let house = public_house();
        let mut command = job(&house.join("hiroba"), nodes, &options, program, arguments);
        // The programs name the library's own place, which may be closed to an ordinary user.
        command.env("LD_LIBRARY_PATH", house).uid(NOBODY).gid(NOBODY).current_dir("/");
        command
    }

    #[track_caller]
    fn run(&self, nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
        succeeds(self.job(nodes, options, program, arguments))
    }
}

/// Returns the ways that this machine and user have; the others are named on stderr.
pub(crate) fn ways() -> &'static [Way] {
    static WAYS: OnceLock<Vec<Way>> = OnceLock::new();
    WAYS.get_or_init(|| {
        let program = compile("tests/programs/init.c");
        let usable = |way: &Way| {
            let output = finish(&mut way.job(2, &[], &program, &[]));
            if !output.status.success() {
                eprintln!("{way:?} is not tested: {}", String::from_utf8_lossy(&output.stderr));
            }
            output.status.success()
        };
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("root's ways are not tested, for this user is not root");
        }
        let modes = [
            ("event", "async"),
            ("event", "fault"),
            ("sigbus", "async"),
            ("sigbus", "fault"),
            ("sigsegv", "fault"),
        ];
        let users: &[bool] = if is_root { &[false, true] } else { &[false] };
        let all = users.iter().flat_map(|&as_nobody| {
            let way = move |&(source, tracking): &_| Way { source, tracking, as_nobody };
            // Fault events need a privilege.
            modes.iter().map(way).filter(|way| !(way.as_nobody && way.source == "event")).collect::<Vec<_>>()
        });
        let ways: Vec<Way> = all.filter(usable).collect();
        for &as_nobody in users {
            let everywhere = ways.iter().any(|way| way.source == "sigsegv" && way.as_nobody == as_nobody);
            assert!(everywhere, "every kernel and user has sigsegv");
        }
        ways
    })
}

pub(crate) fn in_every_way(nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) {
    for way in ways() {
        way.run(nodes, options, program, arguments);
    }
}

/// Runs a program in every second way; `number` says in which.
pub(crate) fn in_some_ways(number: usize, nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) {
    for way in sample::one_of_every(2, number, ways()) {
        way.run(nodes, options, program, arguments);
    }
}

fn in_many_jobs(number: usize, source: &str, arguments: &[&str]) {
    let program = compile(source);
    for nodes in sample::one_of_every(2, number, &[1, 3, 4, 8]) {
        run(nodes, &[], &program, arguments);
    }
    in_some_ways(number, 2, &[], &program, arguments);
    run(4, BAD_NETWORK, &program, arguments);
}

macro_rules! programs {
    ($($name:ident: $source:literal $(, $argument:literal)*;)*) => {
        const SOURCES: &[&str] = &[$($source),*];

        $(#[test]
        fn $name() {
            let number = SOURCES.iter().position(|source| *source == $source).expect("it is one of them");
            in_many_jobs(number, concat!("tests/programs/", $source), &[$($argument),*]);
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
    large_arrays_travel: "big.c", "8";
    pointers_are_good_everywhere: "pointers.c";
    run_calls_every_thread: "run.c";
    tsm_programs_run: "tsm.c";
    sms_programs_run: "sms.c";
    random_race_free_programs_agree_with_one_machine: "random.c", "42", "12";
    handlers_of_signals_may_touch_shared_memory: "signals.c";
    the_header_is_cxx: "cxx.cpp";
    faults_on_the_own_stack_are_served: "stacks.c";
    threads_of_the_programs_own_come_and_go: "pthreads.c";
    streams_of_cxx_reach_shared_memory: "system_calls.cpp";
    children_have_no_shared_memory: "fork.c";
}

#[test]
fn programs_run_over_connections() {
    run_over("tcp");
}

#[test]
fn programs_run_over_shared_memory() {
    run_over("shm");
}

fn run_over(fabric: &str) {
    let over = |nodes: u16, options: &[&str], program: &Path, arguments: &[&str]| {
        run(nodes, &[&["--fabric", fabric], options].concat(), program, arguments);
    };
    let programs: &[(&str, &[&str])] = &[
        ("malloc.c", &[]),
        ("barrier.c", &["200"]),
        ("lock.c", &[]),
        ("cond.c", &[]),
        ("atomics.c", &[]),
        ("false_sharing.c", &["200"]),
        ("big.c", &["8"]),
        ("backlog.c", &[]),
        ("random.c", &["47", "12"]),
        ("system_calls.cpp", &[]),
    ];
    let turn = usize::from(fabric == "shm");
    for (number, (source, arguments)) in programs.iter().enumerate() {
        let program = compile(&format!("tests/programs/{source}"));
        for nodes in sample::one_of_every(2, number + turn, &[2, 4]) {
            over(nodes, &[], &program, arguments);
        }
    }
    let program = compile("tests/programs/random.c");
    in_some_ways(turn, 2, &["--fabric", fabric], &program, &["48", "8"]);
    over(3, &["--page-size", "2M"], &program, &["49", "5"]);
    over(9, &[], &compile("tests/programs/barrier.c"), &["50"]);
}

/// Runs the programs that exercise a protocol most, under the one that `options` choose.
fn under(options: &[&str]) {
    let programs: [(&str, &[&str]); 10] = [
        ("malloc.c", &[]),
        ("barrier.c", &["100"]),
        ("lock.c", &[]),
        ("cond.c", &[]),
        ("atomics.c", &[]),
        ("false_sharing.c", &["50"]),
        ("big.c", &["8"]),
        ("random.c", &["47", "12"]),
        ("page_sizes.c", &[]),
        ("system_calls.cpp", &[]),
    ];
    let turn = Protocol::ALL.iter().position(|protocol| options.contains(&protocol.name()));
    let turn = turn.expect("it is a protocol");
    for (number, (source, arguments)) in programs.into_iter().enumerate() {
        let program = compile(&format!("tests/programs/{source}"));
        let ways = [(1, "udp"), (2, "udp"), (3, "tcp"), (4, "shm")];
        for (nodes, fabric) in sample::one_of_every(ways.len(), number + turn, &ways) {
            run(nodes, &[options, &["--fabric", fabric]].concat(), &program, arguments);
        }
    }
    let program = compile("tests/programs/random.c");
    for source in ["event", "sigbus", "sigsegv"] {
        run(2, &[options, &["--fault-source", source]].concat(), &program, &["50", "8"]);
    }
    run(3, &[options, BAD_NETWORK].concat(), &program, &["45", "5"]);
    run(3, &[options, &["--page-size", "64K"]].concat(), &program, &["46", "5"]);
    run(8, options, &program, &["55", "5"]);
    run(2, &[options, &["-t", "3"]].concat(), &compile("tests/programs/threads.c"), &["3"]);
}

/// The promises of the weaker protocols hold under the stronger one, and a program may wait for a flag
/// without a lock.
#[test]
fn programs_run_under_sequential_consistency() {
    let sc = ["--protocol", "sc"];
    under(&sc);
    let program = compile("tests/programs/flags.c");
    for (nodes, fabric) in [(1, "udp"), (2, "udp"), (3, "tcp"), (4, "shm")] {
        run(nodes, &[&sc[..], &["--fabric", fabric]].concat(), &program, &["60"]);
    }
    for source in ["event", "sigbus", "sigsegv"] {
        run(2, &[&sc[..], &["--fault-source", source]].concat(), &program, &["60"]);
    }
    // Its handlers of all nodes write the same pages every 0.7 ms: among more nodes the pages could not go
    // round in time.
    run(2, &sc, &compile("tests/programs/signals.c"), &[]);
}

#[test]
fn programs_run_under_automatic_update() {
    let aurc = ["--protocol", "aurc"];
    under(&aurc);
    for (source, arguments) in [("random.c", ["48", "5"].as_slice()), ("early.c", &["3"])] {
        let program = compile(&format!("tests/programs/{source}"));
        for (number, fabric) in ["udp", "shm"].into_iter().enumerate() {
            in_some_ways(number, 2, &[&aurc[..], &["--fabric", fabric]].concat(), &program, arguments);
        }
    }
}

#[test]
fn programs_run_under_eager_release_consistency() {
    for protocol in [["--protocol", "erc-invalidate"], ["--protocol", "erc-update"]] {
        under(&protocol);
        let program = compile("tests/programs/random.c");
        for policy in ["modification", "faults"] {
            let moving = [&protocol[..], &["--home-migration", policy]].concat();
            run(3, &[&moving[..], BAD_NETWORK].concat(), &program, &["45", "5"]);
            run(4, &[&moving[..], &["--fabric", "shm"]].concat(), &program, &["47", "12"]);
        }
        run(2, &protocol, &compile("tests/programs/signals.c"), &[]);
    }
}

#[test]
fn programs_run_with_diffs_that_stay_with_their_writers() {
    under(&["--protocol", "lrc"]);
}

#[test]
fn programs_run_while_homes_move() {
    let ways: [&[&str]; 5] = [
        &["--home-migration", "modification"],
        &["--home-migration", "faults"],
        &["--protocol", "aurc", "--home-migration", "modification"],
        &["--protocol", "aurc", "--home-migration", "faults"],
        &["--protocol", "adaptive"],
    ];
    let programs =
        [("false_sharing.c", &["50"][..]), ("random.c", &["51", "12"]), ("atomics.c", &[]), ("cond.c", &[])];
    for (turn, way) in ways.into_iter().enumerate() {
        for (number, (source, arguments)) in programs.into_iter().enumerate() {
            let program = compile(&format!("tests/programs/{source}"));
            let shapes = [(2, "udp"), (3, "tcp"), (4, "shm")];
            for (nodes, fabric) in sample::one_of_every(shapes.len(), number + turn, &shapes) {
                run(nodes, &[way, &["--fabric", fabric]].concat(), &program, arguments);
            }
        }
        let program = compile("tests/programs/random.c");
        in_some_ways(turn, 2, way, &program, &["52", "8"]);
        run(3, &[way, BAD_NETWORK].concat(), &program, &["53", "8"]);
        run(3, &[way, &["--page-size", "64K"]].concat(), &program, &["54", "8"]);
        run(2, &[way, &["-t", "3"]].concat(), &compile("tests/programs/threads.c"), &["3"]);
    }
}

#[test]
fn regions_of_all_page_sizes_lie_side_by_side() {
    let program = compile("tests/programs/page_sizes.c");
    for nodes in [1, 3] {
        run(nodes, &[], &program, &[]);
    }
    in_every_way(2, &[], &program, &[]);
    run(2, BAD_NETWORK, &program, &[]);
    run(2, &["--page-size", "2M"], &program, &[]);
}

#[test]
fn programs_do_not_see_the_page_size() {
    let programs: &[(&str, &[&str])] = &[
        ("malloc.c", &[]),
        ("lock.c", &[]),
        ("atomics.c", &[]),
        ("false_sharing.c", &["50"]),
        ("pointers.c", &[]),
        ("random.c", &["43", "8"]),
        ("system_calls.cpp", &[]),
    ];
    for (number, (source, arguments)) in programs.iter().enumerate() {
        let program = compile(&format!("tests/programs/{source}"));
        for size in sample::one_of_every(3, number, &["4K", "64K", "2M"]) {
            run(3, &["--page-size", size], &program, arguments);
        }
    }
    let program = compile("tests/programs/random.c");
    for (number, size) in ["64K", "2M"].into_iter().enumerate() {
        in_some_ways(number, 2, &["--page-size", size], &program, &["44", "5"]);
    }
    run(3, &[BAD_NETWORK, &["--page-size", "64K"]].concat(), &program, &["45", "5"]);
}

#[test]
fn nodes_have_threads() {
    let program = compile("tests/programs/threads.c");
    for (nodes, threads) in [(1, "1"), (1, "3"), (2, "1"), (2, "3"), (3, "2")] {
        run(nodes, &["-t", threads], &program, &[threads]);
    }
    in_every_way(2, &["-t", "2"], &program, &["2"]);
    run(2, &[BAD_NETWORK, &["-t", "2"]].concat(), &program, &["2"]);
    run(2, &["-t", "3", "--page-size", "64K"], &program, &["3"]);
    let program = compile("tests/programs/run.c");
    for (nodes, threads) in [(1, "4"), (2, "2"), (3, "3"), (4, "2")] {
        run(nodes, &["-t", threads], &program, &[]);
    }
    // A program that does not call hiroba_run has one thread per node whatever is requested.
    run(2, &["-t", "2"], &compile("tests/programs/random.c"), &["46", "8"]);
}

#[test]
fn system_calls_reach_shared_memory() {
    let program = compile("tests/programs/system_calls.c");
    run(1, &[], &program, &[]);
    in_every_way(2, &[], &program, &[]);
    run(3, &["--page-size", "64K"], &program, &[]);
}

#[test]
fn programs_of_python_join() {
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        return eprintln!("not tested: there is no {}", python.display());
    }
    let script = workshop().join("system_calls.py");
    fs::copy(repository().join("tests/programs/system_calls.py"), &script).expect("a copy");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
    let script = script.to_str().expect("a UTF-8 path");
    let ours = library();
    run(1, &[], python, &[script, ours.to_str().expect("a UTF-8 path"), "1"]);
    for way in ways() {
        let library = if way.as_nobody { public_house().join("libhiroba.so") } else { ours.clone() };
        way.run(2, &[], python, &[script, library.to_str().expect("a UTF-8 path"), "2"]);
    }
}

#[test]
fn handlers_of_faults_get_the_programs_own_faults() {
    let program = compile("tests/programs/handlers.c");
    for arguments in [&[][..], &["before"]] {
        for nodes in [1, 3] {
            run(nodes, &[], &program, arguments);
        }
        in_every_way(2, &[], &program, arguments);
    }
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
    for way in ways() {
        let output = finish(&mut way.job(2, &[], &program, &[]));
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
    for header in ["hiroba.h", "hiroba_port.h", "sms.h", "tsm.h"] {
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

pub fn statistics(nodes: u16, options: &[&str], program: &Path, arguments: &[&str]) -> RunStatistics {
    let file = workshop().join(format!("statistics.{}.json", unique()));
    let option = format!("--stats=json:{}", file.display());
    run(nodes, &[&[option.as_str()], options].concat(), program, arguments);
    serde_json::from_slice(&std::fs::read(file).expect("the statistics file")).expect("the contract's JSON")
}

/// Asserts that every node's time is in some class, for each of its threads.
fn adds_up(run: &RunStatistics) {
    for node in &run.per_node {
        let (sum, wanted) = (node.time_s.sum(), f64::from(run.threads_per_node) * node.wall_s);
        assert!((sum - wanted).abs() <= 0.02 * wanted, "{sum} s of {wanted}: {node:?}");
    }
}

#[test]
fn statistics_add_up_and_count_what_happened() {
    let program = compile("tests/programs/barrier.c");
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let run = statistics(3, &way.options(), &program, &["100"]);
        assert_eq!((run.nodes, run.threads_per_node, run.page_bytes), (3, 1, 4096));
        assert_eq!(run.per_node.len(), 3);
        adds_up(&run);
        for node in &run.per_node {
            assert!(node.counters.barriers >= 100);
            assert!(node.counters.resident_bytes_max >= 4096);
        }
        let counters = &run.total.counters;
        assert!(counters.read_faults > 0, "{counters:?}");
        // Asynchronous tracking exists to avoid these.
        assert!(counters.write_faults > 0 || way.tracking == "async", "{counters:?}");
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
fn the_time_of_several_threads_adds_up() {
    let (in_runs, outside) = (compile("tests/programs/threads.c"), compile("tests/programs/barrier.c"));
    for way in ways().iter().filter(|way| !way.as_nobody) {
        for (threads, number) in [("2", 2), ("3", 3)] {
            let options = [&way.options()[..], &["-t", threads, "--page-size", "64K"]].concat();
            let programs: [(&Path, &str); 2] = [(&in_runs, threads), (&outside, "100")];
            for (program, argument) in programs {
                let run = statistics(2, &options, program, &[argument]);
                assert_eq!((run.nodes, run.threads_per_node, run.page_bytes), (2, number, 65536));
                adds_up(&run);
            }
        }
    }
    adds_up(&statistics(1, &["-t", "2"], &in_runs, &["2"]));
}

/// Homes are where pages are touched first: after that they cost nothing, however often they are written.
#[test]
fn pages_go_to_who_touches_them_first() {
    let program = compile("tests/programs/first_touch.c");
    let (pages, rounds) = (3 * 40, 40);
    for protocol in ["hlrc", "aurc", "adaptive", "erc-invalidate", "erc-update"] {
        for options in [&["--fabric", "udp"][..], &["--fabric", "shm"], BAD_NETWORK] {
            let options = [options, &["--protocol", protocol, "--page-size", "4K"]].concat();
            let counters = statistics(3, &options, &program, &[&rounds.to_string()]).total.counters;
            assert_eq!(counters.home_migrations, pages, "{options:?}");
            // Some more than the first round needs, since pages are fetched ahead of first touches, and
            // copies that are not read are updated for a while.
            let fetched = counters.pages_fetched + counters.pages_prefetched;
            assert!(fetched < pages * rounds / 4, "{options:?}: {fetched} pages fetched");
            assert!(counters.diffs_made < pages * rounds / 4, "{options:?}: {} diffs", counters.diffs_made);
        }
    }
    // Nothing moves if homes stay, or do not matter.
    for protocol in ["lrc", "sc"] {
        let run = statistics(3, &["--protocol", protocol], &program, &["2"]);
        assert_eq!(run.total.counters.home_migrations, 0, "{protocol}");
    }
    let output = run(2, &["--races"], &program, &["2"]);
    let said = String::from_utf8(output.stderr).expect("sentences");
    assert_eq!(said.matches("consecutive blocks where homes cannot move").count(), 1, "{said}");
    in_every_way(3, &[], &program, &["6"]);
}

#[test]
fn pages_that_are_read_in_equal_steps_come_ahead() {
    let program = compile("tests/programs/strides.c");
    let steps = [("1", 600), ("3", 200), ("7", 86), ("-1", 600), ("-4", 150)];
    let protocols = ["hlrc", "adaptive", "aurc", "erc-invalidate", "erc-update"];
    for (number, protocol) in protocols.into_iter().enumerate() {
        for (step, pages) in sample::one_of_every(2, number, &steps) {
            let options = ["--protocol", protocol, "--fabric", "udp", "--page-size", "4K"];
            let counters = statistics(2, &options, &program, &[step]).total.counters;
            let (waited, ahead) = (counters.pages_fetched, counters.pages_prefetched);
            // A thread that touches a page in flight waits for it, so the number of waits depends on the
            // speed of threads; the number of requests does not.
            assert!(
                waited + ahead >= pages && waited + ahead <= pages + 64,
                "{protocol}, {step}: {counters:?}"
            );
            assert!(counters.messages_sent < pages, "{protocol}, {step}: {counters:?}");
        }
    }
}

#[test]
fn injected_loss_is_repaired_and_counted() {
    let program = compile("tests/programs/barrier.c");
    let run = statistics(2, &["--inject", "loss=0.2,seed=3"], &program, &["100"]);
    assert!(run.total.counters.retransmits > 0);
}

/// Each region has its own protocol, whatever the job's.
#[test]
fn regions_have_protocols_of_their_own() {
    let program = compile("tests/programs/region_protocols.c");
    let names: Vec<&str> = Protocol::ALL.into_iter().map(Protocol::name).collect();
    in_every_way(3, &[], &program, &names);
    for name in &names {
        run(2, &["--protocol", name, "--fabric", "shm"], &program, &names);
    }
    run(1, &[], &program, &names);
    run(3, BAD_NETWORK, &program, &names);
}

/// If nodes share memory, runs of pages are mapped onto their homes' frames: nothing faults there, and
/// nothing is sent.
#[test]
fn large_regions_under_automatic_update_are_mapped_where_nodes_share_memory() {
    let program = compile("tests/programs/mapped_homes.c");
    let aurc = ["--protocol", "aurc"];
    let shm = ["--protocol", "aurc", "--fabric", "shm"];
    for way in ways() {
        for threads in ["1", "2"] {
            let output = succeeds(way.job(2, &[&shm[..], &["-t", threads]].concat(), &program, &["-"]));
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    run(1, &aurc, &program, &["-"]);
    run(4, &shm, &program, &["-"]);
    run(3, &aurc, &program, &["-"]);
    for first in ["sc", "lrc", "erc-update"] {
        run(3, &["--protocol", first, "--fabric", "shm"], &program, &["aurc"]);
    }
    let counted = |options: &[&str], region: &str| {
        let run = statistics(2, options, &program, &[region, "plain"]);
        let counters = &run.total.counters;
        let faults = counters.read_faults + counters.write_faults;
        (faults, counters.twins_made, counters.diffs_made, counters.pages_fetched + counters.pages_prefetched)
    };
    for source in ["sigbus", "event", "sigsegv"] {
        assert_eq!(counted(&[&shm[..], &["--fault-source", source]].concat(), "-"), (0, 0, 0, 0), "{source}");
    }
    assert_eq!(counted(&["--fabric", "shm"], "aurc"), (0, 0, 0, 0), "a region's own protocol");
    let (faults, twins, diffs, fetched) = counted(&aurc, "-");
    assert!(faults > 0 && twins > 0 && diffs > 0 && fetched > 0, "over udp nothing is mapped");
}

/// The message appears once per job, whether the protocol is the job's or a region's.
#[test]
fn a_fabric_without_shared_memory_says_once_that_nothing_is_mapped() {
    let program = compile("tests/programs/mapped_homes.c");
    for (options, region, fabric) in [
        (&["--protocol", "aurc"][..], "-", "udp"),
        (&["--protocol", "aurc"], "aurc", "udp"),
        (&["--fabric", "tcp"], "aurc", "tcp"),
    ] {
        let output = run(2, options, &program, &[region]);
        let said = String::from_utf8_lossy(&output.stderr);
        let sentence = format!(
            "aurc cannot map pages onto their homes over {fabric}: updates leave in the background\n"
        );
        assert!(said.lines().count() == 1 && said.ends_with(&sentence), "{said}");
    }
    let output = run(2, &["--fabric", "shm"], &program, &["aurc"]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
