//! The plain programs of `apps/plain` find the same on threads of one process and on nodes, and have no
//! races. Bad arguments are refused, and their own checks find planted errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::forms::{self, apps};
use crate::support::{Called, finish, hiroba, side_by_side, start};

/// Programs with the arguments of small problems.
const PROBLEMS: [(&str, &[&str]); 18] = [
    ("lu-contiguous", &["-n", "96"]),
    ("lu-rows", &["-n", "96"]),
    ("fft", &["-n", "1024"]),
    ("radix", &["-n", "5000"]),
    ("ocean-contiguous", &["-n", "34", "-s", "2"]),
    ("ocean-rows", &["-n", "34", "-s", "2"]),
    ("sor", &["-n", "100", "-s", "4"]),
    ("jacobi", &["-n", "100", "-s", "4"]),
    ("sor-columns", &["-n", "100", "-s", "4"]),
    ("jacobi-columns", &["-n", "100", "-s", "4"]),
    ("barnes", &["-n", "300", "-s", "2"]),
    ("water", &["-n", "33", "-s", "3"]),
    ("water-cells", &["-n", "216", "-s", "3"]),
    ("tasks", &["-n", "3"]),
    ("cholesky", &["-n", "256"]),
    ("fft3d", &["-n", "8", "-s", "2"]),
    ("cg", &["-n", "700", "-s", "6"]),
    ("mg", &["-n", "16", "-s", "2"]),
];

/// Programs that also run over shared memory: they use barriers, locks, `hiroba_malloc` and conditions.
const OVER_SHM: [&str; 5] = ["ocean-rows", "water", "water-cells", "tasks", "cholesky"];

/// Programs that compute the same with other layouts or partitions.
const TWINS: [(&str, &str); 4] = [
    ("lu-rows", "lu-contiguous"),
    ("ocean-rows", "ocean-contiguous"),
    ("jacobi", "jacobi-columns"),
    ("sor", "sor-columns"),
];

const STRICT: [&str; 6] = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// On nodes of a job, or on the threads of one process.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Nodes,
    Threads,
}

fn compile(form: Form, flags: &[&str], source: &Path, program: &Path) {
    let mut command = match form {
        Form::Nodes => hiroba(&["cc"]),
        Form::Threads => Command::new("cc"),
    };
    if form == Form::Threads {
        command.args(["-DTHREADS", "-pthread"]);
    }
    command.args(flags).arg("-o").arg(program).arg(source).arg("-lm");
    let called = finish(start(&mut command));
    assert_eq!(called.status, 0, "{}: {called:?}", source.display());
}

/// Returns a program; everything is compiled in both forms, and exists as long as the test process.
fn program(form: Form, name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let path = |directory: &Path, form: Form, name: &str| {
        directory.join(if form == Form::Threads { format!("{name}-threads") } else { name.to_owned() })
    };
    let make = || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let forms = [Form::Nodes, Form::Threads];
        side_by_side(
            PROBLEMS.iter().flat_map(|(name, _)| forms.map(|form| (*name, form))),
            |(name, form)| {
                let source = apps().join("plain").join(name).with_extension("c");
                compile(form, &STRICT, &source, &path(directory.path(), form, name));
            },
        );
        directory
    };
    path(DIRECTORY.get_or_init(make).path(), form, name)
}

fn on_nodes(options: &[&str], name: &str, given: &[&str]) -> Called {
    let mut command = hiroba(&["run"]);
    command.args(options).arg("--").arg(program(Form::Nodes, name)).args(given);
    finish(start(&mut command))
}

fn on_threads(count: &str, name: &str, given: &[&str]) -> Called {
    let mut command = Command::new(program(Form::Threads, name));
    finish(start(command.args(given).args(["--threads", count])))
}

