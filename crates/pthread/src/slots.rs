//! Memory for the threads of this node: each runs in a *slot* of its node's window in shared memory.
//!
//! | guard | shared stack | private stack, libraries' variables | executable's variables | control block |
//! |---|---|---|---|---|
//! | no access | shared | private | shared (`tls.rs`) | private |
//!
//! The program runs on the shared stack, the runtime on the private one (`stacks.rs`). All nodes know the
//! addresses of all windows; only the node that runs a thread makes its slot's private parts private.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::face;
use crate::next::next;
use crate::saying;
use crate::tls;

const PAGE_BYTES: usize = 4096;
/// The length of the guard, which catches stack overflows.
const GUARD_BYTES: usize = PAGE_BYTES;
/// The length of the private stack, for the runtime and the signal handlers that interrupt it.
const PRIVATE_STACK_BYTES: usize = 1 << 20;
/// Room for the C library's control block.
const CONTROL_BLOCK_BYTES: usize = PAGE_BYTES;
/// The maximum number of threads that one node runs at once.
const SLOTS_MAX: usize = 4096;
/// The maximum number of bytes of addresses that the windows of all nodes take in shared memory, which has 16
/// TiB.
const WINDOWS_BYTES_MAX: usize = 4 << 40;
/// The length of a slot's longest shared stack. Longer stacks are blocks of the heap.
const SHARED_STACK_BYTES_MAX: usize = 64 << 20;

static WINDOW: OnceLock<Window> = OnceLock::new();

/// This node's slots.
struct Window {
    start: usize,
    slots_max: usize,
    shared_stack_bytes: usize,
    /// The length of the executable's pages of thread-local variables.
    variables_bytes: usize,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// The number of slots that were ever used.
    used: usize,
    /// Slots whose threads are about to end, with the threads.
    finished: Vec<(usize, u64)>,
}

/// A slot, for a thread that is about to start.
pub(crate) struct Slot {
    /// The part that the C library takes for the thread's stack.
    pub(crate) private_start: usize,
    pub(crate) private_bytes: usize,
}

impl Window {
    fn slot_bytes(&self) -> usize {
        self.private_end()
    }

    /// Returns the offset of the private part in a slot.
    fn private_start(&self) -> usize {
        GUARD_BYTES + self.shared_stack_bytes
    }

    fn variables_start(&self) -> usize {
        self.private_start() + PRIVATE_STACK_BYTES
    }

    fn control_block_start(&self) -> usize {
        self.variables_start() + self.variables_bytes
    }

    fn private_end(&self) -> usize {
        self.control_block_start() + CONTROL_BLOCK_BYTES
    }

    fn slot(&self, number: usize) -> Slot {
        Slot {
            private_start: self.start + number * self.slot_bytes() + self.private_start(),
            private_bytes: self.private_end() - self.private_start(),
        }
    }

    /// Returns the number of the slot that the calling thread runs in.
    fn own_number(&self) -> usize {
        tls::thread_pointer().wrapping_sub(self.start) / self.slot_bytes()
    }

    /// Makes the private parts of a slot private.
    fn prepare(&self, number: usize) {
        let start = self.start + number * self.slot_bytes();
        let parts = [
            (0, GUARD_BYTES),
            (self.private_start(), PRIVATE_STACK_BYTES),
            (self.control_block_start(), CONTROL_BLOCK_BYTES),
        ];
        for (offset, bytes) in parts {
            let error = face::hiroba_make_private(start + offset, bytes);
            if error != 0 {
                saying::fatal(&format!(
                    "pthread_create: expected {bytes} bytes of memory for a thread, got: {}; use fewer threads or \
                     more nodes",
                    saying::why(error)
                ));
            }
        }
        // Without the guard, a stack overflow changes another thread's memory, as it does if the kernel has
        // no more mappings.
        // SAFETY: the guard is this process's own memory, which no thread uses.
        unsafe { libc::syscall(libc::SYS_mprotect, start, GUARD_BYTES, libc::PROT_NONE) };
    }
}

/// Makes the windows of all nodes. Collective. `variables_bytes` is the length of the executable's pages of
/// thread-local variables, `stack_bytes` that of a stack for which the program requests no other length.
pub(crate) fn make(variables_bytes: usize, stack_bytes: usize) {
    let nodes = face::hiroba_nodes();
    let mut window = Window {
        start: 0,
        slots_max: 0,
        shared_stack_bytes: stack_bytes.min(SHARED_STACK_BYTES_MAX).next_multiple_of(PAGE_BYTES),
        variables_bytes,
        slots: Mutex::default(),
    };
    window.slots_max = SLOTS_MAX.min(WINDOWS_BYTES_MAX / nodes as usize / window.slot_bytes());
    let bytes = window.slots_max * window.slot_bytes();
    let all: Vec<usize> = (0..nodes).map(|home| face::hiroba_alloc_for_program(bytes, home).addr()).collect();
    // Each slot has private parts beside the stack, which no node may fetch.
    all.iter().filter(|start| **start != 0).for_each(|start| face::hiroba_use_singly(*start, bytes));
    window.start = all[face::hiroba_node() as usize];
    if window.start == 0 {
        let why = saying::why(-libc::ENOMEM);
        saying::fatal(&format!(
            "expected {bytes} bytes of shared memory for the threads' stacks on each node, got none: {why}; use \
             fewer nodes, or a lower limit of the stack (ulimit -s)"
        ));
    }
    let _ = WINDOW.set(window);
}

/// Returns a slot for a thread that starts on this node.
///
/// # Panics
/// If called before [`make`].
pub(crate) fn take() -> Slot {
    let window = WINDOW.get().expect("the process has joined its job");
    let mut slots = window.slots.lock().unwrap_or_else(PoisonError::into_inner);
    if !slots.finished.is_empty() {
        // The oldest is the likeliest to have ended.
        let (number, thread) = slots.finished.remove(0);
        drop(slots);
        let join = next!(fn pthread_join(u64, *mut *mut c_void) -> c_int);
        // SAFETY: the thread is joinable and is joined nowhere else. It has no waits left.
        unsafe { join(thread, std::ptr::null_mut()) };
        return window.slot(number);
    }
    let number = slots.used;
    slots.used += 1;
    drop(slots);
    if number >= window.slots_max {
        saying::fatal(&format!(
            "pthread_create: expected at most {} threads at once on a node, got more; use more nodes",
            window.slots_max
        ));
    }
    window.prepare(number);
    window.slot(number)
}

/// Checks, at the calling thread's start, that its slot has the expected layout. Returns the end of its
/// shared stack, if that has room for `stack_bytes` bytes.
pub(crate) fn begin(stack_bytes: usize) -> Option<usize> {
    let window = WINDOW.get()?;
    let start = window.start + window.own_number() * window.slot_bytes();
    let pointer = tls::thread_pointer();
    if window.variables_bytes > 0 && pointer != start + window.control_block_start() {
        saying::fatal(&format!(
            "expected the control block of a thread {CONTROL_BLOCK_BYTES} bytes before the end of its stack, \
             got it at {pointer:#x}: this C library lays out threads in another way than the one this version \
             knows"
        ));
    }
    (stack_bytes <= window.shared_stack_bytes).then_some(start + window.private_start())
}

/// Gives back the slot of the calling thread, which uses neither shared memory nor the runtime any more.
pub(crate) fn leave() {
    let Some(window) = WINDOW.get() else { return };
    let number = window.own_number();
    if number < window.slots_max {
        let mut slots = window.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it has no arguments and cannot fail.
        slots.finished.push((number, unsafe { libc::pthread_self() }));
    }
}
