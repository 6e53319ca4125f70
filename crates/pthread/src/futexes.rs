//! Futexes of the program: `syscall(SYS_futex, …)`, of which C++20's waits and other libraries are made.
//!
//! The kernel knows the threads of one node only, and compares a word that may be absent. So threads of the
//! program wait in a monitor: an address belongs to one of [`BUCKETS`], each of which has a list of the
//! threads that wait at its addresses. Word and list are looked at while the bucket is held. A thread that
//! has changed the word wakes others in the same monitor, so it either finds the waiting thread on the list,
//! or that thread finds the word changed.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed};

use crate::control::{BUCKETS, Deadline, Held, Monitor, control, object};
use crate::heap::set_errno;
use crate::record::{FutexWait, Thread, this_record};
use crate::saying::refuse;

const ALL_BITS: u32 = u32::MAX;

/// futex(2) for a word of the program.
///
/// # Safety
/// As of futex(2); the words are readable.
pub(crate) unsafe fn futex(
    address: usize,
    operation: c_int,
    value: u32,
    time: *const libc::timespec,
    second: usize,
    third: u32,
) -> c_long {
    let is_realtime = operation & libc::FUTEX_CLOCK_REALTIME != 0;
    let clock = if is_realtime { libc::CLOCK_REALTIME } else { libc::CLOCK_MONOTONIC };
    // Where an operation takes a number in place of a time.
    let count = time.addr() as u32;
    let done = match operation & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAKE => Ok(wake(address, value, ALL_BITS)),
        libc::FUTEX_WAKE_BITSET | libc::FUTEX_WAIT_BITSET if third == 0 => Err(libc::EINVAL),
        libc::FUTEX_WAKE_BITSET => Ok(wake(address, value, third)),
        libc::FUTEX_WAIT => {
            deadline(time, Deadline::after).and_then(|until| wait(address, value, ALL_BITS, until))
        }
        libc::FUTEX_WAIT_BITSET => deadline(time, |time| Deadline::new(clock, time))
            .and_then(|until| wait(address, value, third, until)),
        // The threads that would be moved to the second word are woken: a wait may end without a reason.
        libc::FUTEX_REQUEUE => Ok(wake(address, value.saturating_add(count), ALL_BITS)),
        libc::FUTEX_CMP_REQUEUE => requeue(address, value.saturating_add(count), third),
        _ => {
            let why = format!(
                "syscall: of the futex operations, waiting, waking and requeueing work between nodes; operation {} \
                 does not, which {second:#x} was given to",
                operation & libc::FUTEX_CMD_MASK
            );
            return c_long::from(refuse(libc::ENOSYS, &why));
        }
    };
    done.map_or_else(
        |errno| {
            set_errno(errno);
            -1
        },
        c_long::from,
    )
}

/// Returns the deadline that a call was given, if any.
fn deadline(
    time: *const libc::timespec,
    read: impl FnOnce(*const libc::timespec) -> Option<Deadline>,
) -> Result<Option<Deadline>, c_int> {
    if time.is_null() { Ok(None) } else { read(time).map(Some).ok_or(libc::EINVAL) }
}

/// The list of the threads that wait at the addresses of a bucket, and its monitor.
fn bucket(address: usize) -> (Monitor, &'static AtomicPtr<c_void>) {
    // Neighbouring words have different buckets.
    let number = (address / size_of::<u32>()) % BUCKETS;
    (Monitor::of_bucket(number), &control().futexes[number])
}

fn load(address: usize) -> u32 {
    // SAFETY: the caller of `futex` passes an aligned word that is readable; atomics may change at any time.
    unsafe { &*ptr::with_exposed_provenance::<AtomicU32>(address) }.load(Acquire)
}

fn wait(address: usize, expected: u32, bits: u32, deadline: Option<Deadline>) -> Result<c_int, c_int> {
    let Some(thread) = this_record() else { return Err(libc::ENOSYS) };
    let (monitor, list) = bucket(address);
    let own = &thread.futex;
    let number = Monitor::of(&own.number).number();
    monitor.hold(|held| {
        if load(address) != expected {
            return Err(libc::EAGAIN);
        }
        own.address.store(address as u64, Relaxed);
        own.bits.store(bits, Relaxed);
        own.is_woken.store(0, Relaxed);
        append(list, thread);
        while own.is_woken.load(Relaxed) == 0 {
            if !held.wait_until(number, deadline) {
                remove(list, |waiting| ptr::eq(waiting, thread));
                return Err(libc::ETIMEDOUT);
            }
        }
        Ok(0)
    })
}

fn wake(address: usize, count: u32, bits: u32) -> c_int {
    let (monitor, list) = bucket(address);
    monitor.hold(|held| wake_in(held, list, address, count, bits))
}

fn requeue(address: usize, count: u32, expected: u32) -> Result<c_int, c_int> {
    let (monitor, list) = bucket(address);
    monitor.hold(|held| match load(address) == expected {
        true => Ok(wake_in(held, list, address, count, ALL_BITS)),
        false => Err(libc::EAGAIN),
    })
}

/// Wakes at most `count` of the threads that wait at an address for one of `bits`, the first ones first.
fn wake_in(held: Held, list: &AtomicPtr<c_void>, address: usize, count: u32, bits: u32) -> c_int {
    let is_meant = |thread: &Thread| {
        thread.futex.address.load(Relaxed) == address as u64 && thread.futex.bits.load(Relaxed) & bits != 0
    };
    let mut woken = 0;
    while woken < count
        && let Some(thread) = remove(list, is_meant)
    {
        thread.futex.is_woken.store(1, Relaxed);
        held.tell_of(thread.futex.number.load(Relaxed));
        woken += 1;
    }
    woken as c_int
}

/// Returns the thread that a place on a list refers to.
fn at(place: &AtomicPtr<c_void>) -> Option<&'static Thread> {
    let thread = place.load(Relaxed);
    // SAFETY: a thread on a list waits, so its record exists.
    (!thread.is_null()).then(|| unsafe { object::<Thread>(thread) })
}

fn append(list: &'static AtomicPtr<c_void>, thread: &'static Thread) {
    let mut place = list;
    while let Some(other) = at(place) {
        place = &other.futex.next;
    }
    thread.futex.next.store(ptr::null_mut(), Relaxed);
    place.store(ptr::from_ref(thread).cast_mut().cast(), Relaxed);
}

/// Takes the first thread of a kind off a list.
fn remove(list: &AtomicPtr<c_void>, is_meant: impl Fn(&Thread) -> bool) -> Option<&'static Thread> {
    let mut place = list;
    while let Some(thread) = at(place) {
        let FutexWait { next, .. } = &thread.futex;
        if is_meant(thread) {
            place.store(next.load(Relaxed), Relaxed);
            return Some(thread);
        }
        place = next;
    }
    None
}
