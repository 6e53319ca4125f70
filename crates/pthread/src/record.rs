//! The records of the program's threads, in shared memory: a `pthread_t` is a record's address.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::control::{Monitor, THREADS, control, object};
use crate::face;
use crate::heap;
use crate::shared::is_shared;
use crate::stacks::privately;

/// The function that a thread runs.
pub(crate) type Routine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// The length of a stack if neither the program nor the limit of the process sets it.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// A thread of the program. Fields change under [`THREADS`], once others have access to it.
#[repr(C)]
pub(crate) struct Thread {
    mark: AtomicU64,
    pub(crate) node: AtomicU32,
    /// The number on which its end is announced.
    pub(crate) number: AtomicU32,
    pub(crate) finished: AtomicU32,
    pub(crate) detached: AtomicU32,
    pub(crate) joined: AtomicU32,
    /// Not 0 if its routine returns an `int` (C11).
    pub(crate) returns_int: AtomicU32,
    /// Not 0 if it works for a thread of another node, and is not counted when threads are placed.
    pub(crate) is_deputy: AtomicU32,
    /// Not 0 if it must end at its next cancellation point.
    pub(crate) is_cancelled: AtomicU32,
    /// The number on which it waits at a cancellation point, with its monitor; 0 if it waits at none.
    pub(crate) waits_for: AtomicU32,
    pub(crate) waits_in: AtomicU32,
    /// Not 0 if it has returned, or called `pthread_exit`; 0 if it ends because it was cancelled.
    pub(crate) returned: AtomicU32,
    pub(crate) routine: AtomicU64,
    pub(crate) argument: AtomicPtr<c_void>,
    pub(crate) result: AtomicPtr<c_void>,
    /// The end of the stack that the program has given it, if any, and its length.
    pub(crate) stack_end: AtomicU64,
    pub(crate) stack_bytes: AtomicU64,
    /// Its `pthread_t` on the node that it runs on.
    pub(crate) real: AtomicU64,
    pub(crate) name: [AtomicU64; 2],
    /// The signals that it blocks at its beginning.
    pub(crate) mask: AtomicU64,
    /// While it waits for signals: the thread of node 0 that waits for it, which gets its signals.
    pub(crate) waits_for_signals: AtomicU64,
    /// The thread that makes a call for it that is a cancellation point; 0 if there is none.
    pub(crate) calls_by: AtomicU64,
    /// The cancelled thread for which a call of this thread is interrupted.
    pub(crate) interrupts_for: AtomicU64,
    /// The next thread in a list of threads to start.
    pub(crate) next: AtomicPtr<c_void>,
    pub(crate) futex: FutexWait,
}

/// How a thread waits at a futex. Fields change in the monitor of its bucket (`futexes.rs`).
#[repr(C)]
pub(crate) struct FutexWait {
    pub(crate) address: AtomicU64,
    pub(crate) bits: AtomicU32,
    pub(crate) is_woken: AtomicU32,
    /// The number on which it is woken.
    pub(crate) number: AtomicU32,
    /// The next thread that waits in the bucket.
    pub(crate) next: AtomicPtr<c_void>,
}

/// The first word of a record, which distinguishes a thread from an outdated `pthread_t`.
const MARK: u64 = 0x6874_6165_7268_7421;
/// The result of a thread that was cancelled (`PTHREAD_CANCELED`).
pub(crate) const CANCELED: *mut c_void = ptr::without_provenance_mut(usize::MAX);
thread_local! {
    static SELF: Cell<*const Thread> = const { Cell::new(ptr::null()) };
}

/// Returns the calling thread's record.
pub(crate) fn this_record() -> Option<&'static Thread> {
    let record = SELF.get();
    // SAFETY: a thread's record exists until the thread has finished.
    unsafe { record.as_ref() }
}

/// Makes this record the calling thread's.
pub(crate) fn adopt(record: &'static Thread) {
    SELF.set(record);
}

/// Returns the calling thread's `pthread_t` in the whole job, or 0 in threads that are not the program's.
pub(crate) fn this_thread() -> u64 {
    SELF.get() as u64
}

/// Returns a new record, or `None` if memory is short.
pub(crate) fn new_record() -> Option<&'static Thread> {
    let record = privately(|| face::hiroba_calloc(1, size_of::<Thread>())).cast::<Thread>();
    // SAFETY: zeros are valid fields; the block stays until `forget`.
    let record = unsafe { record.as_ref() }?;
    record.mark.store(MARK, Relaxed);
    Monitor::of(&record.number);
    Some(record)
}

/// Returns the record of a `pthread_t`, if it is one.
pub(crate) fn record_of(thread: u64) -> Option<&'static Thread> {
    if !is_shared(thread as usize) || !(thread as usize).is_multiple_of(align_of::<Thread>()) {
        return None;
    }
    // SAFETY: the program passes only a number; the region is readable wherever it was ever allocated.
    let record = unsafe { object::<Thread>(thread as *mut c_void) };
    (record.mark.load(Relaxed) == MARK).then_some(record)
}

impl Thread {
    /// Returns its `pthread_t`.
    pub(crate) fn handle(&self) -> u64 {
        ptr::from_ref(self) as u64
    }

    /// Returns true if it runs on this node.
    pub(crate) fn is_here(&self) -> bool {
        self.node.load(Relaxed) == this_node()
    }

    /// Returns its `pthread_t` on this node, where it runs; waits until it has begun. The starter calls this
    /// only after it has started the thread.
    pub(crate) fn real_when_begun(&self) -> u64 {
        loop {
            match self.real.load(Relaxed) {
                0 => privately(|| std::thread::sleep(Duration::from_micros(20))),
                real => return real,
            }
        }
    }

    /// Marks the calling thread, whose record this is, as ended.
    pub(crate) fn finish(&self) {
        let mut is_mine = false;
        if self.returned.load(Relaxed) == 0 {
            self.result.store(CANCELED, Relaxed);
        }
        THREADS.hold(|held| {
            if self.is_deputy.load(Relaxed) == 0 {
                let running = &control().running[self.node.load(Relaxed) as usize];
                running.store(running.load(Relaxed).saturating_sub(1), Relaxed);
            }
            self.finished.store(1, Relaxed);
            is_mine = self.detached.load(Relaxed) != 0;
            held.tell_of(self.number.load(Relaxed));
        });
        SELF.set(ptr::null());
        if is_mine {
            self.forget();
        }
    }

    /// Frees the record of a thread that has finished and that no thread will refer to.
    pub(crate) fn forget(&self) {
        self.mark.store(0, Relaxed);
        // SAFETY: the record is a block of the shared heap that no thread uses any more.
        unsafe { heap::free(ptr::from_ref(self).cast_mut().cast()) };
    }
}

/// Returns the number of this node.
pub(crate) fn this_node() -> u32 {
    face::hiroba_node() as u32
}

/// Notes the end and length of the calling thread's stack.
pub(crate) fn note_stack(end: usize, bytes: usize) {
    if let Some(record) = this_record() {
        record.stack_end.store(end as u64, Relaxed);
        record.stack_bytes.store(bytes as u64, Relaxed);
    }
}
