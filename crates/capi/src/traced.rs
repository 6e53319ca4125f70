//! Loads and stores that a traced run records one by one, for litmus programs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use hiroba_node::Runtime;

use crate::reporting::runtime_for;

/// Checks an access: 1, 2, 4 or 8 naturally aligned bytes of allocated shared memory. Ends the job with a
/// message otherwise.
fn checked(call: &str, shared: usize, bytes: usize) -> &'static Runtime {
    let runtime = runtime_for(call);
    if !matches!(bytes, 1 | 2 | 4 | 8)
        || !shared.is_multiple_of(bytes)
        || !runtime.is_allocated(shared, bytes)
    {
        runtime.fatal(&format!(
            "{call}: expected 1, 2, 4 or 8 naturally aligned bytes of allocated shared memory, got {bytes} at 0x{shared:x}"
        ));
    }
    runtime
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_traced_load(shared: *const c_void, bytes: usize) -> u64 {
    let runtime = checked("hiroba_traced_load", shared as usize, bytes);
    let address = shared.cast_mut();
    // Atomic, so that a race of the program is not undefined behaviour here; relaxed is a plain load on the
    // processor.
    let value = match bytes {
        // SAFETY: the address is aligned and in allocated shared memory, which exists while the job lasts; no
        // lock is held.
        1 => u64::from(unsafe { AtomicU8::from_ptr(address.cast()) }.load(Relaxed)),
        // SAFETY: as above.
        2 => u64::from(unsafe { AtomicU16::from_ptr(address.cast()) }.load(Relaxed)),
        // SAFETY: as above.
        4 => u64::from(unsafe { AtomicU32::from_ptr(address.cast()) }.load(Relaxed)),
        // SAFETY: as above.
        _ => unsafe { AtomicU64::from_ptr(address.cast()) }.load(Relaxed),
    };
    runtime.record_load(shared as usize, bytes as u8, value);
    value
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_traced_store(shared: *mut c_void, bytes: usize, value: u64) {
    let runtime = checked("hiroba_traced_store", shared as usize, bytes);
    let value = if bytes == 8 { value } else { value & ((1 << (8 * bytes)) - 1) };
    match bytes {
        // SAFETY: the address is aligned and in allocated shared memory, which exists while the job lasts; no
        // lock is held.
        1 => unsafe { AtomicU8::from_ptr(shared.cast()) }.store(value as u8, Relaxed),
        // SAFETY: as above.
        2 => unsafe { AtomicU16::from_ptr(shared.cast()) }.store(value as u16, Relaxed),
        // SAFETY: as above.
        4 => unsafe { AtomicU32::from_ptr(shared.cast()) }.store(value as u32, Relaxed),
        // SAFETY: as above.
        _ => unsafe { AtomicU64::from_ptr(shared.cast()) }.store(value, Relaxed),
    }
    runtime.record_store(shared as usize, bytes as u8, value);
}
