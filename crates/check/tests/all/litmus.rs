//! Every litmus program, over many seeds.

use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Failure, NetworkChoice, Options, hlrc};
use hiroba_check::litmus::{Litmus, catalogue};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program, Script};
use hiroba_protocol::WriteTracking;
use hiroba_protocol::hlrc::{Hlrc, RESTING_AFTER_RELEASES};

const SEEDS: u64 = 500;
const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];

/// What is wrong with one seed's run, and which of the outcomes to reach it shows.
fn examine(
    litmus: &Litmus,
    seed: u64,
    network: NetworkChoice,
    tracking: WriteTracking,
    one_sided: bool,
) -> Result<Vec<bool>, String> {
    let options = Options { network, one_sided, ..Options::seeded(seed, tracking) };
    let ended = Cluster::new(&litmus.program, hlrc(one_sided), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    if (litmus.forbid)(&ended) {
        let registers: Vec<_> = ended.registers.iter().map(|registers| &registers[..10]).collect();
        return Err(format!("a forbidden outcome: {registers:?}"));
    }
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    if litmus.race_free && !verdict.races.is_empty() {
        return Err(format!("a race in a program without races: {:?}", verdict.races[0]));
    }
    Ok(litmus.reach.iter().map(|(_, predicate)| predicate(&ended)).collect())
}

fn explore(tracking: WriteTracking, one_sided: bool) {
    for litmus in catalogue() {
        let mut reached = vec![false; litmus.reach.len()];
        for seed in 0..SEEDS {
            match examine(&litmus, seed, NetworkChoice::Shuffled, tracking, one_sided) {
                Ok(seen) => reached.iter_mut().zip(seen).for_each(|(reached, seen)| *reached |= seen),
                Err(wrong) => {
                    panic!("{}, {tracking:?} tracking, seed {seed} ({}): {wrong}", litmus.name, litmus.about)
                }
            }
        }
        for ((what, _), reached) in litmus.reach.iter().zip(reached) {
            let name = litmus.name;
            assert!(reached, "{name}: no seed below {SEEDS} reaches '{what}' under {tracking:?} tracking");
        }
    }
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach_where_writes_fault() {
    explore(WriteTracking::Fault, false);
}

#[test]
fn no_seed_shows_a_forbidden_outcome_and_some_seed_each_outcome_to_reach_where_writes_are_noted() {
    explore(WriteTracking::Async, false);
}

#[test]
fn the_same_holds_where_nodes_read_each_others_frames_and_writes_fault() {
    explore(WriteTracking::Fault, true);
}

#[test]
fn the_same_holds_where_nodes_read_each_others_frames_and_writes_are_noted() {
    explore(WriteTracking::Async, true);
}

#[test]
fn loss_duplication_and_reordering_beneath_the_link_change_nothing() {
    for (litmus, tracking) in
        catalogue().iter().flat_map(|litmus| TRACKINGS.map(|tracking| (litmus, tracking)))
    {
        for seed in 0..SEEDS / 20 {
            let examined = examine(litmus, seed, NetworkChoice::Lossy, tracking, seed % 2 == 1);
            examined.unwrap_or_else(|wrong| {
                panic!("{}, {tracking:?} tracking, seed {seed}: {wrong}", litmus.name)
            });
        }
    }
}

#[test]
fn one_seed_reproduces_one_run() {
    for (litmus, tracking) in
        catalogue().iter().flat_map(|litmus| TRACKINGS.map(|tracking| (litmus, tracking)))
    {
        for one_sided in [false, true] {
            let options = || Options { one_sided, ..Options::seeded(11, tracking) };
            let run = || Cluster::new(&litmus.program, hlrc(one_sided), options()).run().unwrap();
            assert_eq!(run(), run());
        }
    }
}

fn fails(program: &Program) -> Failure {
    Cluster::new(program, Hlrc::engine, Options::seeded(1, WriteTracking::Async)).run().unwrap_err()
}

#[test]
fn different_collectives_end_the_job_with_a_sentence() {
    let program = Program::new(1, [vec![barrier()], vec![leave()]]);
    for seed in 0..20 {
        let failure = Cluster::new(&program, Hlrc::engine, Options::seeded(seed, WriteTracking::Async))
            .run()
            .unwrap_err();
        let Failure::Fatal { sentence, .. } = failure else { panic!("{failure}") };
        assert!(sentence.contains("hiroba_barrier") && sentence.contains("hiroba_finalize"), "{sentence}");
    }
}

#[test]
fn deadlocks_name_who_waits_for_whom() {
    let program = Program::new(1, [vec![lock(0), barrier(), lock(1)], vec![lock(1), barrier(), lock(0)]]);
    let Failure::Deadlock(waits) = fails(&program) else { panic!("no deadlock") };
    assert!(waits.contains("held by thread 0") && waits.contains("held by thread 1"), "{waits}");
}

#[test]
fn mistakes_of_the_program_are_misuses() {
    for script in [
        vec![unlock(1)],
        vec![lock(1), lock(1)],
        vec![load(Address::word(9, 0), 0)],
        vec![wait(1, 1)],
        vec![lock(1), leave()],
    ] {
        let failure = fails(&Program::new(1, [script, vec![]]));
        assert!(matches!(failure, Failure::Misuse { thread: 0, .. }), "{failure}");
    }
}

#[test]
fn a_thread_of_no_team_in_a_collective_is_a_misuse() {
    let threads = vec![
        Script::team(0, vec![barrier()]),
        Script::foreign(0, vec![barrier()]),
        // Takes long enough for both to come.
        Script::team(1, [vec![store(Address::word(0, 0), 1); 200], vec![barrier()]].concat()),
    ];
    let program = Program::on(2, 1, threads);
    let sentences = (0..20).filter_map(|seed| {
        let options = Options::seeded(seed, WriteTracking::Async);
        match Cluster::new(&program, Hlrc::engine, options).run().unwrap_err() {
            Failure::Misuse { misuse, .. } => Some(misuse.to_string()),
            _ => None,
        }
    });
    let sentences: Vec<String> = sentences.collect();
    assert!(!sentences.is_empty() && sentences.iter().all(|sentence| sentence.contains("hiroba_barrier")));
}

/// A copy that rests may be written between the last look and the loss of its access.
#[test]
fn copies_that_rest_lose_nothing() {
    let at = |index: u32| Address::word(1 + 2 * u64::from(index % 4), index);
    let mut writer = Vec::new();
    for index in 0..12 {
        writer.push(store(at(index), u64::from(index) + 1));
        writer.push(add(1, 1));
        let here = writer.len();
        // Wait for a while.
        writer.extend([add(0, 1), jump_unless(0, 800 * (u64::from(index) + 1), here)]);
    }
    writer.push(barrier());
    let rounds = u64::from(RESTING_AFTER_RELEASES) * 2 + 100;
    let releaser = vec![lock(0), unlock(0), add(0, 1), jump_unless(0, rounds, 0), barrier()];
    let mut reader = vec![barrier()];
    reader.extend((0..12).map(|index| load(at(index), index as u8)));
    let program =
        Program::on(2, 8, vec![Script::team(0, writer), Script::team(0, releaser), Script::team(1, reader)]);
    for seed in 0..20 {
        let options = Options::seeded(seed, WriteTracking::Async);
        let ended = Cluster::new(&program, Hlrc::engine, options).run();
        let ended = ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for index in 0..12 {
            assert_eq!(ended.register(2, index), index as u64 + 1, "seed {seed}, word {index}");
        }
    }
}
