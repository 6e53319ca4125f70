//! Installs the build under a prefix and uses it from there.

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "#include <hiroba.h>
#include <stdio.h>
int main(int argc, char **argv) {
    if (hiroba_init(&argc, &argv) != 0) return 1;
    hiroba_barrier();
    if (hiroba_node() == 0) printf(\"nodes %d\\n\", hiroba_nodes());
    hiroba_finalize();
    return 0;
}
";

const LISTS: &str = "cmake_minimum_required(VERSION 3.13)
project(prog C)
find_package(hiroba 0.1 REQUIRED)
add_executable(prog prog.c)
target_link_libraries(prog hiroba::hiroba)
";

fn is_there(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {tool} is not on this machine");
    }
    found
}

/// Runs a shell script with the prefix in `$P`. Returns its standard output.
#[track_caller]
fn run(directory: &Path, prefix: &Path, script: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["120", "sh", "-ec", script]).current_dir(directory).env("P", prefix);
    for variable in ["CC", "HIROBA_CC", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a program runs with the launcher and without it.
#[track_caller]
fn runs(directory: &Path, prefix: &Path, program: &str) {
    assert_eq!(run(directory, prefix, program), "nodes 1\n");
    assert_eq!(run(directory, prefix, &format!("$P/bin/hiroba run -n 2 {program}")), "nodes 2\n");
}

#[track_caller]
fn builds_in_every_way(directory: &Path, prefix: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("prog.c"), PROGRAM).unwrap();
    std::fs::write(directory.join("CMakeLists.txt"), LISTS).unwrap();
    run(directory, prefix, "$P/bin/hiroba cc prog.c -o wrapped");
    runs(directory, prefix, "./wrapped");
    if is_there("pkg-config") {
        let flags = "PKG_CONFIG_PATH=$P/lib/pkgconfig pkg-config --cflags --libs hiroba";
        run(directory, prefix, &format!("cc prog.c -o packaged $({flags})"));
        runs(directory, prefix, "./packaged");
    }
    if is_there("cmake") {
        run(directory, prefix, "cmake -B build -DCMAKE_PREFIX_PATH=$P . && cmake --build build");
        runs(directory, prefix, "./build/prog");
    }
}

#[test]
fn programs_are_built_and_run_from_a_prefix_that_may_be_moved() {
    let hiroba = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("hiroba");
    assert!(hiroba.is_file(), "{} is missing; run 'cargo build --release' first", hiroba.display());
    let directory = tempfile::tempdir().unwrap();
    let prefix = directory.path().join("first");
    // Twice: the second installation replaces the files of the first.
    for _ in 0..2 {
        run(
            directory.path(),
            &prefix,
            concat!(env!("CARGO_BIN_EXE_xtask"), " install --no-build --prefix $P"),
        );
    }
    builds_in_every_way(&directory.path().join("one"), &prefix);
    let moved = directory.path().join("second");
    std::fs::rename(&prefix, &moved).unwrap();
    builds_in_every_way(&directory.path().join("two"), &moved);

    let text = |file: &str| std::fs::read_to_string(moved.join("share").join(file)).unwrap();
    for page in ["hiroba.1", "hiroba-run.1", "hiroba-cc.1"] {
        assert!(text(&format!("man/man1/{page}")).contains(".TH hiroba"), "{page}");
    }
    for file in [
        "bash-completion/completions/hiroba",
        "zsh/site-functions/_hiroba",
        "fish/vendor_completions.d/hiroba.fish",
    ] {
        assert!(text(file).contains("threads-per-node") || text(file).contains("protocol"), "{file}");
    }
    assert!(moved.join("share/hiroba/apps/nbody.c").is_file());
    assert!(moved.join("share/hiroba/apps/common.h").is_file());
}

#[test]
fn a_missing_prefix_is_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("install").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no prefix was given; usage: cargo xtask"));
}
