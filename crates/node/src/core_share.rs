//! The share of processor time that a node's threads got, out of what they could have used.
//!
//! For every thread the kernel counts how long it ran, and how long it was runnable but waited for a
//! processor (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst). A sleeping thread
//! adds to neither, and a thread that waits awake runs. A share below one therefore means that others had the
//! processor: another program, or other threads of the job.
//!
//! The time that the node's processors were busy in all distinguishes the two cases (`/proc/stat`,
//! proc_stat(5)): the part that the node's own threads did not use was used by others.
//!
//! The kernel drops a thread's counts when it ends. A thread that the runtime knows is therefore counted as
//! it ends. A thread that never called the runtime and ended before the account was made is left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::threads::THREADS_MAX;

/// The kernel's counts for a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    ran: u64,
    /// Time in which it was runnable and waited for a processor.
    waited: u64,
}

/// The times of all threads since the account began.
#[derive(Debug, Default)]
struct Counted {
    sum: Times,
    /// The part of each thread's times that is in the sum already, or precedes the account.
    of_each: BTreeMap<u32, Times>,
    began: Option<Began>,
}

/// The state when the account began.
#[derive(Debug)]
struct Began {
    at: Instant,
    /// The processors that the calling thread might use.
    processors: CpuSet,
    /// How long they had been busy.
    busy: Duration,
}

/// The running account of this process's share.
#[derive(Debug, Default)]
pub struct CoreShare {
    counted: Mutex<Counted>,
}

impl CoreShare {
    /// Starts the account.
    pub fn begin(&self) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.look(threads());
        counted.sum = Times::default();
        counted.began = Began::now();
    }

    /// Counts the calling thread, which is about to end.
    pub fn note_end_of_mine(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let Some(times) = read(&format!("self/task/{tid}")) else { return };
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.take(tid, times);
        // Only a look at all threads forgets those that have ended.
        if counted.of_each.len() > THREADS_MAX {
            counted.look(threads());
        }
    }

    /// Returns running time over running plus waiting time; `None` where the kernel does not count it.
    pub fn share(&self) -> Option<f64> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.look(threads());
        counted.share()
    }

    /// Returns the fraction of the processors' time that other processes used since the account began; `None`
    /// where the kernel does not report it.
    pub fn of_others(&self) -> Option<f64> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.look(threads());
        let began = counted.began.as_ref()?;
        let busy = busy(&proc_stat()?, &began.processors)?.saturating_sub(began.busy);
        let whole = began.at.elapsed() * began.processors.count();
        part_of_others(busy, Duration::from_nanos(counted.sum.ran), whole)
    }
}

impl Began {
    fn now() -> Option<Began> {
        let processors = sched_getaffinity(None).ok()?;
        Some(Began { at: Instant::now(), processors, busy: busy(&proc_stat()?, &processors)? })
    }
}

fn proc_stat() -> Option<String> {
    std::fs::read_to_string("/proc/stat").ok()
}

