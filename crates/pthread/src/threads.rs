//! Threads of the program: each has a record in shared memory (`record.rs`) and runs on one node.
//!
//! `pthread_create` makes the record and chooses the node with the fewest threads, in turn if several have as
//! few; `main` counts as one of node 0's while it does not wait in `pthread_join`. On each node a *starter*
//! starts the threads that are placed there.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::alone;
use crate::atomics::watch_caller;
use crate::cancel::{self, CANCELLED};
use crate::carry;
use crate::control::{Deadline, Held, THREADS, control, object};
use crate::face;
use crate::heap;
use crate::keys;
use crate::masks;
use crate::next::next;
use crate::queues::{append, place, send};
use crate::record::{
    Routine, STACK_BYTES, Thread, adopt, new_record, note_stack, record_of, this_node, this_record,
    this_thread,
};
use crate::saying;
use crate::shared::is_shared;
use crate::slots;
use crate::stacks::{self, halting, in_program, privately};

const ALIGN: usize = 4096;

unsafe extern "C" {
    fn pthread_attr_getdetachstate(attributes: *const libc::pthread_attr_t, state: *mut c_int) -> c_int;
}

thread_local! {
    /// Dropped when the thread ends, in whatever way, after the objects that the program itself has the
    /// thread drop.
    static END: End = const { End(Cell::new(ptr::null_mut())) };
}

/// The remaining work at a thread's end: frees its stack, if that is a block of its own.
struct End(Cell<*mut c_void>);

impl Drop for End {
    fn drop(&mut self) {
        // `exit` first drops the calling thread's variables, and then runs the program's handlers in it.
        if halting::is_exiting() {
            return;
        }
        keys::drop_values();
        carry::end();
        let stack = self.0.get();
        if !stack.is_null() {
            // SAFETY: the block was allocated for this thread, which runs on its private stack again.
            unsafe { heap::free(stack) };
        }
        halting::forget_thread();
        if let Some(thread) = this_record() {
            thread.finish();
        }
        face::hiroba_count_thread(0);
        stacks::leave_program();
        slots::leave();
    }
}

/// Makes the record of `main`, which runs in the calling thread.
pub(crate) fn adopt_main() -> bool {
    let Some(record) = new_record() else { return false };
    record.node.store(0, Relaxed);
    record.detached.store(0, Relaxed);
    // SAFETY: it has no arguments and cannot fail.
    record.real.store(unsafe { libc::pthread_self() }, Relaxed);
    adopt(record);
    alone::note_main();
    control().running[0].store(1, Relaxed);
    face::hiroba_count_thread(1);
    halting::know_thread();
    watch_caller();
    true
}

/// Returns the requests of the attributes: whether detached, the end of a stack, and its length.
fn wishes(attributes: *const libc::pthread_attr_t) -> (bool, u64, u64) {
    let mut bytes = STACK_BYTES;
    let mut detached = libc::PTHREAD_CREATE_JOINABLE;
    let mut start = ptr::null_mut();
    if attributes.is_null() {
        return (false, 0, usual_stack_bytes() as u64);
    }
    // SAFETY: the program passes initialised attributes; the result is a local.
    unsafe { pthread_attr_getdetachstate(attributes, &raw mut detached) };
    let mut with_stack = 0;
    // SAFETY: as above.
    let has_stack =
        unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut with_stack) } == 0;
    // Attributes without a stack return an address just below zero.
    let given = has_stack && is_shared(start.addr());
    if given {
        bytes = with_stack;
    } else {
        // SAFETY: as above.
        unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut bytes) };
    }
    let end = if given { (start.addr() + bytes) as u64 } else { 0 };
    (detached == libc::PTHREAD_CREATE_DETACHED, end, bytes as u64)
}

/// Returns the length of a stack for which the program requests no other: the soft limit, if that is
/// reasonable.
pub(crate) fn usual_stack_bytes() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a local.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    if (1 << 16..=1 << 30).contains(&limit.rlim_cur) { limit.rlim_cur as usize } else { STACK_BYTES }
}

