//! `target`: there are no devices, so that its code runs in the calling thread, on the program's own data.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::context::{self, Context};
use crate::memory;
use crate::tasks;
use crate::work::Function;

/// A variable of which the code gets a copy (`GOMP_MAP_FIRSTPRIVATE`), in the lower byte of a kind; the upper
/// one has the alignment's exponent.
const FIRST_PRIVATE: u16 = 12;

/// Copies variables that the code gets copies of, and calls `work` with the list of addresses.
///
/// # Safety
/// The three lists have `count` elements, as compilers pass them.
unsafe fn with_copies(
    count: usize,
    addresses: *const *mut c_void,
    bytes: *const usize,
    kinds: *const u16,
    work: impl FnOnce(*mut c_void),
) {
    // The code may pass the list on to threads of other nodes.
    let list = memory::shared_zeroed(align_of::<*mut c_void>(), count * size_of::<*mut c_void>());
    let mut copies = Vec::new();
    for number in 0..count {
        // SAFETY: the caller's.
        let mut address = unsafe { addresses.wrapping_add(number).read() };
        // SAFETY: the caller's.
        let kind = unsafe { kinds.wrapping_add(number).read() };
        if kind & 0xff == FIRST_PRIVATE {
            // SAFETY: the caller's.
            let bytes = unsafe { bytes.wrapping_add(number).read() };
            let copy = memory::shared_zeroed(1 << (kind >> 8), bytes);
            // SAFETY: the variable is as long, and the copy is new.
            unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast(), bytes) };
            copies.push(copy);
            address = copy;
        }
        // SAFETY: the list has room for all.
        unsafe { list.cast::<*mut c_void>().wrapping_add(number).write(address) };
    }
    work(list);
    for block in copies.into_iter().chain([list]) {
        // SAFETY: allocated above, and the code has run.
        unsafe { memory::free_shared(block) };
    }
}

/// How a list of arguments says what it is about.
const ARGUMENT_HAS_VALUE_BEHIND: usize = 1 << 7;
const ARGUMENT_MASK: usize = 0xff << 8;
const ARGUMENT_THREAD_LIMIT: usize = 2 << 8;
const ARGUMENT_VALUE_SHIFT: u32 = 16;

/// The most threads that the code of `target` may use, if a list of arguments says so.
///
/// # Safety
/// NULL, or a list as compilers pass it, which ends with NULL.
unsafe fn thread_limit(mut arguments: *const *const c_void) -> Option<u32> {
    if arguments.is_null() {
        return None;
    }
    let mut limit = None;
    loop {
        // SAFETY: the caller's.
        let argument = unsafe { arguments.read() }.addr();
        if argument == 0 {
            return limit;
        }
        arguments = arguments.wrapping_add(1);
        let mut value = argument >> ARGUMENT_VALUE_SHIFT;
        if argument & ARGUMENT_HAS_VALUE_BEHIND != 0 {
            // SAFETY: the caller's.
            value = unsafe { arguments.read() }.addr();
            arguments = arguments.wrapping_add(1);
        }
        if argument & ARGUMENT_MASK == ARGUMENT_THREAD_LIMIT {
            limit = u32::try_from(value).ok().filter(|limit| *limit > 0);
        }
    }
}

/// Runs code as in a region of its own.
fn run_apart(thread_limit: Option<u32>, work: impl FnOnce()) {
    let outer = context::current();
    let context = Context::alone(outer.level.get(), outer.settings.get(), outer);
    if let Some(limit) = thread_limit {
        context.change(|settings| settings.thread_limit = settings.thread_limit.min(limit));
    }
    context.active_level.set(outer.active_level.get());
    context::run_in(&context, work);
}

/// Runs the code of `target`.
///
/// # Safety
/// `function` may be called with the list, and all lists are as compilers pass them.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_target_ext(
    _device: c_int,
    function: Function,
    count: usize,
    addresses: *const *mut c_void,
    bytes: *const usize,
    kinds: *const u16,
    _flags: c_uint,
    depend: *const *const c_void,
    arguments: *const *const c_void,
) {
    // SAFETY: the caller's.
    unsafe { wait_for(depend) };
    // SAFETY: the caller's.
    let limit = unsafe { thread_limit(arguments) };
    let work = |list| {
        // SAFETY: the caller's.
        run_apart(limit, || unsafe { function(list) });
    };
    // SAFETY: the caller's.
    unsafe { with_copies(count, addresses, bytes, kinds, work) };
}

/// Runs the code of `target` as older compilers call it.
///
/// # Safety
/// `function` may be called with the list.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_target(
    _device: c_int,
    function: Function,
    _unused: *const c_void,
    _count: usize,
    addresses: *mut *mut c_void,
    _bytes: *const usize,
    _kinds: *const u8,
) {
    // SAFETY: the caller's.
    run_apart(None, || unsafe { function(addresses.cast()) });
}

/// Waits for tasks that a list of dependences names, if there is one.
///
/// # Safety
/// The list is NULL or as compilers pass it.
unsafe fn wait_for(depend: *const *const c_void) {
    if !depend.is_null() {
        // SAFETY: the caller's.
        unsafe { tasks::GOMP_taskwait_depend(depend) };
    }
}

/// Moves no data, since there are no devices.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_target_data() {}

/// Moves no data, since there are no devices.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_target_data_ext() {}

/// Moves no data, since there are no devices.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_target_end_data() {}

/// Moves no data, since there are no devices.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_target_update() {}

