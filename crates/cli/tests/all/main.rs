//! The command as its users meet it, and the jobs it runs. All in one program, which is linked once; `cargo test -p hiroba-cli --test all
//! matrix::` runs one file of it.

mod account;
mod apps;
mod bench;
mod check;
mod cleanup;
mod compiler;
mod debugger;
mod demo;
mod doctor;
mod hosts;
mod house;
mod kernels;
mod kills;
mod liveness;
mod matrix;
mod mistakes;
mod nodes;
mod plain_programs;
mod programs;
mod progress;
mod reproduce;
mod sanitizers;
mod sentences;
mod soak;
mod splash;
mod strangers;
mod support;
mod trace;
mod untrusted;