/// Creates a thread of the program. Returns 0 or an error number.
pub(crate) fn create(
    place_for_handle: *mut u64,
    attributes: *const libc::pthread_attr_t,
    routine: u64,
    argument: *mut c_void,
    returns_int: bool,
) -> c_int {
    let Some(record) = new_record() else { return libc::EAGAIN };
    let (detached, stack_end, stack_bytes) = wishes(attributes);
    record.detached.store(u32::from(detached), Relaxed);
    record.stack_end.store(stack_end, Relaxed);
    record.stack_bytes.store(stack_bytes, Relaxed);
    record.routine.store(routine, Relaxed);
    record.argument.store(argument, Relaxed);
    record.returns_int.store(u32::from(returns_int), Relaxed);
    record.mask.store(masks::mask(), Relaxed);
    // SAFETY: the program passes a place for the handle.
    unsafe { place_for_handle.write(record.handle()) };
    THREADS.hold(|held| {
        let node = place();
        record.node.store(node as u32, Relaxed);
        append(&control().to_start[node], record);
        held.tell_starter(node);
    });
    0
}

/// Starts a thread on this node that the program has not requested, and runs a part of the program in it.
pub(crate) fn start_for_runtime(routine: Routine, argument: *mut c_void) {
    let Some(record) = new_record() else { saying::fatal("expected shared memory for a thread, got none") };
    record.node.store(this_node(), Relaxed);
    record.detached.store(1, Relaxed);
    record.mask.store(masks::all_signals(), Relaxed);
    record.stack_bytes.store(STACK_BYTES as u64, Relaxed);
    record.routine.store(routine as *const () as u64, Relaxed);
    record.argument.store(argument, Relaxed);
    THREADS.hold(|_| {
        let running = &control().running[this_node() as usize];
        running.store(running.load(Relaxed) + 1, Relaxed);
    });
    start_here(record);
}

/// Starts a thread of the program on this node that never ends and is not counted when threads are placed.
pub(crate) fn start_worker(routine: Routine, argument: *mut c_void, stack_bytes: usize) {
    let Some(record) = new_record() else { saying::fatal("expected shared memory for a thread, got none") };
    record.node.store(this_node(), Relaxed);
    record.detached.store(1, Relaxed);
    record.stack_bytes.store(stack_bytes as u64, Relaxed);
    record.routine.store(routine as *const () as u64, Relaxed);
    record.argument.store(argument, Relaxed);
    start_here(record);
}

/// Starts a thread on this node. Called by the starter, which is not a thread of the program.
pub(crate) fn start_here(thread: &'static Thread) {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: initialises the local.
    unsafe { libc::pthread_attr_init(attributes) };
    // Signals to the process that the program's threads block must not end it either.
    masks::block(thread.mask.load(Relaxed));
    let slot = slots::take();
    let start = ptr::with_exposed_provenance_mut(slot.private_start);
    // SAFETY: initialised above; the slot is this thread's until it has been joined.
    unsafe { libc::pthread_attr_setstack(attributes, start, slot.private_bytes) };
    let mut real = 0u64;
    let create =
        next!(fn pthread_create(*mut u64, *const libc::pthread_attr_t, Routine, *mut c_void) -> c_int);
    let record = ptr::from_ref(thread).cast_mut().cast::<c_void>();
    // SAFETY: `begin` takes the record, which exists until the thread has finished.
    let error = unsafe { create(&raw mut real, attributes, begin, record) };
    // SAFETY: initialised above.
    unsafe { libc::pthread_attr_destroy(attributes) };
    if error != 0 {
        let why = std::io::Error::from_raw_os_error(error);
        saying::fatal(&format!(
            "pthread_create: expected to start a thread on node {}, got: {why}; use fewer threads or more nodes",
            this_node()
        ));
    }
}

