//! The C face: `hiroba.h`, `hiroba_port.h`, `sms.h` and `tsm.h` say what each function does; here they are
//! translated into calls of the node's runtime, and nothing is decided.
//!
//! The library also stands before the C library's system calls, streams, signal handlers and threads, so that shared memory
//! is memory to them too (`system_calls/`, `stdio/`, `signals.rs`, `threads.rs`).

mod account;
mod allocation;
mod allocator;
mod call_sites;
mod lifecycle;
mod linked;
mod ports;
mod reporting;
mod resolution;
mod signals;
mod stdio;
mod synchronisation;
mod system_calls;
mod threads;
mod traced;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;
