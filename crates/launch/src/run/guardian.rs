//! Three processes for one launcher: if any two are killed, the third one cleans up.
//!
//! The *front* is the process that the user started: it passes signals on and waits. The *guardian* is its
//! child, and only waits for the supervisor's end. The *supervisor* is the guardian's child and the nodes'
//! parent. All are child subreapers (`PR_SET_CHILD_SUBREAPER`): processes that the program leaves behind,
//! daemons included, become their children and are killed. When the front is killed, the supervisor sees the
//! end of the pipe between them; when the guardian is killed, its children become the front's; when the
//! supervisor is killed, its nodes die with it (`PR_SET_PDEATHSIG`), and the processes that they started
//! become the guardian's. The guardian has a session and a name of its own, so that killing the launcher's
//! process group, or all processes called `hiroba`, does not kill it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait};

use super::signals::{self, Inherited, SignalDescriptor};
use super::status::End;
use crate::failure::{Failure, say, system_words};

/// How long killed processes may take to disappear before the launcher gives up waiting for them.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// How long the supervisor of an agent may outlive the connection to its launcher.
const HANGUP_GRACE: Duration = Duration::from_secs(1);
/// The interval at which killed processes are looked for again.
const REAP_INTERVAL: Duration = Duration::from_millis(2);

/// What the supervisor knows about its front.
pub struct Front {
    /// Carries one byte for each signal that the front got. Its end means that the front is gone.
    pub signals: OwnedFd,
    /// How the launcher found its signals.
    pub inherited: Inherited,
}

/// The guardian's name, which differs from the command's.
const GUARDIAN_NAME: &std::ffi::CStr = c"job-guardian";

/// Runs `job` in a supervisor process and returns its exit status. Must be called while there is one thread.
///
/// `line` is the connection to the process that commands the supervisor, if any. Its end ends the supervisor
/// even if that is stopped.
pub fn run_guarded(line: Option<BorrowedFd<'_>>, job: impl FnOnce(Front) -> u8) -> Result<u8, Failure> {
    let start = |error: io::Error| Failure::new(format!("cannot start: {}", system_words(&error)));
    let inherited = signals::block().map_err(start)?;
    let arrivals = SignalDescriptor::open().map_err(start)?;
    set_child_subreaper(Some(getpid())).map_err(|error| start(error.into()))?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| start(error.into()));
    let (read_end, write_end) = pipe()?;
    let (end_in, end_out) = pipe()?;
    rustix::io::ioctl_fionbio(&end_in, true).map_err(|error| start(error.into()))?;
    let Some(guardian) = fork()? else {
        drop((write_end, arrivals, end_in));
        guard(&end_out, || job(Front { signals: read_end, inherited }));
    };
    drop((read_end, end_out));
    let guardian_status = watch(guardian, &arrivals, &write_end, line);
    let left = kill_descendants();
    let Some(guardian_status) = guardian_status else {
        return Err(Failure::new(
            "the connection to the launcher was lost; the nodes of this host were ended",
        ));
    };
    let mut end = [0; 2];
    let (who, end) = match rustix::io::read(&end_in, &mut end) {
        Ok(2) => ("supervisor", decode(end)),
        _ => ("guardian", End::from_wait(guardian_status).unwrap_or(End::Killed(0))),
    };
    if left > 0 {
        let (processes, them) = if left == 1 { ("process", "it") } else { ("processes", "them") };
        say(&format!(
            "{left} {processes} that the program left behind could not be ended: they belong to another user, or new ones are started \
             continually; look for {them} with 'ps'"
        ));
    }
    match end {
        End::Exited(status) => Ok(status),
        End::Killed(signal) => Err(Failure::new(format!(
            "the launcher's {who} process was killed by {}; the job was ended",
            signals::describe(signal)
        ))),
    }
}

/// Encodes how the supervisor ended, for the pipe from the guardian to the front.
fn encode(end: End) -> [u8; 2] {
    match end {
        End::Exited(status) => [0, status],
        End::Killed(signal) => [1, signal as u8],
    }
}

