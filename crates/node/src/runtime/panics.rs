//! Panics: a node whose runtime finds an impossible state ends its job at once, without unwinding.
//!
//! Other nodes would wait forever for a node of which one thread has ended. And unwinding may never end: it
//! reads data of the compiler's support library, which are shared memory in jobs of executables that were not
//! built for Hiroba, and the thread that panics may hold the locks that a fault on them needs.

use super::{RUNTIME, Runtime};

/// Has panics of this process's runtime end the job from now on. A library with a Rust standard library of
/// its own sets its own hook.
pub(super) fn end_the_job() {
    std::panic::set_hook(Box::new(|info| {
        let sentence = format!("a fault of Hiroba's: a thread {info}").replace('\n', " ");
        match RUNTIME.get() {
            // The launcher would take the word of a child made by fork for the node's.
            Some(runtime) if !runtime.is_forked() => runtime.end_without_locks(&sentence),
            _ => Runtime::print_and_end(&sentence),
        }
    }));
}
