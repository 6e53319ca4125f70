//! Tests of the checker, and of the protocols under it, all in one program, which is linked once; `cargo test
//! -p hiroba-check --test all lrc::` runs one file of it.

mod adaptive;
mod anticipation;
mod aurc;
mod claims;
mod converting;
mod endurance;
mod erc;
mod explore;
mod first_touch;
mod fuzz_corpus;
mod gathering;
mod golden;
mod hlrc;
mod leases;
mod leaving;
mod lending;
mod litmus;
mod lrc;
mod mapping;
mod million;
mod model;
mod moves;
mod moving_in_order;
mod order;
mod ordered;
mod page_axioms;
mod planted;
mod posts;
mod races;
mod random_programs;
mod regions;
mod sample;
mod sc;
mod scale;
mod sequential;
