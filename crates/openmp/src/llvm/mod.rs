//! The interface of LLVM's OpenMP library, which `clang -fopenmp` compiles to: the same team, shares, tasks
//! and locks under other names.
//!
//! Nearly all functions begin with the place in the source and with a number of the calling thread. Neither
//! is used: a thread knows itself (`context.rs`). What is not defined here is refused by its name before
//! the program starts: the atomic operations (`__kmpc_atomic_…`), which clang replaces by instructions, and
//! what belongs to Intel's compilers alone.

mod arguments;
mod calling;
mod dispatch;
mod extensions;
mod leagues;
mod memory;
mod nests;
mod reductions;
mod regions;
mod static_loops;
mod synchronisation;
mod task_loops;
mod task_reductions;
mod tasks;
mod thread_private;

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::context::{Context, TeamKind};

/// A place in the program's source, for messages of LLVM's library.
pub(crate) type Place = *const c_void;
/// A number of a thread.
pub(crate) type Thread = c_int;

/// The number of a thread that all of its regions share: that in the job's team.
fn number_of(context: &Context) -> u32 {
    let mut context = context;
    loop {
        if context.team.get() == TeamKind::OfJob {
            return context.number.get();
        }
        // SAFETY: outer contexts outlive those of the regions in them.
        match unsafe { context.outer.get().as_ref() } {
            Some(outer) if !ptr::eq(outer, context) => context = outer,
            _ => return 0,
        }
    }
}