/// Returns the checksum of a run that passed its checks, and checks the form of its last line.
#[track_caller]
fn checksum(called: &Called) -> String {
    assert_eq!(called.status, 0, "{called:?}");
    let lines: Vec<&str> = called.stdout.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "checks passed"), "{called:?}");
    let words: Vec<&str> = lines[1].split(' ').collect();
    match words.as_slice() {
        ["seconds", seconds, "init", init, "checksum", checksum] => {
            let is_time = |text: &str| text.parse().is_ok_and(|seconds: f64| seconds >= 0.0);
            assert!(is_time(seconds) && is_time(init), "{called:?}");
            (*checksum).to_owned()
        }
        _ => panic!("no checksum: {called:?}"),
    }
}

/// Asserts equal digits; decimal numbers, of sums whose order varies, must agree to about nine digits.
#[track_caller]
fn assert_agree(found: &str, expected: &str, what: &str) {
    let number = |text: &str| text.parse::<f64>().ok().filter(|_| text.contains('.'));
    match (number(found), number(expected)) {
        (Some(a), Some(b)) => {
            assert!((a - b).abs() <= 1e-7 * a.abs().max(b.abs()), "{what}: {found}, {expected}")
        }
        _ => assert_eq!(found, expected, "{what}"),
    }
}

#[test]
fn nodes_find_what_threads_find() {
    for (name, given) in PROBLEMS {
        let expected = checksum(&on_threads("1", name, given));
        let init_all = [given, &["--init-all"]].concat();
        let agree = |called: &Called, what: &str| {
            assert_agree(&checksum(called), &expected, &format!("{name} {what}"))
        };
        agree(&on_threads("2", name, given), "on 2 threads");
        agree(&on_threads("4", name, &init_all), "on 4 threads");
        agree(&on_nodes(&["-n", "1"], name, given), "on a node");
        agree(&on_nodes(&["-n", "2"], name, given), "on 2 nodes");
        agree(&on_nodes(&["-n", "2", "-t", "2"], name, &init_all), "on 2 threads of 2 nodes");
        if OVER_SHM.contains(&name) {
            agree(&on_nodes(&["-n", "2", "--fabric", "shm"], name, given), "over shm");
        }
    }
}

#[test]
fn twins_find_the_same() {
    for (one, other) in TWINS {
        let of = |name: &str| {
            let given = PROBLEMS.iter().find(|problem| problem.0 == name).expect("it is one of them").1;
            checksum(&on_threads("2", name, given))
        };
        assert_eq!(of(one), of(other), "{one}, {other}");
    }
}

#[test]
fn nothing_races() {
    for (name, given) in PROBLEMS {
        let called = on_nodes(&["-n", "2", "--races"], name, given);
        checksum(&called);
        assert!(called.stderr.contains("no data races between nodes found"), "{name}: {called:?}");
    }
}

#[test]
fn bad_arguments_are_refused() {
    let cases: [(&str, &[&str], &str); 14] = [
        ("lu-rows", &["-n", "40"], "-n takes rows, a multiple of 16, not 40"),
        ("lu-contiguous", &["-n", "99999999999999999999"], "-n takes a number from 16 to 16384, not"),
        ("fft", &["-n", "2048"], "-n takes points, a power of four, not 2048"),
        ("radix", &["-n"], "-n takes a number from 1 to 1073741824, not ''"),
        ("ocean-rows", &["-n", "256"], "-n takes points an edge, a power of two and two, not 256"),
        ("sor", &["-s", "0"], "-s takes a number from 1 to 1000000, not '0'"),
        ("jacobi", &["-n", "1e3"], "-n takes a number from 1 to 16384, not '1e3'"),
        ("water", &["-n", "-5"], "-n takes a number from 27 to 8192, not '-5'"),
        ("water-cells", &["512"], "unknown argument '512'; --help lists what there is"),
        ("tasks", &["-s", "3"], "unknown argument '-s'"),
        ("cholesky", &["-n", "100"], "-n takes rows, a multiple of 64, not 100"),
        ("fft3d", &["-n", "12"], "-n takes points along x and y, a power of two, not 12"),
        ("cg", &["--threads", "2"], "unknown argument '--threads'"),
        ("mg", &["-n", "20"], "-n takes points an edge, a power of two or three times one, not 20"),
    ];
    for (name, given, phrase) in cases {
        forms::check_refusal(&on_nodes(&["-n", "2"], name, given), name, phrase);
    }
    forms::check_refusal(
        &on_threads("0", "fft", &[]),
        "fft",
        "--threads takes a number from 1 to 64, not '0'",
    );
    let phrase = "the number of threads must be a power of two, not 3";
    forms::check_refusal(&on_nodes(&["-n", "3"], "ocean-contiguous", &[]), "ocean-contiguous", phrase);
    let called = on_nodes(&["-n", "1", "-t", "32"], "ocean-rows", &[]);
    forms::check_refusal(&called, "ocean-rows", "at most 16 threads, not 32");
}

