//! Tasks as compiled programs call them.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::{complete, dependences, is_full, may_defer, run, run_as, task_within, ticks, work_until};
use crate::context::{self, Context};
use crate::job;
use crate::memory;
use crate::records::{self, Family, Group, Running, Task};
use crate::runtime::wait_until;
use crate::settings::settings;
use crate::task_copies;
use crate::work::Function;

/// Copies a task's data with the constructors of their types.
pub(super) type Copy = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

pub(super) const FINAL: c_uint = 1 << 1;
const DEPEND: c_uint = 1 << 3;
const DETACH: c_uint = 1 << 13;

/// What a task is made of.
#[derive(Clone, Copy)]
pub(super) struct Code {
    pub(super) function: Function,
    pub(super) data: *mut c_void,
    pub(super) copy: Option<Copy>,
    pub(super) bytes: usize,
    pub(super) align: usize,
    pub(super) is_final: bool,
}

impl Code {
    /// Copies the data to a place for them.
    fn copy_to(&self, place: *mut c_void) {
        match self.copy {
            // SAFETY: the program's code with its data, and a place as long.
            Some(copy) => unsafe { copy(place, self.data) },
            // SAFETY: as above.
            None => unsafe { ptr::copy_nonoverlapping(self.data.cast::<u8>(), place.cast(), self.bytes) },
        }
    }

    /// Runs it at once. `change` is called with the place of the data before.
    pub(super) fn run(&self, context: &Context, change: impl FnOnce(*mut c_void)) {
        run_as(context, task_within(context, self.is_final), || {
            let copied = self.copy.is_some();
            let data = if copied {
                let place = memory::shared_zeroed(self.align, self.bytes);
                self.copy_to(place);
                place
            } else {
                self.data
            };
            change(data);
            // SAFETY: the program's code with its data.
            unsafe { (self.function)(data) };
            if copied {
                // SAFETY: allocated above; the task's children have copies of their own.
                unsafe { memory::free_shared(data) };
            }
        });
    }

    /// Makes a record of it, to be run later. `change` is called with the place of the data.
    pub(super) fn put_off(&self, change: impl FnOnce(*mut c_void)) -> &'static Task {
        let task = Task::make(self.function, self.bytes, self.align, |place| {
            self.copy_to(place);
            change(place);
        });
        task.is_final.store(u32::from(self.is_final), Relaxed);
        task.depth.store(context::current().running.get().depth + 1, Relaxed);
        task
    }
}

/// The family of the calling thread's task, which is to have a child.
fn family_of(context: &Context) -> *mut Family {
    let running = context.running.get();
    if !running.family.is_null() {
        return running.family;
    }
    let family = records::new_family();
    context.running.set(Running { family, ..running });
    family
}

/// Puts tasks into the queue that depend on nothing, or on siblings by `uses`.
pub(super) fn enqueue(context: &Context, new: &[&'static Task], uses: &[(usize, dependences::Use)]) {
    let (family, group) = (family_of(context), context.running.get().group);
    let job::Job { team, tasks, .. } = job::begun();
    team.lock.hold(|held| {
        let was_empty = tasks.queued.load(Relaxed) == 0;
        for task in new {
            task.join(family, group);
            tasks.pending.fetch_add(1, AcqRel);
            // SAFETY: the calling thread's task refers to it.
            dependences::add(task, unsafe { &*family }, uses);
            if task.waits_for.load(Acquire) == 0 {
                tasks.put(task);
            }
        }
        // Waiting threads were woken when the tasks in the queue were put there.
        if was_empty && tasks.queued.load(Relaxed) > 0 {
            tasks.tell(held);
        }
    });
    context.put_off_at.set(ticks());
}

/// Returns true if the calling thread must start no new tasks.
pub(crate) fn is_cancelled(context: &Context) -> bool {
    // SAFETY: the group stays until the calling thread's task has left it.
    let group = unsafe { context.running.get().group.as_ref() };
    settings().cancellation && (context::is_cancelled(context) || group.is_some_and(Group::is_cancelled))
}

/// An event that a task waits for before it is done.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Event {
    task: AtomicPtr<Task>,
    is_fulfilled: AtomicU32,
}

