//! `hiroba cc`, `cxx` and `fc`: the user's compiler with what a Hiroba program needs.

use std::fs;

use crate::support::{call, finish, hiroba, start};

#[test]
fn the_command_is_shown_with_the_library_only_when_linking() {
    let called = finish(start(hiroba(&["cc", "-show", "-O2", "a.c"]).env("CC", "mycc -std=c99")));
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
    let words: Vec<&str> = called.stdout.split_whitespace().collect();
    assert_eq!(words[..2], ["mycc", "-std=c99"]);
    assert!(words[2].starts_with("-I/") && words[2].ends_with("include"), "{words:?}");
    assert_eq!(words[3..5], ["-O2", "a.c"]);
    assert!(words[5].starts_with("-L/") && words[7].starts_with("-Wl,-rpath,/"), "{words:?}");
    assert_eq!((words[6], words.len()), ("-lhiroba", 8));
    let called = call(&["cc", "--show", "-c", "a.c"]);
    assert!(!called.stdout.contains("-lhiroba"), "{called:?}");
}

#[test]
fn each_language_has_its_compiler() {
    for (language, variable, compiler) in
        [("cc", "CC", "cc"), ("cxx", "CXX", "c++"), ("fc", "FC", "gfortran")]
    {
        let called = finish(start(hiroba(&[language, "-show", "-c", "a"]).env_remove(variable)));
        assert_eq!(called.stdout.split_whitespace().next(), Some(compiler));
        let line = [language, "-c", "a"];
        finish(start(hiroba(&line).env(variable, "no-such-compiler"))).says(127, "install");
        finish(start(hiroba(&line).env(variable, "/dev/null"))).says(126, variable);
    }
}

#[test]
fn a_program_is_compiled_and_the_compilers_status_is_passed_on() {
    let directory = tempfile::tempdir().unwrap();
    let compile = |source: &str, out: &str| {
        fs::write(directory.path().join("a.c"), source).unwrap();
        finish(start(hiroba(&["cc", "-o", out, "a.c"]).current_dir(&directory)))
    };
    let program = "#include <hiroba.h>\nint main(void) { return hiroba_wtime() >= 0 ? 7 : 1; }\n";
    let called = compile(program, "a");
    assert_eq!(called.status, 0, "{called:?}");
    let ran = std::process::Command::new(directory.path().join("a")).status().unwrap();
    assert_eq!(ran.code(), Some(7), "the library is found without further ado");
    assert_eq!(compile("this is not C\n", "b").status, 1);
    finish(start(hiroba(&["run", "./b"]).current_dir(&directory))).says(127, "was not found");
}