#[test]
fn help_is_help() {
    for (name, _) in PROBLEMS {
        forms::check_help(&on_nodes(&["-n", "2"], name, &["--help"]), name);
    }
}

/// Errors that the programs' own checks must find: the source, the text in it, and its replacement.
const PLANTED: [(&str, &str, &str); 20] = [
    ("lu-contiguous", "d[i * B + k], x + k * B, B)", "d[i * B + k], x + k * B, B - 1)"),
    ("lu-rows", "l[i * n + k], u + k * n, B)", "l[i * n + k], u + k * n, B - 1)"),
    ("fft", "to[i * m + j] = from[j * m + i]", "to[i * m + j] = from[(i == 3 ? 0 : j) * m + i]"),
    ("radix", "++] = from[i];", "++] = from[i] | 1;"),
    ("ocean-contiguous", "wind(above(0, me) + i);", "wind(i);"),
    ("ocean-contiguous", "/\n                     weight(up + i, left + j, m)", "/ 4.0"),
    ("ocean-rows", "row_wind = wind(i)", "row_wind = wind(i + 1)"),
    ("ocean-rows", "/ weight(i, j, m)", "/ 4.0"),
    ("sor", "end = 1 + own_end(n)", "end = own_end(n)"),
    ("jacobi", "1 + own_end(n));", "own_end(n));"),
    ("sor-columns", "end = 1 + own_end(n)", "end = own_end(n)"),
    ("jacobi-columns", "1 + own_end(n));", "own_end(n));"),
    ("barnes", "cell->mass += mass;", "cell->mass = mass;"),
    ("water", "force_q[b][axis] -= share", "force_q[b][axis] -= 0.9 * share"),
    ("water-cells", "force[a][axis] += share", "force[a][axis] += 1.5 * share"),
    ("tasks", "integral += do_task(task);", "integral = do_task(task);"),
    ("cholesky", "sum += x[i * B + k]", "sum += 1.001 * x[i * B + k]"),
    ("fft3d", "along_yz = decay(y, n) * decay(z, DEPTH)", "along_yz = decay(y, n)"),
    ("cg", "r[i] -= alpha", "r[i] -= 1.1 * alpha"),
    ("mg", "* m + x] += sums[x]", "* m + x] -= sums[x]"),
];

#[test]
fn the_checks_are_awake() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let sources = apps().join("plain");
    fs::copy(sources.join("plain.h"), directory.path().join("plain.h")).expect("a copy");
    for (name, right, wrong) in PLANTED {
        let given = PROBLEMS.iter().find(|problem| problem.0 == name).expect("it is one of them").1;
        let text = fs::read_to_string(sources.join(name).with_extension("c")).expect("it is there");
        assert_eq!(text.matches(right).count(), 1, "how often {name} contains {right:?}");
        let source = directory.path().join(name).with_extension("c");
        fs::write(&source, text.replace(right, wrong)).expect("it is ours");
        let program = directory.path().join(name);
        compile(Form::Threads, &["-std=c99", "-O1", "-w"], &source, &program);
        let called = finish(start(Command::new(&program).args(given).args(["--threads", "2"])));
        assert_eq!(called.status, 1, "{name} does not find {wrong:?}: {called:?}");
        assert!(called.stdout.starts_with("checks failed\n"), "{called:?}");
        assert_eq!(called.stderr.lines().count(), 1, "{called:?}");
    }
}
