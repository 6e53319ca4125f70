//! Reductions over tasks: registers variables with groups of tasks, and finds their copies
//! (`task_copies.rs`).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Place, Thread};
use crate::context::{self, Context};
use crate::records::Group;
use crate::reductions::group;
use crate::runtime;
use crate::shares;
use crate::task_copies::{Combine, Copies, Finish, Initialise, List, Variable};
use crate::tasks::begin_group;
use crate::tasks::calls::GOMP_taskgroup_end;

/// A variable as older compilers list it.
#[repr(C)]
#[derive(Clone, Copy)]
struct OldVariable {
    shared: *mut c_void,
    bytes: usize,
    /// Takes the copy alone.
    initialise: Option<Initialise>,
    finish: Option<Finish>,
    combine: Option<Combine>,
    flags: u32,
}

/// Registers variables for the group that the calling thread's task is in. Returns the group.
///
/// # Safety
/// `variables` has `count` elements.
unsafe fn register(context: &Context, count: usize, variables: *const Variable) -> *const Group {
    let group = group(context);
    if context.threads.get() > 1 {
        // SAFETY: the caller's.
        let copies = unsafe { Copies::make(count, variables, context.threads.get(), 1) };
        // SAFETY: the caller's.
        let shared = |number| unsafe { variables.wrapping_add(number).read() }.shared;
        group.list.store(List::make(copies, count, shared), Release);
    }
    group
}

/// Registers reductions of a group of tasks. Returns the group.
///
/// # Safety
/// `variables` has `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_taskred_init(
    _thread: Thread,
    count: c_int,
    variables: *const Variable,
) -> *const Group {
    // SAFETY: the caller's.
    unsafe { register(context::current(), count.max(0) as usize, variables) }
}

/// Variables of older compilers as newer ones list them.
///
/// # Safety
/// `variables` has `count` elements.
unsafe fn renewed(count: c_int, variables: *const OldVariable) -> Vec<Variable> {
    (0..count.max(0) as usize)
        .map(|number| {
            // SAFETY: the caller's.
            let old = unsafe { variables.wrapping_add(number).read() };
            let OldVariable { shared, bytes, initialise, finish, combine, flags } = old;
            Variable { shared, original: ptr::null_mut(), bytes, initialise, finish, combine, flags }
        })
        .collect()
}

/// The same of older compilers.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_task_reduction_init(
    _thread: Thread,
    count: c_int,
    variables: *const OldVariable,
) -> *const Group {
    // SAFETY: the caller's.
    let variables = unsafe { renewed(count, variables) };
    // SAFETY: the vector has that many.
    unsafe { register(context::current(), variables.len(), variables.as_ptr()) }
}

/// The calling thread's copy of a variable that tasks reduce, by the variable's address or that of a copy, in
/// a group or in those around it.
///
/// # Safety
/// `group` is NULL, for the group of the calling thread's task, or one that has not ended.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_task_reduction_get_th_data(
    _thread: Thread,
    of_group: *const Group,
    address: *mut c_void,
) -> *mut c_void {
    let context = context::current();
    if context.threads.get() == 1 {
        return address;
    }
    let mut place = if of_group.is_null() { ptr::from_ref(group(context)) } else { of_group };
    // SAFETY: the caller's; outer groups stay until inner ones have ended.
    while let Some(group) = unsafe { place.as_ref() } {
        // SAFETY: a list stays until its group ends.
        let list = unsafe { group.list.load(Acquire).as_ref() };
        if let Some((list, number)) = list.and_then(|list| Some((list, list.find(address)?))) {
            return list.copies().copy(number, context.number.get());
        }
        place = group.outer.load(Relaxed);
    }
    runtime::fatal(&format!("OpenMP: expected a variable that tasks reduce at {address:p}, got none"))
}

/// All threads register reductions over the tasks of a region or of a piece of work, each for its own copy of
/// the variables; they share the copies of tasks.
///
/// # Safety
/// `variables` has `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_taskred_modifier_init(
    _place: Place,
    _thread: Thread,
    _is_work: c_int,
    count: c_int,
    variables: *const Variable,
) -> *const Group {
    let (context, count) = (context::current(), count.max(0) as usize);
    begin_group(context);
    let (group, threads) = (group(context), context.threads.get());
    if threads > 1 {
        let share = shares::begin(context, |share| {
            // SAFETY: the caller's.
            let copies = unsafe { Copies::make(count, variables, threads, threads) };
            share.reductions.store(copies.cast(), Release);
        });
        let copies = share.reductions.load(Acquire).cast::<Copies>();
        shares::pass(context);
        // SAFETY: the caller's.
        let shared = |number| unsafe { variables.wrapping_add(number).read() }.shared;
        group.list.store(List::make(copies, count, shared), Release);
    }
    group
}

/// The same of older compilers.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_task_reduction_modifier_init(
    place: Place,
    thread: Thread,
    is_work: c_int,
    count: c_int,
    variables: *const OldVariable,
) -> *const Group {
    // SAFETY: the caller's.
    let variables = unsafe { renewed(count, variables) };
    // SAFETY: the vector has that many.
    unsafe { __kmpc_taskred_modifier_init(place, thread, is_work, count, variables.as_ptr()) }
}

/// Ends them.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_task_reduction_modifier_fini(_place: Place, _thread: Thread, _is_work: c_int) {
    GOMP_taskgroup_end();
}
