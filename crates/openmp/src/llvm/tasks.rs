//! Tasks. The program has a record made, fills it in, and has it run: at once or by any thread of the team.
//!
//! A block of shared memory has the team's own record ([`Task`]), a header, the program's record, which ends
//! with the task's private variables, and what it knows of shared ones.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Place, Thread, number_of};
use crate::context::{self, Context};
use crate::records::{Running, Task};
use crate::runtime::wait_until;
use crate::tasks::calls::{self, Event, GOMP_taskgroup_end, GOMP_taskgroup_start, GOMP_taskwait};
use crate::tasks::dependences::Use;
use crate::tasks::{release_family, task_within};

/// The code of a task; also that which ends the lives of its private variables.
type Routine = unsafe extern "C-unwind" fn(Thread, *mut Made) -> c_int;

/// The program's record, as compiled code knows it.
#[repr(C)]
pub(super) struct Made {
    shared: *mut c_void,
    routine: Option<Routine>,
    /// Where the code of an untied task goes on.
    part: c_int,
    /// What ends the lives of private variables, if the flags say that there are such.
    end_of_lives: Option<Routine>,
    priority: usize,
}

/// What this library keeps in front of it.
#[repr(C, align(16))]
pub(super) struct Header {
    flags: AtomicU32,
    /// Not 0 while the code runs, and once it wants to go on after that.
    runs: AtomicU32,
    goes_on: AtomicU32,
    /// How many bytes the header and all behind it take, and at which of them shared data begin.
    bytes: u64,
    shared_at: u64,
    event: AtomicPtr<Event>,
}

const FINAL: u32 = 1 << 1;
const HAS_END_OF_LIVES: u32 = 1 << 3;
const ALIGN: usize = 16;

impl Made {
    /// The header of a record.
    ///
    /// # Safety
    /// `allocate` or `copy` made it, and it stays while the header is used.
    unsafe fn header<'a>(made: *mut Made) -> &'a Header {
        // SAFETY: the caller's.
        unsafe { &*made.cast::<Header>().wrapping_sub(1) }
    }

    /// The team's record of a record.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn task<'a>(made: *mut Made) -> &'a Task {
        // SAFETY: the caller's.
        unsafe { Task::of_data(made.cast::<Header>().wrapping_sub(1).cast(), ALIGN) }
    }

    /// Both.
    ///
    /// # Safety
    /// As above.
    unsafe fn records<'a>(made: *mut Made) -> (&'a Header, &'a Task) {
        // SAFETY: the caller's.
        let header = unsafe { Made::header(made) };
        // SAFETY: the caller's.
        (header, unsafe { Made::task(made) })
    }

    /// Runs the code, until it has come to its end.
    ///
    /// # Safety
    /// As above.
    unsafe fn run(made: *mut Made) {
        // SAFETY: the caller's.
        let header = unsafe { Made::header(made) };
        // SAFETY: the compiler has given it.
        let Some(routine) = (unsafe { (*made).routine }) else { return };
        loop {
            header.runs.store(1, Relaxed);
            header.goes_on.store(0, Relaxed);
            // SAFETY: the program's code with its record.
            unsafe { routine(number_of(context::current()) as Thread, made) };
            // SAFETY: the caller's.
            if !unsafe { Made::goes_on(made) } {
                break;
            }
        }
    }

    /// Returns true if the code has asked to be run again, from where it stopped.
    ///
    /// # Safety
    /// As above.
    unsafe fn goes_on(made: *mut Made) -> bool {
        // SAFETY: the caller's.
        unsafe { Made::header(made) }.goes_on.load(Relaxed) != 0
    }

    /// Ends the lives of private variables.
    ///
    /// # Safety
    /// As above; the code has run, or will not.
    pub(super) unsafe fn end_lives(made: *mut Made) {
        // SAFETY: the caller's.
        let header = unsafe { Made::header(made) };
        if header.flags.load(Relaxed) & HAS_END_OF_LIVES == 0 {
            return;
        }
        // SAFETY: the compiler has given it.
        if let Some(end) = unsafe { (*made).end_of_lives } {
            // SAFETY: the program's code with its record.
            unsafe { end(number_of(context::current()) as Thread, made) };
        }
    }
}

/// What the team calls to run a task: `header` is that of the program's record.
unsafe extern "C-unwind" fn run(header: *mut c_void) {
    let made = header.cast::<Header>().wrapping_add(1).cast::<Made>();
    // SAFETY: the record stays until the team has run it.
    unsafe { Made::run(made) };
    // SAFETY: as above.
    unsafe { Made::end_lives(made) };
}

