//! The checker of sequential consistency refuses runs of a weaker protocol that show what it forbids, and
//! never runs without races.

use hiroba_check::cluster::{Cluster, Options};
use hiroba_check::engines::hlrc;
use hiroba_check::litmus::catalogue;
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::sequential::{Sequential, judge, judge_race_free};
use hiroba_protocol::WriteTracking;

#[test]
fn store_buffering_under_release_consistency_is_not_sequentially_consistent() {
    let litmus =
        catalogue().into_iter().find(|litmus| litmus.name == "store buffering").expect("it is there");
    let (what, both_old) = &litmus.reach[0];
    let mut convicted = 0;
    for seed in 0..200 {
        let options = Options::seeded(seed, WriteTracking::Async);
        let ended = Cluster::new(&litmus.program, hlrc(false), options).run().expect("it ends");
        let verdict = judge(&ended.execution());
        let is_convicted = matches!(verdict, Sequential::No { .. });
        assert_eq!(is_convicted, both_old(&ended), "seed {seed}, '{what}': {verdict:?}");
        convicted += usize::from(is_convicted);
    }
    assert!(convicted > 0, "no seed shows '{what}'");
}

#[test]
fn programs_without_races_run_as_if_on_one_machine() {
    for shape in [
        Shape { team: 2, foreign: 0, publications: false, waits: false },
        Shape { team: 1, foreign: 2, publications: true, waits: false },
    ] {
        let mut judged = 0;
        for seed in 0..100 {
            let options = Options::seeded(seed, WriteTracking::Async);
            let ended = Cluster::new(&generate(seed, shape), hlrc(false), options).run().expect("it ends");
            match judge_race_free(&ended.execution()) {
                Sequential::Plausible { loads_judged } => judged += loads_judged,
                Sequential::No { explanation } => panic!("{shape:?}, seed {seed}: {explanation}"),
            }
        }
        assert!(judged > 1000, "{judged} loads judge little");
    }
}
