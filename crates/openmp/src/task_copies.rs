//! Copies of variables that tasks reduce, in programs for LLVM's library. Each thread that runs a task with a
//! variable of the list gets a copy of it when it asks for one first; the thread that ends the group combines
//! the copies.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use crate::memory;

pub(crate) type Initialise = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);
pub(crate) type Finish = unsafe extern "C-unwind" fn(*mut c_void);
pub(crate) type Combine = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// A variable as compilers list it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Variable {
    pub(crate) shared: *mut c_void,
    /// What a copy is initialised from; NULL for the variable itself.
    pub(crate) original: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) initialise: Option<Initialise>,
    pub(crate) finish: Option<Finish>,
    pub(crate) combine: Option<Combine>,
    pub(crate) flags: u32,
}

/// What the groups of a reduction have in common: variables, and a word for each thread's copy of each.
#[repr(C)]
pub(crate) struct Copies {
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
    pub(crate) unsafe fn make(
        count: usize,
        variables: *const Variable,
        threads: u32,
        groups: u32,
    ) -> *mut Copies {
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
        // SAFETY: `make` has copied that many; they stay until all groups have ended.
        unsafe { &*self.variables.wrapping_add(number as usize) }
    }

    fn place(&self, variable: u32, thread: u32) -> &AtomicPtr<c_void> {
        // SAFETY: as above; there is a place for each thread.
        unsafe { &*self.places.wrapping_add((variable * self.threads + thread) as usize) }
    }

    /// The calling thread's copy of a variable, made if there is none. Only the thread itself makes it: what
    /// it is initialised by may look at variables of the thread.
    pub(crate) fn copy(&self, number: u32, thread: u32) -> *mut c_void {
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
    pub(crate) fn make(
        copies: *mut Copies,
        count: usize,
        shared: impl Fn(usize) -> *mut c_void,
    ) -> *mut List {
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

    pub(crate) fn copies(&self) -> &Copies {
        // SAFETY: copies stay until all groups that refer to them have ended.
        unsafe { &*self.copies }
    }

    fn shared(&self, number: u32) -> *mut c_void {
        // SAFETY: `make` has written one for each variable.
        unsafe { self.shared.wrapping_add(number as usize).read() }
    }

    /// The variable that an address is of: its own, or that of a copy.
    pub(crate) fn find(&self, address: *mut c_void) -> Option<u32> {
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

/// The tasks of a group with this list are done: combines the copies, if it is the last group that refers to
/// them.
pub(crate) fn finish(list: &AtomicPtr<List>) {
    let place = list.swap(ptr::null_mut(), AcqRel);
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
