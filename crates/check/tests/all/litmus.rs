//! Runs of litmus programs are reproducible, and errors of programs are reported.

use hiroba_check::cluster::{Cluster, Failure, Options};
use hiroba_check::engines::{engine_under, hlrc};
use hiroba_check::litmus::catalogue;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program, Script};
use hiroba_protocol::{Protocol, WriteTracking};

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];

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
    Cluster::new(program, engine_under(Protocol::Hlrc), Options::seeded(1, WriteTracking::Async))
        .run()
        .unwrap_err()
}

#[test]
fn different_collectives_end_the_job_with_a_sentence() {
    let program = Program::new(1, [vec![barrier()], vec![leave()]]);
    for seed in 0..20 {
        let failure =
            Cluster::new(&program, engine_under(Protocol::Hlrc), Options::seeded(seed, WriteTracking::Async))
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
        // Takes long enough for both to arrive.
        Script::team(1, [vec![store(Address::word(0, 0), 1); 200], vec![barrier()]].concat()),
    ];
    let program = Program::on(2, 1, threads);
    let sentences = (0..20).filter_map(|seed| {
        let options = Options::seeded(seed, WriteTracking::Async);
        match Cluster::new(&program, engine_under(Protocol::Hlrc), options).run().unwrap_err() {
            Failure::Misuse { misuse, .. } => Some(misuse.to_string()),
            _ => None,
        }
    });
    let sentences: Vec<String> = sentences.collect();
    assert!(!sentences.is_empty() && sentences.iter().all(|sentence| sentence.contains("hiroba_barrier")));
}
