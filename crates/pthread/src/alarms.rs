//! Alarms for waits with a deadline: the runtime's waits have none.
//!
//! A thread that waits with a deadline sets an alarm on its node and then waits like any other. At the
//! deadline a thread of this library takes the lock of the monitor and announces the number for which the
//! thread waits. The waiting thread has held that lock until it was registered as waiting, so the
//! announcement cannot come too early. It finds that its deadline has passed, or sets another alarm.
//!
//! The alarms' thread ends when it has had nothing to do for a while, so that an endless wait is still
//! noticed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::face;
use crate::masks;

/// Whom an alarm wakes.
#[derive(Clone, Copy)]
struct Sleeper {
    lock: u32,
    number: u32,
}

struct Alarms {
    /// By time and by a number that is different for each alarm.
    set: BTreeMap<(Instant, u64), Sleeper>,
    last: u64,
    is_served: bool,
}

static ALARMS: Mutex<Alarms> = Mutex::new(Alarms { set: BTreeMap::new(), last: 0, is_served: false });
static CHANGED: Condvar = Condvar::new();
/// Held while the alarms' thread uses the runtime.
static AT_WORK: Mutex<()> = Mutex::new(());
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// The time for which the thread waits for another alarm before it ends.
const IDLE_TIME: Duration = Duration::from_millis(500);
/// The time that the thread gets to end its work when the job ends.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

fn alarms() -> MutexGuard<'static, Alarms> {
    ALARMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An alarm that was set. Dropping it resets it.
pub(crate) struct Alarm((Instant, u64));

impl Drop for Alarm {
    fn drop(&mut self) {
        alarms().set.remove(&self.0);
    }
}

/// Sets an alarm after `time`, on which the alarms' thread announces `number` in the monitor. The calling
/// thread holds the monitor, whose lock is given. Returns `None` if there are too many threads.
pub(crate) fn set(time: Duration, lock: u32, number: u32) -> Option<Alarm> {
    let mut alarms = alarms();
    alarms.last += 1;
    let key = (Instant::now() + time, alarms.last);
    let is_first = alarms.set.first_key_value().is_none_or(|(first, _)| key < *first);
    alarms.set.insert(key, Sleeper { lock, number });
    if !alarms.is_served {
        let started = std::thread::Builder::new().name("alarms".to_owned()).spawn(serve);
        if started.is_err() {
            alarms.set.remove(&key);
            return None;
        }
        alarms.is_served = true;
    } else if is_first {
        CHANGED.notify_one();
    }
    Some(Alarm(key))
}

fn serve() {
    masks::block(masks::all_signals());
    let mut alarms = alarms();
    loop {
        let Some(((time, _), sleeper)) = alarms.set.first_key_value().map(|(key, sleeper)| (*key, *sleeper))
        else {
            let (guard, waited) =
                CHANGED.wait_timeout(alarms, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            alarms = guard;
            if waited.timed_out() && alarms.set.is_empty() {
                alarms.is_served = false;
                return;
            }
            continue;
        };
        let left = time.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            alarms = CHANGED.wait_timeout(alarms, left).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        alarms.set.pop_first();
        drop(alarms);
        ring(sleeper);
        alarms = self::alarms();
    }
}

fn ring(sleeper: Sleeper) {
    let _at_work = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner);
    if !IS_STOPPED.load(Relaxed) {
        face::hiroba_lock(sleeper.lock);
        face::hiroba_cond_broadcast(sleeper.number);
        face::hiroba_unlock(sleeper.lock);
    }
}

/// Keeps the alarms' thread from using the runtime from now on, because the process leaves the job.
pub(crate) fn stop() {
    IS_STOPPED.store(true, Relaxed);
    let since = Instant::now();
    // It may wait for a lock that a halted thread holds; then it does not come back.
    while AT_WORK.try_lock().is_err() && since.elapsed() < STOP_PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}
