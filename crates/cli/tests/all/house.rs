//! The architecture of the workspace: which room may use which, and the licences of dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

mod circles;

/// DESIGN: rooms and what each may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("wire", &["base"]),
    ("protocol", &["base", "wire"]),
    ("fabric", &["base", "wire"]),
    ("memory", &["base"]),
    ("ports", &["base", "wire", "fabric"]),
    ("trace", &["base"]),
    ("paging", &["base"]),
    ("node", &["base", "wire", "protocol", "fabric", "memory", "ports", "trace", "paging"]),
    ("judge", &["base", "wire", "protocol", "trace"]),
    ("check", &["base", "wire", "protocol", "fabric", "trace", "ports", "judge"]),
    // Interfaces translate: the C interface calls the node.
    ("capi", &["base", "wire", "node", "trace", "ports"]),
    ("patch", &[]),
    ("pthread", &["patch"]),
    ("single", &[]),
    ("schedule", &[]),
    ("openmp", &["schedule"]),
    // The launcher tries what nodes will need.
    ("launch", &["base", "wire", "trace", "node"]),
    // To measure comparisons and diffs of pages by themselves, it calls the memory and the protocol room
    // directly. It runs the model of a paper.
    ("measure", &["base", "wire", "trace", "node", "launch", "memory", "protocol", "paging"]),
    // The command line checks traced runs, runs the judges' programs, names policies, and builds the
    // libraries of programs. Only its tests use the simulator and name the protocol's ways.
    (
        "cli",
        &[
            "base", "wire", "trace", "memory", "paging", "node", "capi", "pthread", "single", "openmp",
            "judge", "launch", "measure", "check", "protocol",
        ],
    ),
];

/// Licences of crates that we may use.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "Unlicense",
    "Unicode-3.0",
    "CC0-1.0",
    "BSL-1.0",
];

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .args(["--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

fn metadata() -> Value {
    // Only what is built here: crates for other systems need not be on this machine.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = cargo(&["metadata", "--format-version", "1", "--filter-platform", &platform]);
    serde_json::from_str(&metadata).expect("cargo metadata prints JSON")
}

/// Returns the crates that are built along these edges, with the features of each.
fn built_with_features(edges: &str) -> BTreeSet<String> {
    let format = ["--format", "{p} with {f}", "--prefix", "none", "--no-dedupe"];
    let listed = cargo(&[&["tree", "--workspace", "--edges", edges], &format[..]].concat());
    listed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// Otherwise `cargo test` would compile the program, and all its libraries, a second time.
#[test]
fn tests_use_the_crates_that_the_program_uses() {
    let (program, tests) = (built_with_features("normal,build"), built_with_features("normal,build,dev"));
    let only_program: Vec<&String> = program.difference(&tests).collect();
    assert!(
        only_program.is_empty(),
        "tests build these crates with more features; add those to [workspace.dependencies]: {only_program:#?}"
    );
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn lower_storeys_never_know_upper_ones() {
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let mut rooms = 0;
    for package in packages {
        let Some(room) = text(package, "name").strip_prefix("hiroba-") else { continue };
        rooms += 1;
        let may_use = allowed.get(room).unwrap_or_else(|| panic!("room `{room}` has no place in the house"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let Some(used) = text(dependency, "name").strip_prefix("hiroba-") else { continue };
            assert!(may_use.contains(&used), "`{room}` uses `{used}`, which its storey does not allow");
            let is_for_tests = text(dependency, "kind") == "dev";
            assert!(used != "check" || is_for_tests, "`{room}` has the simulator built for the program");
        }
    }
    assert_eq!(rooms, MAY_USE.len(), "every room is built");
}

/// `cargo doc --open` opens on the page of `base`, whose table shows the rooms.
#[test]
fn the_documentation_shows_the_rooms_as_they_are() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../base/src/lib.rs"))
        .expect("the base room has a head");
    let shown: BTreeMap<&str, Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix('|'))
        .skip(1)
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let room = cells[0].trim_start_matches('[').split(']').next().unwrap_or_default();
            (room, cells[2].split(", ").filter(|used| !used.is_empty()).collect())
        })
        .collect();
    let rooms: BTreeMap<&str, Vec<&str>> =
        MAY_USE.iter().map(|(room, uses)| (*room, uses.to_vec())).collect();
    assert_eq!(shown, rooms, "the table in crates/base/src/lib.rs shows every room and what it may use");
}

#[test]
fn engines_do_no_io_and_have_no_clock_no_threads_and_no_unsafe() {
    let rooms = ["../protocol/src", "../ports/src", "../paging/src", "../schedule/src"];
    let mut directories: Vec<_> =
        rooms.iter().map(|room| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(room)).collect();
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory of a sans-IO room") {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let code = std::fs::read_to_string(&path).expect("a source file");
            for forbidden in ["std::time", "std::thread", "std::net", "std::fs", "std::io", "unsafe "] {
                assert!(!code.contains(forbidden), "{} names {forbidden}", path.display());
            }
            files += 1;
        }
    }
    assert!(files >= 8, "the rooms have their files");
}

/// Within a room, too, lower modules do not use upper ones: among the children of each module, including
/// everything below them, uses form no circle. A module and its own children may use each other.
#[test]
fn no_circles_among_the_modules_of_a_room() {
    let (mut rooms, mut told) = (0, String::new());
    for (room, _) in MAY_USE {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room).join("src");
        if sources.is_dir() {
            rooms += 1;
            circles::Room::read(&sources).circles().iter().for_each(|circle| {
                told += &format!("\n{room}: {circle}");
            });
        }
    }
    assert_eq!(rooms, MAY_USE.len(), "every room has sources");
    assert!(
        told.is_empty(),
        "expected no modules that use each other, got these. Move what one side wants into a module below \
         both, or make one the child of what it extends.{told}"
    );
}

#[test]
fn every_dependency_has_a_permissive_licence() {
    let metadata = metadata();
    for package in metadata["packages"].as_array().expect("packages") {
        let (name, licence) = (text(package, "name"), text(package, "license").replace('/', " OR "));
        let expression = spdx::Expression::parse(&licence).unwrap_or_else(|error| panic!("{name}: {error}"));
        let permissive =
            expression.evaluate(|requirement| LICENCES.contains(&requirement.to_string().as_str()));
        assert!(permissive, "{name} is licensed under {licence}");
    }
}
