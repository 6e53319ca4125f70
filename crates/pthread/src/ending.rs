//! The end of the job: any thread of any node may call `exit`; the handlers run once, on node 0.
//!
//! The last handler on node 0 is this library's. It halts the threads that still run, has the other nodes do
//! the same, and leaves the job together with them. From then on no thread serves faults, so no code of the
//! program runs any more.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::alarms;
use crate::control::{THREADS, control};
use crate::face;
use crate::next::next;
use crate::saying;
use crate::stacks::{halting, in_program, privately};
use crate::threads;

unsafe extern "C" {
    /// on_exit(3): like `atexit`, but the handler receives the exit status.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Prepares the process for its end.
pub(crate) fn prepare() {
    halting::prepare();
    // SAFETY: the handler is a plain function that stays loaded until the process ends.
    unsafe { on_exit(conclude, std::ptr::null_mut()) };
}

fn flush_streams() {
    // SAFETY: NULL means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Ends the job, as the last of node 0's exit handlers: the program's own have run.
extern "C" fn conclude(status: c_int, _: *mut c_void) {
    if !in_program() {
        return;
    }
    flush_streams();
    end_job(status);
}

/// Ends the job on all nodes.
fn end_job(status: c_int) -> ! {
    privately(|| {
        halting::halt_others();
        THREADS.hold(|held| {
            control().ending.store(1, Relaxed);
            (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
        });
        await_starter();
        leave(status)
    })
}

/// True if this process's starter does not use the runtime any more.
static STARTER_DONE: AtomicBool = AtomicBool::new(false);
/// The time that the starter gets. One that is about to start a thread needs some of it.
const STARTER_PATIENCE: Duration = Duration::from_secs(2);

/// Notes that the starter of node 0 ends.
pub(crate) fn starter_is_done() {
    STARTER_DONE.store(true, Relaxed);
}

fn await_starter() {
    let since = Instant::now();
    while !STARTER_DONE.load(Relaxed) && since.elapsed() < STARTER_PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Leaves the job, and ends the process, because no code of the program may run any more, least of all on its
/// stacks.
fn leave(status: c_int) -> ! {
    alarms::stop();
    face::hiroba_leave_halted();
    saying::end_process(status)
}

/// Ends another node than 0 after it has learned that the job ends.
pub(crate) fn follow() -> ! {
    flush_streams();
    halting::halt_others();
    leave(0)
}

/// exit(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn exit(status: c_int) -> ! {
    if in_program() && face::hiroba_node() != 0 {
        flush_streams();
        exit_on_node_0(status, WITH_HANDLERS);
    }
    halting::begin_exit();
    // SAFETY: any status may be passed.
    unsafe { next!(fn exit(c_int) -> ())(status) };
    unreachable!("exit does not return")
}

/// Values of `exit_wanted`: `exit`, which runs handlers, or `_exit`, which runs none.
const WITH_HANDLERS: u32 = 1;
const AT_ONCE: u32 = 2;

fn exit_on_node_0(status: c_int, how: u32) -> ! {
    THREADS.hold(|held| {
        control().exit_status.store(status, Relaxed);
        control().exit_wanted.store(how, Relaxed);
        held.tell_starter(0);
    });
    halting::wait_to_be_halted()
}

/// Runs `exit` on node 0 for a thread of another node, in a thread of its own.
pub(crate) fn exit_here(status: c_int, how: u32) {
    unsafe extern "C-unwind" fn with_handlers(status: *mut c_void) -> *mut c_void {
        exit(status.addr() as c_int)
    }
    unsafe extern "C-unwind" fn at_once(status: *mut c_void) -> *mut c_void {
        _exit(status.addr() as c_int)
    }
    let run = if how == WITH_HANDLERS { with_handlers } else { at_once };
    threads::start_for_runtime(run, std::ptr::without_provenance_mut(status as u32 as usize));
}

/// Defines the functions that end the process at once, without handlers.
macro_rules! at_once {
    ($($name:ident)*) => { $(
        /// See the manual.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name(status: c_int) -> ! {
            if in_program() && face::hiroba_node() != 0 {
                exit_on_node_0(status, AT_ONCE);
            }
            if in_program() {
                halting::begin_exit();
                end_job(status);
            }
            saying::end_process(status)
        }
    )* };
}

at_once! { _exit _Exit }
