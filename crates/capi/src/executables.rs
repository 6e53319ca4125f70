//! Functions that `libhiroba_pthread.so` needs beside those of `hiroba.h`, for executables that were not
//! built for Hiroba. No header declares them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use hiroba_base::{LockId, NodeId};
use hiroba_node::program_signals::exchange_program_action;
use hiroba_node::{OutsideWait, PartInPlace, Runtime, Taken, expect_handler_of, when_outside};
use hiroba_wire::CONTRIBUTION_BYTES_MAX;

use crate::reporting::note;

/// A part of a program's data, as `libhiroba_pthread.so` describes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DataPart {
    bytes: usize,
    /// Not 0 if it has the protocol of the program's long blocks.
    is_long: c_int,
    /// The home of its pages, or less than 0 if each node is the home of a block of them.
    home: c_int,
}

/// Shares memory at its present address: the writable data of the program and of its libraries, in `count`
/// parts that follow one another. Parts without a home are zeros on node 0. Collective. Returns 0 or a
/// negative errno value.
///
/// # Safety
/// The bytes are readable and writable data of the program, in whole pages. No other thread may use them
/// during the call, and they must not contain data of the runtime or of the C library. As many parts are
/// readable at `parts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_share_in_place(start: usize, parts: *const DataPart, count: usize) -> c_int {
    let Some(runtime) = Runtime::get() else { return -libc::EPERM };
    // SAFETY: the caller passes as many parts.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) }.iter().map(|part| PartInPlace {
        bytes: part.bytes as u64,
        is_long: part.is_long != 0,
        home: u16::try_from(part.home).ok().map(NodeId),
    });
    // SAFETY: the caller keeps the requirements.
    match unsafe { runtime.share_in_place(start, &parts.collect::<Vec<_>>()) } {
        Ok(()) => 0,
        Err(error) => {
            note(&error.to_string());
            -libc::ENOMEM
        }
    }
}

/// Allocates memory that threads share as they share the program's own data, homed on a node. Collective.
/// Returns NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_alloc_for_program(bytes: usize, home: c_int) -> *mut c_void {
    let runtime = crate::reporting::runtime_for("hiroba_alloc_for_program");
    let home = NodeId(home as u16);
    match runtime.allocate_for_program(bytes as u64, home) {
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(error) => {
            note(&error.to_string());
            ptr::null_mut()
        }
    }
}

/// Has the pages of a whole region, of which parts are or will be private, brought one by one, as threads
/// touch them.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_use_singly(start: usize, bytes: usize) {
    if let Some(runtime) = Runtime::get() {
        runtime.use_singly(start, bytes);
    }
}

/// Makes whole pages of shared memory private to this process, filled with zeros, permanently. No thread of
/// any node has touched them, and no other node may touch them. Returns 0 or a negative errno value.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_make_private(start: usize, bytes: usize) -> c_int {
    let Some(runtime) = Runtime::get() else { return -libc::EPERM };
    match runtime.make_private(start, bytes) {
        Ok(()) => 0,
        Err(error) => {
            note(&error.to_string());
            -libc::ENOMEM
        }
    }
}

/// Allocates a long block at a multiple of `align`, zeroed if `zero` is not 0, and homed on all nodes if
/// `for_all` is not 0. Returns NULL if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_long_alloc(align: usize, bytes: usize, zero: c_int, for_all: c_int) -> *mut c_void {
    let runtime = crate::reporting::runtime_for("malloc");
    let (length, align) = (bytes as u64, align as u64);
    let allocated =
        if for_all != 0 { runtime.malloc_placed(length, align) } else { runtime.malloc_long(length, align) };
    let Some((address, is_zero)) = allocated else { return ptr::null_mut() };
    let block = ptr::with_exposed_provenance_mut::<c_void>(address);
    if zero != 0 && !is_zero {
        // SAFETY: the block belongs to this caller and has this length; the stores fault like the program's.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    block
}

/// Leaves the job, as `hiroba_finalize` does, once all of the program's threads have been stopped.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_leave_halted() {
    if let Some(runtime) = Runtime::get() {
        runtime.leave_halted();
    }
}

/// Returns 1 once a thread of this process has caused its death; the runtime then determines in that thread
/// what to report.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_is_dying() -> c_int {
    c_int::from(hiroba_node::is_dying())
}

