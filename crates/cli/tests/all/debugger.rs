//! `--debug`: one node under a debugger, on the terminal.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::terminal::in_terminal;
use crate::support::{call, eventually, finish, hiroba, mark, processes_marked, script, start};

/// A debugger that prints its arguments, and runs the program.
const DEBUGGER: &str = "echo debugger: \"$@\"\nread line && echo typed: \"$line\"\nexec \"$@\"";

#[test]
fn the_debugger_has_the_terminal_and_the_program_its_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let debugger = script(directory.path(), "debugger", DEBUGGER);
    let shell = "read line; echo node $HIROBA_NODE: $1 [$line]";
    for (node, other) in [(0, 1), (1, 0)] {
        let input = std::fs::File::create_new(directory.path().join(format!("typed.{node}"))).unwrap();
        std::fs::write(directory.path().join(format!("typed.{node}")), "run\nsecond\n").unwrap();
        drop(input);
        let typed = std::fs::File::open(directory.path().join(format!("typed.{node}"))).unwrap();
        let mut command =
            hiroba(&["run", "-n", "2", "--debug", &node.to_string(), "sh", "-c", shell, "x", "a b"]);
        let called = finish(start(command.stdin(typed).env("HIROBA_DEBUGGER", &debugger)));
        assert_eq!(called.status, 0, "{called:?}");
        let mut lines: Vec<&str> = called.stdout.lines().collect();
        lines.sort_unstable();
        let debugged = lines.iter().find(|line| line.starts_with("debugger: ")).expect("a debugger ran");
        assert!(debugged.ends_with("a b"), "{debugged}");
        assert!(lines.contains(&"typed: run"), "{called:?}");
        // A shell may have read ahead of `read`, so what the program gets of the rest is not asserted.
        assert!(lines.iter().any(|line| line.starts_with(&format!("node {node}: a b ["))), "{called:?}");
        assert!(
            lines.contains(&format!("node {other}: a b []").as_str()),
            "no terminal elsewhere: {called:?}"
        );
    }
}

#[test]
fn a_missing_debugger_is_named() {
    let missing = |debugger: &str| {
        let mut command = hiroba(&["run", "-n", "2", "--debug", "0", "true"]);
        finish(start(command.env("HIROBA_DEBUGGER", debugger)))
    };
    missing("no-such-debugger -x").says(125, "the debugger 'no-such-debugger' was not found; install gdb");
    missing("/etc/passwd").says(125, "the debugger '/etc/passwd' cannot be executed");
    let directory = tempfile::tempdir().unwrap();
    let shell = script(directory.path(), "sh", "");
    let mut command = hiroba(&["run", "-n", "2", "--debug", "0", &shell]);
    finish(start(command.env("PATH", directory.path()))).says(125, "'gdb' was not found; install gdb");
}

#[test]
fn control_c_is_the_debuggers() {
    let mark = mark("debugger-control-c");
    let directory = tempfile::tempdir().unwrap();
    // Each waits for the other's word: the debugger ends after the program, which continues after the
    // interruption.
    let debugger = script(
        directory.path(),
        "debugger",
        "trap 'echo interrupted; : >interrupted' INT\n: >debugging\nuntil [ -e computed ]; do sleep 0.05; done\nexit 3",
    );
    let program = ": >computing; until [ -e interrupted ]; do sleep 0.05; done; echo computed; : >computed";
    let mut command = hiroba(&["run", "-n", "2", "--debug", "1", "sh", "-c", program]);
    command.current_dir(&directory).env("HIROBA_DEBUGGER", &debugger).env("HIROBA_TEST_MARK", &mark);
    let (keyboard, child) = in_terminal(&mut command);
    let begun = |name: &str| directory.path().join(name).exists();
    eventually("the debugger and the program run", || begun("debugging") && begun("computing"));
    rustix::io::write(&keyboard, b"\x03").unwrap();
    let called = finish(child);
    assert_eq!(called.status, 3, "the debugger's, as it has ended by itself: {called:?}");
    assert_eq!(called.stdout, "interrupted\ncomputed\n", "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn gdb_runs_the_node_it_is_asked_for() {
    if Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not tested: gdb is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("a.c");
    let text = "#include <stdio.h>\n#include <stdlib.h>\nint main(int c, char **v) {\n\
        printf(\"node %s of %s: %s %d\\n\", getenv(\"HIROBA_NODE\"), getenv(\"HIROBA_NODES\"), v[1], c);\n\
        return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    let program = directory.path().join("a");
    assert!(Command::new("cc").arg("-g").arg("-o").args([&program, &source]).status().unwrap().success());
    let commands = directory.path().join("commands");
    std::fs::write(&commands, "break main\nrun\nbacktrace\ncontinue\nquit\n").unwrap();
    let mut command = hiroba(&[
        "run",
        "-n",
        "2",
        "--fault-source",
        "sigsegv",
        "--debug",
        "1",
        program.to_str().unwrap(),
        "a b",
    ]);
    command.stdin(std::fs::File::open(&commands).unwrap()).env_remove("HIROBA_DEBUGGER");
    let called = finish(start(&mut command));
    assert_eq!(called.status, 0, "{called:?}");
    for part in ["node 0 of 2: a b 2", "node 1 of 2: a b 2", "Breakpoint 1, main", "SIGSEGV"] {
        assert!(called.stdout.contains(part), "expected {part:?}: {called:?}");
    }
    assert!(called.stdout.contains("exited normally"), "{called:?}");
}

#[test]
fn nodes_preload_the_library() {
    let print = "echo \"$LD_PRELOAD\"";
    let plain = call(&["run", "-n", "1", "sh", "-c", print]);
    let library = plain.stdout.trim_end();
    assert!(library.ends_with("libhiroba.so") && Path::new(library).is_file(), "{plain:?}");
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own.so");
    std::fs::copy(library, &own).unwrap();
    let variable = format!("LD_PRELOAD={}", own.display());
    let both = call(&["run", "-n", "1", "-x", &variable, "sh", "-c", print]);
    assert_eq!(both.stdout.trim_end(), format!("{library}:{}", own.display()), "the user's stays behind it");
}
