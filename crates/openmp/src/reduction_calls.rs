//! Reductions over tasks of a region, or of a piece of work that its threads share.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{Ordering::Acquire, Ordering::Release};

use crate::context::{self, Context};
use crate::memory;
use crate::records::Group;
use crate::reductions::{GOMP_taskgroup_reduction_unregister, group, register};
use crate::tasks;
use crate::teams::{self, Wanted};
use crate::work::{Function, Share};

/// A parallel region with reductions over tasks; the data begin with the list. How many threads it has.
///
/// # Safety
/// `function` may be called with `data`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_parallel_reductions(
    function: Function,
    data: *mut c_void,
    threads: c_uint,
    _flags: c_uint,
) -> c_uint {
    // SAFETY: the caller's.
    let list = unsafe { data.cast::<*mut usize>().read() };
    let threads = teams::threads_for(context::current(), threads);
    let group = Group::make(ptr::null_mut());
    register(list, ptr::null_mut(), None, threads as usize);
    // SAFETY: made above.
    unsafe { &*group }.reductions.store(list, Release);
    let wanted = Wanted { function, data, data_words: 0, threads, of_loop: None, group };
    let context = teams::begin(&wanted);
    // SAFETY: the program's code with its data.
    unsafe { function(data) };
    // SAFETY: what `begin` returned.
    unsafe { teams::finish(context) };
    // SAFETY: all tasks of the region are done.
    unsafe { memory::free_shared(group.cast()) };
    threads
}

/// The first thread that comes to a piece of work registers its reductions; others share the copies.
///
/// # Safety
/// `list` is NULL or as compilers pass it.
pub(crate) unsafe fn of_share(context: &Context, list: *mut usize) -> Option<impl FnOnce(&Share)> {
    if list.is_null() {
        return None;
    }
    tasks::begin_group(context);
    let before = group(context).reductions.load(Acquire);
    let threads = context.threads.get() as usize;
    Some(move |share: &Share| {
        register(list, before, None, threads);
        share.reductions.store(list, Release);
    })
}

/// After the first thread has come, the calling one included.
///
/// # Safety
/// As of [`of_share`].
pub(crate) unsafe fn join_share(context: &Context, list: *mut usize) {
    let Some(share) = context.share.get().filter(|_| !list.is_null()) else { return };
    let group = group(context);
    let first = share.reductions.load(Acquire);
    if !ptr::eq(first, list) {
        register(list, group.reductions.load(Acquire), Some(first), 0);
    }
    group.reductions.store(list, Release);
}

/// Ends the reductions of a piece of work, with a barrier unless it was cancelled.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_workshare_task_reduction_unregister(cancelled: bool) {
    let context = context::current();
    let list = group(context).reductions.load(Acquire);
    tasks::GOMP_taskgroup_end();
    if !cancelled {
        teams::barrier(context);
    }
    if context.number.get() == 0 {
        // SAFETY: registered by `join_share`, and no task uses it any more.
        unsafe { GOMP_taskgroup_reduction_unregister(list) };
    }
}