fn decode([kind, value]: [u8; 2]) -> End {
    if kind == 0 { End::Exited(value) } else { End::Killed(i32::from(value)) }
}

/// Forks; returns `None` in the child. Must be called while there is one thread.
fn fork() -> Result<Option<Pid>, Failure> {
    // SAFETY: there is one thread, so the child is a whole copy of the process and may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(super::lacks::too_many_processes(&io::Error::last_os_error())),
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid).expect("fork returns a positive pid"))),
    }
}

/// Runs the guardian: starts the supervisor, waits for its end, ends what is left, and tells the front how it
/// ended.
fn guard(end_out: &OwnedFd, job: impl FnOnce() -> u8) -> ! {
    let _ = set_child_subreaper(Some(getpid()));
    let supervisor = match fork() {
        Ok(Some(supervisor)) => supervisor,
        Ok(None) => {
            let _ = set_child_subreaper(Some(getpid()));
            std::process::exit(i32::from(job()));
        }
        Err(failure) => {
            say(&failure.sentence);
            std::process::exit(i32::from(failure.status));
        }
    };
    // The descriptors of `job` belong to the supervisor. While this process had them too, nobody would see
    // their end.
    drop(job);
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(GUARDIAN_NAME);
    leave_standard_streams();
    let end = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == supervisor => break End::from_wait(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => break None,
        }
    };
    kill_descendants();
    if let Some(end) = end {
        let _ = rustix::io::write(end_out, &encode(end));
    }
    // SAFETY: ends this process without running what the front registered to run at its exit.
    unsafe { libc::_exit(0) }
}

/// Closes the standard streams, so that a reader of the launcher's output sees its end with the launcher's,
/// and a terminal that hangs up is released.
fn leave_standard_streams() {
    let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// Passes signals on until the guardian ends, and returns how it ended; or until the line has been dead for a
/// while.
fn watch(
    guardian: Pid,
    arrivals: &SignalDescriptor,
    to_supervisor: &OwnedFd,
    mut line: Option<BorrowedFd<'_>>,
) -> Option<WaitStatus> {
    let mut give_up: Option<Instant> = None;
    loop {
        // Poll reports the end of the line without being asked; its data are for the supervisor.
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
            // A terminal's signal reaches the supervisor directly.
            if arrived.signal != libc::SIGCHLD && !arrived.from_terminal {
                let _ = rustix::io::write(to_supervisor, &[arrived.signal as u8]);
            }
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == guardian {
                return Some(status);
            }
        }
    }
}

/// Sends `signal` to all descendants of this process, except those in `spared` and their descendants.
///
/// A terminal's Ctrl-C reaches all of them too: a node may be a script whose child is the program.
pub fn signal_descendants(signal: i32, spared: &[i32]) {
    for pid in descendants(spared) {
        // SAFETY: kill touches no memory; the pid was our descendant's a moment ago.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Kills all descendants and waits for them to end. Returns how many remain.
///
/// Processes that start others faster than they can be killed are stopped first.
pub fn kill_descendants() -> usize {
    let give_up = Instant::now() + REAP_LIMIT;
    loop {
        // Orphans of killed processes become this process's children, so without children there are no
        // descendants.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return 0,
            }
        }
        if Instant::now() > give_up {
            return descendants(&[]).len();
        }
        signal_descendants(libc::SIGSTOP, &[]);
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

/// Returns the fourth field of `/proc/PID/stat`. The second, the name in parentheses, may contain any
/// characters.
fn parent_of(stat: &str) -> Option<i32> {
    let behind_name = &stat[stat.rfind(')')? + 1..];
    behind_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_survives_the_pipe() {
        for end in [End::Exited(0), End::Exited(255), End::Killed(9), End::Killed(64)] {
            assert_eq!(decode(encode(end)), end);
        }
    }

    #[test]
    fn a_name_cannot_fake_a_parent() {
        assert_eq!(parent_of("7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_of("7 (a) S 1 (b) R 4 7"), Some(4));
        assert_eq!(parent_of("7 (sh"), None);
        assert_eq!(parent_of(""), None);
    }
}
