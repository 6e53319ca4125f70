//! Tests every fabric from outside. All tests are in one program, which is linked once; `cargo test -p
//! hiroba-fabric --test all shm::` runs one file of it.

mod common;
mod conformance;
mod landing;
mod link;
mod link_mutants;
mod shm;
mod strangers;
mod tcp;
