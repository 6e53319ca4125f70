//! However a job ends, nothing of it remains.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::support::terminal::in_terminal;
use crate::support::{
    call, eventually, finish, hiroba, mark, marked, processes_marked, send, send_to, start,
};

/// Starts a job of two nodes, each a shell with a background process. Returns the mark of all its processes.
fn job(test: &str, script: &str) -> (Child, String) {
    let mark = mark(test);
    let nodes = 2;
    let child = start(hiroba(&["run", "-n", "2", "sh", "-c", script]).env("HIROBA_TEST_MARK", &mark));
    // Front, guardian, supervisor, and in each node a shell and two processes.
    eventually("all processes run", || processes_marked(&mark) >= 3 + nodes * 3);
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

/// Returns the launcher's own processes: the front, its guardian, its supervisor.
fn launcher(front: &Child) -> [i32; 3] {
    let child_of = |pid: i32| {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().expect("it has one").parse().unwrap()
    };
    let front = front.id() as i32;
    let guardian = child_of(front);
    [front, guardian, child_of(guardian)]
}

#[test]
fn the_supervisor_is_killed() {
    let (child, mark) = job("supervisor-killed", BUSY);
    send_to(launcher(&child)[2], libc::SIGKILL);
    finish(child).says(125, "supervisor process was killed by signal 9");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn the_guardian_is_killed() {
    let (child, mark) = job("guardian-killed", BUSY);
    send_to(launcher(&child)[1], libc::SIGKILL);
    finish(child).says(125, "guardian process was killed by signal 9");
    assert_eq!(processes_marked(&mark), 0);
}

/// Processes that a program leaves behind: daemons, background processes, and processes with a session of
/// their own.
const LEFT: &str = "(setsid sleep 1000 >/dev/null 2>&1 &); sleep 1000 & sleep 1000; true";

#[test]
fn any_two_of_the_launchers_processes_are_killed_at_once() {
    for (test, pair) in [("two-front", [0, 1]), ("two-ends", [0, 2]), ("two-back", [1, 2])] {
        let mark = mark(test);
        let mut command = hiroba(&["run", "-n", "2", "sh", "-c", LEFT]);
        let mut child = start(command.env("HIROBA_TEST_MARK", &mark));
        eventually("all processes run", || processes_marked(&mark) >= 3 + 2 * 4);
        let launcher = launcher(&child);
        pair.into_iter().for_each(|place| send_to(launcher[place], libc::SIGKILL));
        gone(&mark);
        child.wait().unwrap();
    }
}

/// Returns a directory with the command that an ordinary user can read.
fn public_command() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let command = directory.path().join("hiroba");
    fs::copy(env!("CARGO_BIN_EXE_hiroba"), &command).unwrap();
    open(directory.path());
    open(&command);
    directory
}

#[test]
fn an_ordinary_users_job_leaves_nothing_either() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested apart: all these tests are an ordinary user's");
    }
    let directory = public_command();
    for places in [&[][..], &[0], &[2], &[0, 2]] {
        let mark = mark(&format!("ordinary-{}", places.iter().sum::<usize>() + places.len()));
        let mut command = std::process::Command::new(directory.path().join("hiroba"));
        command.args(["run", "-n", "2", "sh", "-c", LEFT]).current_dir("/").env("HIROBA_TEST_MARK", &mark);
        command.uid(65534).gid(65534).stdin(std::process::Stdio::null());
        let mut child = start(&mut command);
        eventually("all processes run", || processes_marked(&mark) >= 3 + 2 * 4);
        let launcher = launcher(&child);
        places.iter().for_each(|place| send_to(launcher[*place], libc::SIGKILL));
        if places.is_empty() {
            send(&child, libc::SIGTERM);
        }
        gone(&mark);
        child.wait().unwrap();
    }
}

