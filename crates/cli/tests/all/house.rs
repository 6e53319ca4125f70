//! The house keeps its storeys: which room may use which, and under which licences we build.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// DESIGN: rooms and what each may use. Rooms that are not built yet stand here so that their place is kept.
const MAY_USE: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("wire", &["base"]),
    ("protocol", &["base", "wire"]),
    ("fabric", &["base", "wire"]),
    ("memory", &["base"]),
    ("ports", &["base", "wire", "fabric"]),
    ("trace", &["base"]),
    ("node", &["base", "wire", "protocol", "fabric", "memory", "ports", "trace"]),
    ("check", &["base", "wire", "protocol", "fabric", "trace"]),
    // Faces translate: the C face calls the node; the command line tries what nodes will need, starts them, and builds the
    // C face's library.
    ("capi", &["base", "wire", "node", "trace", "ports"]),
    // To measure a comparison of pages by itself the command line calls the memory room directly; it judges traced runs, and runs the
    // judge's programs; its tests name the protocol's ways.
    ("cli", &["base", "wire", "memory", "node", "trace", "capi", "check", "protocol"]),
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
    assert_eq!(rooms, MAY_USE.len() - 1, "every room but `ports` is built");
}

#[test]
fn engines_do_no_io_and_have_no_clock_no_threads_and_no_unsafe() {
    let mut directories = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/src")];
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory of the protocol room") {
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
    assert!(files >= 8, "the protocol room has its files");
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
