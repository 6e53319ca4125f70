//! Reductions over tasks. Each thread that runs a task with a variable of the list gets a copy of it when it
//! asks for one first; the thread that ends the group combines the copies.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::{Place, Thread};
use crate::context::{self, Context};
use crate::memory;
use crate::records::Group;
use crate::reductions::group;
use crate::runtime;
use crate::shares;
use crate::tasks::begin_group;
use crate::tasks::calls::GOMP_taskgroup_end;

type Initialise = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);
type Finish = unsafe extern "C-unwind" fn(*mut c_void);
type Combine = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// A variable as compilers list it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Variable {
    shared: *mut c_void,
    /// What a copy is initialised from; NULL for the variable itself.
    original: *mut c_void,
    bytes: usize,
    initialise: Option<Initialise>,
    finish: Option<Finish>,
    combine: Option<Combine>,
    flags: u32,
}

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

/// What the groups of a reduction have in common: variables, and a word for each thread's copy of each.
#[repr(C)]
struct Copies {
    count: u32,
    threads: u32,
    /// How many groups refer to it, and how many of them have ended.
    groups: u32,
    ended: AtomicU32,
    variables: *const Variable,
    places: *const AtomicPtr<c_void>,
}

/// The variables of one group: the copies, and which variables they end up in.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct List {
    copies: *mut Copies,
    shared: *const *mut c_void,
}

impl Copies {
    /// # Safety
    /// `variables` has `count` elements.
    unsafe fn make(count: usize, variables: *const Variable, threads: u32, groups: u32) -> *mut Copies {
        let list = memory::shared_zeroed(align_of::<Variable>(), count * size_of::<Variable>());
        // SAFETY: the caller's; the block is new and as long.
        unsafe { ptr::copy_nonoverlapping(variables, list.cast::<Variable>(), count) };
        let places = memory::shared_zeroed(size_of::<usize>(), count * threads as usize * size_of::<usize>());
        let made = memory::shared_zeroed(align_of::<Copies>(), size_of::<Copies>()).cast::<Copies>();
        let copies = Copies {
            count: count as u32,
            threads,
            groups,
            ended: AtomicU32::new(0),
            variables: list.cast_const().cast(),
            places: places.cast_const().cast(),
        };
        // SAFETY: the block is new and as long.
        unsafe { made.write(copies) };
        made
    }

    fn variable(&self, number: u32) -> &Variable {
        // SAFETY: `make` has copied so many; they stay until all groups have ended.
        unsafe { &*self.variables.wrapping_add(number as usize) }
    }

    fn place(&self, variable: u32, thread: u32) -> &AtomicPtr<c_void> {
        // SAFETY: as above; there is a place for each thread.
        unsafe { &*self.places.wrapping_add((variable * self.threads + thread) as usize) }
    }

    /// The calling thread's copy of a variable, made if there is none. Only the thread itself makes it: what
    /// it is initialised by may look at variables of the thread.
    fn copy(&self, number: u32, thread: u32) -> *mut c_void {
        let place = self.place(number, thread);
        let copy = place.load(Acquire);
        if !copy.is_null() {
            return copy;
        }
        let variable = self.variable(number);
        let copy = memory::shared_zeroed(64, variable.bytes);
        if let Some(initialise) = variable.initialise {
            let original = if variable.original.is_null() { variable.shared } else { variable.original };
            // SAFETY: the program's code; older code does not look at the second argument.
            unsafe { initialise(copy, original) };
        }
        place.store(copy, Release);
        copy
    }
}

impl List {
    /// A list that refers to `copies` and ends up in the variables that `shared` reads.
    fn make(copies: *mut Copies, count: usize, shared: impl Fn(usize) -> *mut c_void) -> *mut List {
        let places = memory::shared_zeroed(size_of::<usize>(), count * size_of::<usize>());
        for number in 0..count {
            // SAFETY: the block is new and as long.
            unsafe { places.cast::<*mut c_void>().wrapping_add(number).write(shared(number)) };
        }
        let made = memory::shared_zeroed(align_of::<List>(), size_of::<List>()).cast::<List>();
        // SAFETY: the block is new and as long.
        unsafe { made.write(List { copies, shared: places.cast_const().cast() }) };
        made
    }

    fn copies(&self) -> &Copies {
        // SAFETY: copies stay until all groups that refer to them have ended.
        unsafe { &*self.copies }
    }

    fn shared(&self, number: u32) -> *mut c_void {
        // SAFETY: `make` has written one for each variable.
        unsafe { self.shared.wrapping_add(number as usize).read() }
    }

    /// The variable that an address is of: its own, or that of a copy.
    fn find(&self, address: *mut c_void) -> Option<u32> {
        let copies = self.copies();
        (0..copies.count).find(|number| {
            let bytes = copies.variable(*number).bytes;
            let is_copy = |thread: u32| {
                let copy = copies.place(*number, thread).load(Acquire);
                !copy.is_null() && (copy.addr()..copy.addr() + bytes.max(1)).contains(&address.addr())
            };
            address == self.shared(*number) || (0..copies.threads).any(is_copy)
        })
    }

    fn combine(&self) {
        let copies = self.copies();
        for number in 0..copies.count {
            let variable = copies.variable(number);
            for thread in 0..copies.threads {
                let copy = copies.place(number, thread).load(Acquire);
                if copy.is_null() {
                    continue;
                }
                if let Some(combine) = variable.combine {
                    // SAFETY: the program's code with its variables.
                    unsafe { combine(self.shared(number), copy) };
                }
                if let Some(finish) = variable.finish {
                    // SAFETY: as above.
                    unsafe { finish(copy) };
                }
                // SAFETY: no task uses it any more.
                unsafe { memory::free_shared(copy) };
            }
        }
    }
}

/// The tasks of a group are done: combines the copies, if it is the last group that refers to them.
pub(crate) fn finish(group: &Group) {
    let place = group.list.swap(ptr::null_mut(), AcqRel);
    // SAFETY: `List::make` made it for this group.
    let Some(list) = (unsafe { place.as_ref() }) else { return };
    let copies = list.copies();
    if copies.ended.fetch_add(1, AcqRel) + 1 == copies.groups {
        list.combine();
        let Copies { variables, places, .. } = *copies;
        for block in [variables.cast_mut().cast(), places.cast_mut().cast(), list.copies.cast()] {
            // SAFETY: no group refers to it any more.
            unsafe { memory::free_shared(block) };
        }
    }
    // SAFETY: as above.
    unsafe { memory::free_shared(list.shared.cast_mut().cast()) };
    // SAFETY: as above.
    unsafe { memory::free_shared(place.cast()) };
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
