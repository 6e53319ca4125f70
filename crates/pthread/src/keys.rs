//! Thread-specific data: keys belong to the job, values to each thread.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use crate::control::{KEYS, KEYS_MAX, control};
use crate::next::next;
use crate::stacks::in_program;

#[derive(Clone, Copy)]
struct Value {
    /// The generation of the key when the value was set. A newly created key has no value.
    generation: u32,
    value: *mut c_void,
}

thread_local! {
    static VALUES: [Cell<Value>; KEYS_MAX] =
        const { [const { Cell::new(Value { generation: 0, value: ptr::null_mut() }) }; KEYS_MAX] };
}

/// The number of keys that the C library may have created before the job began. These numbers remain its own.
const FIRST_KEY: usize = 32;

/// pthread_key_create(3).
///
/// # Safety
/// As of pthread_key_create(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_key_create(place: *mut c_uint, destructor: usize) -> c_int {
    if !in_program() {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_key_create(*mut c_uint, usize) -> c_int)(place, destructor) };
    }
    let made = KEYS.hold(|_| {
        let is_free = |number: &usize| control().keys[*number].generation.load(Relaxed).is_multiple_of(2);
        let number = (FIRST_KEY..KEYS_MAX).find(is_free)?;
        let key = &control().keys[number];
        key.destructor.store(destructor as u64, Relaxed);
        key.generation.store(key.generation.load(Relaxed).wrapping_add(1), Relaxed);
        Some(number)
    });
    let Some(number) = made else { return libc::EAGAIN };
    // SAFETY: the caller passes a place for the key.
    unsafe { place.write(number as c_uint) };
    0
}

/// Returns the key's generation, if it exists.
fn generation(key: c_uint) -> Option<u32> {
    let key = control().keys.get(key as usize)?;
    Some(key.generation.load(Relaxed)).filter(|generation| generation % 2 == 1)
}

/// Returns true if the C library has made the key, before the program began.
fn is_early(key: c_uint) -> bool {
    (key as usize) < FIRST_KEY
}

/// pthread_key_delete(3).
///
/// # Safety
/// As of pthread_key_delete(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_key_delete(key: c_uint) -> c_int {
    if !in_program() || is_early(key) {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_key_delete(c_uint) -> c_int)(key) };
    }
    KEYS.hold(|_| {
        let Some(old) = generation(key) else { return libc::EINVAL };
        control().keys[key as usize].generation.store(old.wrapping_add(1), Relaxed);
        0
    })
}

/// pthread_setspecific(3).
///
/// # Safety
/// As of pthread_setspecific(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_setspecific(key: c_uint, value: *mut c_void) -> c_int {
    if !in_program() || is_early(key) {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_setspecific(c_uint, *mut c_void) -> c_int)(key, value) };
    }
    let Some(generation) = generation(key) else { return libc::EINVAL };
    VALUES.with(|values| values[key as usize].set(Value { generation, value }));
    0
}

/// pthread_getspecific(3).
///
/// # Safety
/// As of pthread_getspecific(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pthread_getspecific(key: c_uint) -> *mut c_void {
    if !in_program() || is_early(key) {
        // SAFETY: the caller's.
        return unsafe { next!(fn pthread_getspecific(c_uint) -> *mut c_void)(key) };
    }
    let Some(now) = generation(key) else { return ptr::null_mut() };
    let Value { generation, value } = VALUES.with(|values| values[key as usize].get());
    if generation == now { value } else { ptr::null_mut() }
}

/// The maximum number of rounds in which destructors that set values again are called
/// (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: usize = 4;

/// Calls the destructors of the calling thread's values, at its end.
pub(crate) fn drop_values() {
    for _ in 0..ROUNDS {
        let mut is_done = true;
        for number in FIRST_KEY..KEYS_MAX {
            let old =
                VALUES.with(|values| values[number].replace(Value { generation: 0, value: ptr::null_mut() }));
            if old.value.is_null() || generation(number as c_uint) != Some(old.generation) {
                continue;
            }
            let destructor = control().keys[number].destructor.load(Relaxed) as usize;
            if destructor != 0 {
                is_done = false;
                type Destructor = unsafe extern "C-unwind" fn(*mut c_void);
                // SAFETY: `pthread_key_create` got a function of this type.
                let destructor = unsafe { std::mem::transmute::<usize, Destructor>(destructor) };
                // SAFETY: the program has registered it for the key's values.
                unsafe { destructor(old.value) };
            }
        }
        if is_done {
            break;
        }
    }
}
