//! Barriers, locks, condition variables, atomic words.

use std::ffi::{c_int, c_uint};

use hiroba_base::{CondId, LockId};
use hiroba_node::{Runtime, call_site};
use hiroba_wire::AtomicOperation;

use crate::call_sites::noting_caller;
use crate::reporting::runtime_for;

noting_caller! {
    hiroba_barrier(0) => barrier;
    hiroba_lock(1) => lock;
    hiroba_unlock(1) => unlock;
    hiroba_trylock(1) => trylock;
    hiroba_cond_wait(2) => cond_wait;
    hiroba_cond_signal(1) => cond_signal;
    hiroba_cond_broadcast(1) => cond_broadcast;
    hiroba_fetch_add(2) => fetch_add;
    hiroba_compare_exchange(3) => compare_exchange;
    hiroba_load(1) => load;
    hiroba_store(2) => store;
}

/// Returns the runtime, after recording that `call` comes from `site`.
fn called(call: &str, site: usize) -> &'static Runtime {
    call_site::note(site);
    runtime_for(call)
}

extern "C" fn barrier(site: usize) {
    called("hiroba_barrier", site).barrier();
}

extern "C" fn lock(id: c_uint, site: usize) {
    called("hiroba_lock", site).lock(LockId(id));
}

extern "C" fn unlock(id: c_uint, site: usize) {
    called("hiroba_unlock", site).unlock(LockId(id));
}

extern "C" fn trylock(id: c_uint, site: usize) -> c_int {
    if called("hiroba_trylock", site).try_lock(LockId(id)) { 0 } else { libc::EBUSY }
}

extern "C" fn cond_wait(cond: c_uint, lock: c_uint, site: usize) {
    called("hiroba_cond_wait", site).cond_wait(CondId(cond), LockId(lock));
}

extern "C" fn cond_signal(cond: c_uint, site: usize) {
    called("hiroba_cond_signal", site).cond_signal(CondId(cond));
}

extern "C" fn cond_broadcast(cond: c_uint, site: usize) {
    called("hiroba_cond_broadcast", site).cond_broadcast(CondId(cond));
}

extern "C" fn fetch_add(shared: *mut u64, delta: u64, site: usize) -> u64 {
    let call = "hiroba_fetch_add";
    called(call, site).atomic(call, shared as usize, AtomicOperation::FetchAdd(delta)).previous
}

/// # Safety
/// `expected` must point to a readable and writable value of the caller's.
unsafe extern "C" fn compare_exchange(
    shared: *mut u64,
    expected: *mut u64,
    desired: u64,
    site: usize,
) -> bool {
    let call = "hiroba_compare_exchange";
    // SAFETY: the caller passes a readable value. It may lie in shared memory, so it is read before any lock
    // is taken.
    let expected_value = unsafe { expected.read() };
    let operation = AtomicOperation::CompareExchange { expected: expected_value, desired };
    let outcome = called(call, site).atomic(call, shared as usize, operation);
    if !outcome.written {
        // SAFETY: the caller passes a writable value; no lock is held any more.
        unsafe { expected.write(outcome.previous) };
    }
    outcome.written
}

extern "C" fn load(shared: *const u64, site: usize) -> u64 {
    let call = "hiroba_load";
    called(call, site).atomic(call, shared as usize, AtomicOperation::Load).previous
}

extern "C" fn store(shared: *mut u64, value: u64, site: usize) {
    let call = "hiroba_store";
    called(call, site).atomic(call, shared as usize, AtomicOperation::Store(value));
}