unsafe extern "C-unwind" fn begin(record: *mut c_void) -> *mut c_void {
    // SAFETY: the starter passes the record of a thread that has not finished.
    let thread: &'static Thread = unsafe { object(record) };
    adopt(thread);
    // SAFETY: it has no arguments and cannot fail.
    thread.real.store(unsafe { libc::pthread_self() }, Relaxed);
    if thread.is_deputy.load(Relaxed) == 0 {
        face::hiroba_count_thread(1);
    }
    halting::know_thread();
    masks::set_mask(thread.mask.load(Relaxed));
    watch_caller();
    let bytes = (thread.stack_bytes.load(Relaxed) as usize).next_multiple_of(ALIGN);
    let of_slot = slots::begin(bytes);
    let mut end = thread.stack_end.load(Relaxed) as usize;
    let mut block = ptr::null_mut();
    if end == 0 {
        end = of_slot.unwrap_or_else(|| {
            block = face::hiroba_aligned_alloc(ALIGN, bytes);
            if block.is_null() {
                saying::fatal(&format!(
                    "expected {bytes} bytes of shared memory for a thread's stack, got none"
                ));
            }
            block.addr() + bytes
        });
        note_stack(end, bytes);
    }
    END.with(|end| end.0.set(block));
    let routine = thread.routine.load(Relaxed) as usize;
    let argument = thread.argument.load(Relaxed);
    let returns_int = thread.returns_int.load(Relaxed) != 0;
    let result = stacks::run_program(end, || {
        if returns_int {
            type Start = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
            // SAFETY: `thrd_create` got a function of this type.
            let routine = unsafe { std::mem::transmute::<usize, Start>(routine) };
            // SAFETY: the program passed this function with this argument.
            let number = unsafe { routine(argument) };
            return ptr::without_provenance_mut(number as u32 as usize);
        }
        // SAFETY: `pthread_create` got a function of this type.
        let routine = unsafe { std::mem::transmute::<usize, Routine>(routine) };
        // SAFETY: the program passed this function with this argument.
        unsafe { routine(argument) }
    });
    thread.result.store(result, Relaxed);
    thread.returned.store(1, Relaxed);
    ptr::null_mut()
}

/// pthread_create(3).
///
/// # Safety
/// As of pthread_create(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut u64,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    if in_program() {
        return create(thread, attributes, routine as *const () as u64, argument, false);
    }
    // SAFETY: the caller's.
    unsafe {
        next!(fn pthread_create(*mut u64, *const libc::pthread_attr_t, Routine, *mut c_void) -> c_int)(
            thread, attributes, routine, argument,
        )
    }
}

/// Adds `by` to the number of threads on node 0: `main` gives up its place while it waits.
fn give_place(by: i32) {
    if this_record().is_some_and(|record| record.node.load(Relaxed) == 0 && record.routine.load(Relaxed) == 0)
    {
        let running = &control().running[0];
        running.store(running.load(Relaxed).saturating_add_signed(by), Relaxed);
    }
}

/// Waits for a thread's end. `wait` waits once, and returns an error number to stop.
pub(crate) fn join(
    thread: u64,
    result: Option<&mut *mut c_void>,
    mut wait: impl FnMut(Held, u32) -> c_int,
) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    if thread == this_thread() {
        return libc::EDEADLK;
    }
    let error = THREADS.hold(|held| {
        if record.detached.load(Relaxed) != 0 || record.joined.load(Relaxed) != 0 {
            return libc::EINVAL;
        }
        record.joined.store(1, Relaxed);
        give_place(-1);
        let mut error = 0;
        while error == 0 && record.finished.load(Relaxed) == 0 {
            error = wait(held, record.number.load(Relaxed));
        }
        give_place(1);
        if error != 0 {
            record.joined.store(0, Relaxed);
        }
        error
    });
    if error == CANCELLED {
        cancel::point();
    }
    if error == 0 {
        if let Some(place) = result {
            *place = record.result.load(Relaxed);
        }
        record.forget();
    }
    error
}

fn join_into(thread: u64, place: *mut *mut c_void, wait: impl FnMut(Held, u32) -> c_int) -> c_int {
    let mut result = ptr::null_mut();
    let error = join(thread, Some(&mut result), wait);
    if error == 0 && !place.is_null() {
        // SAFETY: the caller passes NULL or a place for the result.
        unsafe { place.write(result) };
    }
    error
}

