//! The programs of the SPLASH-2 suite by which the first paper is judged: each of their forms finds the same,
//! alone and on several nodes. Bad input is refused before any work, and their own checks find planted
//! errors.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::support::forms::{self, apps, checksum};
use crate::support::{Called, finish, hiroba, start};

/// Programs with the arguments of small problems.
const PROBLEMS: [(&str, &[&str]); 4] = [
    ("fft", &["-n", "4096", "-r", "3"]),
    ("lu", &["-n", "240", "-b", "40"]),
    ("ocean", &["-n", "258", "-s", "2"]),
    ("water", &["-n", "125", "-s", "3"]),
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

/// Includes numbers of transforms that end elsewhere, layouts that lie elsewhere, and blocks of other sizes.
#[test]
fn every_way_to_ask_is_answered() {
    let cases: [(&str, &[&str]); 14] = [
        ("fft", &["-n", "1024", "-r", "1", "-l", "rows"]),
        ("fft", &["-n", "256", "-r", "2", "-l", "rows"]),
        ("fft", &["-n", "1024", "-r", "1", "-l", "patches"]),
        ("fft", &["-n", "256", "-r", "2", "-l", "patches"]),
        ("fft", &["-n", "64", "-r", "4"]),
        ("lu", &["-n", "112", "-b", "16"]),
        ("lu", &["-n", "63", "-b", "7"]),
        ("lu", &["-n", "40", "-b", "5"]),
        ("lu", &["-n", "192", "-b", "32"]),
        ("ocean", &["-n", "18", "-s", "1"]),
        ("ocean", &["-n", "34", "-s", "3"]),
        ("ocean", &["-n", "514", "-s", "1"]),
        ("ocean", &["-n", "1026", "-s", "1"]),
        ("water", &["-n", "98", "-s", "0"]),
    ];
    for (name, given) in cases {
        let expected = expected(name, given);
        assert_eq!(checksum(&job(&["-n", "3", "-t", "2"], name, given)), expected, "{name} {given:?}");
    }
}

#[test]
fn bad_input_is_refused_before_any_work() {
    let cases: &[(&str, &str, &[&str], &str)] = &[
        ("2", "fft", &["-n", "60"], "-n takes a power of four, such as 64, not 60"),
        ("2", "fft", &["-n", "2048"], "-n takes a power of four, such as 4096, not 2048"),
        ("2", "fft", &["-n", "4"], "-n takes a number of points from 16 to 1073741824, not '4'"),
        ("2", "fft", &["-l", "tiles"], "-l takes 'columns', 'patches' or 'rows', not 'tiles'"),
        ("5", "fft", &["-n", "16"], "16 points are 4 rows, too few for 5 threads"),
        ("2", "lu", &["-n", "100"], "-b takes a divisor of the 100 rows, not 64"),
        ("2", "lu", &["-b", "0"], "-b takes a block's number of rows from 1 to 256, not '0'"),
        ("3", "lu", &["-n", "128"], "2 columns of blocks are too few for 3 threads"),
        (
            "2",
            "lu",
            &["-n", "2048", "-b", "2"],
            "-b takes 3 or more for 2048 rows: there are locks for 1023 columns",
        ),
        ("2", "ocean", &["-n", "256"], "-n takes a power of two and two, such as 258, not 256"),
        ("2", "ocean", &["-s", "x"], "-s takes a number of steps from 1"),
        ("5", "ocean", &["-n", "10"], "10 points an edge are too few for 5 threads, at most 4"),
        ("2", "water", &["-n", "1"], "-n takes a number of molecules from 2 to 100000, not '1'"),
        ("3", "water", &["-n", "32"], "32 molecules are 2 blocks of 16, too few for 3 threads"),
        ("2", "water", &["512"], "unknown argument '512'"),
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
const PLANTED: [(&str, &str, &str); 28] = [
    ("fft", "patch_of(from, owner, own)", "patch_of(from, own, own)"),
    ("fft", "columns_of(from, own, other)", "columns_of(from, own, own)"),
    ("fft", "columns_of(to, own, other)", "columns_of(to, other, own)"),
    ("fft", "row < rows.end; row++) {\n        take_row", "row + 1 < rows.end; row++) {\n        take_row"),
    ("fft", "transform_rows(b, to, true);", "transform_rows(b, to, false);"),
    ("fft", "size_t power = row * column;", "size_t power = row * (column + (row == 3));"),
    ("fft", "r3[p] - y3 * i3[p]", "r3[p] + y3 * i3[p]"),
    ("lu", "rows[r][1] -= left", "rows[r][1] += left"),
    ("lu", "i++)\n        divide_right", "i += 2)\n        divide_right"),
    ("lu", "owns(j) && k > 0)", "owns(j) && k > 1)"),
    (
        "lu",
        "i < end; i++)\n            for (size_t k = first",
        "i + 1 < end; i++)\n            for (size_t k = first",
    ),
    ("lu", "*x = element(row, column);", "*x = element(row, column) + (row == 99 && column == 5) * 1e-6;"),
    ("ocean", "4.0 + extra + (double)wall", "4.0 + extra"),
    ("ocean", "TOLERANCE * right;", "1e-3 * right;"),
    ("ocean", "+ raised * answer[j]", "+ 1.001 * raised * answer[j]"),
    ("ocean", "sums[k] += row[j + k];", "sums[k] += row[j];"),
    ("ocean", "right_beside(s) + 2;", "right_beside(s) + 1;"),
    ("ocean", "up = s->level[0].down + REACH;", "up = s->level[0].down + REACH - 1;"),
    ("ocean", "fine <= i * scale;", "fine < i * scale;"),
    ("ocean", "(is_front ? 0 : arena->front)", "(is_front ? 0 : arena->front - width)"),
    (
        "ocean",
        "know(&l->unknowns[turn], clipped(l, l->mine.first, l->mine.end, l->down));",
        "know(&l->unknowns[turn], clipped(l, l->mine.first, l->mine.end, l->down + 1));",
    ),
    ("ocean", "(l->up + REACH) / 2 + 1;", "(l->up + REACH) / 2;"),
    ("ocean", "2 * (l[1].down + REACH - 1) + 1;", "2 * (l[1].down + REACH - 1);"),
    ("ocean", "left[e]->turn = 1 - left[e]->turn;\n            go_down", "go_down"),
    ("ocean", "((first + second) + third)", "((first + second) - third)"),
    ("water", "fx[l] += pull * x, ", "fx[l] += 1.001 * pull * x, "),
    (
        "water",
        "turn = 1; turn < threads; turn++) {\n        const int64_t *given",
        "turn = 2; turn < threads; turn++) {\n        const int64_t *given",
    ),
    ("water", "b->partial[c][j] = 0.0;", "b->partial[c][j] *= 0.5;"),
];

/// Compiles a program with a replaced text in its source or in a header, and runs it on two nodes.
fn run_altered(directory: &Path, name: &str, stands: &str, instead: &str) -> Called {
    let given = PROBLEMS.iter().find(|problem| problem.0 == name).expect("it is one of them").1;
    let source = format!("{name}.c");
    let mut found = 0;
    for entry in [source.as_str(), "common.h", "grids.h", "multigrid.h"] {
        let text = fs::read_to_string(apps().join(entry)).expect("it is there");
        found += text.matches(stands).count();
        fs::write(directory.join(entry), text.replacen(stands, instead, 1)).expect("it is ours");
    }
    assert_eq!(found, 1, "how often {name} and its headers contain {stands:?}");
    let (source, program) = (directory.join(source), directory.join(name));
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
