//! Runs commands one at a time and reads their output. Signals are passed on to them, and end everything.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions};

use super::stopped::Stopped;
use hiroba_launch::lines::Lines;
use hiroba_launch::run::guardian;
use hiroba_launch::run::signals::{self, FORWARDED, Inherited, SignalDescriptor};

/// The maximum output of a command.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; 128+S after signal S.
    pub status: i32,
    /// What it printed on standard output.
    pub output: String,
    /// The share that its first thread got of the processor time that it could have used.
    pub core_share: Option<f64>,
}

/// Starts commands, once signals are events.
pub struct Children {
    arrivals: SignalDescriptor,
    inherited: Inherited,
}

impl Children {
    /// Blocks signals, so that Ctrl-C is an event and everything that was made is removed. Must be called
    /// while there is one thread.
    pub fn prepare() -> std::io::Result<Children> {
        let inherited = signals::block()?;
        // Processes that a killed child leaves behind become children of this one.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Children { arrivals: SignalDescriptor::open()?, inherited })
    }

    /// Runs a command to its end, and passes the lines of its standard error to `tell` as they arrive.
    pub fn call(&self, mut command: Command, tell: &mut dyn FnMut(&str)) -> Result<Ended, Stopped> {
        self.check_interruption(None)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let inherited = self.inherited;
        let prepare = move || {
            signals::restore(&inherited);
            // If this process is killed, the job ends too.
            Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
        };
        // SAFETY: system calls only, which are allowed between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(Stopped::NotStarted)?;
        let listened = self.listen(&mut child, tell);
        if matches!(listened, Err(Stopped::Failed(_))) {
            let _ = child.kill();
        }
        let core_share = share_at_end(&child);
        let status = child.wait()?;
        if listened.is_err() {
            guardian::kill_descendants();
        }
        let output = listened?;
        self.check_interruption(None)?;
        let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Ok(Ended { status, output, core_share })
    }

    /// Returns an error if a signal has arrived that ends jobs, and passes it on to the child.
    pub fn check_interruption(&self, child: Option<&Child>) -> Result<(), Stopped> {
        let mut interrupted = Ok(());
        while let Some(arrived) = self.arrivals.next() {
            if !FORWARDED.contains(&arrived.signal) || self.inherited.ignores(arrived.signal) {
                continue;
            }
            interrupted = Err(Stopped::Interrupted(arrived.signal));
            // The terminal has signalled the child itself.
            if let Some(child) = child.filter(|_| !arrived.from_terminal) {
                // SAFETY: kill touches no memory; the child is not waited for yet, so its pid is its own.
                unsafe { libc::kill(child.id() as i32, arrived.signal) };
            }
        }
        interrupted
    }

    /// Reads what the child prints until it closes both its outputs.
    fn listen(&self, child: &mut Child, tell: &mut dyn FnMut(&str)) -> Result<String, Stopped> {
        let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
        let (mut output, mut lines) = (Vec::new(), Lines::default());
        let mut tell_line = |line: &[u8]| tell(&String::from_utf8_lossy(line));
        let mut interrupted = Ok(());
        while stdout.is_some() || stderr.is_some() {
            // A closed output is replaced by a descriptor that is polled anyway.
            let arrivals = self.arrivals.0.as_fd();
            let sources = [
                stdout.as_ref().map_or(arrivals, AsFd::as_fd),
                stderr.as_ref().map_or(arrivals, AsFd::as_fd),
                arrivals,
            ];
            let mut fds = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
            if poll(&mut fds, None) == Err(Errno::INTR) {
                continue;
            }
            let [from_stdout, from_stderr, _] = fds.map(|fd| !fd.revents().is_empty());
            interrupted = interrupted.and(self.check_interruption(Some(child)));
            if from_stdout {
                take(&mut stdout, |bytes| {
                    if output.len() < OUTPUT_BYTES_MAX {
                        output.extend_from_slice(bytes);
                    }
                })?;
            }
            if from_stderr {
                take(&mut stderr, |bytes| lines.take(bytes, &mut tell_line))?;
            }
        }
        lines.end(&mut tell_line);
        interrupted.map(|()| String::from_utf8_lossy(&output).into_owned())
    }
}

/// Returns the share of a child that has ended or is about to; the kernel drops it with the status.
fn share_at_end(child: &Child) -> Option<f64> {
    let pid = rustix::process::Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let interrupted = || matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::INTR));
    while interrupted() {}
    hiroba_node::core_share_of(pid.as_raw_nonzero().get())
}

/// Reads the available bytes and passes them to `with`; closes a source that has ended.
fn take(source: &mut Option<impl Read>, with: impl FnOnce(&[u8])) -> std::io::Result<()> {
    let mut bytes = [0u8; 4096];
    let got = source.as_mut().map_or(Ok(0), |source| source.read(&mut bytes))?;
    if got == 0 {
        *source = None;
    } else {
        with(&bytes[..got]);
    }
    Ok(())
}
