//! Copies and home pages are evicted because hosts are short of memory, at any moment, any of them. The
//! promises hold as before, and planted bugs are caught.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options};
use hiroba_check::engines::{SOON, hlrc};
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::leaving::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program, Script};
use hiroba_check::random_program::Shape;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

use crate::planted::{at_random, by_litmus, each_is_noticed, shown};

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];

const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: true },
];

fn run(
    program: &Program,
    seed: u64,
    tracking: WriteTracking,
    one_sided: bool,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let mut options = Options { one_sided, shortages: true, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = Cluster::new(program, hlrc(one_sided), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    let findings = page_axioms::judge(&ended.run, &Rules { one_sided, ..Rules::of(Protocol::Hlrc) });
    match findings.breaches.first() {
        Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
        None => Ok(ended),
    }
}

/// Homes move at the first occasion, to nodes that claim them, and readers order pages.
fn adaptive(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    let protocol = hiroba_protocol::adaptive::adaptive([]).moving_after(SOON).ordering_hastily();
    Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
}

#[test]
fn nothing_is_lost_where_homes_move_and_pages_come_unrequested() {
    let run = |program: &Program, seed, tracking| {
        let options = Options { shortages: true, ..Options::seeded(seed, tracking) };
        let ended = Cluster::new(program, adaptive, options).run();
        let ended = ended.map_err(|failure| failure.to_string())?;
        let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
        let violation = verdict.violations.first().map(|violation| violation.explanation.clone());
        let breaches = page_axioms::judge(&ended.run, &Rules::of(Protocol::Adaptive)).breaches;
        let breach = breaches.first().map(|breach| format!("{}: {}", breach.axiom, breach.explanation));
        violation.or(breach).map_or(Ok(ended), Err)
    };
    for tracking in TRACKINGS {
        let wrong =
            by_litmus(catalogue(), 0..60, |litmus, seed| shown(litmus, run(&litmus.program, seed, tracking)));
        let wrong =
            wrong.or_else(|| at_random(SHAPES, 0..400, |program, seed| run(program, seed, tracking).err()));
        assert_eq!(wrong, None, "{tracking:?}");
    }
}

/// Returns what catches the bug first, and how.
fn noticed(tracking: WriteTracking, one_sided: bool, mutant: Option<Mutant>) -> Option<String> {
    let run = |program: &Program, seed| run(program, seed, tracking, one_sided, mutant);
    by_litmus(catalogue(), 0..60, |litmus, seed| shown(litmus, run(&litmus.program, seed)))
        .or_else(|| at_random(SHAPES, 0..400, |program, seed| run(program, seed).err()))
}

#[test]
fn nothing_is_lost_with_copies_that_leave() {
    for tracking in TRACKINGS {
        assert_eq!(noticed(tracking, false, None), None, "{tracking:?}");
    }
}

#[test]
fn nothing_is_lost_where_nodes_read_each_others_frames() {
    for tracking in TRACKINGS {
        assert_eq!(noticed(tracking, true, None), None, "{tracking:?}");
    }
}

#[test]
fn every_mutant_is_noticed() {
    for tracking in TRACKINGS {
        let concerned = Mutant::ALL.into_iter().filter(|mutant| mutant.concerns(tracking));
        each_is_noticed(concerned, |mutant| noticed(tracking, false, Some(mutant)));
    }
}

/// A node writes a page that is evicted repeatedly in one interval, beside another node that writes the same
/// page.
#[test]
fn a_page_with_writers_on_two_nodes_keeps_every_word() {
    let words = 24;
    let writer = |first: u32| {
        let mut script = vec![barrier()];
        script.extend(
            (0..words).map(|at| store(Address::word(1, 2 * at + first), u64::from(100 * (first + 1) + at))),
        );
        script.push(barrier());
        // The first register is that of the loop's own loads.
        script.extend((0..8).map(|at| load(Address::word(1, 2 * at + 1 - first), at as u8)));
        script
    };
    let scripts = vec![
        Script::team(0, writer(0)),
        Script::team(1, writer(1)),
        Script::team(2, vec![barrier(), barrier()]),
    ];
    // Three homes in blocks: page 1 is homed on node 1, so one writer has a copy, and the other is the home.
    let program = Program::on(3, 3, scripts);
    for tracking in TRACKINGS {
        for seed in 0..300 {
            let ended = run(&program, seed, tracking, false, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{tracking:?}, seed {seed}: {wrong}"));
            for at in 0..8 {
                assert_eq!(ended.register(0, at), 200 + at as u64, "{tracking:?}, seed {seed}, word {at}");
                assert_eq!(ended.register(1, at), 100 + at as u64, "{tracking:?}, seed {seed}, word {at}");
            }
        }
    }
}