/// Returns 1 while the calling thread is inside the runtime with a lock, as in its allocator. A thread may
/// get there from the program's code: the runtime's thread-local variables are destroyed when a thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_is_inside() -> c_int {
    c_int::from(hiroba_node::SignalsDeferred::is_live())
}

/// Sets a handler of the library itself for a signal. Threads inside the runtime do not block it: the handler
/// calls nothing there but `hiroba_is_inside` and `hiroba_when_outside`. Returns 0 or an errno value.
///
/// # Safety
/// `action` is an action whose handler keeps to that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_handle_anywhere(signal: c_int, action: *const libc::sigaction) -> c_int {
    // SAFETY: the caller's.
    exchange_program_action(signal, unsafe { action.as_ref() }).err().unwrap_or(0)
}

/// Has the calling thread, which is inside the runtime, call a function when it leaves.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_when_outside(act: extern "C" fn()) {
    when_outside(act);
}

/// Has all threads of this process block this signal, like all others, while they are inside the runtime,
/// from now on.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_block_inside(signal: c_int) {
    expect_handler_of(signal);
}

/// Takes a lock for the calling thread if no other node has wanted it lately. Needs no stack of its own.
/// Returns 1 if the thread has it, 0 if another thread of this node has it, and -1 if `hiroba_lock` or
/// `hiroba_trylock` must be called.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_take_leased(lock: c_uint) -> c_int {
    match Runtime::get().map(|runtime| runtime.take_leased(LockId(lock))) {
        Some(Taken::Yes) => 1,
        Some(Taken::Held) => 0,
        Some(Taken::AskEngine) | None => -1,
    }
}

/// Gives a lock back that `hiroba_take_leased` has taken. Returns 0, or -1 if `hiroba_unlock` must be called.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_give_back_leased(lock: c_uint) -> c_int {
    if Runtime::get().is_some_and(|runtime| runtime.give_back_leased(LockId(lock))) { 0 } else { -1 }
}

/// Returns the length of a block of the shared heap.
///
/// # Safety
/// `block` is an allocated block of the shared heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_block_bytes(block: usize) -> usize {
    crate::reporting::runtime_for("malloc_usable_size").block_length("malloc_usable_size", block) as usize
}

/// Returns the length of the block of this node's heap that begins at `block`, or 0 if none does.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_block_bytes_if_any(block: usize) -> usize {
    let runtime = crate::reporting::runtime_for("munmap");
    if runtime.is_own_block(block) { runtime.block_length("munmap", block) as usize } else { 0 }
}

/// Returns the address of the memory where long blocks of a node lie, and writes its length to `bytes`, if
/// they have a protocol of their own; otherwise 0.
///
/// # Safety
/// `bytes` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_long_memory(node: c_int, bytes: *mut usize) -> usize {
    let runtime = crate::reporting::runtime_for("hiroba_long_memory");
    let Some(range) = runtime.long_memory(NodeId(node as u16)) else { return 0 };
    // SAFETY: the caller's.
    unsafe { bytes.write(range.len()) };
    range.start
}

/// Returns 1 if pages of long blocks can be put under sequential consistency.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_converts_pages() -> c_int {
    c_int::from(crate::reporting::runtime_for("hiroba_converts_pages").converts_pages())
}

/// Returns 1 if the first store to a page after a release faults, 0 if the kernel notes stores.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_stores_fault() -> c_int {
    c_int::from(crate::reporting::runtime_for("hiroba_stores_fault").stores_fault())
}

/// Puts the page of a long block that contains an address under sequential consistency, if it is not yet: an
/// atomic instruction operates on it. Permitted only if such pages can be put there.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_convert_page(address: usize) {
    crate::reporting::runtime_for("an atomic instruction").convert_page(address);
}

/// Counts the program's atomic instructions that were replaced.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_note_atomic_sites(sites: usize) {
    crate::reporting::runtime_for("hiroba_note_atomic_sites").note_atomic_sites(sites as u64);
}

/// Counts an atomic instruction that was made exclusive in the job.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_count_atomic() {
    if let Some(runtime) = Runtime::get() {
        runtime.count_exclusive_atomic();
    }
}

/// Counts an exchange of all nodes on behalf of a thread that waits for a plain store.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_count_exchange() {
    if let Some(runtime) = Runtime::get() {
        runtime.count_exchange();
    }
}

