//! Parallel regions, and what is asked for the next one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::arguments::{self, Arguments};
use super::{Place, Thread, number_of};
use crate::context;
use crate::job::LIST;
use crate::memory;
use crate::parallel::{self, GOMP_parallel_end};
use crate::teams::Wanted;

thread_local! {
    /// How many threads the program asks for in the next region, 0 for as many as are set.
    static THREADS: Cell<u32> = const { Cell::new(0) };
}

/// Runs a region whose data are a list of its code and arguments.
unsafe extern "C-unwind" fn run(list: *mut c_void) {
    let context = context::current();
    let numbers = [number_of(context) as c_int, context.number.get() as c_int];
    // SAFETY: as below.
    context.code.set(unsafe { list.cast::<usize>().read() });
    // SAFETY: `start` passes such a list, and waits for all threads.
    unsafe { arguments::call(list.cast(), numbers) };
}

fn start(code: usize, arguments: Arguments, threads: u32) {
    let mut list = arguments.list(code);
    let (data, data_words) = (list.as_mut_ptr().cast(), list.len());
    let wanted = Wanted { function: run, data, data_words, threads, of_loop: None, group: ptr::null_mut() };
    if data_words <= LIST {
        return parallel::run(&wanted);
    }
    // The list lies in memory of this process.
    let shared = memory::shared_zeroed(align_of::<usize>(), size_of_val(&list[..]));
    // SAFETY: the block is new and as long.
    unsafe { shared.cast::<usize>().copy_from_nonoverlapping(list.as_ptr(), data_words) };
    parallel::run(&Wanted { data: shared, data_words: 0, ..wanted });
    // SAFETY: all threads are past the region.
    unsafe { memory::free_shared(shared) };
}

/// What `__kmpc_fork_call` calls.
///
/// # Safety
/// `code` takes the arguments that lie in both places.
pub(super) unsafe extern "C-unwind" fn fork(
    code: usize,
    count: c_int,
    in_registers: *const usize,
    on_stack: *const usize,
) {
    start(code, Arguments::new(count, in_registers, on_stack), THREADS.take());
}

/// A parallel region if a condition holds, else one of one thread. The code gets one argument.
///
/// # Safety
/// `code` takes the argument.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_fork_call_if(
    _place: Place,
    count: c_int,
    code: *const c_void,
    condition: c_int,
    argument: *mut c_void,
) {
    let threads = THREADS.take();
    let argument = argument.addr();
    let arguments = Arguments::new(count, &raw const argument, ptr::null());
    start(code.addr(), arguments, if condition == 0 { 1 } else { threads });
}

/// Begins a region of one thread, whose code the calling thread runs itself.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_serialized_parallel(_place: Place, _thread: Thread) {
    THREADS.set(0);
    parallel::start(&Wanted {
        function: run,
        data: ptr::null_mut(),
        data_words: 0,
        threads: 1,
        of_loop: None,
        group: ptr::null_mut(),
    });
}

/// Ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_serialized_parallel(_place: Place, _thread: Thread) {
    GOMP_parallel_end();
}

/// Says how many threads the next region gets.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_push_num_threads(_place: Place, _thread: Thread, threads: c_int) {
    THREADS.set(threads.max(0) as u32);
}

/// Takes back how many threads the next region gets.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_pop_num_threads(_place: Place, _thread: Thread) {
    THREADS.set(0);
}

/// Says where the threads of the next region run. The runtime places threads itself.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_push_proc_bind(_place: Place, _thread: Thread, _bind: c_int) {}

/// The number of the calling thread in the job.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_global_thread_num(_place: Place) -> Thread {
    number_of(context::current()) as Thread
}

/// How many threads the job has.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_global_num_threads(_place: Place) -> c_int {
    crate::job::places() as c_int
}

/// The number of the calling thread in its team.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_bound_thread_num(_place: Place) -> Thread {
    context::current().number.get() as Thread
}

/// How many threads its team has.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_bound_num_threads(_place: Place) -> c_int {
    context::current().threads.get() as c_int
}

/// Returns 1 in a region of several threads.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_in_parallel(_place: Place) -> c_int {
    c_int::from(context::current().active_level.get() > 0)
}

/// Returns 1: regions may always be entered.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_ok_to_fork(_place: Place) -> c_int {
    1
}

/// Begins the use of the library, which has begun already.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_begin(_place: Place, _flags: c_int) {}

/// Ends the use of the library, which ends with the process.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end(_place: Place) {}
