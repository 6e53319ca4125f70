//! The shared region of one node, and every `unsafe` operation on its pages.
//!
//! A node keeps its frames in one sparse memfd and maps it twice:
//!
//! ```text
//!   the application's view          the runtime's view
//!   at region_start, everywhere     wherever the kernel likes
//!   the same address on all nodes   always readable and writable
//!   access None | Read | Write      never faults into the runtime
//!              \                      /
//!               one memfd, frame by frame
//! ```
//!
//! The program sees the first view only; a *fault source* governs what it may do there without a fault.
//! The runtime fills pages and applies diffs through the second, so no other thread ever gets a window
//! to a page that is half filled. The runtime never touches the application's view.
//!
//! - [`SharedMemory`]: the two views, which pages the program was given, which have a frame
//! - [`Twins`]: pristine copies of pages, and [`compare`]: where a page differs from its own. What differs is
//!   packed for a diff, and what comes from others goes into frame and twin by the same masks.
//! - [`fault`]: the three fault sources behind [`FaultSource`], and how writes are found
//!
//! Places are counted in *granules*, the kernel's pages. A page, the coherence unit, is one or more of them, as its region says;
//! this crate does not know how many: wherever a length matters it is told.
#![cfg(target_os = "linux")]

pub mod compare;
mod error;
pub mod fault;
mod fault_source_kind;
mod fork;
mod frames;
mod mapping;
mod memory;
mod packing;
mod region;
mod twin;

pub use error::MemoryError;
pub use fault::{
    Fault, FaultEvents, FaultHandler, FaultKind, FaultOutcome, FaultSource, FaultSourceKind, Refusal,
    WriteTracking, install_alternate_stack, open, open_best,
};
pub use fork::ForkGuard;
pub use memory::{MemoryConfig, SharedMemory};
pub use region::{REGION_BYTES_MAX, REGION_START};
pub use twin::{Applying, Twins};
