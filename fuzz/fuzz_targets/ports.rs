#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hiroba_check::fuzzing::TARGETS[5].1(bytes));