/// Moves no data, since there are no devices, but waits for what it depends on.
///
/// # Safety
/// The last list is NULL or as compilers pass it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_target_update_ext(
    _device: c_int,
    _count: usize,
    _addresses: *const *mut c_void,
    _bytes: *const usize,
    _kinds: *const u16,
    _flags: c_uint,
    depend: *const *const c_void,
) {
    // SAFETY: the caller's.
    unsafe { wait_for(depend) };
}

/// Moves no data, since there are no devices, but waits for what it depends on.
///
/// # Safety
/// The last list is NULL or as compilers pass it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_target_enter_exit_data(
    _device: c_int,
    _count: usize,
    _addresses: *const *mut c_void,
    _bytes: *const usize,
    _kinds: *const u16,
    _flags: c_uint,
    depend: *const *const c_void,
) {
    // SAFETY: the caller's.
    unsafe { wait_for(depend) };
}

/// Code for devices is not looked at, since there are none.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_offload_register() {}

/// Code for devices is not looked at, since there are none.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_offload_register_ver() {}

/// Code for devices is not looked at, since there are none.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_offload_unregister() {}

/// Code for devices is not looked at, since there are none.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_offload_unregister_ver() {}

/// Memory of a device, which is the host.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_target_alloc(bytes: usize, _device: c_int) -> *mut c_void {
    // SAFETY: any length may be asked for.
    unsafe { libc::malloc(bytes) }
}

/// Gives such memory back.
///
/// # Safety
/// It was given by `omp_target_alloc`, or is NULL.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_target_free(block: *mut c_void, _device: c_int) {
    // SAFETY: the caller's.
    unsafe { libc::free(block) };
}

/// Returns true if the device, which is the host, has a variable.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_target_is_present(_address: *const c_void, _device: c_int) -> c_int {
    1
}

/// Copies between devices, which are all the host.
///
/// # Safety
/// Both places are as long as the offsets and the length say.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_target_memcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_offset: usize,
    from_offset: usize,
    _to_device: c_int,
    _from_device: c_int,
) -> c_int {
    let (to, from) = (to.wrapping_byte_add(to_offset), from.wrapping_byte_add(from_offset));
    // SAFETY: the caller's.
    unsafe { ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
    0
}

/// Part of an array of several dimensions, as `omp_target_memcpy_rect` is given it.
#[derive(Clone, Copy)]
struct Rectangle {
    volume: *const usize,
    to_offsets: *const usize,
    from_offsets: *const usize,
    to_dimensions: *const usize,
    from_dimensions: *const usize,
}

impl Rectangle {
    /// Copies it.
    ///
    /// # Safety
    /// Each list has a number for each of the `dimensions`, and the places are as long as these say.
    unsafe fn copy(self, to: *mut u8, from: *const u8, element_bytes: usize, dimensions: usize) {
        // SAFETY: the caller's.
        let at = |list: *const usize, place: usize| unsafe { list.wrapping_add(place).read() };
        let rest = |list: *const usize| -> usize { (1..dimensions).map(|place| at(list, place)).product() };
        let (to_bytes, from_bytes) =
            (rest(self.to_dimensions) * element_bytes, rest(self.from_dimensions) * element_bytes);
        let to = to.wrapping_add(at(self.to_offsets, 0) * to_bytes);
        let from = from.wrapping_add(at(self.from_offsets, 0) * from_bytes);
        let count = at(self.volume, 0);
        if dimensions == 1 {
            // SAFETY: the caller's.
            return unsafe { ptr::copy(from, to, count * element_bytes) };
        }
        let next = |list: *const usize| list.wrapping_add(1);
        let inner = Rectangle {
            volume: next(self.volume),
            to_offsets: next(self.to_offsets),
            from_offsets: next(self.from_offsets),
            to_dimensions: next(self.to_dimensions),
            from_dimensions: next(self.from_dimensions),
        };
        for number in 0..count {
            let (to, from) = (to.wrapping_add(number * to_bytes), from.wrapping_add(number * from_bytes));
            // SAFETY: the caller's.
            unsafe { inner.copy(to, from, element_bytes, dimensions - 1) };
        }
    }
}

/// Copies part of an array between devices, which are all the host.
///
/// # Safety
/// Each list has a number for each dimension, and the places are as long as these say.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_target_memcpy_rect(
    to: *mut c_void,
    from: *const c_void,
    element_bytes: usize,
    dimensions: c_int,
    volume: *const usize,
    to_offsets: *const usize,
    from_offsets: *const usize,
    to_dimensions: *const usize,
    from_dimensions: *const usize,
    _to_device: c_int,
    _from_device: c_int,
) -> c_int {
    if to.is_null() && from.is_null() {
        return c_int::MAX;
    }
    if dimensions < 1 {
        return libc::EINVAL;
    }
    let part = Rectangle { volume, to_offsets, from_offsets, to_dimensions, from_dimensions };
    // SAFETY: the caller's.
    unsafe { part.copy(to.cast(), from.cast(), element_bytes, dimensions as usize) };
    0
}

/// The host's variables cannot be others.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_target_associate_ptr(
    _host: *const c_void,
    _of_device: *const c_void,
    _bytes: usize,
    _offset: usize,
    _device: c_int,
) -> c_int {
    libc::EINVAL
}

/// The host's variables cannot be others.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_target_disassociate_ptr(_host: *const c_void, _device: c_int) -> c_int {
    libc::EINVAL
}
