//! Calls that node 0 makes for threads of other nodes: files, streams, processes and the environment are
//! those of one process.
//!
//! A thread of another node that makes such a call gets a *deputy*, a thread of node 0, which makes the call
//! with the same arguments. The objects that they point to are shared, or lent (`Lent`). So a descriptor or a
//! `FILE` means the same to all threads, whichever opened it; a stream keeps the order of its calls; and a
//! call may block for any time.
//!
//! | step | thread | deputy |
//! |---|---|---|
//! | 1 | writes function and arguments: `ASKED` | waits |
//! | 2 | waits | makes the call |
//! | 3 | | writes result and `errno`: `ANSWERED` |
//! | 4 | goes on: `IDLE` | waits |

mod formats;
mod table;

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::control::{Monitor, object};
use crate::face;
use crate::heap;
use crate::masks;
use crate::queues;
use crate::record::this_thread;
use crate::saying;
use crate::shared::{is_shared, is_shared_data};
use crate::stacks::in_program;

/// The maximum number of arguments of a carried call.
const ARGUMENTS_MAX: usize = 6;

/// The block that a thread and its deputy share. Fields change in its monitor.
#[repr(C)]
struct Errand {
    number: AtomicU32,
    state: AtomicU32,
    errno: AtomicI32,
    /// The deputy's `pthread_t`.
    deputy: AtomicU64,
    /// The signals that the thread blocks.
    mask: AtomicU64,
    function: AtomicU64,
    arguments: [AtomicU64; ARGUMENTS_MAX],
    result: AtomicI64,
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;
/// The thread has ended, and the deputy must end, too.
const ENDED: u32 = 3;

/// The length of an errand, which has pages of its own, because both nodes write to it.
const ERRAND_BYTES: usize = 4096;

thread_local! {
    static ERRAND: Cell<*const Errand> = const { Cell::new(ptr::null()) };
}

/// Not 0 on nodes whose threads have deputies: all but node 0.
static CARRIES: AtomicU32 = AtomicU32::new(0);

/// Begins to carry calls: the process has joined the job.
pub(crate) fn begin() {
    CARRIES.store(u32::from(face::hiroba_node() != 0), Relaxed);
}

/// Returns true if node 0 makes the calling thread's calls. A thread that crashes reads this process's tables
/// itself.
pub(crate) fn is_wanted() -> bool {
    CARRIES.load(Relaxed) != 0 && in_program() && face::hiroba_is_dying() == 0
}

/// Looks up the functions of the libraries that follow this one. A signal handler may make the first call to
/// one, and must not look it up.
pub(crate) fn look_up() {
    table::look_up();
}

impl Errand {
    fn monitor(&self) -> Monitor {
        Monitor::of(&self.number)
    }
}

/// Returns the calling thread's errand, with a deputy.
fn errand() -> &'static Errand {
    let known = ERRAND.get();
    // SAFETY: the block exists until the thread has ended.
    if let Some(errand) = unsafe { known.as_ref() } {
        return errand;
    }
    let block = heap::allocate(ERRAND_BYTES, ERRAND_BYTES, true);
    if block.is_null() {
        saying::fatal("expected shared memory for a call to node 0, got none");
    }
    // SAFETY: zeros are an errand that is idle, and the block is long enough.
    let errand: &'static Errand = unsafe { object(block) };
    errand.monitor();
    errand.deputy.store(queues::start_deputy(serve, block), Relaxed);
    ERRAND.set(errand);
    errand
}

/// Returns the `pthread_t` of the thread that makes the calling thread's calls: its deputy or itself.
pub(crate) fn maker() -> u64 {
    if is_wanted() { errand().deputy.load(Relaxed) } else { this_thread() }
}

/// Has node 0 call a function, which has the same address there.
pub(crate) fn call(function: usize, arguments: &[usize]) -> isize {
    let errand = errand();
    let before = heap::errno();
    let mask = masks::mask();
    let (result, errno) = errand.monitor().hold(|held| {
        errand.function.store(function as u64, Relaxed);
        for (place, argument) in errand.arguments.iter().zip(arguments) {
            place.store(*argument as u64, Relaxed);
        }
        errand.errno.store(before, Relaxed);
        errand.mask.store(mask, Relaxed);
        errand.state.store(ASKED, Relaxed);
        held.tell_all();
        while errand.state.load(Relaxed) != ANSWERED {
            held.wait();
        }
        errand.state.store(IDLE, Relaxed);
        (errand.result.load(Relaxed), errand.errno.load(Relaxed))
    });
    heap::set_errno(errno);
    result as isize
}

