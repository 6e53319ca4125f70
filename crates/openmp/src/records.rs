//! Records of tasks, families and groups in shared memory, and the queue.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

use crate::memory;
use crate::runtime::Held;
use crate::task_copies::List;
use crate::work::Function;

/// What the calling thread runs, as a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    /// Of the tasks that it has created and put off; NULL before the first.
    pub(crate) family: *mut Family,
    pub(crate) group: *mut Group,
    pub(crate) is_final: bool,
    pub(crate) is_explicit: bool,
    /// How many tasks it lies in.
    pub(crate) depth: u32,
}

impl Default for Running {
    fn default() -> Running {
        Running {
            family: ptr::null_mut(),
            group: ptr::null_mut(),
            is_final: false,
            is_explicit: false,
            depth: 0,
        }
    }
}

/// The children of a task that were put off.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Family {
    /// How many are not done.
    pub(crate) children: AtomicU32,
    /// How many refer to this record: the parent while it runs, and children.
    holders: AtomicU32,
    pub(crate) table: Table,
}

pub(crate) const BUCKETS: usize = 32;

/// What children of a family that are not done depend on, by address.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) buckets: [AtomicPtr<Entry>; BUCKETS],
    /// How many entries stand for all of memory.
    pub(crate) of_all: AtomicU32,
}

/// A task's dependence on an address.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) address: AtomicU64,
    pub(crate) kind: AtomicU32,
    pub(crate) task: AtomicPtr<Task>,
    pub(crate) next_in_bucket: AtomicPtr<Entry>,
    pub(crate) next_of_task: AtomicPtr<Entry>,
}

/// A task waits for another one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) follower: AtomicPtr<Task>,
    pub(crate) next: AtomicPtr<Edge>,
}

/// Makes a family for a task that creates its first child.
pub(crate) fn new_family() -> *mut Family {
    let family = memory::shared_zeroed(align_of::<Family>(), size_of::<Family>()).cast::<Family>();
    // SAFETY: zeros are valid, and no other thread knows it yet.
    unsafe { &*family }.holders.store(1, Release);
    family
}

/// One refers to the family no more. Under the lock.
pub(crate) fn release(family: *mut Family) {
    // SAFETY: it stays while anybody refers to it.
    if unsafe { &*family }.holders.fetch_sub(1, AcqRel) == 1 {
        // SAFETY: made by `new_family`, and nothing refers to it any more.
        unsafe { memory::free_shared(family.cast()) };
    }
}

/// Tasks that a thread waits for, with those that they create.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Group {
    /// How many are not done.
    pub(crate) tasks: AtomicU32,
    cancelled: AtomicU32,
    /// Reductions of these tasks: the newest list.
    pub(crate) reductions: AtomicPtr<usize>,
    /// The same in programs for LLVM's library.
    pub(crate) list: AtomicPtr<List>,
    /// The group around this one.
    pub(crate) outer: AtomicPtr<Group>,
}

impl Group {
    /// An empty group.
    pub(crate) fn make(outer: *mut Group) -> *mut Group {
        let group = memory::shared_zeroed(align_of::<Group>(), size_of::<Group>()).cast::<Group>();
        // SAFETY: zeros are valid, and no other thread knows it yet.
        let new = unsafe { &*group };
        // SAFETY: an outer group stays until inner ones have ended.
        let reductions =
            unsafe { outer.as_ref() }.map_or(ptr::null_mut(), |outer| outer.reductions.load(Acquire));
        new.reductions.store(reductions, Release);
        new.outer.store(outer, Release);
        group
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire) != 0
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(1, Release);
    }
}

/// A task that was put off.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Task {
    function: AtomicU64,
    data: AtomicPtr<c_void>,
    pub(crate) family: AtomicPtr<Family>,
    pub(crate) group: AtomicPtr<Group>,
    pub(crate) is_final: AtomicU32,
    pub(crate) depth: AtomicU32,
    /// How many tasks must be done before it.
    pub(crate) waits_for: AtomicU32,
    /// Tasks that wait for this one.
    pub(crate) followers: AtomicPtr<Edge>,
    /// What it has in its family's table of dependences.
    pub(crate) entries: AtomicPtr<Entry>,
    next: AtomicPtr<Task>,
    /// Bits: an event must be fulfilled before the task is done, it is fulfilled, the task's code has run.
    event: AtomicU32,
}

const HAS_EVENT: u32 = 1;
const FULFILLED: u32 = 2;
const HAS_RUN: u32 = 4;

