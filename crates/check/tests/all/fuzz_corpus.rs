//! The fuzz targets over the kept corpora and seeded mutations of them, for a stable compiler without
//! libFuzzer.

use std::path::Path;

use hiroba_base::{Prng, RngExt, seeded};
use hiroba_check::fuzzing::{TARGETS, Target};

/// The number of mutations of each example.
const MUTATIONS: u32 = 20_000;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file of the corpus").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

/// Makes a few changes: bits, special bytes, and pieces removed, doubled, or taken from another example.
fn mutate(random: &mut Prng, example: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = example.to_vec();
    for _ in 0..random.random_range(1..=4) {
        if bytes.is_empty() {
            bytes.push(random.random());
        }
        let at = random.random_range(0..bytes.len());
        let end = random.random_range(at..=bytes.len().min(at + 16));
        match random.random_range(0..6) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)],
            2 => bytes.truncate(at),
            3 => _ = bytes.drain(at..end),
            4 => {
                let stretch = bytes[at..end].to_vec();
                bytes.splice(at..at, stretch);
            }
            _ if !other.is_empty() => {
                let from = random.random_range(0..other.len());
                let stretch = other[from..other.len().min(from + 24)].to_vec();
                bytes.splice(at..end, stretch);
            }
            _ => {}
        }
    }
    bytes
}

fn withstands((name, run): Target) {
    let examples = corpus(name);
    assert!(examples.len() >= 3, "the corpus of '{name}' has few examples");
    let mut random = seeded(name.len() as u64);
    for example in &examples {
        run(example);
        for _ in 0..MUTATIONS {
            let other = &examples[random.random_range(0..examples.len())];
            run(&mutate(&mut random, example, other));
        }
    }
}

#[test]
fn every_target_withstands_its_corpus_and_mutations_of_it() {
    TARGETS.into_iter().for_each(withstands);
}
