//! Tests of engines through their public interface. All are in one program, which is linked once; `cargo test
//! -p hiroba-protocol --test all bulk::` runs one file of it.

mod bulk;
mod contributions;
mod converting;
mod placing;
mod regions;
mod strangers;