/// Returns the summed busy time of the given processors: all but idle time and IO wait. Time that a
/// hypervisor took from them counts as busy.
fn busy(proc_stat: &str, processors: &CpuSet) -> Option<Duration> {
    const BUSY_FIELDS: [usize; 6] = [0, 1, 2, 5, 6, 7];
    let of_line = |line: &str| {
        let (name, times) = line.split_once(' ')?;
        let number: usize = name.strip_prefix("cpu")?.parse().ok()?;
        if number >= CpuSet::MAX_CPU || !processors.is_set(number) {
            return None;
        }
        let times: Vec<u64> = times.split_whitespace().map_while(|time| time.parse().ok()).collect();
        Some(BUSY_FIELDS.iter().filter_map(|field| times.get(*field)).sum::<u64>())
    };
    let ticks: u64 = proc_stat.lines().filter_map(of_line).sum();
    (ticks > 0)
        .then(|| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the fraction of `whole` in which the processors were busy for threads other than those that ran
/// for `ran`.
fn part_of_others(busy: Duration, ran: Duration, whole: Duration) -> Option<f64> {
    let part = busy.saturating_sub(ran).as_secs_f64() / whole.as_secs_f64();
    (busy > Duration::ZERO && part.is_finite()).then(|| part.min(1.0))
}

impl Counted {
    /// Adds what the threads have used since the last look, and forgets those that are gone.
    fn look(&mut self, threads: Vec<(u32, Times)>) {
        for (tid, times) in &threads {
            self.take(*tid, *times);
        }
        self.of_each = threads.into_iter().collect();
    }

    fn take(&mut self, tid: u32, times: Times) {
        let before = self.of_each.insert(tid, times).unwrap_or_default();
        // A count that went down belongs to a new thread with the same number.
        let before = if times.ran < before.ran { Times::default() } else { before };
        self.sum.ran += times.ran - before.ran;
        self.sum.waited += times.waited.saturating_sub(before.waited);
    }

    fn share(&self) -> Option<f64> {
        self.sum.share()
    }
}

impl Times {
    fn share(self) -> Option<f64> {
        // A kernel that does not count reports nothing, or zero.
        (self.ran > 0).then(|| self.ran as f64 / (self.ran as f64 + self.waited as f64))
    }
}

/// Returns the share of another process's first thread from its start to now. The process may have ended, if
/// it was not waited for yet.
pub fn core_share_of(pid: i32) -> Option<f64> {
    read(&pid.to_string())?.share()
}

/// Reads the times of all threads of this process.
fn threads() -> Vec<(u32, Times)> {
    let entries = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid| Some((tid, read(&format!("self/task/{tid}"))?))).collect()
}

/// Reads the times of the thread or process under this name in `/proc`.
fn read(name: &str) -> Option<Times> {
    parse(&std::fs::read_to_string(format!("/proc/{name}/schedstat")).ok()?)
}

fn parse(schedstat: &str) -> Option<Times> {
    let mut fields = schedstat.split_whitespace().map(str::parse);
    Some(Times { ran: fields.next()?.ok()?, waited: fields.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ran: u64, waited: u64) -> Times {
        Times { ran, waited }
    }

    #[test]
    fn the_share_is_of_the_time_that_threads_could_have_used() {
        let mut counted = Counted::default();
        counted.look(vec![(7, times(300, 100)), (8, times(300, 100))]);
        assert_eq!(counted.share(), Some(0.75));
        counted.look(vec![(7, times(400, 100)), (8, times(500, 100))]);
        assert_eq!((counted.sum, counted.share()), (times(900, 200), Some(900.0 / 1100.0)));
    }

    #[test]
    fn what_was_before_the_account_does_not_count() {
        let mut counted = Counted::default();
        counted.look(vec![(7, times(1000, 9000))]);
        counted.sum = Times::default();
        counted.look(vec![(7, times(1600, 9200)), (8, times(200, 0))]);
        assert_eq!(counted.sum, times(800, 200));
    }

    #[test]
    fn threads_that_have_ended_count_once() {
        let mut counted = Counted::default();
        counted.look(vec![(7, times(100, 0)), (8, times(100, 0))]);
        counted.take(8, times(500, 300)); // counted as it ends
        counted.look(vec![(7, times(100, 0)), (8, times(501, 300))]); // still visible for a moment
        counted.look(vec![(7, times(100, 0))]);
        assert_eq!(counted.sum, times(601, 300));
        counted.look(vec![(7, times(100, 0)), (8, times(40, 60))]);
        assert_eq!(counted.sum, times(641, 360), "another thread has its number");
    }

    #[test]
    fn what_a_node_did_not_use_of_its_busy_processors_others_did() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 4000 50 6 7 8 90 1\ncpu1 1000 0 0 0 0 0 0 0 0 0\nintr 5\n";
        let set = |numbers: &[usize]| {
            let mut set = CpuSet::new();
            numbers.iter().for_each(|number| set.set(*number));
            set
        };
        let ticks =
            |ticks: f64| Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64);
        assert_eq!(busy(stat, &set(&[0])), Some(ticks(171.0)));
        assert_eq!(busy(stat, &set(&[0, 1])), Some(ticks(1171.0)));
        assert_eq!((busy(stat, &set(&[7])), busy("", &set(&[0]))), (None, None));
        let seconds = Duration::from_secs;
        assert_eq!(part_of_others(seconds(8), seconds(3), seconds(10)), Some(0.5));
        assert_eq!(part_of_others(seconds(3), seconds(3), seconds(10)), Some(0.0));
        assert_eq!(part_of_others(seconds(2), seconds(3), seconds(10)), Some(0.0), "clocks differ a little");
        assert_eq!(part_of_others(seconds(0), seconds(0), seconds(10)), None, "nothing was counted");
        assert_eq!(part_of_others(seconds(1), seconds(0), seconds(0)), None);
    }

    #[test]
    fn a_kernel_that_does_not_count_gives_no_share() {
        let mut counted = Counted::default();
        assert_eq!(counted.share(), None);
        counted.look(vec![(7, times(0, 0))]);
        assert_eq!(counted.share(), None);
        assert_eq!((parse(""), parse("12"), parse("a b c")), (None, None, None));
        assert_eq!(parse("3904 67891 12\n"), Some(times(3904, 67891)));
    }

    #[test]
    fn threads_of_this_process_are_counted_whether_they_live_or_have_ended() {
        let share = CoreShare::default();
        share.begin();
        if read("thread-self").is_none_or(|times| times.ran == 0) {
            return; // this kernel does not count
        }
        // The kernel updates its count of a running thread at its ticks, and when the thread leaves its
        // processor.
        let ran = || read("thread-self").map_or(0, |times| times.ran);
        let spin = || {
            let before = ran();
            let counted = (0..100_000).any(|_| {
                (0..10_000u64).fold(1u64, |x, step| std::hint::black_box((x ^ step).wrapping_mul(3)));
                ran() > before
            });
            assert!(counted, "a thread that runs is counted");
        };
        let ended = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                spin();
                share.note_end_of_mine();
                share.counted.lock().unwrap().sum
            });
            thread.join().unwrap()
        });
        assert!(ended.ran > 0, "{ended:?}");
        spin();
        assert!(share.share().is_some_and(|share| share > 0.0 && share <= 1.0));
        assert!(share.counted.lock().unwrap().sum.ran > ended.ran, "the others count too");
    }
}
