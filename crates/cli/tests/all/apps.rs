//! The example programs: each of their forms finds the same, alone and on several nodes. Bad input is refused
//! before any work, their pictures are valid, and their own checks find planted errors.
//!
//! The kernels have their tests in `kernels.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::support::forms::{self, Form, apps, checksum, program};
use crate::support::{Called, finish, hiroba, sample, start};

/// Programs with the arguments of small problems. Each has more threads than parts on some of the jobs.
const PROBLEMS: [(&str, &[&str]); 5] = [
    ("mandelbrot", &["-n", "90", "-p", "5", "-i", "300"]),
    ("jacobi", &["-n", "75", "-s", "40", "-i", "EDGE"]),
    ("matmul", &["-n", "70", "-b", "32"]),
    ("histogram", &["TEXT"]),
    ("mixed", &["-n", "9000", "-s", "6", "-e", "700", "-c", "900"]),
];

/// Returns a directory with everything compiled, and a text, which exists as long as the test process.
fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let directory = forms::compile_all(PROBLEMS.map(|(name, _)| name));
        // The text is longer than some pages, with words across the ends of pieces, apostrophes, and bytes
        // that are not UTF-8.
        let text = "Don't count ''twice'' what's naïve: 'tis 北京, rock'n'roll\n".repeat(300);
        fs::write(directory.path().join("text"), [text.as_bytes(), b"\xff\x80end'"].concat())
            .expect("written");
        directory
    };
    DIRECTORY.get_or_init(make).path()
}

/// Returns a command line with the names of files filled in.
fn arguments(of: &[&str]) -> Vec<String> {
    let edge = apps().join("data/seattle-hourly-normals.txt").display().to_string();
    let text = workshop().join("text").display().to_string();
    of.iter()
        .map(|word| match *word {
            "EDGE" => edge.clone(),
            "TEXT" => text.clone(),
            word => word.to_owned(),
        })
        .collect()
}

fn job(options: &[&str], name: &str, given: &[&str]) -> Called {
    let mut command = hiroba(&["run"]);
    command.args(options).arg("--").arg(program(workshop(), name, Form::Hiroba)).args(arguments(given));
    finish(start(&mut command))
}

fn alone(form: Form, name: &str, given: &[&str]) -> Called {
    let mut command = Command::new(program(workshop(), name, form));
    // As many threads as the widest job has.
    command.args(arguments(given)).env("OMP_NUM_THREADS", "6").envs(forms::PASSIVE);
    command.env_remove("HIROBA_CONTROL_FD");
    finish(start(&mut command))
}

/// Returns what every job of a small problem should find, from the form without threads.
fn expected(name: &str, given: &[&str]) -> String {
    let expected = checksum(&alone(Form::Sequential, name, given));
    assert_eq!(checksum(&alone(Form::OpenMp, name, given)), expected, "{name} under OpenMP");
    let sequential = [given, &["--sequential"]].concat();
    assert_eq!(checksum(&alone(Form::Hiroba, name, &sequential)), expected, "{name} --sequential");
    expected
}

/// Returns the fault sources that this machine and user have.
fn fault_sources() -> Vec<&'static str> {
    let usable = |source: &&str| {
        let called = job(&["-n", "2", "--fault-source", source], "matmul", &["-n", "4"]);
        if called.status != 0 {
            eprintln!("{source} is not tested: {}", called.stderr.trim_end());
        }
        called.status == 0
    };
    let usable: Vec<_> = ["sigbus", "event", "sigsegv"].into_iter().filter(usable).collect();
    assert!(usable.contains(&"sigsegv"), "any kernel and user will do for it");
    usable
}

#[test]
fn every_job_finds_what_one_thread_finds() {
    let sources = fault_sources();
    let shapes =
        |counts: &'static [&'static str]| counts.iter().flat_map(|nodes| [(nodes, "1"), (nodes, "2")]);
    let over = |shape| ["udp", "shm"].map(|fabric| (shape, fabric));
    let alone: Vec<_> = shapes(&["1"]).flat_map(over).map(|way| (way, "sigsegv")).collect();
    let several = shapes(&["2", "3"]).flat_map(over);
    let several: Vec<_> = several.flat_map(|way| sources.iter().map(move |source| (way, *source))).collect();
    for (number, (name, given)) in PROBLEMS.into_iter().enumerate() {
        let expected = expected(name, given);
        let alone = sample::one_of_every(2, number, &alone);
        let several = sample::one_of_every(sources.len(), number, &several);
        for (((nodes, threads), fabric), source) in alone.into_iter().chain(several) {
            let options = ["-n", nodes, "-t", threads, "--fabric", fabric, "--fault-source", source];
            assert_eq!(checksum(&job(&options, name, given)), expected, "{name} with {options:?}");
        }
    }
}