/// Makes a record with room for `bytes` bytes, and `shared_bytes` behind it.
fn allocate(flags: u32, bytes: usize, shared_bytes: usize, routine: Option<Routine>) -> *mut Made {
    let shared_at = size_of::<Header>() + bytes.next_multiple_of(ALIGN);
    let all = shared_at + shared_bytes;
    let mut place = ptr::null_mut();
    let task = Task::make(run, all, ALIGN, |data| place = data.cast::<Header>());
    task.is_final.store(u32::from(flags & FINAL != 0), Relaxed);
    task.depth.store(context::current().running.get().depth + 1, Relaxed);
    let header = Header {
        flags: AtomicU32::new(flags),
        runs: AtomicU32::new(0),
        goes_on: AtomicU32::new(0),
        bytes: all as u64,
        shared_at: shared_at as u64,
        event: AtomicPtr::default(),
    };
    // SAFETY: the block is new and has room.
    unsafe { place.write(header) };
    let made = place.wrapping_add(1).cast::<Made>();
    let shared = place.wrapping_byte_add(shared_at).cast();
    // SAFETY: as above.
    unsafe { made.write(Made { shared, routine, part: 0, end_of_lives: None, priority: 0 }) };
    made
}

/// Makes a copy of a record that has not run.
///
/// # Safety
/// `allocate` made the record.
pub(super) unsafe fn copy(pattern: *mut Made) -> *mut Made {
    // SAFETY: the caller's.
    let header = unsafe { Made::header(pattern) };
    let bytes = header.bytes as usize;
    let new = allocate(header.flags.load(Relaxed), bytes - size_of::<Header>(), 0, None);
    // SAFETY: the caller's.
    let is_final = unsafe { Made::task(pattern) }.is_final.load(Relaxed);
    let (from, to) = (pattern.cast::<Header>().wrapping_sub(1), new.cast::<Header>().wrapping_sub(1));
    // SAFETY: both blocks are as long, and the new one is nobody else's.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    // SAFETY: the block is new.
    unsafe { (*new).shared = to.wrapping_byte_add(header.shared_at as usize).cast() };
    // SAFETY: as above.
    unsafe { Made::task(new) }.is_final.store(is_final, Relaxed);
    new
}

/// Makes the record of a task.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_omp_task_alloc(
    _place: Place,
    _thread: Thread,
    flags: c_int,
    bytes: usize,
    shared_bytes: usize,
    routine: Option<Routine>,
) -> *mut Made {
    allocate(flags as u32, bytes, shared_bytes, routine)
}

/// Makes the record of a task for a device, which is the host.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_omp_target_task_alloc(
    place: Place,
    thread: Thread,
    flags: c_int,
    bytes: usize,
    shared_bytes: usize,
    routine: Option<Routine>,
    _device: i64,
) -> *mut Made {
    __kmpc_omp_task_alloc(place, thread, flags, bytes, shared_bytes, routine)
}

/// Has a task run, or going on.
///
/// # Safety
/// `made` is a record of the functions above, filled in.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_task(_place: Place, _thread: Thread, made: *mut Made) -> c_int {
    // SAFETY: the caller's.
    unsafe { submit(context::current(), made, &[]) };
    0
}

/// The same of a part of an untied task.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_task_parts(place: Place, thread: Thread, made: *mut Made) -> c_int {
    // SAFETY: the caller's.
    unsafe { __kmpc_omp_task(place, thread, made) }
}

/// # Safety
/// As above.
unsafe fn submit(context: &Context, made: *mut Made, uses: &[(usize, Use)]) {
    // SAFETY: the caller's.
    let (header, task) = unsafe { Made::records(made) };
    if header.runs.load(Relaxed) != 0 {
        // An untied task that runs asks for its next part.
        return header.goes_on.store(1, Relaxed);
    }
    let has_event = !header.event.load(Relaxed).is_null();
    if calls::is_cancelled(context) {
        // SAFETY: the caller's.
        unsafe { Made::end_lives(made) };
        return task.free();
    }
    // SAFETY: the record stays until the task is done.
    calls::submit(context, unsafe { &*ptr::from_ref(task) }, uses, has_event);
}

/// A use of an address, as compilers list them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Depends {
    address: usize,
    bytes: usize,
    how: u8,
}

const IN: u8 = 1;
const IN_SET: u8 = 8;
const ALL_MEMORY: u8 = 0x80;

/// Reads a list of uses.
///
/// # Safety
/// `list` has `count` elements.
unsafe fn read(count: c_int, list: *const Depends) -> Vec<(usize, Use)> {
    (0..count.max(0) as usize)
        .map(|number| {
            // SAFETY: the caller's.
            let Depends { address, how, .. } = unsafe { list.wrapping_add(number).read() };
            match how {
                IN => (address, Use::Reads),
                IN_SET => (address, Use::WritesInSet),
                _ if how & ALL_MEMORY != 0 => (0, Use::Writes),
                _ => (address, Use::Writes),
            }
        })
        .collect()
}

