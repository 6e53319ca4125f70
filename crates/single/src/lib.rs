//! Runs executables that were not built for Hiroba in jobs of one node: `hiroba run --pthread -n 1` has the
//! loader put this library before `libhiroba.so`, in place of `libhiroba_pthread.so`.
//!
//! Nothing of the program must be shared, so its memory, threads and objects are those of the C library, and
//! no call of them passes through Hiroba. The process joins the job before the program's `main`, and leaves
//! it at its end. So the launcher knows how it ends, crashes are reported, and `--stats` has an account. The
//! program has as many processors as the job has threads.
//!
//! `libhiroba_pthread.so` and this library share two files: `next.rs` and `processors.rs`.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod end;
mod face;
#[path = "../../pthread/src/next.rs"]
mod next;
#[path = "../../pthread/src/processors.rs"]
mod processors;
mod stacks;
mod start;
