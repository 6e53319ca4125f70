//! The C interface. `hiroba.h`, `hiroba_port.h`, `sms.h` and `tsm.h` describe each function; this crate only
//! translates them into calls of the node's runtime.
//!
//! The library also replaces the C library's system calls, streams, signal handlers and threads, so that they
//! work on shared memory as on any other (`system_calls/`, `stdio/`, `signals.rs`, `threads.rs`).

mod account;
mod allocation;
mod allocator;
mod call_sites;
mod executables;
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
