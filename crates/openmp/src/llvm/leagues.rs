//! `teams`: see `leagues.rs` of the library.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use super::arguments::{self, Arguments};
use super::{Place, Thread, number_of};
use crate::context;
use crate::leagues;

thread_local! {
    /// How many teams the next league has, and how many threads each of them may have; 0: as is set.
    static NEXT: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

unsafe extern "C-unwind" fn run(list: *mut c_void) {
    let number = number_of(context::current()) as c_int;
    // SAFETY: `fork_teams` passes such a list.
    unsafe { arguments::call(list.cast(), [number, 0]) };
}

/// What `__kmpc_fork_teams` calls.
///
/// # Safety
/// `code` takes the arguments that lie in both places.
pub(super) unsafe extern "C-unwind" fn fork_teams(
    code: usize,
    count: c_int,
    in_registers: *const usize,
    on_stack: *const usize,
) {
    let mut list = Arguments::new(count, in_registers, on_stack).list(code);
    let (teams, thread_limit) = NEXT.take();
    // SAFETY: the function is for this data.
    unsafe { leagues::run(run, list.as_mut_ptr().cast(), teams, thread_limit) };
}

/// Limits the threads of regions in code for a device.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_set_thread_limit(_place: Place, _thread: Thread, limit: c_int) {
    leagues::limit_threads(limit.max(0) as u32);
}

/// Says how many teams the next league has, and how many threads each of them may have.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_push_num_teams(_place: Place, _thread: Thread, teams: c_int, threads: c_int) {
    NEXT.set((teams.max(0) as u32, threads.max(0) as u32));
}

/// The same with a least and a greatest number of teams.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_push_num_teams_51(
    place: Place,
    thread: Thread,
    _least: c_int,
    most: c_int,
    threads: c_int,
) {
    __kmpc_push_num_teams(place, thread, most, threads);
}
