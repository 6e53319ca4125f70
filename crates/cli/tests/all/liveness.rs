//! Silent nodes end the job; a launcher that was silent itself does not.

use std::process::Child;
use std::time::Duration;

use crate::support::{
    Called, compiled, eventually, finish, first_line, hiroba, mark, marked, processes_marked, script, send,
    send_to, start,
};

/// Starts a job of two nodes, and waits until it has begun. Returns the mark of its processes.
fn job(test: &str, flags: &[&str], seconds: &str) -> (Child, String, tempfile::TempDir) {
    let (directory, program) = compiled("meet.c");
    let mark = mark(test);
    let mut command = hiroba(&["run", "-n", "2"]);
    command.args(flags).arg("--").arg(program).arg(seconds).env("HIROBA_TEST_MARK", &mark);
    let mut child = start(&mut command);
    assert_eq!(first_line(&mut child), "met");
    (child, mark, directory)
}

/// Returns a node of the job.
fn node(mark: &str) -> i32 {
    let nodes = marked(mark);
    let is_node = |line: &str| !line.contains("hiroba run") && line.contains("program");
    nodes.iter().filter(|(_, line)| is_node(line)).map(|(pid, _)| *pid).max().expect("the job runs")
}

/// Stops processes for longer than the default tolerates, and continues them. The passing of time itself is
/// tested.
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
    // Which notices it first, the launcher or the other node, is arbitrary.
    let said = called.stderr.contains("has answered nothing for 1 s")
        || called.stderr.contains("has heard nothing of node");
    assert!(called.status == 125 && said && called.stderr.contains("--dead-after"), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

/// Asserts that the report of a silent node suffices for a hang that never comes again: each of the program's
/// and the runtime's threads has its line, which says whether it sleeps, where, in which function of the
/// kernel, and what it had of the processors.
fn tells_of_each_thread(called: &Called) {
    // Which notices it first, the launcher or the other node, is arbitrary.
    let silent = ["has answered nothing for 1 s: its runtime hangs", "has heard nothing of node 1"];
    let is_told = silent.iter().any(|said| called.stderr.contains(said));
    assert!(called.status == 125 && is_told && called.stderr.contains("ending the job"), "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    let holds = |line: &str, words: &[&str]| words.iter().all(|word| line.contains(word));
    let share =
        ["; meanwhile it ran ", " ms (ticks: ", " user, ", " kernel) and waited ", " ms for a processor"];
    let threads: Vec<&str> = lines.iter().filter(|line| line.contains(" thread ")).copied().collect();
    assert!(threads.len() >= 2 && threads.iter().all(|line| holds(line, &share)), "{called:?}");
    assert!(
        threads.iter().any(|line| holds(line, &["(program) runs, or waits for a processor"])),
        "{called:?}"
    );
    let sleeping: Vec<&&str> = threads.iter().filter(|line| line.contains(") sleeps, in ")).collect();
    assert!(sleeping.iter().any(|line| line.contains("(hiroba-service)")), "{called:?}");
    if tells_wait_channels() {
        assert!(sleeping.iter().all(|line| line.contains(" (kernel: ")), "{called:?}");
    } else {
        println!("this kernel does not tell where its threads wait: not asserted");
    }
    assert!(
        lines.iter().any(|line| holds(line, &["in the last ", "its threads ran ", "; load "])),
        "{called:?}"
    );
}

/// Returns true if the kernel reports in which of its functions a sleeping thread of this user waits.
fn tells_wait_channels() -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let sleeper = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).expect("it is received");
        let _ = ended.recv();
    });
    let channel = format!("/proc/self/task/{}/wchan", told.recv().expect("it is sent"));
    let sleeps_in = || std::fs::read_to_string(&channel).unwrap_or_default();
    // It falls asleep soon, if that is reported at all.
    let tells = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !matches!(sleeps_in().trim(), "" | "0")
    });
    drop(end);
    sleeper.join().expect("it ends");
    tells
}

#[test]
fn a_node_that_hangs_is_told_of_thread_by_thread() {
    let (_directory, program) = compiled("hang.c");
    let mut command = hiroba(&["run", "-n", "2", "--dead-after", "1", "--"]);
    let called = finish(start(command.arg(&program)));
    if !cannot_hang(&called) {
        tells_of_each_thread(&called);
    }
}

#[test]
fn a_node_that_hangs_on_another_host_is_told_of_thread_by_thread() {
    let (directory, program) = compiled("hang.c");
    let hosts = directory.path().join("hosts");
    std::fs::write(&hosts, "h1 address=127.0.0.2\nh2 address=127.0.0.3\n").expect("a writable directory");
    let reach = script(directory.path(), "reach", "shift; exec \"$@\"");
    let mut command = hiroba(&["run", "-n", "2", "--dead-after", "1", "--launcher", &reach, "--hosts"]);
    let called = finish(start(command.arg(&hosts).arg("--").arg(&program)));
    if !cannot_hang(&called) {
        assert!(called.stderr.contains(" on host h2) "), "{called:?}");
        tells_of_each_thread(&called);
    }
}

/// Asserts a program that must not hang.
fn cannot_hang(called: &Called) -> bool {
    let cannot = called.status == 77;
    if cannot {
        println!("not tried: {}", called.stderr);
    }
    cannot
}

/// These jobs pass the time together.
#[test]
fn jobs_that_were_stopped_go_on() {
    std::thread::scope(|scope| {
        scope.spawn(without_a_limit_silence_is_borne);
        scope.spawn(a_launcher_that_was_stopped_takes_nobody_for_dead);
        scope.spawn(a_whole_job_may_be_stopped_and_go_on);
    });
}

fn without_a_limit_silence_is_borne() {
    let (child, mark, _directory) = job("borne", &["--dead-after", "0"], "2");
    stop_for_a_while(&[node(&mark)]);
    let called = finish(child);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
}

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
