//! Reductions over tasks: each thread of the team has private copies of the variables, which the thread that
//! asked for them combines at the end.
//!
//! A list of variables is an array of words that the compiler makes: how many variables, how many bytes the
//! copies of one thread take, their alignment (then the address of all copies), an allocator, the next list
//! (then the one registered before), a word that marks the newest list, the end of the copies; then, for each
//! variable, its address, the offset of its copy, and a word for the library.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::context::{self, Context};
use crate::memory;
use crate::records::Group;
use crate::runtime;

/// The words of a list.
mod word {
    pub(super) const COUNT: usize = 0;
    pub(super) const BYTES: usize = 1;
    pub(super) const COPIES: usize = 2;
    pub(super) const NEXT: usize = 4;
    pub(super) const MARK: usize = 5;
    pub(super) const END: usize = 6;
    pub(super) const VARIABLES: usize = 7;
    pub(super) const PER_VARIABLE: usize = 3;
}

/// A list of variables.
#[derive(Clone, Copy)]
struct List(*mut usize);

impl List {
    fn get(self, place: usize) -> usize {
        // SAFETY: lists are as the compiler makes them, and stay while they are registered.
        unsafe { self.0.wrapping_add(place).read() }
    }

    fn set(self, place: usize, value: usize) {
        // SAFETY: as above.
        unsafe { self.0.wrapping_add(place).write(value) };
    }

    fn next(self) -> Option<List> {
        let next = ptr::with_exposed_provenance_mut::<usize>(self.get(word::NEXT));
        (!next.is_null()).then_some(List(next))
    }

    /// The offset of the copy of the variable at an address.
    fn offset_of(self, address: usize) -> Option<usize> {
        let place = |variable| word::VARIABLES + word::PER_VARIABLE * variable;
        let mut variables = (0..self.get(word::COUNT)).map(place);
        variables.find(|place| self.get(*place) == address).map(|place| self.get(place + 1))
    }

    /// The address of the variable whose copy has an offset.
    fn variable_at(self, offset: usize) -> Option<usize> {
        let place = |variable| word::VARIABLES + word::PER_VARIABLE * variable;
        let mut variables = (0..self.get(word::COUNT)).map(place);
        variables.find(|place| self.get(place + 1) == offset).map(|place| self.get(place))
    }
}

/// Registers lists for a team of `threads` threads; they share the copies of `first`, if another thread has
/// made some.
pub(crate) fn register(list: *mut usize, before: *mut usize, first: Option<*mut usize>, threads: usize) {
    let mut list = List(list);
    let mut first = first.map(List);
    list.set(word::MARK, 1);
    loop {
        match first {
            Some(theirs) => {
                list.set(word::COPIES, theirs.get(word::COPIES));
                list.set(word::END, theirs.get(word::END));
                first = theirs.next();
            }
            None => {
                let bytes = list.get(word::BYTES) * threads;
                let copies = memory::shared_zeroed(list.get(word::COPIES), bytes).expose_provenance();
                list.set(word::COPIES, copies);
                list.set(word::END, copies + bytes);
            }
        }
        match list.next() {
            Some(next) => list = next,
            None => break,
        }
        list.set(word::MARK, 0);
    }
    list.set(word::NEXT, before.expose_provenance());
}

pub(crate) fn group(context: &Context) -> &Group {
    // SAFETY: the group stays until the calling thread's task has left it.
    unsafe { context.running.get().group.as_ref() }
        .unwrap_or_else(|| runtime::fatal("OpenMP: expected reductions over tasks inside a group of tasks"))
}

/// Registers reductions of the group that the calling thread's task is in.
///
/// # Safety
/// `list` is as compilers pass it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn GOMP_taskgroup_reduction_register(list: *mut usize) {
    let context = context::current();
    let group = group(context);
    register(list, group.reductions.load(Acquire), None, context.threads.get() as usize);
    group.reductions.store(list, Release);
}

/// Frees the copies of reductions that were registered together.
///
/// # Safety
/// `list` was registered, and its tasks are done.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn GOMP_taskgroup_reduction_unregister(list: *mut usize) {
    let mut list = Some(List(list));
    while let Some(one) = list {
        // SAFETY: `register` allocated it.
        unsafe { memory::free_shared(ptr::with_exposed_provenance_mut(one.get(word::COPIES))) };
        list = one.next().filter(|next| next.get(word::MARK) == 0);
    }
}

/// Turns addresses of variables, or of copies of them, into those of the calling thread's copies; the first
/// `originals` of the variables themselves go behind all.
///
/// # Safety
/// `places` has `count + originals` words.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_task_reduction_remap(count: usize, originals: usize, places: *mut usize) {
    let context = context::current();
    let thread = context.number.get() as usize;
    let newest = group(context).reductions.load(Acquire);
    for number in 0..count {
        let place = places.wrapping_add(number);
        // SAFETY: the caller's.
        let address = unsafe { place.read() };
        let mut list = (!newest.is_null()).then_some(List(newest));
        let found = loop {
            let Some(one) = list else {
                runtime::fatal(&format!(
                    "OpenMP: expected a variable that tasks reduce at {address:#x}, got none"
                ));
            };
            let copies = one.get(word::COPIES)..one.get(word::END);
            if let Some(offset) = one.offset_of(address) {
                break (one, offset, address);
            }
            if copies.contains(&address) {
                let offset = (address - copies.start) % one.get(word::BYTES);
                break (one, offset, one.variable_at(offset).unwrap_or(address));
            }
            list = one.next();
        };
        let (list, offset, variable) = found;
        // SAFETY: the caller's.
        unsafe { place.write(list.get(word::COPIES) + thread * list.get(word::BYTES) + offset) };
        if number < originals {
            // SAFETY: the caller's.
            unsafe { places.wrapping_add(count + number).write(variable) };
        }
    }
}