/// Runs a deputy.
unsafe extern "C-unwind" fn serve(errand: *mut c_void) -> *mut c_void {
    type Function = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the thread passes its errand, which exists until this function receives its end.
    let errand: &Errand = unsafe { object(errand) };
    loop {
        // A signal for the thread, or for the process, waits for the next call or for another thread.
        masks::set_mask(masks::all_signals());
        let is_asked = errand.monitor().hold(|held| {
            loop {
                match errand.state.load(Relaxed) {
                    ASKED => return true,
                    ENDED => return false,
                    _ => held.wait(),
                }
            }
        });
        if !is_asked {
            break;
        }
        let function = errand.function.load(Relaxed) as usize;
        // SAFETY: `Next::address` has found the address for a function that takes at most six words; the C
        // library is at the same addresses on all nodes.
        let function = unsafe { std::mem::transmute::<usize, Function>(function) };
        let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|i| errand.arguments[i].load(Relaxed) as usize);
        masks::set_mask(errand.mask.load(Relaxed));
        heap::set_errno(errand.errno.load(Relaxed));
        // SAFETY: the thread has made the call with these arguments, and all that they point to is shared.
        let result = unsafe { function(a, b, c, d, e, f) };
        let errno = heap::errno();
        errand.monitor().hold(|held| {
            errand.result.store(result as i64, Relaxed);
            errand.errno.store(errno, Relaxed);
            errand.state.store(ANSWERED, Relaxed);
            held.tell_all();
        });
    }
    // SAFETY: the thread has ended and forgotten its errand.
    unsafe { heap::free(ptr::from_ref(errand).cast_mut().cast()) };
    ptr::null_mut()
}

/// Ends the deputy of the calling thread, which ends.
pub(crate) fn end() {
    let errand = ERRAND.replace(ptr::null());
    // SAFETY: as in `errand`.
    if let Some(errand) = unsafe { errand.as_ref() } {
        errand.monitor().hold(|held| {
            errand.state.store(ENDED, Relaxed);
            held.tell_all();
        });
    }
}

/// Copies, in shared memory, of data that a call only reads and that other nodes cannot read: strings of the
/// C library, and constants. They are freed after the call.
#[derive(Default)]
struct Lent {
    blocks: [usize; ARGUMENTS_MAX],
    count: usize,
}

impl Lent {
    /// Lends a C string, or NULL.
    fn text(&mut self, address: usize) -> usize {
        if address == 0 || is_everywhere(address) {
            return address;
        }
        // SAFETY: the program passes a C string.
        let bytes = unsafe { libc::strlen(address as *const _) } + 1;
        self.bytes(address, bytes)
    }

    /// Lends `count` items of `size` bytes, or NULL.
    fn items(&mut self, address: usize, size: usize, count: usize) -> usize {
        self.bytes(address, size.saturating_mul(count))
    }

    /// Lends bytes, or NULL.
    fn bytes(&mut self, address: usize, bytes: usize) -> usize {
        if address == 0 || bytes == 0 || is_everywhere(address) {
            return address;
        }
        let block = heap::allocate(1, bytes, false);
        if block.is_null() {
            saying::fatal(&format!("expected {bytes} bytes of shared memory for a call to node 0, got none"));
        }
        // SAFETY: the program passes `bytes` readable bytes; the block is new and that long.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, block.cast(), bytes) };
        self.blocks[self.count] = block.addr();
        self.count += 1;
        block.addr()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for block in &self.blocks[..self.count] {
            // SAFETY: allocated above, and the call that used it has been made.
            unsafe { heap::free(ptr::with_exposed_provenance_mut(*block)) };
        }
    }
}

/// Returns true if all nodes find the same data at this address.
fn is_everywhere(address: usize) -> bool {
    is_shared(address) || is_shared_data(address)
}