/// Waits without a deadline, in [`join`], which is a cancellation point.
pub(crate) fn for_ever(held: Held, number: u32) -> c_int {
    cancel::wait(held, number, None)
}

/// Defines functions whose first argument is a thread. They act on the program's threads here, and pass
/// others to the C library.
macro_rules! of_thread {
    ($($name:ident($thread:ident $(, $argument:ident: $type:ty)*) => $act:expr;)*) => { $(
        /// See the manual.
        ///
        /// # Safety
        /// The thread exists, and pointers are valid, as the manual says.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($thread: u64 $(, $argument: $type)*) -> c_int {
            if !in_program() {
                // SAFETY: the caller's.
                return unsafe { next!(fn $name(u64 $(, $type)*) -> c_int)($thread $(, $argument)*) };
            }
            $act
        }
    )* };
}

of_thread! {
    pthread_join(thread, result: *mut *mut c_void) => join_into(thread, result, for_ever);
    pthread_tryjoin_np(thread, result: *mut *mut c_void) => join_into(thread, result, |_, _| libc::EBUSY);
    pthread_timedjoin_np(thread, result: *mut *mut c_void, time: *const libc::timespec) =>
        join_until(thread, result, libc::CLOCK_REALTIME, time);
    pthread_clockjoin_np(thread, result: *mut *mut c_void, clock: libc::clockid_t, time: *const libc::timespec) =>
        join_until(thread, result, clock, time);
    pthread_detach(thread) => detach(thread);
    pthread_cancel(thread) => match record_of(thread) {
        None => libc::ESRCH,
        Some(record) => cancel::cancel(record),
    };
    pthread_kill(thread, signal: c_int) => send(thread, signal);
    pthread_sigqueue(thread, signal: c_int, value: usize) =>
        on_its_node(thread, "pthread_sigqueue", |real| {
            // SAFETY: a thread of this node that has not finished; the value is a word.
            unsafe { next!(fn pthread_sigqueue(u64, c_int, usize) -> c_int)(real, signal, value) }
        });
    pthread_setname_np(thread, name: *const c_char) => set_name(thread, name);
    pthread_getname_np(thread, name: *mut c_char, bytes: usize) => get_name(thread, name, bytes);
    pthread_setaffinity_np(thread, _bytes: usize, _set: *const c_void) => known(thread);
    pthread_setschedprio(thread, _priority: c_int) => known(thread);
    pthread_setschedparam(thread, _policy: c_int, _parameters: *const c_void) => known(thread);
    pthread_getcpuclockid(thread, clock: *mut libc::clockid_t) =>
        on_its_node(thread, "pthread_getcpuclockid", |real| {
            // SAFETY: a thread of this node that has not finished; the caller passes a place for the clock.
            unsafe { next!(fn pthread_getcpuclockid(u64, *mut libc::clockid_t) -> c_int)(real, clock) }
        });
    pthread_getattr_np(thread, attributes: *mut libc::pthread_attr_t) => describe(thread, attributes);
    pthread_getschedparam(thread, policy: *mut c_int, parameters: *mut c_void) =>
        on_its_node(thread, "pthread_getschedparam", |real| {
            // SAFETY: as above; the caller passes places for both.
            unsafe { next!(fn pthread_getschedparam(u64, *mut c_int, *mut c_void) -> c_int)(real, policy, parameters) }
        });
}

fn join_until(
    thread: u64,
    result: *mut *mut c_void,
    clock: libc::clockid_t,
    time: *const libc::timespec,
) -> c_int {
    let Some(deadline) = Deadline::new(clock, time) else { return libc::EINVAL };
    join_into(
        thread,
        result,
        |held, number| if held.wait_until(number, Some(deadline)) { 0 } else { libc::ETIMEDOUT },
    )
}

