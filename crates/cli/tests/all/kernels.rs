//! The kernels of the papers and of the NAS Parallel Benchmarks: each of their forms finds the same, alone
//! and on several nodes, and what the benchmarks publish. Bad input is refused before any work, and their own
//! checks find planted errors.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::support::forms::{self, Form, apps, checksum};
use crate::support::{Called, finish, hiroba, start};

/// Programs with the arguments of small problems.
const PROBLEMS: [(&str, &[&str]); 5] = [
    ("fft3d", &["-n", "16", "-r", "2"]),
    ("ep", &["-c", "S"]),
    ("cg", &["-c", "S"]),
    ("is", &["-c", "S"]),
    ("nbody", &["-n", "101", "-s", "6"]),
];

/// Returns a directory with everything compiled, which exists as long as the test process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIRECTORY.get_or_init(|| forms::compile_all(PROBLEMS.map(|(name, _)| name))).path()
}

fn job(options: &[&str], name: &str, given: &[&str]) -> Called {
    forms::run_job(workshop(), options, name, given)
}

fn expected(name: &str, given: &[&str]) -> String {
    forms::expected_checksum(workshop(), name, given)
}

#[test]
fn every_job_finds_what_one_thread_finds() {
    forms::check_every_job(workshop(), &PROBLEMS);
}

#[test]
fn threads_may_be_more_than_planes_bodies_or_blocks() {
    let tiny: [(&str, &[&str]); 3] =
        [("fft3d", &["-n", "8", "-r", "1"]), ("nbody", &["-n", "4", "-s", "3"]), ("is", &["-c", "S"])];
    for (name, given) in tiny {
        let expected = expected(name, given);
        assert_eq!(checksum(&job(&["-n", "3", "-t", "4"], name, given)), expected, "{name} {given:?}");
    }
}

/// Returns the words that a program prints after a name.
fn printed(called: &Called, name: &str) -> Vec<String> {
    let line = called.stdout.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name:?}: {called:?}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns true if the numbers are closer than `bound` to the published ones.
fn is_close(printed: &[String], published: &[f64], bound: f64) -> bool {
    let close = |(is, should): (&String, &f64)| {
        let is: f64 = is.parse().expect("a number");
        ((is - should) / should).abs() <= bound
    };
    printed.len() == published.len() && printed.iter().zip(published).all(close)
}

#[test]
fn kernels_find_what_the_benchmarks_publish() {
    // The published sums of EP, to 1e-8, and its counts; zeta of CG, to 1e-10.
    let sums = [
        ("S", [-3.247_834_652_034_74e3, -6.958407078382297e3], "13176389"),
        ("W", [-2.863319731645753e3, -6.320053679109499e3], "26354769"),
    ];
    for (class, sums, pairs) in sums {
        let called = job(&["-n", "2"], "ep", &["-c", class]);
        checksum(&called);
        assert!(is_close(&printed(&called, "sums "), &sums, 1e-8), "{called:?}");
        assert_eq!(printed(&called, "Gaussian pairs "), [pairs]);
    }
    for (class, zeta) in [("S", 8.597_177_507_864_8), ("W", 10.362_595_087_124)] {
        let called = job(&["-n", "2"], "cg", &["-c", class]);
        checksum(&called);
        assert!(is_close(&printed(&called, "zeta "), &[zeta], 1e-10), "{called:?}");
    }
    for class in ["S", "W", "A"] {
        let called = job(&["-n", "2"], "is", &["-c", class]);
        checksum(&called);
        assert_eq!(printed(&called, "official ranks "), ["50", "of", "50"]);
    }
}

#[test]
fn bad_input_is_refused_before_any_work() {
    let cases: &[(&str, &str, &[&str], &str)] = &[
        ("2", "fft3d", &["-n", "60"], "-n takes a power of two, not 60"),
        ("2", "fft3d", &["-n", "2048"], "-n takes a number of points an edge from 8 to 1024, not '2048'"),
        ("2", "fft3d", &["-r", "0"], "-r takes a number of rounds from 1"),
        ("9", "fft3d", &["-n", "8"], "9 nodes are more than the 8 planes of the cube"),
        ("2", "ep", &["-c", "B"], "-c takes a class: S, W or A, not 'B'"),
        ("2", "ep", &["-c"], "-c needs a class behind it"),
        ("2", "cg", &["-c", "SW"], "-c takes a class: S, W or A, not 'SW'"),
        ("2", "cg", &["-n", "1400"], "unknown argument '-n'"),
        ("2", "is", &["-c", "s"], "-c takes a class: S, W or A, not 's'"),
        ("2", "is", &["A"], "unknown argument 'A'"),
        ("2", "nbody", &["-n", "1"], "-n takes a number of bodies from 2 to 10000000, not '1'"),
        ("2", "nbody", &["-d", "-1"], "-d takes a time step above 0, not '-1'"),
        ("2", "nbody", &["-i", "/nowhere"], "/nowhere: No such file"),
        ("2", "nbody", &["-i", "/dev/null"], "/dev/null: expected 2 bodies or more, found 0"),
        ("2", "nbody", &["-i", "x", "-n", "5"], "-i and -n exclude each other"),
        ("3", "nbody", &["-n", "2"], "3 nodes are more than the 2 bodies"),
    ];
    for (nodes, name, given, phrase) in cases {
        let called = job(&["-n", nodes], name, given);
        forms::check_refusal(&called, name, phrase);
    }
}

