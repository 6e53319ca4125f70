//! The shared region of one node, and every `unsafe` operation on its pages.
//!
//! A node keeps its frames in one sparse memfd and maps it twice:
//!
//! ```text
//!   the application's view          the runtime's view
//!   at region_start                 at an address chosen by the kernel
//!   the same address on all nodes   always readable and writable
//!   access None | Read | Write      never faults into the runtime
//!              \                      /
//!               one memfd, frame by frame
//! ```
//!
//! The program sees only the first view; a *fault source* controls what it may do there without a fault. The
//! runtime fills pages and applies diffs through the second view, so no other thread ever sees a half-filled
//! page. The runtime never accesses the application's view.
//!
//! - [`SharedMemory`]: the two views, the pages allocated to the program, and the pages that have a frame
//! - [`Twins`]: pristine copies of pages, and [`compare`]: the lines in which a page differs from its twin.
//!   The differing bytes are packed for a diff, and incoming changes are written to frame and twin with the
//!   same masks.
//! - The swap file ([`SharedMemory::open_swap`]): pages are written to it, sealed, and every access brings
//!   them in first.
//! - [`fault`]: the three fault sources behind [`FaultSource`], and how writes are detected
//!
//! Places are counted in *granules*, the kernel's pages. A page, the coherence unit, is one or more of them,
//! depending on its region. This crate does not know how many; the length is a parameter wherever it matters.
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
mod swap;
mod twin;
mod view;

pub use error::MemoryError;
pub use fault::{
    Fault, FaultEvents, FaultHandler, FaultKind, FaultOutcome, FaultSource, FaultSourceKind, Refusal,
    WriteTracking, install_alternate_stack, open, open_best,
};
pub use fork::ForkGuard;
pub use memory::{MemoryConfig, SharedMemory, SwapOptions, SwapTallies};
pub use region::{REGION_BYTES_MAX, REGION_START};
pub use swap::{LenderLost, Lenders, SWAP_TAG_BYTES, SealedGranule, SwapSeal, check_swap_directory};
pub use twin::{Applying, Twins};