#[test]
fn there_may_be_more_threads_than_work() {
    let tiny: [(&str, &[&str]); 6] = [
        ("mandelbrot", &["-n", "1", "-p", "1", "-i", "1"]),
        ("mandelbrot", &["-n", "2", "-p", "9"]),
        ("mandelbrot", &["-n", "40", "-p", "6", "-c", "minus"]),
        ("jacobi", &["-n", "3", "-s", "0"]),
        ("jacobi", &["-n", "4", "-s", "3"]),
        ("matmul", &["-n", "1"]),
    ];
    for (name, given) in tiny {
        let expected = expected(name, given);
        assert_eq!(checksum(&job(&["-n", "3", "-t", "2"], name, given)), expected, "{name} {given:?}");
    }
}

#[test]
fn texts_may_be_short_or_empty() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text, words) in [("empty", "", 0), ("short", "a'b", 1), ("word", "x", 1), ("none", "''", 0)] {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("it is ours");
        let path = path.to_str().expect("UTF-8");
        let called = job(&["-n", "3", "-t", "2"], "histogram", &[path]);
        assert_eq!(checksum(&called), expected("histogram", &[path]));
        assert!(called.stdout.contains(&format!("bytes                    {}\n", text.len())), "{called:?}");
        assert!(called.stdout.contains(&format!("words                    {words}\n")), "{called:?}");
    }
}

#[test]
fn bad_input_is_refused_before_any_work() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cold = directory.path().join("cold");
    fs::write(&cold, "1 2 3\n4 cold # 5\n").expect("it is ours");
    let cold = cold.to_str().expect("UTF-8");
    let cases: &[(&str, &[&str], &str)] = &[
        ("mandelbrot", &["-n", "0"], "-n takes a number of points an edge from 1 to 32768, not '0'"),
        ("mandelbrot", &["-p"], "-p needs a number of parts behind it"),
        ("mandelbrot", &["-o", "/nowhere/to/be.png"], "cannot write the picture /nowhere/to/be.png"),
        ("mandelbrot", &["-o", ""], "-o needs the name of a picture"),
        ("mandelbrot", &["-c", "times"], "-c takes plus or minus, not 'times'"),
        ("jacobi", &["-s", "99999999999999999999"], "-s takes a number of steps"),
        ("jacobi", &["-n", "2"], "-n takes a number of points an edge from 3"),
        ("jacobi", &["-i", "/nowhere"], "/nowhere: No such file"),
        ("jacobi", &["-i", "/"], "/: Is a directory"),
        ("jacobi", &["-i", "/dev/null"], "/dev/null: expected 4 temperatures or more, found 0"),
        ("jacobi", &["-i", cold], "cold:2: expected a temperature from -1e6 to 1e6, found 'cold'"),
        ("matmul", &["-b", "1e3"], "-b takes a tile's number of rows from 1 to 4096, not '1e3'"),
        ("matmul", &["64"], "unknown argument '64'"),
        ("histogram", &[], "expected the name of a text"),
        ("histogram", &["/nowhere"], "/nowhere: No such file"),
        ("histogram", &["/"], "/: expected a regular file, found a directory"),
        ("histogram", &["a", "b"], "one file at a time"),
    ];
    for (name, given, phrase) in cases {
        let called = job(&["-n", "2"], name, given);
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

/// Returns the number of distinct colours of a picture, and its edge.
fn look_at(path: &Path) -> (usize, u32) {
    let decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).expect("it was written")));
    let mut reader = decoder.read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("it fits into memory")];
    let frame = reader.next_frame(&mut bytes).expect("a whole picture");
    assert_eq!(frame.color_type, png::ColorType::Rgb);
    assert_eq!(frame.width, frame.height);
    let mut colours: Vec<&[u8]> = bytes[..frame.buffer_size()].chunks_exact(3).collect();
    colours.sort_unstable();
    colours.dedup();
    (colours.len(), frame.width)
}

