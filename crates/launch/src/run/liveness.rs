//! Silence: how long it is tolerated, and what a silent process may be doing.
//!
//! Time is counted in looks of the waiting process ([`LOOKS_UNTIL_DEAD`]): a stop of the launcher itself, by
//! Ctrl-Z or a machine that slept, counts as one look.

use std::time::{Duration, Instant};

use hiroba_wire::control::LOOKS_UNTIL_DEAD;

use crate::run::options::RunOptions;

/// The silence after which a process of the same machine is considered dead.
const ON_ONE_HOST: Duration = Duration::from_secs(3);
/// The same between machines.
const ACROSS_HOSTS: Duration = Duration::from_secs(10);
/// With more threads per processor than this, each may wait so long for its turn that a longer silence is
/// tolerated.
const THREADS_PER_CORE: u32 = 32;
/// How often a launcher that considers no node dead pings agents: it needs their answers to know what has
/// been read.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Returns the silence after which a node or a host is considered dead, `None` for never.
pub fn dead_after(options: &RunOptions, several_hosts: bool) -> Option<Duration> {
    if options.debug.is_some() {
        return None;
    }
    if let Some(given) = options.dead_after {
        return Some(given).filter(|silence| !silence.is_zero());
    }
    if several_hosts {
        return Some(ACROSS_HOSTS);
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let threads = u32::from(options.nodes) * u32::from(options.threads_per_node);
    Some(ON_ONE_HOST * threads.div_ceil(cores * THREADS_PER_CORE).max(1))
}

/// Converts the silence for a job's description; 0 means never.
pub fn in_milliseconds(dead_after: Option<Duration>) -> u64 {
    dead_after.map_or(0, |silence| silence.as_millis() as u64)
}

/// Formats a silence: "3 s", "0.5 s".
pub fn in_words(silence: Duration) -> String {
    format!("{} s", silence.as_secs_f64())
}

/// Decides when to look for signs of life.
#[derive(Debug)]
pub struct Looks {
    every: Duration,
    next: Instant,
    /// Whether silent nodes are considered dead at all.
    counts: bool,
}

impl Looks {
    /// Returns looks that find nodes that are silent for longer than `dead_after`.
    pub fn new(dead_after: Option<Duration>) -> Looks {
        let every = dead_after.map_or(ASK_EVERY, |silence| silence / LOOKS_UNTIL_DEAD);
        Looks { every, next: Instant::now() + every, counts: dead_after.is_some() }
    }

    /// Returns when the next look is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns true if it is time to look.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.every;
        }
        due
    }

    /// Counts one more look without a sign of life. Returns true if it exhausts the tolerance, which
    /// `patience` multiplies.
    pub fn is_last(&self, silent_looks: &mut u32, patience: u32) -> bool {
        *silent_looks = silent_looks.saturating_add(1);
        self.counts && *silent_looks > LOOKS_UNTIL_DEAD * patience
    }
}

/// What a silent process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is stopped (SIGSTOP).
    Stopped,
    /// It is in a debugger, or the kernel writes its core: it will answer later, or has ended.
    Excused,
    /// Anything else.
    Unknown,
}

/// Examines a process of this machine.
pub fn doing(pid: i32) -> Doing {
    std::fs::read_to_string(format!("/proc/{pid}/status")).map_or(Doing::Unknown, |status| judge(&status))
}

/// Parses the fields, which proc_pid_status(5) describes.
fn judge(status: &str) -> Doing {
    let field = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or("").trim()
    };
    if field("CoreDumping") == "1" || field("State").starts_with('t') || field("State").starts_with('Z') {
        return Doing::Excused;
    }
    if field("State").starts_with('T') { Doing::Stopped } else { Doing::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_looks_without_a_sign_in_between_count() {
        let looks = Looks::new(Some(Duration::from_secs(1)));
        let mut silent = 0;
        for _ in 0..LOOKS_UNTIL_DEAD {
            assert!(!looks.is_last(&mut silent, 1));
        }
        assert!(looks.is_last(&mut silent, 1));
        assert!(!looks.is_last(&mut silent, 3), "three times as long is borne here");
        let never = Looks::new(None);
        assert!(!(0..1000).any(|_| never.is_last(&mut silent, 1)));
    }

    #[test]
    fn what_a_process_does_is_in_its_status() {
        let status = |state: &str, dumping: u8| {
            judge(&format!("Name:\tx\nState:\t{state}\nTgid:\t7\nCoreDumping:\t{dumping}\n"))
        };
        assert_eq!(status("T (stopped)", 0), Doing::Stopped);
        assert_eq!(status("t (tracing stop)", 0), Doing::Excused);
        assert_eq!(status("R (running)", 1), Doing::Excused);
        assert_eq!(status("S (sleeping)", 0), Doing::Unknown);
        assert_eq!(judge(""), Doing::Unknown);
        assert_eq!(doing(std::process::id() as i32), Doing::Unknown);
    }
}