/// Fills attributes with those of a thread: its stack is the shared one.
fn describe(thread: u64, attributes: *mut libc::pthread_attr_t) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    let (end, bytes) = (record.stack_end.load(Relaxed) as usize, record.stack_bytes.load(Relaxed) as usize);
    // SAFETY: the caller passes room for attributes.
    let error = unsafe { libc::pthread_attr_init(attributes) };
    if error != 0 || end == 0 {
        return error;
    }
    let start = ptr::with_exposed_provenance_mut(end - bytes);
    // SAFETY: initialised above.
    unsafe { libc::pthread_attr_setstack(attributes, start, bytes) };
    let detached = c_int::from(record.detached.load(Relaxed) != 0);
    // SAFETY: as above.
    unsafe { libc::pthread_attr_setdetachstate(attributes, detached) }
}

fn known(thread: u64) -> c_int {
    if record_of(thread).is_some() { 0 } else { libc::ESRCH }
}

pub(crate) fn detach(thread: u64) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    let mut is_last = false;
    let error = THREADS.hold(|_| {
        if record.detached.swap(1, Relaxed) != 0 || record.joined.load(Relaxed) != 0 {
            return libc::EINVAL;
        }
        is_last = record.finished.load(Relaxed) != 0;
        0
    });
    if is_last {
        record.forget();
    }
    error
}

/// Acts on a thread of this node; refuses the call for others.
fn on_its_node(thread: u64, call: &str, act: impl FnOnce(u64) -> c_int) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    if record.finished.load(Relaxed) != 0 {
        return libc::ESRCH;
    }
    if !record.is_here() {
        saying::say(&format!(
            "{call}: expected a thread of node {}, got one of node {}; calls on threads of other nodes are not carried there yet",
            this_node(),
            record.node.load(Relaxed)
        ));
        return libc::ENOTSUP;
    }
    act(record.real_when_begun())
}

/// The maximum length of a thread's name with its final zero (pthread_setname_np(3)).
const NAME_BYTES: usize = 16;

fn set_name(thread: u64, name: *const c_char) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    // SAFETY: the caller passes a C string.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    if name.len() >= NAME_BYTES {
        return libc::ERANGE;
    }
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name);
    for (word, part) in record.name.iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(part.try_into().expect("eight bytes")), Relaxed);
    }
    0
}

fn get_name(thread: u64, place: *mut c_char, bytes: usize) -> c_int {
    let Some(record) = record_of(thread) else { return libc::ESRCH };
    if bytes < NAME_BYTES {
        return libc::ERANGE;
    }
    let words = [record.name[0].load(Relaxed), record.name[1].load(Relaxed)];
    // SAFETY: the caller passes room for a name; the words are a local.
    unsafe { ptr::copy_nonoverlapping(words.as_ptr().cast::<c_char>(), place, NAME_BYTES) };
    0
}

/// pthread_self(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_self() -> u64 {
    if in_program() {
        return this_thread();
    }
    // SAFETY: it has no arguments.
    unsafe { next!(fn pthread_self() -> u64)() }
}

/// pthread_exit(3).
///
/// # Safety
/// As of pthread_exit(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_exit(result: *mut c_void) -> ! {
    if let Some(record) = this_record().filter(|_| in_program()) {
        record.result.store(result, Relaxed);
        record.returned.store(1, Relaxed);
        if record.routine.load(Relaxed) == 0 {
            // The job continues until the last thread has ended.
            wait_for_all();
            // SAFETY: any status may be passed; it is this library's `exit`.
            unsafe { libc::exit(0) };
        }
    }
    // SAFETY: the caller's.
    unsafe { next!(fn pthread_exit(*mut c_void) -> ())(result) };
    unreachable!("pthread_exit does not return")
}

/// Waits, in `main`, until no other thread of the program runs.
pub(crate) fn wait_for_all() {
    let nodes = face::hiroba_nodes() as usize;
    loop {
        let running: u32 =
            THREADS.hold(|_| control().running[..nodes].iter().map(|count| count.load(Relaxed)).sum());
        if running <= 1 {
            return;
        }
        privately(|| std::thread::sleep(std::time::Duration::from_millis(1)));
    }
}