/// Has a task run that depends on others.
///
/// # Safety
/// As of `__kmpc_omp_task`; the lists have as many elements as is said.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_task_with_deps(
    _place: Place,
    _thread: Thread,
    made: *mut Made,
    count: c_int,
    list: *const Depends,
    more_count: c_int,
    more: *const Depends,
) -> c_int {
    // SAFETY: the caller's.
    let mut uses = unsafe { read(count, list) };
    // SAFETY: the caller's.
    uses.extend(unsafe { read(more_count, more) });
    // SAFETY: the caller's.
    unsafe { submit(context::current(), made, &uses) };
    0
}

/// Waits for those children that the lists name.
///
/// # Safety
/// The lists have as many elements as is said.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_wait_deps(
    _place: Place,
    _thread: Thread,
    count: c_int,
    list: *const Depends,
    more_count: c_int,
    more: *const Depends,
) {
    // SAFETY: the caller's.
    let mut uses = unsafe { read(count, list) };
    // SAFETY: the caller's.
    uses.extend(unsafe { read(more_count, more) });
    calls::wait_for_uses(context::current(), &uses);
}

/// The same for `taskwait` with dependences.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_taskwait_deps_51(
    place: Place,
    thread: Thread,
    count: c_int,
    list: *const Depends,
    more_count: c_int,
    more: *const Depends,
    _has_no_wait: c_int,
) {
    // SAFETY: the caller's.
    unsafe { __kmpc_omp_wait_deps(place, thread, count, list, more_count, more) };
}

/// Begins a task whose code the calling thread calls itself.
///
/// # Safety
/// As of `__kmpc_omp_task`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_task_begin_if0(_place: Place, _thread: Thread, made: *mut Made) {
    let context = context::current();
    // SAFETY: the caller's.
    let (header, task) = unsafe { Made::records(made) };
    header.runs.store(1, Relaxed);
    let running = task_within(context, task.is_final.load(Relaxed) != 0);
    let before = (context.running.replace(running), context.settings.get());
    context.interrupted.borrow_mut().push(before);
}

/// Ends it.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_omp_task_complete_if0(_place: Place, _thread: Thread, made: *mut Made) {
    let context = context::current();
    // SAFETY: the caller's.
    let (header, task) = unsafe { Made::records(made) };
    // SAFETY: the caller's.
    if unsafe { Made::goes_on(made) } {
        // SAFETY: the caller's.
        unsafe { Made::run(made) };
    }
    // SAFETY: the caller's.
    unsafe { Made::end_lives(made) };
    let before = context.interrupted.borrow_mut().pop();
    let (running, settings): (Running, _) = before.unwrap_or((Running::default(), context.settings.get()));
    let after = context.running.replace(running);
    context.settings.set(settings);
    release_family(after.family);
    // SAFETY: an event stays.
    if let Some(event) = unsafe { header.event.load(Acquire).as_ref() } {
        wait_until(|| event.is_fulfilled());
    }
    task.free();
}

/// Makes the event that a task waits for before it is done.
///
/// # Safety
/// `made` is a record that has not been submitted.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __kmpc_task_allow_completion_event(
    _place: Place,
    _thread: Thread,
    made: *mut Made,
) -> *const Event {
    // SAFETY: the caller's.
    let (header, task) = unsafe { Made::records(made) };
    let event = calls::make_event([ptr::null_mut(); 3]);
    event.is_for(task);
    header.event.store(ptr::from_ref(event).cast_mut(), Release);
    event
}

/// Notes where a task would best run, which changes nothing.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_omp_reg_task_with_affinity(
    _place: Place,
    _thread: Thread,
    _made: *mut Made,
    _count: c_int,
    _list: *const c_void,
) -> c_int {
    0
}

/// Waits for the children of the calling thread's task.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_omp_taskwait(_place: Place, _thread: Thread) -> c_int {
    GOMP_taskwait();
    0
}

/// Lets other tasks run, which need no such help here.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_omp_taskyield(_place: Place, _thread: Thread, _part: c_int) -> c_int {
    0
}

/// Begins a group of tasks.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_taskgroup(_place: Place, _thread: Thread) {
    GOMP_taskgroup_start();
}

/// Waits for the group's tasks, and ends it.
#[unsafe(no_mangle)]
extern "C-unwind" fn __kmpc_end_taskgroup(_place: Place, _thread: Thread) {
    GOMP_taskgroup_end();
}
