//! Pages that stay for a moment, whatever other nodes request, for the threads that waited for them
//! ([`Effect::Retain`]).
//!
//! How long a thread takes to return from its fault and to access the page is not known: microseconds if
//! it gets a processor at once, and milliseconds if others use the processors. If pages left earlier, two
//! nodes could take a page from each other forever. So the kernel is asked how much processor time the
//! threads have had since they were resumed. A hold ends when all of them have run for long enough.
//!
//! A thread that faults on two pages in turn may be in an instruction, or a loop, that needs both, and so
//! may a thread of another node. While it waits for the one page, the other one stays, but not for
//! equally long on all nodes: the node with the lower number keeps it until it has got both. A hold ends
//! also when such a thread has run for so long that it must have come further. Threads that do not run at
//! all, because they were stopped, hold a page for a limited time, too. A thread that faults on the same
//! page again and again may need longer than others, as under an emulator: the time for which it must
//! have run doubles with each [`ROUNDS`] faults.
//!
//! [`Effect::Retain`]: hiroba_protocol::Effect::Retain

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hiroba_base::PageId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The processor time in which a thread returns from a fault and accesses the page.
const RETURN: Duration = Duration::from_micros(5);

/// The processor time that a thread has used in any case when it has had a processor. It may wait elsewhere
/// since.
const RESUMED: Duration = Duration::from_micros(1);

/// The processor time after which a thread that waits for another page has come further than that.
const FURTHER: Duration = Duration::from_micros(30);

/// By how much longer a node keeps pages for a thread that waits for another page than the next node does: a
/// page must get from the one to the other in that time.
const PRECEDENCE: Duration = Duration::from_micros(200);
const PRECEDENCES_MAX: u16 = 10;

/// After how many faults in a row on one granule a thread is given twice the time.
const ROUNDS: u32 = 16;
const DOUBLINGS_MAX: u32 = 5;

/// The longest time for which a page stays for a thread that gets no processor.
const LONGEST: Duration = Duration::from_millis(5);

/// After this time it is checked again whether threads have run: soon at first, then seldom.
const LOOK_AGAIN: Duration = Duration::from_micros(10);
const LOOK_AGAIN_LATER: Duration = Duration::from_micros(200);

/// Maximum number of threads whose faults are remembered.
const THREADS_MAX: usize = 1024;

/// A resumed thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    tid: u32,
    /// Its processor time when it was resumed.
    resumed_at: Duration,
    /// How much more it must have.
    must_run: Duration,
    /// True if it has faulted on two pages in turn.
    alternates: bool,
}

#[derive(Debug)]
struct Held {
    page: PageId,
    /// Until then it stays for threads of which nothing is known.
    until: Instant,
    /// Until then it stays for a thread that waits for another page.
    until_waiting: Instant,
    users: SmallVec<[User; 1]>,
}

/// The last faults of a thread.
#[derive(Debug, Default)]
struct Faults {
    last: Option<PageId>,
    /// How often in a row it has faulted on that granule before.
    times: u32,
    /// The granule before that one.
    other: Option<PageId>,
}

/// What is known of threads.
pub(super) trait Clocks {
    /// Returns the processor time of a thread, unless it has ended.
    fn processor_time(&self, tid: u32) -> Option<Duration>;
}

/// The kernel's.
pub(super) struct KernelClocks;

