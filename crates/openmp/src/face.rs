//! What this library calls of `libhiroba_pthread.so` and `libhiroba.so`, which are loaded behind it.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicU32;

unsafe extern "C" {
    /// See `hiroba.h`.
    pub safe fn hiroba_node() -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_nodes() -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_barrier();
    /// See `hiroba.h`.
    pub safe fn hiroba_lock(id: c_uint);
    /// See `hiroba.h`.
    pub safe fn hiroba_trylock(id: c_uint) -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_unlock(id: c_uint);
    /// See `hiroba.h`.
    pub safe fn hiroba_cond_wait(cond: c_uint, lock: c_uint);
    /// See `hiroba.h`.
    pub safe fn hiroba_cond_broadcast(cond: c_uint);
    /// See `hiroba.h`.
    pub safe fn hiroba_aligned_alloc(align: usize, bytes: usize) -> *mut c_void;
    /// Memory that is shared as the program's own data are; see `executables.rs` of the C face.
    pub safe fn hiroba_alloc_for_program(bytes: usize, home: c_int) -> *mut c_void;
    /// Has pages travel with the departure from the next barrier; see `executables.rs` of the C face.
    pub fn hiroba_carry_along(pages: *const usize, count: usize);
    /// Has pages travel with this node's arrival at the next barrier; see there.
    pub fn hiroba_carry_up(pages: *const usize, count: usize);
    /// Waits on node 0 until the other nodes have come to the next barrier; see there.
    pub safe fn hiroba_await_others() -> c_int;
    /// Has bytes travel with this node's arrival at the next barrier, at most as many as below; see there.
    pub fn hiroba_contribute(bytes: *const u8, count: usize);
    /// See there.
    pub safe fn hiroba_contribution_bytes_max() -> usize;
    /// Notes that the calling thread waits; see `executables.rs` of the C face.
    pub safe fn hiroba_begin_wait(is_idle: c_int);
    /// Notes that this wait is over.
    pub safe fn hiroba_end_wait(is_idle: c_int);
    /// See `above.rs` of the face of pthreads, as of the following ones.
    pub safe fn hiroba_in_program() -> c_int;
}

unsafe extern "C-unwind" {
    /// Waits for all nodes, and on node 0 looks at what they have contributed; see `executables.rs` of the C
    /// face.
    pub fn hiroba_barrier_combining(visit: unsafe extern "C-unwind" fn(c_int, *const u8, usize));
    pub fn hiroba_take_updates(
        take: unsafe extern "C-unwind" fn(*const u64, usize, usize, usize) -> c_int,
        section_end: usize,
    );
    pub fn hiroba_leave_section(at: usize, general: *const [u64; 16]) -> usize;
    pub fn hiroba_execute_update(words: *const u64, count: usize);
    pub fn hiroba_privately(work: unsafe extern "C-unwind" fn(*mut c_void), argument: *mut c_void);
    pub safe fn hiroba_fence();
    pub safe fn hiroba_follows(at: usize, function: usize, region: usize) -> c_int;
    pub safe fn hiroba_note_team(runs: c_int);
    pub fn hiroba_lock_number(place: *const AtomicU32) -> u32;
    pub fn hiroba_start_worker(
        routine: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
        stack_bytes: usize,
    );
    pub fn hiroba_fatal(sentence: *const u8, bytes: usize) -> !;
    pub fn hiroba_say(sentence: *const u8, bytes: usize);
}
