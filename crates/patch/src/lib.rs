//! Finds the atomic instructions in a program's machine code, and makes the code that replaces them.
//!
//! Memory under release consistency has copies on several nodes, and the processor's `lock` prefix concerns
//! only one of them. So each instruction that operates atomically on memory is replaced by a jump to a
//! *stub*. The stub looks at the operand's address. If all nodes see each store to that memory at once, it
//! runs the instruction and returns. Otherwise it first calls a function that arranges that from then on for
//! the place in memory, of which a table tells the stub next time ([`PlaceTable`]); or, without such a table,
//! one that makes the operation exclusive in the whole job, and afterwards one that ends that.
//!
//! 1. [`functions`] reads the bounds of functions from the tables for exceptions, which compilers emit in
//!    every executable for x86-64 (System V ABI 3.7; Linux Standard Base, `.eh_frame_hdr`).
//! 2. [`Survey`] decodes each function and finds its sites.
//! 3. [`Plan`] is the code of the stubs and the bytes that replace the sites: a jump of five bytes, for which
//!    a short instruction takes its successors along; or, where none may be taken, a trap of two.
//!
//! It also tells what follows a call ([`following()`]), where that depends on the code alone.
//!
//! The crate only computes: the caller reads and writes the program's memory.
#![forbid(unsafe_code)]

mod following;
mod frames;
mod linkage;
mod pages;
mod plan;
mod spinning;
mod survey;
mod updates;

pub use following::{Following, following};
pub use frames::{Function, Image, functions};
pub use linkage::{TableJump, table_jumps};
pub use pages::whole_pages;
pub use plan::{Patch, PlaceTable, Places, Plan, SKIPPED_BYTES};
pub use spinning::{Loop, loop_around};
pub use survey::{Kind, Site, Survey};
pub use updates::{STACK_WORDS, State, Update};
