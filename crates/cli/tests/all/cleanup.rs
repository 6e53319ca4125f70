//! However a job ends, nothing of it stays behind.

use std::process::Child;
use std::time::Duration;

use crate::support::terminal::in_terminal;
use crate::support::{call, eventually, finish, hiroba, mark, processes_marked, send, start};

/// A job of two nodes, each a shell with a background process, and the mark of all its processes.
fn job(test: &str, script: &str) -> (Child, String) {
    let mark = mark(test);
    let nodes = 2;
    let child = start(hiroba(&["run", "-n", "2", "sh", "-c", script]).env("HIROBA_TEST_MARK", &mark));
    // Front, supervisor, and in each node a shell and two processes.
    eventually("all processes run", || processes_marked(&mark) >= 2 + nodes * 3);
    (child, mark)
}

const BUSY: &str = "sleep 1000 & sleep 1000; true";

fn gone(mark: &str) {
    eventually("all processes are gone", || processes_marked(mark) == 0);
}

#[test]
fn the_launcher_is_killed() {
    let (mut child, mark) = job("launcher-killed", BUSY);
    child.kill().unwrap();
    gone(&mark);
    child.wait().unwrap();
}

#[test]
fn the_supervisor_is_killed() {
    let (child, mark) = job("supervisor-killed", BUSY);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let supervisor: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    // SAFETY: kill touches no memory; the supervisor is not waited for before it dies.
    assert_eq!(unsafe { libc::kill(supervisor, libc::SIGKILL) }, 0);
    finish(child).says(125, "supervisor process was killed by signal 9");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn signals_are_passed_on_and_named() {
    for (signal, status, phrase) in [
        (libc::SIGTERM, 143, "both nodes were killed by signal 15 (SIGTERM)"),
        (libc::SIGHUP, 129, "signal 1 (SIGHUP)"),
        (libc::SIGINT, 130, "signal 2 (SIGINT)"),
    ] {
        // Shells have their background processes ignore SIGINT, so these are in the foreground.
        let (child, mark) = job(&format!("signal-{signal}"), "(sleep 1000; true); true");
        send(&child, signal);
        finish(child).says(status, phrase);
        assert_eq!(processes_marked(&mark), 0);
    }
}

#[test]
fn a_program_that_ignores_the_signal_is_killed() {
    let (child, mark) = job("stubborn", "trap '' TERM; sleep 1000 & sleep 1000; true");
    send(&child, libc::SIGTERM);
    finish(child).says(143, "did not end after signal 15 (SIGTERM)");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn a_program_that_handles_the_signal_ends_as_it_likes() {
    let (child, mark) = job("graceful", "trap 'exit 5' TERM; sleep 1000 & sleep 1000; true");
    send(&child, libc::SIGTERM);
    let called = finish(child);
    // Shells tell of their children; the launcher has nothing to say.
    assert_eq!((called.status, called.stderr.contains("hiroba: ")), (5, false), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn control_c_reaches_every_node_once() {
    let mark = mark("control-c");
    let script = "trap 'echo caught; exit 0' INT; while :; do sleep 0.05; done";
    let mut command = hiroba(&["run", "-n", "3", "sh", "-c", script]);
    let (keyboard, child) = in_terminal(command.env("HIROBA_TEST_MARK", &mark));
    eventually("all nodes are in their loops", || processes_marked(&mark) >= 2 + 3 * 2);
    rustix::io::write(&keyboard, b"\x03").unwrap();
    let called = finish(child);
    assert_eq!((called.status, called.stdout.as_str()), (0, "caught\n".repeat(3).as_str()), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn a_second_control_c_kills() {
    let mark = mark("control-c-twice");
    let mut command = hiroba(&["run", "-n", "2", "sh", "-c", "trap '' INT; sleep 1000; true"]);
    let (keyboard, child) = in_terminal(command.env("HIROBA_TEST_MARK", &mark));
    eventually("all nodes ignore it", || processes_marked(&mark) >= 2 + 2 * 2);
    rustix::io::write(&keyboard, b"\x03").unwrap();
    std::thread::sleep(Duration::from_millis(400));
    rustix::io::write(&keyboard, b"\x03").unwrap();
    finish(child).says(130, "both nodes did not end after signal 2 (SIGINT) and had to be killed");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn what_a_program_leaves_running_is_ended_with_the_job() {
    let mark = mark("left-behind");
    let script = "setsid sleep 1000 >/dev/null 2>&1 & exit 0";
    let called =
        finish(start(hiroba(&["run", "-n", "2", "sh", "-c", script]).env("HIROBA_TEST_MARK", &mark)));
    assert_eq!(called.status, 0);
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn a_thousand_nodes_come_and_go() {
    assert_eq!(call(&["run", "-n", "1000", "true"]).status, 0);
}
