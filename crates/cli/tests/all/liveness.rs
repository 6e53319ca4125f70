//! Nodes that are silent end the job; a launcher that was silent itself does not.

use std::process::Child;
use std::time::Duration;

use crate::support::{
    compiled, eventually, finish, first_line, hiroba, mark, marked, processes_marked, send, send_to, start,
};

/// A job of two nodes that has begun, and the mark of its processes.
fn job(test: &str, flags: &[&str], seconds: &str) -> (Child, String, tempfile::TempDir) {
    let (directory, program) = compiled("meet.c");
    let mark = mark(test);
    let mut command = hiroba(&["run", "-n", "2"]);
    command.args(flags).arg("--").arg(program).arg(seconds).env("HIROBA_TEST_MARK", &mark);
    let mut child = start(&mut command);
    assert_eq!(first_line(&mut child), "met");
    (child, mark, directory)
}

/// A node of the job.
fn node(mark: &str) -> i32 {
    let nodes = marked(mark);
    let is_node = |line: &str| !line.contains("hiroba run") && line.contains("program");
    nodes.iter().filter(|(_, line)| is_node(line)).map(|(pid, _)| *pid).max().expect("the job runs")
}

/// Stops processes for longer than silence is borne by default, and lets them go on. It is the passing of time itself that is tried.
fn stop_for_a_while(processes: &[i32]) {
    processes.iter().for_each(|pid| send_to(*pid, libc::SIGSTOP));
    std::thread::sleep(Duration::from_secs(5));
    processes.iter().for_each(|pid| send_to(*pid, libc::SIGCONT));
}

#[test]
fn a_node_that_is_stopped_ends_the_job() {
    let (child, mark, _directory) = job("stopped-node", &["--dead-after", "1"], "600");
    send_to(node(&mark), libc::SIGSTOP);
    let called = finish(child);
    // Who notices it first, the launcher or the other node, is chance.
    let said = called.stderr.contains("has answered nothing for 1 s")
        || called.stderr.contains("has heard nothing of node");
    assert!(called.status == 125 && said && called.stderr.contains("--dead-after"), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn without_a_limit_silence_is_borne() {
    let (child, mark, _directory) = job("borne", &["--dead-after", "0"], "2");
    stop_for_a_while(&[node(&mark)]);
    let called = finish(child);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
}

#[test]
fn a_launcher_that_was_stopped_takes_nobody_for_dead() {
    let (child, mark, _directory) = job("stopped-launcher", &["--dead-after", "3"], "9");
    let launchers: Vec<i32> = marked(&mark)
        .into_iter()
        .filter(|(_, line)| line.contains("hiroba run"))
        .map(|(pid, _)| pid)
        .collect();
    assert_eq!(launchers.len(), 3, "front, guardian and supervisor");
    stop_for_a_while(&launchers);
    let called = finish(child);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
}

#[test]
fn a_whole_job_may_be_stopped_and_go_on() {
    let (child, mark, _directory) = job("stopped-job", &["--dead-after", "3"], "9");
    let all: Vec<i32> = marked(&mark).into_iter().map(|(pid, _)| pid).collect();
    stop_for_a_while(&all);
    let called = finish(child);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
}

#[test]
fn a_stopped_job_that_is_killed_leaves_nothing() {
    let (child, mark, _directory) = job("stopped-killed", &[], "600");
    send_to(node(&mark), libc::SIGSTOP);
    send(&child, libc::SIGKILL);
    eventually("all processes are gone", || processes_marked(&mark) == 0);
    finish(child);
}
