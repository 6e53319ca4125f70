//! The house keeps its storeys: which room may use which, and under which licences we build.

use std::collections::BTreeMap;
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
    ("check", &["base", "wire", "protocol", "fabric", "trace", "ports"]),
    // Faces translate: the C face calls the node; the command line tries what nodes will need, starts them, and builds the
    // C face's library.
    ("capi", &["base", "wire", "node", "trace", "ports"]),
    // To measure comparisons and diffs of pages by themselves the command line calls the memory and the
    // protocol room directly; it judges traced runs, and runs the judge's programs; its tests name the
    // protocol's ways; it runs the model of a paper.
    ("cli", &["base", "wire", "memory", "node", "trace", "capi", "check", "protocol", "paging"]),
];

/// What crates we build on may be licensed under.
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

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What is built here: crates for other systems need not be on this machine.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", &platform])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
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
        }
    }
    assert_eq!(rooms, MAY_USE.len(), "every room is built");
}

#[test]
fn engines_do_no_io_and_have_no_clock_no_threads_and_no_unsafe() {
    let rooms = ["../protocol/src", "../ports/src", "../paging/src"];
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

/// Within a room, too, what is lower knows nothing of what is upper: among the children of each module, with
/// all that is below them, uses form no circle. A module and its own children may use each other.
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
