//! The checker of pages: the correct engine is never refused, and mutants are caught by page facts alone.

use hiroba_base::{LockId, PageId};
use hiroba_check::cluster::{Cluster, NetworkChoice, Options};
use hiroba_check::engines::hlrc;
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::Mutant;
use hiroba_check::page_axioms::{Breach, Findings, Rules, judge};
use hiroba_check::program::script::{barrier, lock, store, unlock};
use hiroba_check::program::{Address, Program};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::WriteTracking;
use hiroba_trace::{Event, Record, ThreadNumber};
use hiroba_wire::Message;

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
const SHAPES: [Shape; 4] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// Returns what the page facts of a run show; `None` if it did not end well, which other checks catch.
fn findings(program: &Program, options: Options) -> Option<Findings> {
    let one_sided = options.one_sided;
    let ended = Cluster::new(program, hlrc(one_sided), options).run().ok()?;
    Some(judge(&ended.run, &Rules::hlrc(one_sided)))
}

#[test]
fn the_faithful_engine_keeps_every_axiom() {
    for tracking in TRACKINGS {
        for one_sided in [false, true] {
            let options = |seed| Options { one_sided, ..Options::seeded(seed, tracking) };
            for litmus in catalogue() {
                for seed in 0..10 {
                    let findings = findings(&litmus.program, options(seed)).expect("litmus programs end");
                    assert_eq!(
                        findings.breaches,
                        [],
                        "'{}', {tracking:?}, {one_sided}, seed {seed}",
                        litmus.name
                    );
                }
            }
            for shape in SHAPES {
                let mut notices = 0;
                for seed in 0..100 {
                    let findings =
                        findings(&generate(seed, shape), options(seed)).expect("random programs end");
                    assert_eq!(findings.breaches, [], "{shape:?}, {tracking:?}, {one_sided}, seed {seed}");
                    notices += findings.counts.notices;
                }
                assert!(notices > 1000, "{notices} notices judge little");
            }
        }
    }
}

#[test]
fn the_axioms_hold_over_a_lossy_network() {
    for seed in 0..20 {
        let options =
            Options { network: NetworkChoice::Lossy, ..Options::seeded(seed, WriteTracking::Async) };
        let findings = findings(&generate(seed, SHAPES[2]), options).expect("random programs end");
        assert_eq!(findings.breaches, [], "seed {seed}");
    }
}

/// Returns the first breach that a mutant's page facts show.
fn convicted(mutant: Mutant) -> Option<Breach> {
    let run = |tracking, program: &Program, seed| {
        let one_sided = mutant.is_one_sided();
        let options = Options {
            one_sided,
            steps_max: 20_000,
            mutation: mutant.plant(),
            ..Options::seeded(seed, tracking)
        };
        findings(program, options)?.breaches.into_iter().next()
    };
    let concerned = TRACKINGS.into_iter().filter(|tracking| mutant.concerns(*tracking));
    concerned.into_iter().find_map(|tracking| {
        let by_shape = SHAPES
            .into_iter()
            .find_map(|shape| (0..30).find_map(|seed| run(tracking, &generate(seed, shape), seed)));
        by_shape.or_else(|| {
            catalogue().iter().find_map(|litmus| (0..5).find_map(|seed| run(tracking, &litmus.program, seed)))
        })
    })
}

/// Covers the mutants that neglect what page facts record: announcements, counts, claims, omissions. The
/// others corrupt bytes.
#[test]
fn page_facts_alone_convict_mutants() {
    const CONVICTED: [Mutant; 16] = [
        Mutant::DropNoticeOfGrant,
        Mutant::GrantBeforeRelease,
        Mutant::DropNoticeOfBarrier,
        Mutant::DepartureAheadOfNotices,
        Mutant::RequestAheadOfNotices,
        Mutant::DropRuns,
        Mutant::SkipApply,
        Mutant::LoseInvalidation,
        Mutant::IgnoreNeeded,
        Mutant::DiffsAstray,
        Mutant::DiffsTwice,
        Mutant::GrantCrossesDeparture,
        Mutant::ForgetBeyondArrival,
        Mutant::DropNoticeOfSubtree,
        Mutant::SubtreeSeesAlike,
        Mutant::DepartSubtreeEarly,
    ];
    for mutant in CONVICTED {
        let breach = convicted(mutant).unwrap_or_else(|| panic!("page facts do not convict {mutant:?}"));
        println!("{mutant:?}: {}: {}", breach.axiom, breach.explanation);
    }
}

/// Homes that move close an interval after the meeting, perhaps in the call of the thread that arrived last.
#[test]
fn what_is_closed_behind_a_meeting_was_not_seen_by_who_came_to_it() {
    let options = Options::seeded(1, WriteTracking::Fault);
    let program = Program::new(1, [vec![barrier(), barrier()], vec![barrier(), barrier()]]);
    let mut run = Cluster::new(&program, hlrc(false), options).run().unwrap().run;
    let records = &mut run.nodes[0].records;
    let met = records.iter().rposition(|record| matches!(record.event, Event::Met { .. }));
    let met = met.expect("node 0 has met node 1");
    let leaves = records[met + 1..]
        .iter()
        .any(|record| record.thread == records[met].thread && matches!(record.event, Event::Leave));
    assert!(leaves, "the call ends behind its meeting");
    let pages = [PageId(0)].into_iter().collect();
    records.insert(met + 1, Record { event: Event::Closed { seq: 1, pages }, ..records[met].clone() });
    assert_eq!(judge(&run, &Rules::hlrc(false)).breaches, []);
}

/// A thread takes a lock that was here already while another has received a grant and not handled it yet.
#[test]
fn a_lock_that_was_here_brings_nothing_of_a_grant_that_is_being_handled() {
    let writes = || vec![lock(0), store(Address::word(0, 0), 1), unlock(0)];
    let program = Program::new(1, [writes(), writes()]);
    let late = |thread: ThreadNumber| ThreadNumber(thread.0 + 100);
    let mut is_tried = false;
    for seed in 0..20 {
        let options = Options::seeded(seed, WriteTracking::Fault);
        let mut run = Cluster::new(&program, hlrc(false), options).run().unwrap().run;
        for (number, node) in (90..).zip(&mut run.nodes) {
            let is_grant = |record: &Record| match record.event {
                Event::Received { kind, .. } => Message::KINDS.get(usize::from(kind.0)) == Some(&"LockGrant"),
                _ => false,
            };
            let Some(came) = node.records.iter().position(is_grant) else { continue };
            let (thread, event) =
                (late(node.records[came].thread), Event::Acquired { lock: LockId(number), turn: 0 });
            node.records.insert(came + 1, Record { thread, event, ..node.records[came].clone() });
            is_tried = true;
        }
        assert_eq!(judge(&run, &Rules::hlrc(false)).breaches, [], "seed {seed}");
    }
    assert!(is_tried, "some lock was granted by a message");
}
