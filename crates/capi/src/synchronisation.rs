//! Barriers, locks, condition variables, atomic words.

use std::ffi::{c_int, c_uint};

use hiroba_base::{CondId, LockId};
use hiroba_wire::AtomicOperation;

use crate::reporting::runtime_for;

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_barrier() {
    runtime_for("hiroba_barrier").barrier();
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_lock(id: c_uint) {
    runtime_for("hiroba_lock").lock(LockId(id));
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_unlock(id: c_uint) {
    runtime_for("hiroba_unlock").unlock(LockId(id));
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_trylock(id: c_uint) -> c_int {
    if runtime_for("hiroba_trylock").try_lock(LockId(id)) { 0 } else { libc::EBUSY }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_cond_wait(cond: c_uint, lock: c_uint) {
    runtime_for("hiroba_cond_wait").cond_wait(CondId(cond), LockId(lock));
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_cond_signal(cond: c_uint) {
    runtime_for("hiroba_cond_signal").cond_signal(CondId(cond));
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_cond_broadcast(cond: c_uint) {
    runtime_for("hiroba_cond_broadcast").cond_broadcast(CondId(cond));
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_fetch_add(shared: *mut u64, delta: u64) -> u64 {
    let call = "hiroba_fetch_add";
    runtime_for(call).atomic(call, shared as usize, AtomicOperation::FetchAdd(delta)).previous
}

/// See `hiroba.h`.
///
/// # Safety
/// `expected` must point to a readable and writable value of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_compare_exchange(shared: *mut u64, expected: *mut u64, desired: u64) -> bool {
    let call = "hiroba_compare_exchange";
    // SAFETY: the caller passes a readable value. It may lie in shared memory, so it is read before any lock is taken.
    let expected_value = unsafe { expected.read() };
    let operation = AtomicOperation::CompareExchange { expected: expected_value, desired };
    let outcome = runtime_for(call).atomic(call, shared as usize, operation);
    if !outcome.written {
        // SAFETY: the caller passes a writable value; no lock is held any more.
        unsafe { expected.write(outcome.previous) };
    }
    outcome.written
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_load(shared: *const u64) -> u64 {
    let call = "hiroba_load";
    runtime_for(call).atomic(call, shared as usize, AtomicOperation::Load).previous
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_store(shared: *mut u64, value: u64) {
    let call = "hiroba_store";
    runtime_for(call).atomic(call, shared as usize, AtomicOperation::Store(value));
}
