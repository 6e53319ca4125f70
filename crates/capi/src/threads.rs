//! Threads that the program creates: each gets what faults need before its function begins.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use hiroba_node::Runtime;
use hiroba_node::program_signals::{believed_blocked, set_believed_blocked};

use crate::system_calls::{Call, Returns, shielding, touch};

static CREATE: Call = Call::new(c"pthread_create", &[], Returns::Number);

pub(crate) static ALL: &[&Call] = &[&CREATE];

type Routine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// What a new thread must do.
struct Start {
    routine: Routine,
    argument: *mut c_void,
    /// The thread's signal mask, which is its creator's.
    blocked: u64,
}

/// Tells the runtime that the thread ends, by return, pthread_exit or cancellation.
struct Finish {
    prepared: Cell<bool>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(runtime) = Runtime::get().filter(|_| self.prepared.get()) {
            uncancelled(|| runtime.finish_thread());
        }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// Does work that must not end a thread that is cancelled, and whose result must stay: the program has not
/// come to a cancellation point.
fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: the place is a local.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = work();
    // SAFETY: any state that the thread has had is valid, and NULL is no place.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}

thread_local! {
    static FINISH: Finish = const { Finish { prepared: Cell::new(false) } };
}

unsafe extern "C-unwind" fn begin(start: *mut c_void) -> *mut c_void {
    let (routine, argument) = {
        // SAFETY: `pthread_create` made the box for this thread.
        let start = unsafe { Box::from_raw(start.cast::<Start>()) };
        set_believed_blocked(start.blocked);
        (start.routine, start.argument)
    };
    prepare();
    // SAFETY: the program passed this function with this argument.
    unsafe { routine(argument) }
}

fn prepare() {
    // A thread that could not be prepared works until it faults at the end of its stack.
    if let Some(runtime) = Runtime::get()
        && uncancelled(|| runtime.prepare_thread()).is_ok()
    {
        let _ = FINISH.try_with(|finish| finish.prepared.set(true));
    }
}

/// How much of its stack a thread uses before it has one for fault handlers; this part must be present.
const FIRST_STACK_BYTES: usize = 256 << 10;

/// Touches the pages of a stack in shared memory on which the thread will begin.
fn touch_stack(runtime: &'static Runtime, attributes: usize) {
    let attributes = attributes as *const libc::pthread_attr_t;
    let (mut start, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the program passes initialised attributes; both results are locals.
    let known = unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut bytes) } == 0;
    let first = bytes.saturating_sub(FIRST_STACK_BYTES);
    // Attributes without a stack give an address just below zero.
    if known && start.addr().checked_add(bytes).is_some() {
        touch(runtime, start.addr() + first, bytes - first);
    }
}

/// Returns true if a function belongs to this library, which means that the thread is the runtime's.
fn is_ours(routine: usize) -> bool {
    let module_of = |address: usize| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; the call fills in a local.
        let known = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) } != 0;
        // SAFETY: zeros are a valid value, and dladdr writes valid ones.
        known.then(|| unsafe { info.assume_init() }.dli_fbase)
    };
    module_of(routine).is_some_and(|module| Some(module) == module_of(begin as *const () as usize))
}

/// pthread_create(3).
///
/// # Safety
/// The requirements are those of pthread_create(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: usize,
    attributes: usize,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    if is_ours(routine as usize) {
        // SAFETY: the caller's.
        return unsafe { CREATE.call([thread, attributes, routine as usize, argument.addr()]) as c_int };
    }
    if let Some(runtime) = shielding().filter(|_| attributes != 0) {
        touch_stack(runtime, attributes);
    }
    let start = Box::into_raw(Box::new(Start { routine, argument, blocked: believed_blocked() }));
    let begin = begin as *const () as usize;
    // SAFETY: the caller's; `begin` takes what `start` points to.
    let error = unsafe { CREATE.call([thread, attributes, begin, start.addr()]) as c_int };
    if error != 0 {
        // SAFETY: made above, and no thread has got it.
        drop(unsafe { Box::from_raw(start) });
    }
    error
}