impl Clocks for KernelClocks {
    fn processor_time(&self, tid: u32) -> Option<Duration> {
        // CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED of the kernel's <linux/posix-timers.h>, which is how
        // pthread_getcpuclockid(3) makes the number of a thread's clock.
        let clock = (!tid).cast_signed() << 3 | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes a time to it, or fails.
        let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (status == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
    }
}

/// The held pages.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// In the order in which they began. No more than were requested in the longest time of a hold.
    queue: VecDeque<Held>,
    /// Threads that were resumed since the last hold began.
    resumed: SmallVec<[User; 1]>,
    faults: FxHashMap<u32, Faults>,
}

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Notes that a thread is about to be resumed from a fault on a granule.
    pub(super) fn note_resumed(&mut self, tid: u32, granule: PageId, clocks: &impl Clocks) {
        let Some(resumed_at) = clocks.processor_time(tid) else { return };
        if self.faults.len() >= THREADS_MAX {
            self.faults.clear();
        }
        let faults = self.faults.entry(tid).or_default();
        let alternates = faults.other == Some(granule) && faults.last != Some(granule);
        if faults.last == Some(granule) {
            faults.times = faults.times.saturating_add(1);
        } else {
            *faults = Faults { last: Some(granule), times: 0, other: faults.last };
        }
        let must_run = RETURN * (1 << (faults.times / ROUNDS).min(DOUBLINGS_MAX));
        // It has had no time yet to use what is held for it together with this page.
        let others = self.queue.iter_mut().flat_map(|held| &mut held.users).chain(&mut self.resumed);
        others.filter(|user| user.tid == tid).for_each(|user| user.resumed_at = resumed_at);
        self.resumed.push(User { tid, resumed_at, must_run, alternates });
    }

    /// Holds a page for the threads that were resumed last, on a node that is followed by as many others.
    pub(super) fn begin(&mut self, page: PageId, until: Instant, followers: u16) {
        let users = std::mem::take(&mut self.resumed);
        let until_waiting = until + PRECEDENCE * u32::from(followers.min(PRECEDENCES_MAX));
        self.queue.push_back(Held { page, until, until_waiting, users });
    }

    /// Takes a page that was held long enough. If no request waits, there is no hurry: its threads then have
    /// the whole time before they are looked at. `waits` says whether a thread waits in a fault.
    pub(super) fn take_over(
        &mut self,
        now: Instant,
        is_requested: bool,
        waits: impl Fn(u32) -> bool,
        clocks: &impl Clocks,
    ) -> Option<PageId> {
        let is_over = |held: &Held| {
            let is_late = held.until <= now;
            let has_run = |user: &User| {
                let is_late = if user.alternates { held.until_waiting <= now } else { is_late };
                // A thread that has ended needs no page.
                let time = clocks.processor_time(user.tid);
                let has_run = |least| time.is_none_or(|time| time >= user.resumed_at + least);
                match waits(user.tid) {
                    true if user.alternates => is_late || has_run(FURTHER),
                    true => true,
                    false => has_run(if is_late { RESUMED } else { user.must_run }),
                }
            };
            match held.users[..] {
                [] => is_late,
                _ if held.until + LONGEST <= now => true,
                ref users => (is_requested || is_late) && users.iter().all(has_run),
            }
        };
        let number = self.queue.iter().position(is_over)?;
        self.queue.remove(number).map(|held| held.page)
    }

    /// Returns the time after which to look again, while a request waits.
    pub(super) fn look_again_in(&self, now: Instant) -> Option<Duration> {
        let wait = |held: &Held| match held.until.saturating_duration_since(now) {
            Duration::ZERO => LOOK_AGAIN_LATER,
            left if held.users.is_empty() => left,
            left => left.min(LOOK_AGAIN),
        };
        self.queue.iter().map(wait).min()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct OneThread(Cell<Duration>);

    impl Clocks for OneThread {
        fn processor_time(&self, tid: u32) -> Option<Duration> {
            (tid == 1).then(|| self.0.get())
        }
    }

    impl OneThread {
        fn runs(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    const HOLD: Duration = Duration::from_micros(100);
    const PAGE: PageId = PageId(7);

    fn held(clock: &OneThread, now: Instant) -> Holds {
        let mut holds = Holds::default();
        holds.note_resumed(1, PAGE, clock);
        holds.begin(PAGE, now + HOLD, 0);
        holds
    }

    #[test]
    fn a_requested_page_stays_until_its_thread_has_run() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut holds = held(&clock, now);
        assert_eq!(holds.take_over(now, true, |_| false, &clock), None);
        clock.runs(RETURN);
        assert_eq!(holds.take_over(now, false, |_| false, &clock), None, "nobody requests it");
        assert_eq!(holds.take_over(now, true, |_| false, &clock), Some(PAGE));
        assert!(holds.is_empty());
    }

    #[test]
    fn a_page_stays_for_a_thread_that_gets_no_processor() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut holds = held(&clock, now);
        assert_eq!(holds.look_again_in(now), Some(LOOK_AGAIN));
        assert_eq!(holds.take_over(now + HOLD, true, |_| false, &clock), None);
        assert_eq!(holds.look_again_in(now + HOLD), Some(LOOK_AGAIN_LATER));
        assert_eq!(holds.take_over(now + HOLD + LONGEST, false, |_| false, &clock), Some(PAGE), "stopped");
        assert_eq!(holds.look_again_in(now), None);
    }

    const SECOND: PageId = PageId(8);

    /// Has a thread fault on two pages in turn; the first one is held.
    fn held_alternately(clock: &OneThread, now: Instant, followers: u16) -> Holds {
        let mut holds = Holds::default();
        for page in [PAGE, SECOND] {
            holds.note_resumed(1, page, clock);
            holds.resumed.clear();
        }
        holds.note_resumed(1, PAGE, clock);
        holds.begin(PAGE, now + HOLD, followers);
        holds
    }

    #[test]
    fn a_thread_that_alternates_keeps_a_page_while_it_waits_for_the_other_one() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut holds = held(&clock, now);
        clock.runs(RETURN);
        assert_eq!(holds.take_over(now, true, |_| true, &clock), Some(PAGE), "it does not alternate");
        let mut holds = held_alternately(&clock, now, 0);
        clock.runs(RETURN);
        assert_eq!(holds.take_over(now, true, |_| true, &clock), None);
        clock.runs(FURTHER);
        assert_eq!(holds.take_over(now, true, |_| true, &clock), Some(PAGE));
        let mut holds = held_alternately(&clock, now, 0);
        assert_eq!(holds.take_over(now + HOLD, true, |_| true, &clock), Some(PAGE));
    }

    /// Each of two nodes has one of two pages, and needs both.
    #[test]
    fn the_lower_node_keeps_its_page_until_it_has_the_other_one() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut lower = held_alternately(&clock, now, 1);
        let mut higher = held_alternately(&clock, now, 0);
        assert_eq!(higher.take_over(now + HOLD, true, |_| true, &clock), Some(PAGE));
        assert_eq!(lower.take_over(now + HOLD, true, |_| true, &clock), None);
        clock.runs(RETURN / 2);
        lower.note_resumed(1, SECOND, &clock);
        lower.begin(SECOND, now + 2 * HOLD, 1);
        clock.runs(RETURN / 2);
        assert_eq!(lower.take_over(now + 2 * HOLD, true, |_| false, &clock), None, "it has both only now");
        clock.runs(RETURN);
        assert_eq!(lower.take_over(now + 2 * HOLD, true, |_| false, &clock), Some(PAGE));
    }

    #[test]
    fn a_page_that_no_thread_waited_for_stays_its_time() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut holds = Holds::default();
        holds.begin(PAGE, now + HOLD, 0);
        assert_eq!(holds.take_over(now, true, |_| false, &clock), None);
        assert_eq!(holds.look_again_in(now), Some(HOLD));
    }

    #[test]
    fn a_thread_that_faults_again_and_again_gets_longer() {
        let (clock, now) = (OneThread(Cell::default()), Instant::now());
        let mut holds = Holds::default();
        let used = |holds: &mut Holds| {
            holds.note_resumed(1, PAGE, &clock);
            holds.begin(PAGE, now + HOLD, 0);
            clock.runs(RETURN);
            let used = holds.take_over(now, true, |_| false, &clock).is_some();
            clock.runs(HOLD);
            _ = holds.take_over(now, true, |_| false, &clock);
            used
        };
        let rounds: Vec<bool> = (0..2 * ROUNDS).map(|_| used(&mut holds)).collect();
        assert!(rounds[..ROUNDS as usize].iter().all(|used| *used));
        assert!(!rounds[ROUNDS as usize..].iter().any(|used| *used));
    }

    #[test]
    fn the_kernel_counts_the_time_of_a_thread() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let before = KernelClocks.processor_time(tid).expect("this thread lives");
        while KernelClocks.processor_time(tid).expect("this thread lives") == before {}
        assert_eq!(KernelClocks.processor_time(1), None, "a thread of another process");
    }
}
