//! Kills at random instants: whichever process of a job dies, and when, nothing of the job remains.
//!
//! There are a hundred, or as many as `HIROBA_TEST_KILLS` says; `HIROBA_TEST_SEED` chooses others. A failure
//! names the seed, the victim and the delay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiroba_base::{RngExt, seeded};

use crate::support::{
    compiled, eventually, finish, hiroba, mark, marked, processes_marked, script, send_to, start,
};

/// The number of jobs at once.
const AT_ONCE: u64 = 3;
/// The maximum delay in milliseconds; an undisturbed job has begun long before.
const DELAY_MS_MAX: u64 = 400;

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("expected a number in {variable}, got {text}"))
    })
}

/// What jobs need: a program, hosts that are this machine under other addresses, and a command that reaches
/// them.
struct Ground {
    _program: tempfile::TempDir,
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        let (kept, program) = compiled("meet.c");
        let directory = tempfile::tempdir().expect("a temporary directory");
        script(directory.path(), "reach", "shift; exec \"$@\"");
        fs::write(
            directory.path().join("hosts"),
            "localhost slots=1 address=127.0.0.1\nh2 slots=2 address=127.0.0.2\n",
        )
        .expect("a writable directory");
        Ground { _program: kept, program, directory }
    }

    fn job(&self, several_hosts: bool, temporary: &Path, mark: &str) -> Command {
        let mut command = hiroba(&["run"]);
        if several_hosts {
            let file = |name: &str| self.directory.path().join(name);
            command.arg("--hosts").arg(file("hosts")).arg("--launcher").arg(file("reach"));
        } else {
            command.args(["-n", "2"]);
        }
        command.arg("--").arg(&self.program).arg("600");
        command.env("HIROBA_TEST_MARK", mark).env("TMPDIR", temporary);
        command
    }

    /// Runs one job with one death.
    fn kill_once(&self, seed: u64, mark: &str) {
        let mut random = seeded(seed);
        let several_hosts = random.random_range(0..2) == 0;
        let delay_ms = random.random_range(0..DELAY_MS_MAX);
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let child = start(&mut self.job(several_hosts, temporary.path(), mark));
        std::thread::sleep(Duration::from_millis(delay_ms));
        let mut processes = marked(mark);
        processes.sort_unstable();
        let victim = &processes[random.random_range(0..processes.len())];
        let told = format!(
            "seed {seed}: {victim:?} of {processes:?} after {delay_ms} ms, several hosts: {several_hosts}"
        );
        send_to(victim.0, libc::SIGKILL);
        let called = finish(child);
        // A launcher that is killed prints nothing; all others print why the job ended. A process that had
        // ended by itself is no victim.
        let launcher_died = called.status == -1;
        assert!(
            launcher_died || (called.status != 0 && called.stderr.contains("hiroba: ")),
            "{told}: {called:?}"
        );
        eventually(&format!("all processes are gone ({told})"), || processes_marked(mark) == 0);
        // Sockets, memory files and mappings disappear with their processes; files would remain.
        let left: Vec<_> = fs::read_dir(temporary.path()).expect("it is ours").flatten().collect();
        assert!(left.is_empty(), "{told}: {left:?}");
    }
}

#[test]
fn whoever_is_killed_and_when_nothing_stays_behind() {
    let (kills, first_seed) = (number("HIROBA_TEST_KILLS", 100), number("HIROBA_TEST_SEED", 1));
    let ground = Ground::new();
    let shared_memory = || {
        fs::read_dir("/dev/shm").map_or(0, |entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains("hiroba")).count()
        })
    };
    let before = shared_memory();
    let next = AtomicU64::new(0);
    let work = || loop {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        if turn >= kills {
            return;
        }
        ground.kill_once(first_seed + turn, &mark(&format!("kill-{turn}-")));
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().for_each(|worker| worker.join().expect("nothing is left of any job"));
    });
    assert!(shared_memory() <= before, "objects are left in /dev/shm");
}

/// Passes everything on, but what the agent says only after a while.
const SLOW_REACH: &str = r#"shift; exec python3 -c '
import os, subprocess, sys, threading, time
agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def copy(source, sink, delay):
    while chunk := os.read(source, 65536):
        time.sleep(delay)
        os.write(sink, chunk)
    os.close(sink)
threading.Thread(target=copy, args=(0, agent.stdin.fileno(), 0), daemon=True).start()
copy(agent.stdout.fileno(), 1, 0.7)
' "$@""#;

/// Returns the launcher's own nodes before exec: children of the process that its guardian started.
fn nodes_before_exec(mark: &str) -> Vec<i32> {
    let stat = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let parent = |pid: i32| -> i32 {
        let stat = stat(pid);
        let behind_name = stat.rsplit(')').next().unwrap_or_default();
        behind_name.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    let is_supervisor = |pid: i32| name(parent(pid)).trim() == "job-guardian";
    // An agent's nodes have its command line, too.
    let marked = marked(mark).into_iter().filter(|(_, line)| line.contains(" run "));
    marked
        .map(|(pid, _)| pid)
        .filter(|pid| name(*pid).trim() == "hiroba" && is_supervisor(parent(*pid)))
        .collect()
}

/// The launcher waits for another host, and learns of its own node's death in that time.
#[test]
fn a_node_that_dies_while_another_host_prepares_ends_the_job() {
    let ground = Ground::new();
    script(ground.directory.path(), "reach", SLOW_REACH);
    let (temporary, mark) = (tempfile::tempdir().expect("a temporary directory"), mark("slow-host-"));
    let child = start(&mut ground.job(true, temporary.path(), &mark));
    let mut nodes = Vec::new();
    eventually("the launcher has a node", || {
        // The process that will become the command that reaches the other host looks like a node for a
        // moment.
        let before = nodes_before_exec(&mark);
        std::thread::sleep(Duration::from_millis(50));
        nodes = nodes_before_exec(&mark).into_iter().filter(|pid| before.contains(pid)).collect();
        !nodes.is_empty()
    });
    nodes.into_iter().for_each(|pid| send_to(pid, libc::SIGKILL));
    let called = finish(child);
    assert!(called.status != 0 && called.stderr.contains("signal 9 (SIGKILL)"), "{called:?}");
    eventually("all processes are gone", || processes_marked(&mark) == 0);
}