#[test]
fn the_launchers_process_group_is_killed() {
    let mark = mark("group-killed");
    let mut command = hiroba(&["run", "-n", "2", "sh", "-c", LEFT]);
    let mut child = start(command.env("HIROBA_TEST_MARK", &mark).process_group(0));
    eventually("all processes run", || processes_marked(&mark) >= 3 + 2 * 4);
    send_to(-(child.id() as i32), libc::SIGKILL);
    gone(&mark);
    child.wait().unwrap();
}

#[test]
fn what_starts_processes_all_the_time_is_ended_with_the_job() {
    let mark = mark("breeding");
    // Each lives for a moment, starts the next in a session of its own, and ends.
    let script = "printf '%s\n' 'sleep 0.01; setsid sh \"$0\" &' >\"$D/breed\"; \
                  sh \"$D/breed\" >/dev/null 2>&1 & sh \"$D/breed\" >/dev/null 2>&1 & sleep 0.3";
    let directory = tempfile::tempdir().unwrap();
    let mut command = hiroba(&["run", "-n", "2", "sh", "-c", script]);
    let called = finish(start(command.env("HIROBA_TEST_MARK", &mark).env("D", directory.path())));
    assert_eq!(called.status, 0, "{called:?}");
    assert_eq!((called.stderr.lines().count(), processes_marked(&mark)), (1, 0), "{called:?}");
}

/// The launcher runs as an ordinary user; the set-user-ID program that its program leaves behind does not.
#[test]
fn what_cannot_be_ended_is_told() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root can make a program set-user-ID root");
    }
    let directory = public_command();
    let nap = directory.path().join("nap");
    let source = directory.path().join("nap.c");
    let text = "int main(void) { setuid(0); close(1); close(2); return (int)sleep(20); }";
    fs::write(&source, format!("#include <unistd.h>\n{text}\n")).unwrap();
    let mut compiler = std::process::Command::new("cc");
    assert!(compiler.arg("-o").arg(&nap).arg(&source).status().unwrap().success());
    fs::set_permissions(&nap, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut run = std::process::Command::new(directory.path().join("hiroba"));
    run.args(["run", "-n", "1", "sh", "-c", "\"$0\" & sleep 0.5"]).arg(&nap).current_dir("/");
    let called = finish(start(run.uid(65534).gid(65534).stdin(std::process::Stdio::null())));
    let left = marked(nap.to_str().unwrap());
    left.iter().for_each(|(pid, _)| send_to(*pid, libc::SIGKILL));
    assert_eq!((called.status, left.len()), (0, 1), "{called:?} {left:?}");
    assert!(
        called.stderr.contains("1 process that the program left behind could not be ended"),
        "{called:?}"
    );
}

#[test]
fn signals_are_passed_on_and_named() {
    for (signal, status, phrase) in [
        (libc::SIGTERM, 143, "both nodes were killed by signal 15 (SIGTERM)"),
        (libc::SIGHUP, 129, "signal 1 (SIGHUP)"),
        (libc::SIGINT, 130, "signal 2 (SIGINT)"),
    ] {
        // Shells make their background processes ignore SIGINT, so these are in the foreground.
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
    // A shell's child that has not become `sleep` yet has the trap, and its signal is lost.
    let sleeps = || marked(&mark).iter().filter(|(_, line)| line.starts_with("sleep ")).count();
    eventually("all sleep", || sleeps() == 2 * 2);
    send(&child, libc::SIGTERM);
    let called = finish(child);
    // Shells report their children; the launcher has nothing to report.
    assert_eq!((called.status, called.stderr.contains("hiroba: ")), (5, false), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn control_c_reaches_every_node_once() {
    let mark = mark("control-c");
    let script = "trap 'echo caught; exit 0' INT; while :; do sleep 0.05; done";
    let mut command = hiroba(&["run", "-n", "3", "sh", "-c", script]);
    let (keyboard, child) = in_terminal(command.env("HIROBA_TEST_MARK", &mark));
    eventually("all nodes are in their loops", || processes_marked(&mark) >= 3 + 3 * 2);
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
    eventually("all nodes ignore it", || processes_marked(&mark) >= 3 + 2 * 2);
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
