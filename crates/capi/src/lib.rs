//! The C face: `hiroba.h`, `sms.h` and `tsm.h` say what each function does; here they are translated into calls of the
//! node's runtime, and nothing is decided.

mod allocation;
mod lifecycle;
mod reporting;
mod synchronisation;

/// The runtime's own allocator: fault handlers run protocol code that allocates, in threads that may have been
/// interrupted inside the program's `malloc`.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
