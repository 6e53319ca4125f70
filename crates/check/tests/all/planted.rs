//! Planted bugs, and the programs and seeds that show them.

use core::fmt::Debug;
use core::ops::Range;

use hiroba_check::cluster::Ended;
use hiroba_check::litmus::Litmus;
use hiroba_check::program::Program;
use hiroba_check::random_program::{Shape, generate};

/// Checks that each bug is caught; `noticed` returns what catches it first, and how.
pub fn each_is_noticed<M: Copy + Debug>(
    mutants: impl IntoIterator<Item = M>,
    noticed: impl Fn(M) -> Option<String>,
) {
    let survives = |mutant: &M| {
        let witness = noticed(*mutant);
        println!("{mutant:?}: {}", witness.as_deref().unwrap_or("nobody"));
        witness.is_none()
    };
    let survivors: Vec<M> = mutants.into_iter().filter(survives).collect();
    assert!(survivors.is_empty(), "nothing notices {survivors:?}");
}

/// Returns the first litmus program and seed whose run is wrong, and the reason.
pub fn by_litmus(
    programs: impl IntoIterator<Item = Litmus>,
    seeds: Range<u64>,
    wrong: impl Fn(&Litmus, u64) -> Option<String>,
) -> Option<String> {
    programs.into_iter().find_map(|litmus| {
        let wrong = |seed| Some(format!("'{}', seed {seed}: {}", litmus.name, wrong(&litmus, seed)?));
        seeds.clone().find_map(wrong)
    })
}

/// Does the same with random programs.
pub fn at_random(
    shapes: impl IntoIterator<Item = Shape>,
    seeds: Range<u64>,
    wrong: impl Fn(&Program, u64) -> Option<String>,
) -> Option<String> {
    shapes.into_iter().find_map(|shape| {
        let wrong = |seed| Some(format!("{shape:?}, seed {seed}: {}", wrong(&generate(seed, shape), seed)?));
        seeds.clone().find_map(wrong)
    })
}

/// Returns what is wrong with the run of a litmus program, including its outcome.
pub fn shown(litmus: &Litmus, ended: Result<Ended, String>) -> Option<String> {
    match ended {
        Ok(ended) => (litmus.forbid)(&ended).then(|| "a forbidden outcome".to_owned()),
        Err(wrong) => Some(wrong),
    }
}
