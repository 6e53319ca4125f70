//! Joining, leaving, running on all threads; the functions of `tsm.h`.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use hiroba_node::{Command, Runtime};

use crate::reporting::{note, runtime_for};

thread_local! {
    /// The thread's number on its node, inside `hiroba_run`.
    static NUMBER_IN_RUN: Cell<Option<u32>> = const { Cell::new(None) };
}

fn join() -> c_int {
    if let Some(why) = crate::system_calls::why_not_lockable() {
        note(&why);
        return -libc::ENOMEM;
    }
    crate::allocator::survive_forks();
    crate::system_calls::prepare_to_join();
    let joined = Runtime::join().and_then(|runtime| runtime.prepare_thread().map(|()| runtime));
    match joined {
        Ok(runtime) => {
            crate::system_calls::shield(runtime);
            leave_children_alone();
            if runtime.has_launcher() {
                crate::stdio::hand_on_lines();
                hiroba_node::before_last_words(crate::stdio::write_rest);
            }
            // SAFETY: the handler is a plain function that stays loaded until the process ends.
            unsafe { on_exit(leave_at_exit, std::ptr::null_mut()) };
            0
        }
        Err(error) => {
            note(&error.to_string());
            -error.errno()
        }
    }
}

/// Leaves only the user's own libraries in the environment. The launcher preloads this library, so that it
/// replaces functions of the C library in programs that load it late, and others before it. Processes that
/// the program starts from now on do not belong to the job.
fn leave_children_alone() {
    const VARIABLE: &str = "LD_PRELOAD";
    let Ok(list) = std::env::var(VARIABLE) else { return };
    let others = after_ours(&list);
    if others.is_empty() {
        // SAFETY: hiroba_init is called first, before the program has threads that might read the
        // environment.
        unsafe { std::env::remove_var(VARIABLE) };
    } else {
        // SAFETY: as above.
        unsafe { std::env::set_var(VARIABLE, others) };
    }
}

/// Returns the part of a list of libraries that follows this library; all of it, if the list does not name
/// it.
fn after_ours(list: &str) -> &str {
    let ours = "/libhiroba.so";
    let after = list.match_indices(ours).map(|(place, _)| &list[place + ours.len()..]);
    let mut ends = after.filter(|rest| rest.is_empty() || rest.starts_with([':', ' ']));
    ends.next().map_or(list, |rest| rest.trim_start_matches([':', ' ']))
}

unsafe extern "C" {
    /// on_exit(3): like `atexit`, but the handler gets the exit status.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Leaves the job for a program that ends with status 0 without `hiroba_finalize`, since other nodes may need
/// its pages. A program that ends with another status does not wait.
extern "C" fn leave_at_exit(status: c_int, _: *mut c_void) {
    let Some(runtime) = Runtime::get() else { return };
    if status == 0 {
        runtime.leave_at_exit();
        crate::system_calls::unshield();
    } else {
        runtime.flush_trace();
    }
}

/// See `hiroba.h`. The arguments are reserved for future use.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    join()
}

/// See `sms.h`.
///
/// # Safety
/// `call` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_init_or_say(call: *const c_char) -> c_int {
    let result = join();
    if result != 0 {
        // SAFETY: the caller passes a C string.
        let call = unsafe { CStr::from_ptr(call) };
        // SAFETY: hiroba_error_string returns the thread's own C string.
        let reason = unsafe { CStr::from_ptr(crate::reporting::hiroba_error_string()) };
        let sentence = format!("{}: {}", call.to_string_lossy(), reason.to_string_lossy());
        eprintln!("hiroba: {}", hiroba_base::printable(&sentence));
    }
    result
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_finalize() {
    if let Some(runtime) = Runtime::get() {
        runtime.leave();
        crate::system_calls::unshield();
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_node() -> c_int {
    Runtime::known().map_or(0, |runtime| c_int::from(runtime.node().0))
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_nodes() -> c_int {
    Runtime::known().map_or(1, |runtime| c_int::from(runtime.nodes()))
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_run(f: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void) -> c_int {
    let Some(f) = f else {
        note("hiroba_run: expected a function, got NULL");
        return -libc::EINVAL;
    };
    let Some(runtime) = Runtime::get().filter(|_| NUMBER_IN_RUN.get().is_none()) else {
        note("hiroba_run: expected a call inside the job and outside hiroba_run, got another");
        return -libc::EPERM;
    };
    let argument = Argument(argument);
    runtime.run(|number| {
        NUMBER_IN_RUN.set(Some(number));
        f(argument.get());
        NUMBER_IN_RUN.set(None);
    });
    0
}

/// A program's argument for its own function; the program is responsible for sharing it between threads.
#[derive(Clone, Copy)]
struct Argument(*mut c_void);

// SAFETY: the runtime never accesses the memory that the pointer points to.
unsafe impl Sync for Argument {}

impl Argument {
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_thread() -> c_int {
    match (NUMBER_IN_RUN.get(), Runtime::known()) {
        (Some(number), Some(runtime)) => {
            hiroba_node() * runtime.threads_per_node() as c_int + number as c_int
        }
        _ => hiroba_node(),
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_threads() -> c_int {
    match (NUMBER_IN_RUN.get(), Runtime::known()) {
        (Some(_), Some(runtime)) => hiroba_nodes() * runtime.threads_per_node() as c_int,
        _ => hiroba_nodes(),
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_wtime() -> f64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// See `tsm.h`. Returns on node 0 only, unless it fails.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_tsm_startup() -> c_int {
    // SAFETY: the argument is a C string.
    let result = unsafe { hiroba_init_or_say(c"tsm_startup".as_ptr()) };
    if result != 0 || hiroba_node() == 0 {
        return result;
    }
    let runtime = runtime_for("tsm_startup");
    loop {
        match runtime.follow() {
            Command::RunWorker(address) => {
                // SAFETY: node 0 passed this function of the same executable, whose addresses were compared.
                let worker = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address) };
                worker();
                runtime.barrier();
            }
            // SAFETY: exit runs the program's own handlers; this thread holds no lock of the runtime.
            Command::Leave => unsafe { libc::exit(0) },
        }
    }
}

/// See `tsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tsm_create_procs(worker: Option<extern "C" fn()>) {
    let runtime = runtime_for("tsm_create_procs");
    let Some(worker) = worker else {
        runtime.fatal("tsm_create_procs: expected a function, got NULL");
    };
    runtime.lead_worker(worker as usize);
    worker();
    runtime.barrier();
}

/// See `tsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tsm_finish() {
    hiroba_finalize();
}

#[cfg(test)]
mod tests {
    use super::after_ours;

    #[test]
    fn the_users_libraries_follow_ours() {
        for (list, users) in [
            ("", ""),
            ("/a/own.so", "/a/own.so"),
            ("/lib/libhiroba.so", ""),
            (
                "/p/liba.so:/proc/self/fd/9:/lib/libhiroba_pthread.so:/lib/libhiroba.so:own.so:/b.so",
                "own.so:/b.so",
            ),
            ("/x/libhiroba.so.d/a.so:/lib/libhiroba.so own.so", "own.so"),
        ] {
            assert_eq!(after_ours(list), users, "{list}");
        }
    }
}