#[test]
fn help_is_help() {
    for (name, _) in PROBLEMS {
        let called = job(&["-n", "2"], name, &["--help"]);
        forms::check_help(&called, name);
    }
}

/// Errors that the programs' own checks must find: the source, the text in it, and its replacement.
const PLANTED: [(&str, &str, &str); 15] = [
    ("fft3d", "roots[2 * j * step]", "roots[2 * j * step + (j == 1)]"),
    ("fft3d", "from + (row * points + plane) * points,", "from + (row * points + plane / 2 * 2) * points,"),
    ("fft3d", "1.0 / ((double)n * (double)n * (double)n)", "1.0 / ((double)n * (double)n)"),
    (
        "fft3d",
        "z < own.end; z++) {\n        transform_all_rows",
        "z + 1 < own.end; z++) {\n        transform_all_rows",
    ),
    ("ep", "SEED = 271828183", "SEED = 271828181"),
    ("ep", "2 * BATCH * (uint64_t)number + 1", "2 * BATCH * (uint64_t)number + 3"),
    ("ep", "fill_queue(s->queues, own)", "fill_queue(s->queues, (struct span){own.first, own.end - 1})"),
    ("cg", "(void)next_number(&random);", "(void)random;"),
    ("cg", "x.value[at] = 0.5;", "x.value[at] += 0.5;"),
    ("cg", "rho / last, o->p", "last / rho, o->p"),
    ("cg", "part_of(s->products[o->turn], thread);\n}", "part_of(s->products[1 - o->turn], thread);\n}"),
    ("cg", "*first = blocks.first * BLOCK;", "*first = 0;"),
    (
        "is",
        "counts[range.first + i] += ((const uint8_t *)piece)[i];",
        "counts[range.first + i] += ((const uint8_t *)piece)[i] - (i == 7);",
    ),
    (
        "is",
        "smaller += s->heads[from * RANGES_MAX + thread].below;",
        "smaller += s->heads[thread * RANGES_MAX + thread].below;",
    ),
    (
        "is",
        "s->keys[i] = (uint32_t)((double)(value_count() / 4) * sum);",
        "s->keys[i] = (uint32_t)((double)(value_count() / 4 - 1) * sum);",
    ),
];

/// Compiles a program with a replaced text in its source, and runs it on two nodes.
fn run_altered(directory: &Path, name: &str, stands: &str, instead: &str) -> Called {
    let given = PROBLEMS.iter().find(|problem| problem.0 == name).expect("it is one of them").1;
    let text = fs::read_to_string(apps().join(name).with_extension("c")).expect("it is there");
    assert!(text.contains(stands), "{name} no longer contains {stands:?}");
    for entry in ["common.h", "kernels.h", "queues.h"] {
        fs::copy(apps().join(entry), directory.join(entry)).expect("a copy");
    }
    let source = directory.join(name).with_extension("c");
    fs::write(&source, text.replacen(stands, instead, 1)).expect("it is ours");
    let program = directory.join(name);
    let mut command = hiroba(&["cc", "-std=c11", "-O1", "-w", "-o"]);
    let called = finish(start(command.arg(&program).arg(&source).arg("-lm")));
    assert_eq!(called.status, 0, "{instead:?}: {called:?}");
    let mut command = hiroba(&["run", "-n", "2", "--"]);
    finish(start(command.arg(&program).args(given)))
}

#[test]
fn the_checks_are_awake() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, right, wrong) in PLANTED {
        let called = run_altered(directory.path(), name, right, wrong);
        assert_ne!(called.status, 0, "{name} does not find {wrong:?}: {called:?}");
        assert!(!called.stdout.contains("checks                   passed"), "{called:?}");
    }
}

/// No class has so many equal keys that their counts do not fit in bytes; with a smaller type the other way
/// is taken.
#[test]
fn counts_that_are_no_bytes_are_left_whole() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let called = run_altered(directory.path(), "is", "bits <= UINT8_MAX", "bits <= 3");
    assert_eq!(
        checksum(&called),
        checksum(&forms::run_alone(workshop(), Form::Sequential, "is", &["-c", "S"]))
    );
}
