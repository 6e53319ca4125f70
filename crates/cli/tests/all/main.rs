//! The command as its users meet it, and the jobs it runs. All in one program, which is linked once; `cargo test -p hiroba-cli --test all
//! matrix::` runs one file of it.

mod account;
mod apps;
mod bench;
mod build_tools;
mod check;
mod cleanup;
mod compiler;
mod deaths;
mod debugger;
mod demo;
mod doctor;
mod habits;
mod handover;
mod hosts;
mod house;
mod interrupted;
mod kernels;
mod kills;
mod liveness;
mod mappings;
mod matrix;
mod mistakes;
mod nodes;
mod plain_programs;
mod programs;
mod progress;
mod reproduce;
mod sanitizers;
mod secrets;
mod sentences;
mod soak;
mod splash;
mod strangers;
mod support;
mod trace;
