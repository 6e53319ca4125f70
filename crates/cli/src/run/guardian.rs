//! Two processes for one launcher, so that whichever is killed, the other cleans up.
//!
//! The *front* is the process the user started: it passes signals on and waits. The *supervisor* is its
//! child and the nodes' parent. Both are child subreapers (`PR_SET_CHILD_SUBREAPER`): whatever the program
//! leaves behind becomes theirs and is killed. When the front is killed the supervisor sees the end of
//! the pipe between them; when the supervisor is killed its nodes die with it (`PR_SET_PDEATHSIG`), and
//! what they started becomes the front's.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait};

use super::signals::{self, Inherited, SignalDescriptor};
use crate::failure::{Failure, system_words};

/// How long killed processes may take to disappear before the launcher gives up waiting for them.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// How long the supervisor of an agent may outlive the connection to its launcher.
const HANGUP_GRACE: Duration = Duration::from_secs(1);
/// How often processes that were killed are looked for again.
const REAP_INTERVAL: Duration = Duration::from_millis(2);

/// What the supervisor knows of its front.
pub struct Front {
    /// Carries one byte a signal that the front got; its end means that the front is gone.
    pub signals: OwnedFd,
    /// How the launcher found its signals.
    pub inherited: Inherited,
}

/// Runs `job` in a supervisor process and returns its exit status. Must be called while there is one thread.
///
/// When `line` is given, the connection to whoever commands the supervisor, its end ends the supervisor even if that is stopped.
pub fn run_guarded(line: Option<BorrowedFd<'_>>, job: impl FnOnce(Front) -> u8) -> Result<u8, Failure> {
    let start = |error: io::Error| Failure::new(format!("cannot start: {}", system_words(&error)));
    let inherited = signals::block().map_err(start)?;
    let arrivals = SignalDescriptor::open().map_err(start)?;
    set_child_subreaper(Some(getpid())).map_err(|error| start(error.into()))?;
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| start(error.into()))?;
    // SAFETY: there is one thread, so the child is a whole copy of the process and may run any code.
    let supervisor = match unsafe { libc::fork() } {
        -1 => return Err(super::spawn::too_many_processes(&io::Error::last_os_error())),
        0 => {
            drop((write_end, arrivals));
            let _ = set_child_subreaper(Some(getpid()));
            std::process::exit(i32::from(job(Front { signals: read_end, inherited })));
        }
        pid => pid,
    };
    drop(read_end);
    let supervisor = Pid::from_raw(supervisor).expect("fork returns a positive pid");
    let status = watch(supervisor, &arrivals, &write_end, line);
    kill_descendants();
    let Some(status) = status else {
        return Err(Failure::new(
            "the connection to the launcher was lost; the nodes of this host were ended",
        ));
    };
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Ok(status as u8),
        (None, signal) => Err(Failure::new(format!(
            "the launcher's supervisor process was killed by {}; the job was ended",
            signals::describe(signal.unwrap_or(0))
        ))),
    }
}

/// Passes signals on until the supervisor ends, and returns how; or until the line has been dead for a while.
fn watch(
    supervisor: Pid,
    arrivals: &SignalDescriptor,
    to_supervisor: &OwnedFd,
    mut line: Option<BorrowedFd<'_>>,
) -> Option<WaitStatus> {
    let mut give_up: Option<Instant> = None;
    loop {
        // The end of the line is reported without being asked for; what comes over it is the supervisor's.
        let mut sources = vec![PollFd::new(&arrivals.0, PollFlags::IN)];
        sources.extend(line.iter().map(|line| PollFd::new(line, PollFlags::RDHUP)));
        let left = give_up.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let _ = poll(&mut sources, left.as_ref());
        if sources.get(1).is_some_and(|line| !line.revents().is_empty()) {
            line = None;
            give_up = Some(Instant::now() + HANGUP_GRACE);
        }
        while let Some(arrived) = arrivals.next() {
            // What a terminal sends reaches the supervisor by itself.
            if arrived.signal != libc::SIGCHLD && !arrived.from_terminal {
                let _ = rustix::io::write(to_supervisor, &[arrived.signal as u8]);
            }
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == supervisor {
                return Some(status);
            }
        }
    }
}

/// Sends `signal` to every process that descends from this one, but for those in `spared` and what descends from them.
///
/// A terminal's Ctrl-C reaches all of them too: a node may be a script whose child is the program.
pub fn signal_descendants(signal: i32, spared: &[i32]) {
    for pid in descendants(spared) {
        // SAFETY: kill touches no memory; the pid was our descendant's a moment ago.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Kills every descendant and waits for them to be gone.
pub fn kill_descendants() {
    let give_up = Instant::now() + REAP_LIMIT;
    loop {
        // Orphans of what is killed here become this process's children: when there is no child left,
        // there is no descendant left.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
        if Instant::now() > give_up {
            return;
        }
        signal_descendants(libc::SIGKILL, &[]);
        std::thread::sleep(REAP_INTERVAL);
    }
}

fn descendants(spared: &[i32]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut from = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = from.pop() {
        let mut theirs = children.remove(&parent).unwrap_or_default();
        theirs.retain(|pid| !spared.contains(pid));
        found.extend(&theirs);
        from.extend(theirs);
    }
    found
}

/// The fourth field of `/proc/PID/stat`; the second, the name in parentheses, may hold anything.
fn parent_of(stat: &str) -> Option<i32> {
    let behind_name = &stat[stat.rfind(')')? + 1..];
    behind_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_fake_a_parent() {
        assert_eq!(parent_of("7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_of("7 (a) S 1 (b) R 4 7"), Some(4));
        assert_eq!(parent_of("7 (sh"), None);
        assert_eq!(parent_of(""), None);
    }
}