impl Event {
    /// The task needs the event before it is done.
    pub(crate) fn is_for(&self, task: &Task) {
        task.has_event();
        self.task.store(ptr::from_ref(task).cast_mut(), Release);
    }

    pub(crate) fn is_fulfilled(&self) -> bool {
        self.is_fulfilled.load(Acquire) != 0
    }
}

/// Makes the event that a task waits for before it is done, and tells the program of it.
pub(crate) fn make_event(places: [*mut *const Event; 3]) -> &'static Event {
    let event = memory::shared_zeroed(align_of::<Event>(), size_of::<Event>()).cast::<Event>();
    // SAFETY: zeros are valid; it stays until it is fulfilled.
    let made = unsafe { &*event };
    for place in places.into_iter().filter(|place| !place.is_null()) {
        // SAFETY: the compiler passes places for the handle.
        unsafe { place.write(event) };
    }
    made
}

/// Creates a task.
///
/// # Safety
/// `function` may be called with a copy of the data, and the lists are as compilers pass them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_task(
    function: Function,
    data: *mut c_void,
    copy: Option<Copy>,
    bytes: c_long,
    align: c_long,
    may_wait: bool,
    flags: c_uint,
    depend: *const *const c_void,
    _priority: c_int,
    detach: *mut c_void,
) {
    let context = context::current();
    if is_cancelled(context) {
        return;
    }
    let (bytes, align) = (bytes as usize, (align as usize).max(1));
    let code = Code { function, data, copy, bytes, align, is_final: flags & FINAL != 0 };
    let depends = flags & DEPEND != 0;
    let has_event = flags & DETACH != 0;
    // SAFETY: the caller's.
    let uses = if depends { unsafe { dependences::read(depend) } } else { Vec::new() };
    let at_once = !may_wait || !may_defer(context);
    if !has_event && (at_once || (!depends && is_full(context))) {
        wait_for_uses(context, &uses);
        return code.run(context, |_| {});
    }
    let mut event = None;
    let task = code.put_off(|place| {
        // The data were copied before the program is told.
        event = has_event.then(|| make_event([detach.cast(), data.cast(), place.cast()]));
    });
    if let Some(event) = event {
        event.is_for(task);
    }
    if !at_once {
        return enqueue(context, &[task], &uses);
    }
    wait_for_uses(context, &uses);
    run_joined(context, task);
    if let Some(event) = event.filter(|_| !may_wait) {
        wait_until(|| event.is_fulfilled());
    }
}

/// Has a task run, which depends on siblings by `uses`: now, or by any thread of the team.
pub(crate) fn submit(
    context: &Context,
    task: &'static Task,
    uses: &[(usize, dependences::Use)],
    has_event: bool,
) {
    if may_defer(context) && (has_event || !uses.is_empty() || !is_full(context)) {
        return enqueue(context, &[task], uses);
    }
    wait_for_uses(context, uses);
    if has_event { run_joined(context, task) } else { run_now(context, task) }
}

/// Has a task run that depends on nothing, at once unless it may wait.
pub(crate) fn submit_if(context: &Context, task: &'static Task, may_wait: bool) {
    if may_wait { submit(context, task, &[], false) } else { run_now(context, task) }
}

/// Runs a task that no other thread knows, and frees it.
fn run_now(context: &Context, task: &Task) {
    let is_final = task.is_final.load(Relaxed) != 0;
    run_as(context, task_within(context, is_final), || task.call());
    task.free();
}

/// Runs a task now that is done later.
fn run_joined(context: &Context, task: &'static Task) {
    join(context, task);
    run(context, task);
}

