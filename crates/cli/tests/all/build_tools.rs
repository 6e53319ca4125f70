//! The compiler wrapper under make, CMake and Meson, as users name it there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Called, finish, hiroba, shell, start};

const PROGRAM: &str = "#include <hiroba.h>\nint main(void) { return hiroba_wtime() >= 0 ? 7 : 1; }\n";

fn is_there(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {tool} is not on this machine");
    }
    found
}

/// Runs a shell script in the directory of the program's source and the command `hiroba`, within the tests'
/// time limit.
fn build(directory: &Path, script: &str) -> Called {
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(directory.join("prog.c"), PROGRAM).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_hiroba"), bin.join("hiroba")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = shell(script);
    command.current_dir(directory).env("PATH", path).env_remove("CC").env_remove("HIROBA_CC");
    finish(start(&mut command))
}

#[track_caller]
fn returns_seven(program: &Path) {
    assert_eq!(Command::new(program).status().unwrap().code(), Some(7), "{}", program.display());
}

#[test]
fn make_ends_and_says_which_compiler_it_was() {
    if !is_there("make") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let called = build(directory.path(), "make CC='hiroba cc' prog");
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stderr.contains("hiroba: $CC is hiroba itself, so cc compiles"), "{called:?}");
    returns_seven(&directory.path().join("prog"));
}

#[test]
fn cmake_configures_and_builds() {
    if !is_there("cmake") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let lists = "cmake_minimum_required(VERSION 3.13)\nproject(prog C)\nadd_executable(prog prog.c)\n";
    fs::write(directory.path().join("CMakeLists.txt"), lists).unwrap();
    let called = build(directory.path(), "export CC='hiroba cc'; cmake -B build . && cmake --build build");
    assert_eq!(called.status, 0, "{called:?}");
    returns_seven(&directory.path().join("build/prog"));
}

#[test]
fn meson_configures_and_builds() {
    if !is_there("meson") || !is_there("ninja") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("meson.build"), "project('prog', 'c')\nexecutable('prog', 'prog.c')\n")
        .unwrap();
    let called =
        build(directory.path(), "export CC='hiroba cc'; meson setup build && meson compile -C build");
    assert_eq!(called.status, 0, "{called:?}");
    returns_seven(&directory.path().join("build/prog"));
}

#[test]
fn a_compiler_that_calls_the_wrapper_ends_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let script = crate::support::script(directory.path(), "mycc", "exec \"$H\" cc \"$@\"");
    let mut command = hiroba(&["cc", "-c", "no-such.c"]);
    command.env("HIROBA_CC", &script).env("H", env!("CARGO_BIN_EXE_hiroba"));
    finish(start(&mut command)).says(125, "which is or calls hiroba itself; name another one there");
}

#[test]
fn the_wrapper_shows_what_it_adds_and_has_a_help_of_its_own() {
    let shown =
        |words: &[&str]| finish(start(hiroba(words).env("HIROBA_CC", "mycc").env("CC", "other"))).stdout;
    assert!(shown(&["cc", "--showme", "a.c"]).starts_with("mycc -I"));
    assert!(shown(&["cc", "--showme"]).contains(" -lhiroba "));
    let (compiling, linking) = (shown(&["cc", "--showme:compile"]), shown(&["cc", "--showme:link"]));
    assert!(compiling.starts_with("-I") && !compiling.contains("-lhiroba"), "{compiling}");
    assert!(
        linking.starts_with("-L") && linking.contains(" -lhiroba ") && !linking.contains('\''),
        "{linking}"
    );
    let help = shown(&["cc", "--help"]);
    // The line may be broken anywhere between words.
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Usage: hiroba cc") && words.contains("'cc --help'"), "{help}");
    assert!(shown(&["fc", "--help"]).contains("$HIROBA_FC"));
}
