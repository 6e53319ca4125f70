//! Kills at random instants: whichever process of a job dies, and when, nothing of the job stays behind.
//!
//! A hundred, or as many as `HIROBA_TEST_KILLS` says; `HIROBA_TEST_SEED` chooses others. A failure names the seed, the victim and the delay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiroba_base::{RngExt, seeded};

use crate::support::{
    compiled, eventually, finish, hiroba, mark, marked, processes_marked, script, send_to, start,
};

/// Jobs at once.
const AT_ONCE: u64 = 3;
/// A job that starts undisturbed has long begun by then, in milliseconds.
const DELAY_MS_MAX: u64 = 400;

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("expected a number in {variable}, got {text}"))
    })
}

/// What jobs are made of: a program, hosts that are this machine under other addresses, and a command that reaches them.
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

    /// One job and one death.
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
        // A launcher that is killed says nothing; all others say why the job ended. One that had ended by itself is no victim.
        let launcher_died = called.status == -1;
        assert!(
            launcher_died || (called.status != 0 && called.stderr.contains("hiroba: ")),
            "{told}: {called:?}"
        );
        eventually(&format!("all processes are gone ({told})"), || processes_marked(mark) == 0);
        // Sockets, memory files and mappings go with the processes that hold them; files would stay.
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