/// A task that is run at once, but is done later, becomes a child of the calling thread's.
fn join(context: &Context, task: &Task) {
    let (family, group) = (family_of(context), context.running.get().group);
    let job::Job { team, tasks, .. } = job::begun();
    team.lock.hold(|_| {
        task.join(family, group);
        tasks.pending.fetch_add(1, AcqRel);
    });
}

/// Says that an event has happened that a task waits for.
///
/// # Safety
/// The event is one that a task with a `detach` clause has got.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_fulfill_event(event: usize) {
    let event = ptr::with_exposed_provenance::<Event>(event);
    // SAFETY: the caller's; events stay.
    let event = unsafe { &*event };
    event.is_fulfilled.store(1, Release);
    // SAFETY: a task with an event stays until that is fulfilled.
    let task: &'static Task = unsafe { &*event.task.load(Acquire) };
    job::begun().team.lock.hold(|held| {
        if task.fulfil() {
            complete(task, held);
        }
    });
}

/// The same for Fortran, whose module `omp_lib` declares the event as a value.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_fulfill_event_(event: usize) {
    // SAFETY: the caller's.
    unsafe { omp_fulfill_event(event) };
}

/// Waits for those children of the calling thread's task that these uses depend on.
pub(crate) fn wait_for_uses(context: &Context, uses: &[(usize, dependences::Use)]) {
    // SAFETY: the calling thread's task refers to it.
    let Some(family) = (unsafe { context.running.get().family.as_ref() }) else { return };
    if !uses.is_empty() {
        let is_child = |task: &Task| ptr::eq(task.family.load(Relaxed), family);
        work_until(context, is_child, || !dependences::must_wait(family, uses));
    }
}

/// Waits for the children of the calling thread's task.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_taskwait() {
    let context = context::current();
    // SAFETY: the calling thread's task refers to it.
    let Some(family) = (unsafe { context.running.get().family.as_ref() }) else { return };
    if family.children.load(Acquire) > 0 {
        let is_child = |task: &Task| ptr::eq(task.family.load(Relaxed), family);
        work_until(context, is_child, || family.children.load(Acquire) == 0);
    }
}

/// Waits for those children that the list of dependences names.
///
/// # Safety
/// The list is as compilers pass it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn GOMP_taskwait_depend(depend: *const *const c_void) {
    // SAFETY: the caller's.
    let uses = unsafe { dependences::read(depend) };
    wait_for_uses(context::current(), &uses);
}

/// Lets other tasks run, which need no such help here.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_taskyield() {}

/// Begins a group of tasks. A thread waits for them and for all tasks that they create.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_taskgroup_start() {
    begin_group(context::current());
}

pub(crate) fn begin_group(context: &Context) {
    let running = context.running.get();
    context.running.set(Running { group: Group::make(running.group), ..running });
}

/// Waits for the group's tasks, and ends it.
#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn GOMP_taskgroup_end() {
    let context = context::current();
    let running = context.running.get();
    let place = running.group;
    // SAFETY: the group stays until its end, which is here.
    let Some(group) = (unsafe { place.as_ref() }) else { return };
    if group.tasks.load(Acquire) > 0 {
        let is_ours = |task: &Task| ptr::eq(task.group.load(Relaxed), place);
        work_until(context, is_ours, || group.tasks.load(Acquire) == 0);
    }
    task_copies::finish(&group.list);
    let outer = group.outer.load(Acquire);
    context.running.set(Running { group: outer, ..context.running.get() });
    // SAFETY: all tasks of the group are done.
    unsafe { memory::free_shared(place.cast()) };
}

/// Returns true if children of the calling thread's task run at once.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_in_final() -> c_int {
    c_int::from(context::current().running.get().is_final)
}

/// The same for Fortran.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_in_final_() -> c_int {
    omp_in_final()
}

/// Returns true if the calling thread runs a task that a construct created.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_in_explicit_task() -> c_int {
    c_int::from(context::current().running.get().is_explicit)
}

/// The same for Fortran.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_in_explicit_task_() -> c_int {
    omp_in_explicit_task()
}