/// Counts an interrupt of a thread by its processor time. Safe in signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_count_interrupt() {
    if let Some(runtime) = Runtime::get() {
        runtime.count_interrupt();
    }
}

/// Orders fetches of this node with the changes before them from now on: whoever sees a store sees all that
/// happened before it.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_order_fetches() {
    crate::reporting::runtime_for("hiroba_order_fetches").order_fetches();
}

/// Has pages travel with the departure from the next barrier of all nodes, to which the calling thread is
/// about to come: threads of other nodes will read them. Those that are not shared are left out.
///
/// # Safety
/// `count` addresses are readable at `pages`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_carry_along(pages: *const usize, count: usize) {
    if let Some(runtime) = Runtime::get().filter(|_| count > 0) {
        // SAFETY: the caller's.
        runtime.carry_along(unsafe { std::slice::from_raw_parts(pages, count) });
    }
}

/// Has pages travel with this node's arrival at the next barrier, to which the calling thread is about to
/// come: a thread of node 0 will read them behind `hiroba_await_others`. Those that are not shared are left
/// out.
///
/// # Safety
/// `count` addresses are readable at `pages`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_carry_up(pages: *const usize, count: usize) {
    if let Some(runtime) = Runtime::get().filter(|_| count > 0) {
        // SAFETY: the caller's.
        runtime.carry_up(unsafe { std::slice::from_raw_parts(pages, count) });
    }
}

/// Waits, on node 0, until all other nodes have come to the next barrier, where they wait for this one.
/// Returns 1 if this node knows all that they have written, and 0 if it will only after the barrier.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_await_others() -> c_int {
    c_int::from(crate::reporting::runtime_for("hiroba_await_others").await_others())
}

/// Has bytes travel with this node's arrival at the next barrier, to which the calling thread is about to
/// come: node 0 gets them in `hiroba_barrier_combining`. At most `hiroba_contribution_bytes_max()`; they
/// replace those of an earlier call.
///
/// # Safety
/// `count` bytes are readable at `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_contribute(bytes: *const u8, count: usize) {
    let runtime = crate::reporting::runtime_for("hiroba_contribute");
    if count == 0 {
        return runtime.contribute(&[]);
    }
    // SAFETY: the caller's.
    runtime.contribute(unsafe { std::slice::from_raw_parts(bytes, count) });
}

/// Returns the maximum length of what a node contributes to a barrier.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_contribution_bytes_max() -> usize {
    CONTRIBUTION_BYTES_MAX
}

/// Waits for all nodes, as `hiroba_barrier` does. On node 0, before any node goes on, calls `visit` for each
/// node that has contributed, in the order of the nodes, in the calling thread. It may touch shared memory
/// under sequential consistency, and call functions of the runtime that are not collective.
///
/// # Safety
/// `visit` is such a function; the bytes are readable while it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hiroba_barrier_combining(
    visit: unsafe extern "C-unwind" fn(c_int, *const u8, usize),
) {
    crate::reporting::runtime_for("hiroba_barrier_combining").barrier_combining(|node, bytes| {
        // SAFETY: the caller's.
        unsafe { visit(c_int::from(node.0), bytes.as_ptr(), bytes.len()) };
    });
}

/// Says that this process runs an executable: of its threads only those count in the account that call
/// `hiroba_count_thread`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_expect_crew() {
    if let Some(runtime) = Runtime::get() {
        runtime.expect_crew();
    }
}

/// Counts the calling thread as one of the program's, or no longer if `counts` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_count_thread(counts: c_int) {
    if let Some(runtime) = Runtime::get() {
        runtime.count_thread(counts != 0);
    }
}

/// Notes that the calling thread waits, until `hiroba_end_wait`: for others of its team, or, if `is_idle` is
/// not 0, for something to do.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_begin_wait(is_idle: c_int) {
    if let Some(runtime) = Runtime::get() {
        runtime.begin_wait(outside_wait(is_idle));
    }
}

/// Notes that this wait is over.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_end_wait(is_idle: c_int) {
    if let Some(runtime) = Runtime::get() {
        runtime.end_wait(outside_wait(is_idle));
    }
}

fn outside_wait(is_idle: c_int) -> OutsideWait {
    if is_idle == 0 { OutsideWait::Team } else { OutsideWait::Idle }
}
