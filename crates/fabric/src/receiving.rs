//! Turns at receiving, the same for all fabrics that wait on descriptors. One thread at a time has the
//! receiving role; a thread that finds nothing sleeps without it, and a wake ends the sleep (see
//! [`Fabric`](crate::Fabric), "Threads").

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as Clock};

use hiroba_base::NodeId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::role::Role;
use crate::wake::WakeEvent;

/// The result of one turn of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing was delivered, and nothing happened that a caller may wait for.
    Nothing,
    /// A message was delivered, or an event happened that a caller may wait for.
    Something,
}

/// The receiver of messages.
pub(crate) type Deliver<'a> = &'a mut dyn FnMut(NodeId, &[u8]);

/// State shared by the threads that receive. `I` belongs to the thread that has the role.
pub(crate) struct Receiving<I> {
    pub role: Role<I>,
    pub wake: WakeEvent,
    /// The wake count seen by polls that are not passed a count.
    wakes_noticed: AtomicU64,
}

impl<I> Receiving<I> {
    /// Makes the state with the role free.
    pub fn new(inbound: I, wake: WakeEvent) -> Receiving<I> {
        Receiving { role: Role::new(inbound), wake, wakes_noticed: AtomicU64::new(0) }
    }

    /// Ends the current waiting polls, or the next one.
    pub fn wake(&self) {
        self.wake.wake();
        self.role.wake();
    }
}

/// A fabric that receives in turns.
pub(crate) trait Turns {
    /// The state needed for receiving.
    type Inbound;

    /// Returns the state shared by its threads.
    fn receiving(&self) -> &Receiving<Self::Inbound>;

    /// Takes one turn in the receiving role, without waiting: reads what has arrived, and delivers it outside
    /// any lock that sending takes.
    fn turn(&self, inbound: &mut Self::Inbound, deliver: Deliver<'_>) -> io::Result<Turn>;

    /// Returns the descriptors that become readable when a turn has something to do, wakes aside.
    fn watched(&self) -> [Option<BorrowedFd<'_>>; 2];
}

/// Implements [`Fabric::poll`](crate::Fabric::poll).
pub(crate) fn poll_counting<F: Turns>(
    fabric: &F,
    timeout: Option<Duration>,
    deliver: Deliver<'_>,
) -> io::Result<()> {
    let Receiving { wake, wakes_noticed, .. } = fabric.receiving();
    let result = poll_since(fabric, wakes_noticed.load(Ordering::SeqCst), timeout, deliver);
    wakes_noticed.fetch_max(wake.count(), Ordering::SeqCst);
    result
}

/// Implements [`Fabric::poll_since`](crate::Fabric::poll_since).
pub(crate) fn poll_since<F: Turns>(
    fabric: &F,
    wakes_seen: u64,
    timeout: Option<Duration>,
    deliver: Deliver<'_>,
) -> io::Result<()> {
    // A timeout past the end of the clock means no deadline.
    let deadline = timeout.and_then(|timeout| Clock::now().checked_add(timeout));
    let Receiving { role, wake, .. } = fabric.receiving();
    loop {
        let taken = role.wait(deadline, || wake.count() != wakes_seen);
        let Some(mut taken) = taken else { return Ok(()) };
        if fabric.turn(taken.inner(), deliver)? == Turn::Something {
            return Ok(());
        }
        drop(taken);
        if !sleep(fabric, wakes_seen, deadline)? {
            return Ok(());
        }
    }
}

/// Implements [`Fabric::poll_now`](crate::Fabric::poll_now).
pub(crate) fn poll_now<F: Turns>(fabric: &F, deliver: Deliver<'_>) -> io::Result<bool> {
    turn_now(fabric, |inbound| fabric.turn(inbound, deliver))
}

/// Takes a turn, unless another thread has the role.
pub(crate) fn turn_now<F: Turns>(
    fabric: &F,
    turn: impl FnOnce(&mut F::Inbound) -> io::Result<Turn>,
) -> io::Result<bool> {
    let Receiving { role, wake, wakes_noticed } = fabric.receiving();
    let Some(mut taken) = role.try_take() else { return Ok(false) };
    wakes_noticed.fetch_max(wake.count(), Ordering::SeqCst);
    wake.clear();
    turn(taken.inner()).map(|_| true)
}

/// Sleeps until a turn has something to do. Returns false when a wake after `wakes_seen`, a signal or the
/// deadline ended the sleep.
pub(crate) fn sleep<F: Turns>(fabric: &F, wakes_seen: u64, deadline: Option<Clock>) -> io::Result<bool> {
    let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Clock::now()));
    if timeout == Some(Duration::ZERO) {
        return Ok(false);
    }
    let wake = &fabric.receiving().wake;
    let Some(_sleeper) = wake.sleep(wakes_seen) else { return Ok(false) };
    let watched = fabric.watched();
    let [first, second] = watched.map(|descriptor| descriptor.unwrap_or(wake.as_fd()));
    let mut descriptors = [wake.as_fd(), first, second].map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
    match poll(&mut descriptors, timeout.map(timespec).as_ref()) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
        Ok(_) => Ok(descriptors[0].revents().is_empty()),
        Err(errno) => Err(errno.into()),
    }
}

/// Converts a duration for system calls, limited to the longest one they accept.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
