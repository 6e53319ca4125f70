//! Pages that travel with arrivals to node 0, where threads wait for these: engines lend all that they can.

use hiroba_check::litmus::{Litmus, gathering};
use hiroba_check::mutant::lending::Mutant;
use hiroba_check::program::{Instruction, Program};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::{Protocol, WriteTracking};

use crate::lending::{convicted, explore, protocols, run};
use crate::planted::{by_litmus, each_is_noticed};
use crate::sample;

const SEEDS: u64 = 500;

#[test]
fn values_that_travel_are_those_of_their_phase() {
    for first in protocols() {
        for litmus in gathering() {
            explore(&litmus, first, |seed| run(&litmus.program, first, seed, None));
        }
    }
}

/// Has threads of node 0 wait for the others' arrivals some loads and stores before they come to barriers
/// themselves.
fn with_waits(mut program: Program, seed: u64) -> Program {
    let is_access = |instruction: &Instruction| {
        matches!(
            instruction,
            Instruction::Load { .. }
                | Instruction::Store { .. }
                | Instruction::StoreFrom { .. }
                | Instruction::Add(..)
        )
    };
    for script in program.threads.iter_mut().filter(|script| script.node.0 == 0 && script.in_team) {
        let is_barrier = |at: &usize| matches!(script.instructions[*at], Instruction::Collective(_));
        let barriers: Vec<usize> = (0..script.instructions.len()).filter(is_barrier).collect();
        for (number, at) in barriers.into_iter().enumerate().rev() {
            let before = (seed as usize + number) % 5;
            let is_apart = |first: &usize| script.instructions[*first..at].iter().all(is_access);
            let first = (at.saturating_sub(before)..=at).find(is_apart).unwrap_or(at);
            script.instructions.insert(first, Instruction::AwaitOthers);
            for instruction in &mut script.instructions {
                if let Instruction::JumpUnless { to, .. } = instruction {
                    *to += usize::from(*to > first);
                }
            }
        }
    }
    program
}

#[test]
fn random_programs_behave_as_without_waiting() {
    for first in protocols() {
        for shape in [
            Shape { team: 1, foreign: 0, publications: false, waits: false },
            Shape { team: 2, foreign: 1, publications: false, waits: false },
        ] {
            for seed in 0..sample::of(SEEDS) {
                let ended = run(&with_waits(generate(seed, shape), seed), first, seed, None)
                    .unwrap_or_else(|failure| panic!("{first:?}, {shape:?}, seed {seed}: {failure}"));
                assert_eq!(convicted(&ended, first.0), None, "{first:?}, {shape:?}, seed {seed}");
            }
        }
    }
}

fn wrong(litmus: &Litmus, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    let first = (Protocol::Hlrc, WriteTracking::Fault);
    match run(&litmus.program, first, seed, mutant) {
        Ok(ended) if (litmus.forbid)(&ended) => Some("a forbidden outcome".to_owned()),
        Ok(ended) => convicted(&ended, first.0),
        Err(failure) => Some(failure),
    }
}

#[test]
fn each_planted_bug_is_noticed() {
    let noticed = |mutant| by_litmus(gathering(), 0..SEEDS, |litmus, seed| wrong(litmus, seed, mutant));
    assert_eq!(noticed(None), None);
    each_is_noticed(Mutant::ALL.into_iter().chain(Mutant::OF_ARRIVALS), |mutant| noticed(Some(mutant)));
}
