//! The functions of `libhiroba.so` that this library calls. That library is loaded after this one.

use std::ffi::{c_int, c_uint, c_void};

/// A part of a program's data; see `executables.rs` of the C face.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DataPart {
    pub(crate) bytes: usize,
    /// Not 0 if it has the protocol of the program's long blocks.
    pub(crate) is_long: c_int,
    /// The home of its pages, or less than 0 if each node is the home of a block of them.
    pub(crate) home: c_int,
}

unsafe extern "C" {
    /// See `hiroba.h`.
    pub safe fn hiroba_init(argc: *mut c_int, argv: *mut c_void) -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_error_string() -> *const std::ffi::c_char;
    /// See `hiroba.h`.
    pub safe fn hiroba_node() -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_nodes() -> c_int;
    /// See `hiroba.h`.
    pub safe fn hiroba_barrier();
    /// See `hiroba.h`.
    pub safe fn hiroba_aligned_alloc(align: usize, bytes: usize) -> *mut c_void;
    /// See `hiroba.h`.
    pub safe fn hiroba_malloc(bytes: usize) -> *mut c_void;
    /// See `hiroba.h`.
    pub safe fn hiroba_calloc(count: usize, bytes: usize) -> *mut c_void;
    /// See `hiroba.h`.
    pub fn hiroba_free(block: *mut c_void);
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
    /// Allocates memory that is shared like the program's own data; see `executables.rs` of the C face.
    pub safe fn hiroba_alloc_for_program(bytes: usize, home: c_int) -> *mut c_void;
    /// Makes shared pages private to this process; see there.
    pub safe fn hiroba_make_private(start: usize, bytes: usize) -> c_int;
    /// Allocates a long block; see there.
    pub safe fn hiroba_long_alloc(align: usize, bytes: usize, zero: c_int, for_all: c_int) -> *mut c_void;
    /// Returns the start of the memory for a node's long blocks, and its length, or 0; see there.
    pub safe fn hiroba_long_memory(node: c_int, bytes: *mut usize) -> usize;
    /// Orders this node's fetches of long blocks with the changes before them.
    pub safe fn hiroba_use_singly(start: usize, bytes: usize);
    pub safe fn hiroba_order_fetches();
    /// Returns whether pages of long blocks can be put under sequential consistency; see there.
    pub safe fn hiroba_converts_pages() -> c_int;
    /// Returns whether first stores to pages fault; see there.
    pub safe fn hiroba_stores_fault() -> c_int;
    /// Puts the page at an address under sequential consistency; see there.
    pub safe fn hiroba_convert_page(address: usize);
    /// Counts the program's atomic instructions that were replaced.
    pub safe fn hiroba_note_atomic_sites(sites: usize);
    /// Counts an atomic instruction that was made exclusive in the job.
    pub safe fn hiroba_count_atomic();
    /// Counts an exchange on behalf of a thread that waits for a plain store.
    pub safe fn hiroba_count_exchange();
    /// Counts an interrupt of a thread by its processor time.
    pub safe fn hiroba_count_interrupt();
    /// Returns whether this process is about to die; see there.
    pub safe fn hiroba_is_dying() -> c_int;
    /// Returns whether the calling thread is inside the runtime with a lock; see there.
    pub safe fn hiroba_is_inside() -> c_int;
    /// Sets a handler of this library for a signal that threads inside the runtime do not block; see there.
    pub fn hiroba_handle_anywhere(signal: c_int, action: *const libc::sigaction) -> c_int;
    /// Has the calling thread, which is inside the runtime, call a function when it leaves.
    pub safe fn hiroba_when_outside(act: extern "C" fn());
    /// Has threads inside the runtime block a signal from now on.
    pub safe fn hiroba_block_inside(signal: c_int);
    /// Takes a lock if that needs no more than an atomic instruction; see there.
    pub safe fn hiroba_take_leased(lock: c_uint) -> c_int;
    /// Gives such a lock back; see there.
    pub safe fn hiroba_give_back_leased(lock: c_uint) -> c_int;
    /// Counts in the account only threads that say so; see there.
    pub safe fn hiroba_expect_crew();
    /// Counts the calling thread as one of the program's, or no longer.
    pub safe fn hiroba_count_thread(counts: c_int);
    /// Leaves the job after all of the program's threads have been halted.
    pub safe fn hiroba_leave_halted();
    /// Shares a program's data at their addresses; see `executables.rs` of the C face.
    pub fn hiroba_share_in_place(start: usize, parts: *const DataPart, count: usize) -> c_int;
    /// Returns the length of the block of the shared heap that begins there, or 0 if there is none.
    pub fn hiroba_block_bytes_if_any(block: *const c_void) -> usize;
    /// Returns the length of a block of the shared heap.
    pub fn hiroba_block_bytes(block: *const c_void) -> usize;
}