#[test]
fn pictures_can_be_looked_at() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cases: [(&str, &[&str], u32); 4] = [
        ("mandelbrot", &["-n", "100"], 100),
        ("mandelbrot", &["-n", "1500", "-i", "100"], 750),
        ("jacobi", &["-n", "100", "-s", "200", "-i", "EDGE"], 100),
        ("jacobi", &["-n", "1100", "-s", "2"], 550),
    ];
    for (number, (name, given, edge)) in cases.into_iter().enumerate() {
        let mut pictures = Vec::new();
        for options in [["-n", "1"], ["-n", "2"]] {
            let path = directory.path().join(format!("{number}-{}.png", options[1]));
            let given = [given, &["-o", path.to_str().expect("UTF-8")]].concat();
            checksum(&job(&options, name, &given));
            let (colours, width) = look_at(&path);
            assert_eq!(width, edge, "{name} {given:?}");
            assert!(colours > 100, "{name} {given:?} has {colours} colours");
            pictures.push(fs::read(&path).expect("it was read"));
        }
        assert!(pictures[0] == pictures[1], "{name} {given:?} draws the same on two nodes");
    }
}

/// Errors that the programs' own checks must find: the source, the text in it, and its replacement.
const PLANTED: [(&str, &str, &str); 12] = [
    (
        "mandelbrot",
        "row < rows.end; row++)\n        compute_row",
        "row + 1 < rows.end; row++)\n        compute_row",
    ),
    ("mandelbrot", "times[part]++;", "times[part / 2 * 2]++;"),
    ("mandelbrot", "double next_x = x2 - y2", "double next_x = y2 - x2"),
    ("mandelbrot", "values[column + lane] = value[lane];", "values[column] = value[lane];"),
    ("jacobi", "i < own.end; i++)\n            relax_row", "i + 1 < own.end; i++)\n            relax_row"),
    ("jacobi", "const double *from = p->copies[step % 2]", "const double *from = p->copies[0]"),
    ("jacobi", "* (size_t)n * sizeof(double)); /* the edges", "* (size_t)n); /* the edges"),
    ("matmul", "for (size_t k = 0; k < width; k += edge)", "for (size_t k = edge; k < width; k += edge)"),
    (
        "matmul",
        "s->factors[RIGHT][i * (size_t)n + j] = element(RIGHT, i, j)",
        "s->factors[RIGHT][i * (size_t)n + j] = 1.0",
    ),
    ("matmul", "t % edge, t == own.first)", "t % edge ^ (t == 3), t == own.first)"),
    (
        "histogram",
        "end < size && is_in_word(text, size, end)",
        "end < piece.end && is_in_word(text, size, end)",
    ),
    ("histogram", "piece.end - place, (off_t)place", "piece.end - place, (off_t)piece.first + 1"),
];

#[test]
fn the_checks_are_awake() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for entry in ["common.h", "picture.h", "queues.h"] {
        fs::copy(apps().join(entry), directory.path().join(entry)).expect("a copy");
    }
    std::os::unix::fs::symlink(apps().join("third_party"), directory.path().join("third_party"))
        .expect("a link");
    for (name, right, wrong) in PLANTED {
        let given = PROBLEMS.iter().find(|problem| problem.0 == name).expect("it is one of them").1;
        let text = fs::read_to_string(apps().join(name).with_extension("c")).expect("it is there");
        assert!(text.contains(right), "{name} no longer contains {right:?}");
        let source = directory.path().join(name).with_extension("c");
        fs::write(&source, text.replacen(right, wrong, 1)).expect("it is ours");
        let program = directory.path().join(name);
        let mut command = hiroba(&["cc", "-std=c11", "-O1", "-w", "-o"]);
        let called = finish(start(command.arg(&program).arg(&source).arg("-lm")));
        assert_eq!(called.status, 0, "{wrong:?}: {called:?}");
        let mut command = hiroba(&["run", "-n", "2", "--"]);
        let called = finish(start(command.arg(&program).args(arguments(given))));
        assert_ne!(called.status, 0, "{name} does not find {wrong:?}: {called:?}");
        assert!(!called.stdout.contains("checks                   passed"), "{called:?}");
    }
}
