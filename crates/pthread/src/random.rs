//! `rand`, `drand48` and related functions: one sequence for the threads of all nodes, as in one process. The
//! C library computes it, on a state in shared memory.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::control::{RANDOM, control};
use crate::face;
use crate::next::next;
use crate::stacks::in_program;

unsafe extern "C" {
    fn initstate_r(seed: c_uint, state: *mut c_char, bytes: usize, data: *mut c_void) -> c_int;
    fn srandom_r(seed: c_uint, data: *mut c_void) -> c_int;
    fn random_r(data: *mut c_void, result: *mut i32) -> c_int;
    fn srand48_r(seed: c_long, data: *mut c_void) -> c_int;
    fn drand48_r(data: *mut c_void, result: *mut f64) -> c_int;
    fn lrand48_r(data: *mut c_void, result: *mut c_long) -> c_int;
    fn mrand48_r(data: *mut c_void, result: *mut c_long) -> c_int;
}

/// Returns the `struct random_data` in shared memory.
fn data() -> *mut c_void {
    (&raw const control().random.data).cast_mut().cast()
}

/// Returns the `struct drand48_data` in shared memory.
fn data_48() -> *mut c_void {
    (&raw const control().random.of_48_bits).cast_mut().cast()
}

/// Prepares the state as in a new process. Called on node 0.
pub(crate) fn begin() {
    if face::hiroba_node() != 0 {
        return;
    }
    let words = &control().random.words;
    let room: *mut c_char = words.as_ptr().cast_mut().cast();
    // SAFETY: the state has this length, and no other thread uses it yet; the data are zeros, as required.
    unsafe { initstate_r(1, room, size_of_val(words), data()) };
}

fn next_random() -> i32 {
    let mut result = 0;
    // SAFETY: the state is prepared; the monitor excludes other threads.
    RANDOM.hold(|_| unsafe { random_r(data(), &raw mut result) });
    result
}

/// rand(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rand() -> c_int {
    if in_program() {
        return next_random();
    }
    // SAFETY: it has no arguments.
    unsafe { next!(fn rand() -> c_int)() }
}

/// random(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn random() -> c_long {
    if in_program() {
        return c_long::from(next_random());
    }
    // SAFETY: it has no arguments.
    unsafe { next!(fn random() -> c_long)() }
}

fn seed(seed: c_uint) {
    // SAFETY: as in `next_random`.
    RANDOM.hold(|_| unsafe { srandom_r(seed, data()) });
}

/// srand(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn srand(number: c_uint) {
    if in_program() {
        return seed(number);
    }
    // SAFETY: any number may be passed.
    unsafe { next!(fn srand(c_uint) -> ())(number) }
}

/// srandom(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn srandom(number: c_uint) {
    if in_program() {
        return seed(number);
    }
    // SAFETY: any number may be passed.
    unsafe { next!(fn srandom(c_uint) -> ())(number) }
}

/// srand48(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn srand48(number: c_long) {
    if !in_program() {
        // SAFETY: any number may be passed.
        return unsafe { next!(fn srand48(c_long) -> ())(number) };
    }
    // SAFETY: as in `next_random`.
    RANDOM.hold(|_| unsafe { srand48_r(number, data_48()) });
}

/// Defines functions that draw from the state of 48 bits.
macro_rules! of_48_bits {
    ($($name:ident by $reentrant:ident -> $result:ty;)*) => { $(
        /// See drand48(3).
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name() -> $result {
            if !in_program() {
                // SAFETY: it has no arguments.
                return unsafe { next!(fn $name() -> $result)() };
            }
            let mut result = <$result>::default();
            // SAFETY: as in `next_random`; zeros are the state of a new process.
            RANDOM.hold(|_| unsafe { $reentrant(data_48(), &raw mut result) });
            result
        }
    )* };
}

of_48_bits! {
    drand48 by drand48_r -> f64;
    lrand48 by lrand48_r -> c_long;
    mrand48 by mrand48_r -> c_long;
}
