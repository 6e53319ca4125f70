//! Executables of OpenMP, GNU's and LLVM's: the programs of `apps/openmp` and `tests/programs/openmp.c`,
//! built by the stock compilers, print on 1, 2 and 4 nodes what they print natively with as many threads.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::executables::may_run;
use crate::support::forms::PASSIVE;
use crate::support::{Called, finish, hiroba, start};

/// A program in a directory that goes with it.
struct Program {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

/// Where jobs run: their options, and how many threads they have.
const JOBS: [(&str, u32); 6] = [
    ("-n 1", 1),
    ("-n 1 -t 2", 2),
    ("-n 2", 2),
    ("-n 2 --fabric shm", 2),
    ("-n 2 -t 2 --fabric tcp", 4),
    ("-n 4", 4),
];

fn is_there(compiler: &str) -> bool {
    let called = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = called.is_ok_and(|status| status.success());
    if !there {
        eprintln!("there is no {compiler} here: what it builds is not run");
    }
    there
}

fn build(compiler: &str, source: &str, options: &[&str]) -> Program {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-fopenmp", "-o"]).arg(&path).arg(&source).args(options);
    let called = finish(start(command.current_dir(directory.path())));
    assert_eq!(called.status, 0, "{called:?}");
    Program { _directory: directory, path }
}

impl Program {
    fn natively(&self, threads: u32, given: &[&str]) -> Called {
        let mut command = Command::new(&self.path);
        command.args(given).env("OMP_NUM_THREADS", threads.to_string()).envs(PASSIVE);
        finish(start(command.stdin(Stdio::null())))
    }

    fn on(&self, options: &str, given: &[&str]) -> Called {
        let mut command = hiroba(&["run"]);
        command.args(options.split(' ')).arg("--").arg(&self.path).args(given);
        finish(start(command.env_remove("OMP_NUM_THREADS")))
    }

    /// Returns a number from the statistics of a job.
    #[track_caller]
    fn counted(&self, options: &str, given: &[&str], count: &str) -> f64 {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let called = self.on(&format!("{options} --stats=json:{}", file.path().display()), given);
        assert_eq!(called.status, 0, "{given:?}: {called:?}");
        let text = std::fs::read_to_string(file.path()).expect("statistics");
        let statistics: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        statistics["total"][count].as_f64().expect("a number")
    }

    /// Asserts that the program prints and returns in jobs what it does natively.
    #[track_caller]
    fn is_as_natively(&self, given: &[&str]) {
        self.is_as_with_threads(1, given);
    }

    /// The same, where natively it has `least` threads at least.
    #[track_caller]
    fn is_as_with_threads(&self, least: u32, given: &[&str]) {
        if !may_run() {
            return;
        }
        for (options, threads) in JOBS {
            let (native, called) = (self.natively(threads.max(least), given), self.on(options, given));
            assert!(!native.stdout.is_empty(), "{native:?}");
            let same = (called.status, &called.stdout) == (native.status, &native.stdout);
            assert!(same, "{given:?}, {options}: {called:?}, natively {native:?}");
        }
    }
}

/// A C compiler that is there, and its C++ compiler.
#[derive(Clone, Copy)]
struct Compiler {
    c: &'static str,
    cxx: &'static str,
}

const GNU: Compiler = Compiler { c: "cc", cxx: "c++" };
const LLVM: Compiler = Compiler { c: "clang", cxx: "clang++" };

fn compilers() -> impl Iterator<Item = Compiler> {
    // Without a compiler of GNU's nothing could be built at all.
    [GNU, LLVM].into_iter().filter(|compiler| compiler.c == GNU.c || is_there(compiler.c))
}

impl Compiler {
    fn build(self, source: &str, options: &[&str]) -> Program {
        build(self.c, source, &[&["-Wextra", "-Werror"], options].concat())
    }