impl Task {
    /// Makes a record with room for `bytes` bytes of data, at whose place `fill` is called.
    pub(crate) fn make(
        function: Function,
        bytes: usize,
        align: usize,
        fill: impl FnOnce(*mut c_void),
    ) -> &'static Task {
        let align = align.max(align_of::<Task>());
        let offset = size_of::<Task>().next_multiple_of(align);
        let block = memory::shared_zeroed(align, offset + bytes);
        let data = block.wrapping_byte_add(offset);
        fill(data);
        // SAFETY: zeros are valid, and the record stays until `free`.
        let task = unsafe { &*block.cast::<Task>() };
        task.function.store(function as usize as u64, Relaxed);
        task.data.store(data, Relaxed);
        task
    }

    /// The record whose data lie at a place.
    ///
    /// # Safety
    /// [`Task::make`] has made it, with this alignment of the data, and it stays.
    pub(crate) unsafe fn of_data<'a>(data: *mut c_void, align: usize) -> &'a Task {
        let offset = size_of::<Task>().next_multiple_of(align.max(align_of::<Task>()));
        // SAFETY: the caller's.
        unsafe { &*data.wrapping_byte_sub(offset).cast::<Task>() }
    }

    /// The task becomes a child of this family, in this group. Under the lock.
    pub(crate) fn join(&self, family: *mut Family, group: *mut Group) {
        self.family.store(family, Relaxed);
        self.group.store(group, Relaxed);
        // SAFETY: the caller's task refers to it.
        let family = unsafe { &*family };
        family.children.fetch_add(1, AcqRel);
        family.holders.fetch_add(1, AcqRel);
        // SAFETY: the caller is in the group.
        if let Some(group) = unsafe { group.as_ref() } {
            group.tasks.fetch_add(1, AcqRel);
        }
    }

    pub(crate) fn call(&self) {
        let function = self.function.load(Relaxed) as usize;
        // SAFETY: `make` got a function of this type.
        let function = unsafe { std::mem::transmute::<usize, Function>(function) };
        // SAFETY: the program's code with its data.
        unsafe { function(self.data.load(Relaxed)) };
    }

    /// The task also needs its event to be fulfilled before it is done.
    pub(crate) fn has_event(&self) {
        self.event.store(HAS_EVENT, Relaxed);
    }

    /// Notes that its code has run. Returns true if it must wait for its event. Called under the lock.
    pub(crate) fn awaits_event(&self) -> bool {
        self.event.fetch_or(HAS_RUN, AcqRel) & (HAS_EVENT | FULFILLED) == HAS_EVENT
    }

    /// Notes that its event is fulfilled. Returns true if it is done now. Called under the lock.
    pub(crate) fn fulfil(&self) -> bool {
        self.event.fetch_or(FULFILLED, AcqRel) & HAS_RUN != 0
    }

    /// Gives the record back.
    pub(crate) fn free(&self) {
        // SAFETY: made by `make`, and done.
        unsafe { memory::free_shared(ptr::from_ref(self).cast_mut().cast()) };
    }
}

/// The tasks of the team that can run. Changes under the team's lock.
#[repr(C, align(4096))]
pub(crate) struct Queue {
    first: AtomicPtr<Task>,
    last: AtomicPtr<Task>,
    pub(crate) queued: AtomicU32,
    /// How many tasks are not done, in the queue or not.
    pub(crate) pending: AtomicU32,
    /// How many threads wait for something to change.
    sleepers: AtomicU32,
}

impl Queue {
    pub(crate) fn put(&self, task: &'static Task) {
        let place = ptr::from_ref(task).cast_mut();
        task.next.store(ptr::null_mut(), Relaxed);
        // SAFETY: tasks in the queue have not run.
        match unsafe { self.last.load(Relaxed).as_ref() } {
            Some(last) => last.next.store(place, Relaxed),
            None => self.first.store(place, Relaxed),
        }
        self.last.store(place, Relaxed);
        self.queued.fetch_add(1, AcqRel);
    }

    /// Takes the first task that `takes` agrees to.
    pub(crate) fn take(&self, takes: &impl Fn(&Task) -> bool) -> Option<&'static Task> {
        let mut before: Option<&'static Task> = None;
        let mut link = self.first.load(Relaxed);
        // SAFETY: tasks in the queue have not run.
        while let Some(task) = unsafe { link.as_ref::<'static>() } {
            let next = task.next.load(Relaxed);
            if takes(task) {
                match before {
                    Some(before) => before.next.store(next, Relaxed),
                    None => self.first.store(next, Relaxed),
                }
                if next.is_null() {
                    let last = before.map_or(ptr::null_mut(), |before| ptr::from_ref(before).cast_mut());
                    self.last.store(last, Relaxed);
                }
                self.queued.fetch_sub(1, AcqRel);
                return Some(task);
            }
            before = Some(task);
            link = next;
        }
        None
    }

    /// Waits for something to change.
    pub(crate) fn sleep(&self, held: Held) {
        self.sleepers.fetch_add(1, AcqRel);
        held.wait();
        self.sleepers.fetch_sub(1, AcqRel);
    }

    /// Wakes the threads that wait for a change.
    pub(crate) fn tell(&self, held: Held) {
        if self.sleepers.load(Acquire) > 0 {
            held.tell_all();
        }
    }
}
