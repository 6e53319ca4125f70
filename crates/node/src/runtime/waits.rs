//! Endless waits. When all threads of the program sleep in calls that other threads must end, the launcher
//! gets a report of who waits in what. It knows the other nodes' reports and finds out whether any thread can
//! still wake another.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hiroba_wire::control::{ThreadWait, ToLauncher, WaitReport};

use crate::call_site;
use crate::runtime::Runtime;
use crate::threads::{Call, Sleep, Threads};

/// Waits shorter than this are not reported. Also the interval at which a report is repeated.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(1);

impl Runtime {
    /// Sends the launcher a report if all threads of the program have slept for a while. Called by the
    /// service thread at intervals.
    pub(crate) fn report_waits(&self) {
        let (Some(control), Some(report)) = (&self.control, self.wait_report()) else { return };
        control.send(&ToLauncher::Waiting(report));
    }

    fn wait_report(&self) -> Option<WaitReport> {
        let generation = self.threads.generation();
        let sleeps = self.threads.sleeps();
        let is_long =
            |sleep: &Option<Sleep>| sleep.is_some_and(|sleep| sleep.since.elapsed() >= REPORT_EVERY);
        if sleeps.is_empty() || !sleeps.iter().all(|(_, sleep)| is_long(sleep)) {
            return None;
        }
        // A thread that computes, or that the runtime has never seen, may wake the others.
        if threads_of_this_process()? != sleeps.len() + 1 {
            return None;
        }
        let mut threads = Vec::with_capacity(sleeps.len());
        for (thread, sleep) in sleeps {
            let call = sleep?.call;
            let Call { lock, site, .. } = call;
            threads.push(ThreadWait {
                thread,
                call: call.to_string(),
                lock,
                site: call_site::of_return_address(site),
            });
        }
        if self.has_fabric() && self.fabric().backlog_bytes_all() > 0 {
            return None;
        }
        let held = {
            let _signals = crate::signals::SignalsDeferred::defer();
            self.core().engine.locks_held()
        };
        let locks_held =
            held.into_iter().map(|(lock, holder)| (lock.0, Threads::number_of(holder))).collect();
        // Heartbeats wake no thread.
        let received = self.serving.messages_received.load(Relaxed);
        let messages_received = received.saturating_sub(self.serving.peers.signs_received.load(Relaxed));
        let sent = if self.has_fabric() { self.fabric().statistics().messages_sent } else { 0 };
        let messages_sent = sent.saturating_sub(self.serving.peers.signs_sent.load(Relaxed));
        Some(WaitReport { generation, messages_sent, messages_received, threads, locks_held })
    }
}

/// Counts the threads without the C library's allocator, which listing a directory would use: a thread of the
/// program may have been interrupted inside it.
fn threads_of_this_process() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:")).and_then(|count| count.trim().parse().ok())
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.arguments {
            [Some(first), Some(second)] => write!(f, "{}({first}, {second})", self.name),
            [Some(only), None] => write!(f, "{}({only})", self.name),
            _ => write!(f, "{}()", self.name),
        }
    }
}