    fn constructs(self) -> Program {
        // LLVM's has atomic operations on long doubles in a library.
        let more: &[&str] = if self.c == LLVM.c { &["-latomic"] } else { &[] };
        self.build("tests/programs/openmp.c", &[&["-lm"], more].concat())
    }

    fn corners(self, options: &[&str]) -> Program {
        let newer: &[&str] = if self.c == LLVM.c { &["-fopenmp-version=51"] } else { &[] };
        self.build("tests/programs/openmp_corners.c", &[newer, options].concat())
    }
}

fn constructs() -> Program {
    GNU.constructs()
}

/// What both interfaces do most differently.
#[test]
fn corners_of_both_interfaces_are_as_natively() {
    for compiler in compilers() {
        let program = compiler.corners(&[]);
        let parts = ["arguments", "bounds", "orders", "kinds", "copies", "sums", "locks", "targets"];
        program.is_as_natively(&parts);
    }
    if is_there(LLVM.c) {
        LLVM.corners(&["-fnoopenmp-use-tls"]).is_as_natively(&["copies"]);
    }
}

#[test]
fn work_is_shared_as_natively() {
    for program in compilers().map(Compiler::constructs) {
        for part in ["regions", "loops", "ordered", "sharing"] {
            program.is_as_natively(&[part]);
        }
    }
}

#[test]
fn tasks_are_run_as_natively() {
    for compiler in compilers() {
        // An assertion of LLVM's own library fails where a thread alone has a task with an event.
        compiler.constructs().is_as_with_threads(2, &["tasks"]);
        // Not with -Wextra: LLVM's compiler finds fault with its own code for a loop in tasks.
        build(compiler.c, "apps/openmp/tasks.c", &["-Werror"]).is_as_natively(&["20000", "7"]);
    }
}

#[test]
fn a_thread_ends_the_program_while_others_wait() {
    compilers().for_each(|compiler| compiler.constructs().is_as_natively(&["leaving"]));
}

#[test]
fn code_for_devices_runs_on_the_host() {
    compilers().for_each(|compiler| compiler.constructs().is_as_natively(&["devices"]));
}

#[test]
fn work_is_cancelled_when_that_is_wanted() {
    if !may_run() {
        return;
    }
    for program in compilers().flat_map(|compiler| [compiler.constructs(), compiler.corners(&[])]) {
        for (options, _) in JOBS {
            let called = program.on(&format!("{options} -x OMP_CANCELLATION=true"), &["cancelled"]);
            assert_eq!((called.status, called.stdout.as_str()), (0, "cancelled\n"), "{options}: {called:?}");
        }
    }
}

/// Threads that the next regions leave out may come from a region's end late.
#[test]
fn teams_of_all_sizes_end_in_programs_that_may_cancel() {
    if !may_run() {
        return;
    }
    for program in compilers().map(|compiler| compiler.build("tests/programs/openmp_sizes.c", &[])) {
        for job in ["-n 2 -t 4 --fabric tcp", "-n 2 -t 2", "-n 4 --fabric shm"] {
            let called = program.on(&format!("{job} -x OMP_CANCELLATION=true"), &["100"]);
            assert_eq!((called.status, called.stdout.as_str()), (0, "all came\n"), "{job}: {called:?}");
        }
    }
}

#[test]
fn thread_private_variables_can_be_reached_from_every_node() {
    compilers().for_each(|compiler| compiler.constructs().is_as_natively(&["threadprivate"]));
}

#[test]
fn settings_reach_all_threads() {
    compilers().for_each(|compiler| compiler.constructs().is_as_natively(&["settings"]));
}

/// Whatever orders memory, with data and flags in long blocks.
#[test]
fn long_blocks_are_ordered_as_natively() {
    for compiler in compilers() {
        let newer: &[&str] = if compiler.c == LLVM.c { &["-fopenmp-version=51"] } else { &[] };
        compiler.build("tests/programs/openmp_orders.c", newer).is_as_natively(&[]);
    }
}

/// Random stores of two nodes to the pages of one array. While one node requests them one after the other,
/// the other one, their home, keeps its access to those that it writes, because it has snapshots of them.
#[test]
fn scattered_stores_cost_few_faults() {
    if !may_run() {
        return;
    }
    for compiler in compilers() {
        let program = compiler.build("apps/openmp/is.c", &[]);
        let faults = program.counted("-n 2 --fabric udp", &["18"], "write_faults");
        // About 5,500; a hundred times as many if the home closed its interval for each request.
        assert!(faults < 9000.0, "{}: {faults} write faults", compiler.c);
    }
}

#[test]
fn other_protocols_keep_long_blocks() {
    if !may_run() {
        return;
    }
    let parts = ["regions", "loops", "ordered", "sharing", "threadprivate"];
    for compiler in compilers() {
        let program = compiler.constructs();
        let native = program.natively(2, &parts);
        for protocol in ["sc", "hlrc --write-tracking async", "adaptive"] {
            let called = program.on(&format!("-n 2 --protocol {protocol}"), &parts);
            assert_eq!((called.status, &called.stdout), (0, &native.stdout), "{protocol}: {called:?}");
        }
        let program = compiler.build("apps/openmp/is.c", &[]);
        let called = program.on("-n 2 --write-tracking async", &["17"]);
        assert_eq!(called.stdout, program.natively(2, &["17"]).stdout, "{called:?}");
    }
}

#[test]
fn example_programs_are_as_natively() {
    let programs = [("ep", "17"), ("cg", "3000"), ("is", "11"), ("ft", "T"), ("mg", "T"), ("lu", "S")];
    for (source, given) in programs {
        let source = format!("apps/openmp/{source}.c");
        compilers().for_each(|compiler| compiler.build(&source, &["-lm"]).is_as_natively(&[given]));
    }
}

#[test]
fn a_cxx_program_is_as_natively() {
    for Compiler { cxx, .. } in compilers() {
        let options = ["-std=c++17", "-Wextra", "-Werror"];
        build(cxx, "tests/programs/openmp.cpp", &options).is_as_natively(&[]);
        build(cxx, "tests/programs/openmp_corners.cpp", &options).is_as_natively(&[]);
    }
    if is_there(LLVM.cxx) {
        let options = ["-std=c++17", "-fnoopenmp-use-tls"];
        build(LLVM.cxx, "tests/programs/openmp_corners.cpp", &options).is_as_natively(&[]);
    }
}

#[test]
fn a_fortran_program_is_as_natively() {
    if is_there("gfortran") {
        build("gfortran", "apps/openmp/heat.f90", &[]).is_as_natively(&[]);
        build("gfortran", "tests/programs/openmp.f90", &[]).is_as_natively(&[]);
    }
}

/// What a program is told of its levels, where it has inner regions.
#[test]
fn regions_inside_regions_have_one_thread() {
    if !may_run() {
        return;
    }
    for program in compilers().map(|compiler| compiler.build("tests/programs/openmp_nested.c", &[])) {
        for (options, threads) in JOBS.into_iter().filter(|(_, threads)| *threads > 1) {
            let mut asked = vec![(format!("{options} -x OMP_MAX_ACTIVE_LEVELS=2"), vec![])];
            asked.push((format!("{options} -x OMP_NESTED=true -x OMP_NUM_THREADS={threads},3"), vec!["3"]));
            for (options, given) in asked {
                let called = program.on(&options, &given);
                let is_right = (called.status, called.stdout.as_str()) == (0, "as it is\n");
                assert!(is_right, "{options}: {called:?}");
            }
        }
        let called = program.on("-n 2 -x OMP_NUM_THREADS=2,3 -x OMP_DISPLAY_ENV=true", &["3"]);
        assert!(called.stderr.contains("OMP_NUM_THREADS = '2,3'"), "{called:?}");
        let called = program.on("-n 2 -x OMP_NUM_THREADS=2,x", &[]);
        let reason = "expected a number from 1, or one for each level, got '2,x'";
        assert!(called.status == 125 && called.stderr.contains(reason), "{called:?}");
    }
}

/// Those that a library may combine itself, of all kinds of values.
#[test]
fn reductions_are_as_natively() {
    if !may_run() {
        return;
    }
    for compiler in compilers() {
        for level in ["-O0", "-O2"] {
            compiler.build("tests/programs/openmp_reductions.c", &[level]).is_as_natively(&[]);
        }
    }
}

/// Those that a barrier follows may travel with it: in all forms that compilers make, and where another
/// thread waits for one.
#[test]
fn updates_before_barriers_are_as_natively() {
    if !may_run() {
        return;
    }
    let source = "tests/programs/openmp_updates.c";
    for compiler in compilers() {
        // LLVM's has atomic operations on long doubles in a library.
        let library = if compiler.c == LLVM.c { "-latomic" } else { "-lm" };
        let levels =
            [Some("-O0"), Some("-O1"), Some("-O3"), is_x86_feature_detected!("avx2").then_some("-mavx2")];
        for level in levels.into_iter().flatten() {
            compiler.build(source, &[level, library]).is_as_natively(&["kinds"]);
        }
        compiler.build(source, &[library]).is_as_natively(&["signals"]);
    }
}

/// Node 0 executes the updates of all threads in the order of their numbers.
#[test]
fn sums_do_not_depend_on_who_comes_first() {
    if !may_run() {
        return;
    }
    let program = GNU.build("tests/programs/openmp_updates.c", &["-lm"]);
    for job in ["-n 2", "-n 2 -t 2", "-n 3 --fabric shm"] {
        let sum = || {
            let called = program.on(job, &["sum"]);
            assert_eq!(called.status, 0, "{job}: {called:?}");
            called.stdout
        };
        let first = sum();
        (0..3).for_each(|_| assert_eq!(sum(), first, "{job}"));
    }
}

/// How many messages two nodes exchange for a construct, where 2 are a round trip.
#[test]
fn constructs_take_few_round_trips() {
    if !may_run() {
        return;
    }
    let messages = |program: &Program, construct: &str, count: u32| {
        program.counted("-n 2 --fabric udp", &[construct, &count.to_string()], "messages_sent")
    };
    for (compiler, program) in
        compilers().map(|compiler| (compiler, compiler.build("tests/programs/openmp_rounds.c", &[])))
    {
        // A region is two barriers: nodes keep the records of regions that are like earlier ones. Data of its
        // caller travel with the first one, as do those that a `single` passes on. The values of a reduction
        // travel with the arrival at the second one; where gcc has built the program, the code that adds them
        // does, and nodes that read the result get it with the departure.
        let is_llvm = compiler.c == LLVM.c;
        let (sum, reduction, read) = if is_llvm { (7.0, 4.75, 9.0) } else { (5.5, 2.5, 5.5) };
        for (construct, most) in [
            ("regions", 4.5),
            ("pairs", 4.5),
            ("arguments", 5.5),
            ("sums", sum),
            ("two_sums", sum),
            ("barriers", 2.5),
            ("singles", 2.5),
            ("copies", 5.5),
            ("criticals", 0.5),
            ("reductions", reduction),
            ("real_reductions", reduction + 1.0),
            ("read_reductions", read),
        ] {
            let more = messages(&program, construct, 300) - messages(&program, construct, 100);
            assert!(more <= 200.0 * most, "{} {construct}: {more} messages for 200", compiler.c);
        }
    }
}

/// A thread that waits for long leaves the fabric to the service thread. If it watched, each message for
/// another thread of its node would wake it first.
#[test]
fn a_thread_that_waits_for_long_is_not_woken_for_others() {
    if !may_run() {
        return;
    }
    for compiler in compilers() {
        let program = compiler.build("tests/programs/openmp_waiting.c", &[]);
        let called = program.on("-n 2 --fabric udp", &["4000"]);
        let sleeps = called.stdout.trim().parse::<i64>().expect("a number");
        assert!(called.status == 0 && (0..1000).contains(&sleeps), "{}: {called:?}", compiler.c);
    }
}

/// A number of threads from the environment, fewer than there are places, also on some of the nodes only.
#[test]
fn the_environment_is_honoured() {
    if !may_run() {
        return;
    }
    let program = constructs();
    for threads in ["1", "2", "3"] {
        let options = format!("-n 2 -t 2 -x OMP_NUM_THREADS={threads} -x OMP_SCHEDULE=dynamic,3");
        let called = program.on(&options, &["regions", "loops", "sharing"]);
        assert_eq!(called.status, 0, "{threads}: {called:?}");
    }
    let shown = program.on("-n 2 -x OMP_DISPLAY_ENV=true -x OMP_PROC_BIND=close", &["regions"]);
    assert_eq!(shown.stderr.matches("OMP_NUM_THREADS = '2'").count(), 1, "{shown:?}");
    program.on("-n 2 -x OMP_NUM_THREADS=3", &["regions"]).says(125, "expected at most 2 threads");
    let called = program.on("-n 2 -x OMP_DISPLAY_ENV=true -x OMP_SCHEDULE=profiled,16,5,3", &["regions"]);
    assert!(called.stderr.contains("OMP_SCHEDULE = 'PROFILED,16,5,3'"), "{called:?}");
    for (schedule, reason) in [
        ("profile,4", "expected static, dynamic, guided, auto, factoring, awf or profiled"),
        ("profiled,4,x", "expected a number of iterations after each comma, got 'profiled,4,x'"),
        ("dynamic,4,5", "expected one number at most"),
    ] {
        let refused = program.on(&format!("-n 2 -x OMP_SCHEDULE={schedule}"), &["regions"]);
        assert!(refused.status == 125 && refused.stderr.contains(reason), "{schedule}: {refused:?}");
    }
}

#[test]
fn threads_run_in_their_places() {
    if !may_run() {
        return;
    }
    let bindings = ["close", "spread", "primary", "true"];
    let places = ["threads", "cores(1)", "sockets", "{0:64}", "{0},{1:63}"];
    for program in compilers().map(|compiler| compiler.build("tests/programs/openmp_places.c", &[])) {
        for (number, (job, _)) in JOBS.into_iter().enumerate() {
            for (turn, places) in places.iter().enumerate() {
                let binding = bindings[(number + turn) % bindings.len()];
                let options = format!("{job} -x OMP_PLACES={places} -x OMP_PROC_BIND={binding}");
                let called = program.on(&options, &["bound"]);
                assert_eq!(
                    (called.status, called.stdout.as_str()),
                    (0, "as asked\n"),
                    "{options}: {called:?}"
                );
            }
        }
        for variables in ["-x OMP_PLACES=threads -x OMP_PROC_BIND=false", "-x OMP_PROC_BIND=false"] {
            let called = program.on(&format!("-n 2 {variables}"), &["free"]);
            assert_eq!((called.status, called.stdout.as_str()), (0, "as asked\n"), "{variables}: {called:?}");
        }
        for variable in ["OMP_PLACES=cores", "OMP_PROC_BIND=spread"] {
            let called = program.on(&format!("-n 2 -x {variable}"), &["bound"]);
            assert_eq!((called.status, called.stdout.as_str()), (0, "as asked\n"), "{variable}: {called:?}");
        }
        for (places, reason) in [("core", "expected threads, cores"), ("{8000}", "that this node may use")] {
            let called = program.on(&format!("-n 2 -x OMP_PLACES={places}"), &["bound"]);
            assert!(called.status == 125 && called.stderr.contains(reason), "{places}: {called:?}");
        }
    }
}

/// Speeds by the threads' own clocks: the slow thread needs twenty times as long. Each loop keeps its own.
#[test]
fn parts_follow_speeds() {
    if !may_run() {
        return;
    }
    for program in compilers().map(|compiler| compiler.build("tests/programs/openmp_schedules.c", &[])) {
        for schedule in ["profiled", "profiled,10"] {
            for job in ["-n 2", "-n 1 -t 2"] {
                let called = program.on(&format!("{job} -x OMP_SCHEDULE={schedule}"), &["speeds"]);
                let is_right = (called.status, called.stdout.as_str()) == (0, "parts follow speeds\n");
                assert!(is_right, "{schedule} {job}: {called:?}");
            }
        }
    }
}

/// Schedules that the environment sets, also those that only Hiroba has.
#[test]
fn every_schedule_gives_out_each_iteration_once() {
    if !may_run() {
        return;
    }
    let schedules = [
        "static,5",
        "dynamic,3",
        "monotonic:dynamic",
        "guided,4",
        "factoring,2",
        "awf",
        "profiled",
        "profiled,8",
        "profiled,0,7,2",
    ];
    let jobs = ["-n 1 -t 2", "-n 2", "-n 2 -t 2 --fabric tcp", "-n 4 --fabric shm"];
    let programs: Vec<Program> =
        compilers().map(|compiler| compiler.build("tests/programs/openmp_schedules.c", &[])).collect();
    for (number, schedule) in schedules.iter().enumerate() {
        for (turn, job) in jobs.iter().enumerate() {
            let program = &programs[(number + turn) % programs.len()];
            let options = format!("{job} -x OMP_SCHEDULE={schedule} -x OMP_CANCELLATION=true");
            let called = program.on(&options, &["700"]);
            let is_right = (called.status, called.stdout.as_str()) == (0, "every iteration once\n");
            assert!(is_right, "{options}: {called:?}");
        }
    }
}

/// Adaptive weighted factoring in programs as they are. That chunks follow speeds is tested with clocks that
/// tests set, in `crates/schedule`: here they also depend on who gets a processor.
#[test]
fn weighted_factoring_runs_in_programs_as_they_are() {
    if !may_run() {
        return;
    }
    for program in compilers().map(|compiler| compiler.build("tests/programs/openmp_schedules.c", &[])) {
        for nodes in ["1", "2", "4"] {
            for schedule in ["awf", "awf,5"] {
                let called = program.on(&format!("-n {nodes} -x OMP_SCHEDULE={schedule}"), &["700"]);
                let is_right = (called.status, called.stdout.as_str()) == (0, "every iteration once\n");
                assert!(is_right, "{schedule}, {nodes} nodes: {called:?}");
            }
        }
        let called = program.on("-n 2 -x OMP_SCHEDULE=awf,5 -x OMP_DISPLAY_ENV=true", &["10"]);
        assert!(called.status == 0 && called.stderr.contains("OMP_SCHEDULE = 'AWF,5'"), "{called:?}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_before_it_starts() {
    build("cc", "apps/openmp/ep.c", &["-static", "-lm"]).on("-n 2", &[]).says(125, "linked statically");
    let program = constructs();
    program.on("-n 2 --protocol lrc", &["regions"]).says(125, "sc, hlrc or adaptive");
    for function in ["GOMP_of_next_year", "__kmpc_of_next_year"] {
        calls(function).on("-n 2", &[]).says(125, function);
    }
    if is_there(LLVM.c) {
        let libraries = ["-lm", "-Wl,--no-as-needed", "-l:libgomp.so.1"];
        LLVM.build("apps/openmp/ep.c", &libraries).on("-n 2", &[]).says(125, "both GNU and LLVM");
    }
}

/// Only a library of the program calls OpenMP's.
#[test]
fn a_library_of_the_program_may_call_openmp() {
    if !may_run() {
        return;
    }
    for compiler in compilers() {
        let program = with_library(
            compiler,
            "#include <omp.h>\n\
             static int seen[64];\n\
             int total(void) {\n\
                 int sum = 0;\n\
                 _Pragma(\"omp parallel reduction(+ : sum)\")\n\
                 sum += ++seen[omp_get_thread_num()];\n\
                 return sum == omp_get_max_threads() ? 1000 + seen[0] : sum;\n\
             }\n",
            "#include <stdio.h>\nint total(void);\nint main(void) { return printf(\"%d\\n\", total()) != 5; }\n",
        );
        for (options, _) in JOBS {
            let called = program.on(&format!("{options} --pthread"), &[]);
            assert_eq!((called.status, called.stdout.as_str()), (0, "1001\n"), "{options}: {called:?}");
        }
        program.on("-n 2 --pthread -x OMP_NUM_THREADS=3", &[]).says(125, "expected at most 2 threads");
    }
}

/// A program that was built without OpenMP, with a library that was built with it.
fn with_library(compiler: Compiler, library: &str, caller: &str) -> Program {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let of = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a writable directory");
        path
    };
    let call = |options: &[&str], source: &Path, result: &Path| {
        let mut command = Command::new(compiler.c);
        command.args(["-O2", "-Wall", "-o"]).arg(result).arg(source).args(options);
        let called = finish(start(command.current_dir(directory.path())));
        assert_eq!(called.status, 0, "{called:?}");
    };
    let (library, caller) = (of("library.c", library), of("caller.c", caller));
    let built = directory.path().join("libtotal.so");
    call(&["-fopenmp", "-shared", "-fPIC"], &library, &built);
    let path = directory.path().join("program");
    call(&["-L.", "-ltotal", "-Wl,-rpath,$ORIGIN"], &caller, &path);
    Program { _directory: directory, path }
}

/// A program that calls a function of a library of its own.
fn calls(function: &str) -> Program {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let of = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a writable directory");
        path.to_str().expect("a path of letters").to_owned()
    };
    let library = of("library.c", format!("int {function}(void) {{ return 0; }}"));
    let built = build("cc", &library, &["-shared", "-fPIC"]);
    let caller = format!("int {function}(void); int main(void) {{ return {function}(); }}");
    build("cc", &of("caller.c", caller), &[built.path.to_str().expect("a path of letters")])
}

/// A block that `main` allocates is homed on all nodes, so that threads that fill it in their order make no
/// diffs; in another order they become the homes of what they write.
#[test]
fn pages_are_where_they_are_written() {
    if !may_run() {
        return;
    }
    const PAGES: u64 = 1024;
    let program = build("cc", "tests/programs/openmp_homes.c", &[]);
    let account = program._directory.path().join("account.json");
    let count = |protocol: &str, given: &[&str], what: &str| {
        let options = format!("-n 2 --protocol {protocol} --stats=json:{}", account.display());
        let called = program.on(&options, given);
        assert_eq!((called.status, &called.stdout), (0, &program.natively(2, given).stdout), "{called:?}");
        let text = std::fs::read_to_string(&account).expect("an account");
        let account: serde_json::Value = serde_json::from_str(&text).expect("an account in JSON");
        account["total"][what].as_u64().expect("a count")
    };
    for protocol in ["adaptive", "hlrc"] {
        let diffs = count(protocol, &[], "diffs_made");
        assert!(diffs < PAGES / 8, "{protocol}: each thread writes at home: {diffs}");
    }
    // Twelve sweeps over all pages, where homes stay.
    let diffs = count("hlrc", &["crosswise"], "diffs_made");
    assert!(diffs >= 10 * PAGES, "{diffs}");
    let diffs = count("adaptive", &["crosswise"], "diffs_made");
    assert!(diffs < 4 * PAGES, "{diffs}");
    assert!(count("adaptive", &["crosswise"], "home_migrations") >= PAGES);
}
