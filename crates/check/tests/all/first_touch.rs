//! Pages move to the node that touches them first, under every protocol.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use hiroba_base::{NodeId, PageId};
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options};
use hiroba_check::engines::trackings_of;
use hiroba_check::litmus::catalogue;
use hiroba_check::mutant::first_touch::Mutant;
use hiroba_check::mutant::{Faithful, Mutation, moves};
use hiroba_check::page_axioms::{self, Axiom, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Program, Region};
use hiroba_check::random_program::{Shape, generate};
use hiroba_protocol::{Consistency, Effect, Protocol, WriteTracking};
use hiroba_wire::{Limits, Placement};

use crate::planted::{at_random, each_is_noticed};
use crate::sample;

/// The protocols under which pages move there.
const PLACING: [Protocol; 5] =
    [Protocol::Hlrc, Protocol::Aurc, Protocol::Adaptive, Protocol::ErcInvalidate, Protocol::ErcUpdate];

#[derive(Clone, Copy, Debug)]
struct Under {
    protocol: Protocol,
    tracking: WriteTracking,
    one_sided: bool,
}

/// Returns true if nodes read each other's frames under the protocol, if they can.
fn reads_frames(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Hlrc | Protocol::Aurc | Protocol::Adaptive)
}

fn ways(protocol: Protocol) -> impl Iterator<Item = Under> {
    let reaches = if reads_frames(protocol) { &[false, true][..] } else { &[false] };
    let trackings = trackings_of(protocol).iter();
    trackings.flat_map(move |tracking| {
        reaches.iter().map(move |one_sided| Under { protocol, tracking: *tracking, one_sided: *one_sided })
    })
}

/// Which page has moved to which node.
type Moved = Arc<Mutex<BTreeSet<(PageId, NodeId)>>>;

/// Records where pages move, in addition to what another mutation does.
struct Noting {
    moved: Moved,
    mutation: Box<dyn Mutation>,
}

impl Mutation for Noting {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        if let Effect::CountMove { page } = effect {
            self.moved.lock().unwrap().insert((page, node));
        }
        self.mutation.on_effect(node, effect)
    }

    fn on_content(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        self.mutation.on_content(page, content)
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>, limits: &Limits) -> Vec<(Vec<u8>, bool)> {
        self.mutation.on_send(from, to, bytes, limits)
    }
}

impl Under {
    /// Returns how the run ended and what moved, or what is wrong with it. The program's regions are placed
    /// by first touch.
    fn run(
        self,
        program: &Program,
        seed: u64,
        mutation: Option<Box<dyn Mutation>>,
    ) -> Result<(Ended, Vec<(u64, u16)>), String> {
        let program = Program {
            regions: program
                .regions
                .iter()
                .map(|region| Region { placement: Placement::FirstTouch, ..*region })
                .collect(),
            ..program.clone()
        };
        let is_planted = mutation.is_some();
        let moved = Moved::default();
        let mutation = mutation.unwrap_or_else(|| Box::new(Faithful));
        let mutation = Box::new(Noting { moved: moved.clone(), mutation });
        let one_sided = self.one_sided;
        let options =
            Options { one_sided, steps_max: 50_000, mutation, ..Options::seeded(seed, self.tracking) };
        let engine = |me, limits: Limits, tracking| {
            let reached = NodeId::all(limits.nodes).filter(|node| one_sided && *node != me);
            Consistency::under(self.protocol, me, limits, tracking, reached).telling()
        };
        let ended = Cluster::new(&program, engine, options).run().map_err(|failure| failure.to_string())?;
        let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
        if let Some(violation) = verdict.violations.first() {
            return Err(violation.explanation.clone());
        }
        if reads_frames(self.protocol) {
            let rules = Rules { one_sided, ..Rules::of(self.protocol) };
            let of_pages = |axiom: &&Axiom| !is_planted || **axiom != Axiom::Messages;
            let axioms: Vec<Axiom> = rules.axioms.iter().filter(of_pages).copied().collect();
            let findings = page_axioms::judge(&ended.run, &Rules { axioms: &axioms, ..rules });
            if let Some(breach) = findings.breaches.first() {
                return Err(format!("{}: {}", breach.axiom, breach.explanation));
            }
        }
        let moved = moved.lock().unwrap().iter().map(|(page, node)| (page.0, node.0)).collect();
        Ok((ended, moved))
    }
}

/// Of nine pages in blocks of three, node 0 stores to its first and loads from node 1's first two, node 1
/// stores to its third and to node 2's first, and node 2 loads from node 0's last; this is repeated for some
/// phases.
fn touching() -> Program {
    let word = |page| Address::word(page, 3);
    let mut scripts = [vec![], vec![], vec![]];
    for phase in 1..4 {
        scripts[0].extend([store(word(0), phase), load(word(3), 0), load(word(4), 0), barrier()]);
        scripts[1].extend([store(word(5), phase), store(word(6), phase), load(word(6), 0), barrier()]);
        scripts[2].extend([load(word(2), 0), barrier()]);
    }
    scripts.iter_mut().for_each(|script| script.extend([barrier(), load(word(6), 1), barrier()]));
    Program::new(9, scripts)
}

#[test]
fn pages_go_once_to_who_touches_them_first_and_no_others_move() {
    for under in PLACING.into_iter().flat_map(ways) {
        for seed in 0..60 {
            let (ended, moved) = under.run(&touching(), seed, None).unwrap_or_else(|wrong| {
                panic!("{under:?}, seed {seed}: {wrong}");
            });
            assert_eq!(moved, [(2, 2), (3, 0), (4, 0), (6, 1)], "{under:?}, seed {seed}");
            (0..3).for_each(|thread| assert_eq!(ended.register(thread, 1), 3, "{under:?}, seed {seed}"));
        }
    }
}

/// Node 0 reads pages in a stream that node 1 touches one after the other, and fetches them ahead; node 2
/// reads pages that were never written.
fn reading_ahead() -> Program {
    const PAGES: u64 = 24;
    let word = |page| Address::word(page, 1);
    let (reader, writer) = (PAGES / 3..PAGES / 3 + 5, PAGES / 3 + 5..2 * PAGES / 3);
    let reader = reader.map(|page| load(word(page), 0)).chain([barrier()]);
    let writer = writer.map(|page| store(word(page), 7)).chain([barrier()]);
    Program::new(PAGES, [reader.collect(), vec![barrier()], writer.collect()])
}

#[test]
fn what_is_fetched_ahead_is_not_touched_by_that() {
    for under in PLACING.into_iter().flat_map(ways) {
        for seed in 0..60 {
            let (_, moved) = under.run(&reading_ahead(), seed, None).unwrap_or_else(|wrong| {
                panic!("{under:?}, seed {seed}: {wrong}");
            });
            for (page, node) in moved {
                assert_eq!(node, if page < 13 { 0 } else { 2 }, "{under:?}, seed {seed}: {page}");
            }
        }
    }
}

#[test]
fn homes_stay_where_first_touches_mean_nothing() {
    for under in [Protocol::Sc, Protocol::Lrc].into_iter().flat_map(ways) {
        let (_, moved) = under.run(&touching(), 1, None).unwrap();
        assert_eq!(moved, [], "{under:?}");
    }
}

#[test]
fn litmus_programs_show_nothing_forbidden() {
    for under in PLACING.into_iter().flat_map(ways) {
        for litmus in catalogue() {
            for seed in 0..15 {
                let (ended, _) = under.run(&litmus.program, seed, None).unwrap_or_else(|wrong| {
                    panic!("{}, {under:?}, seed {seed}: {wrong}", litmus.name);
                });
                assert!(!(litmus.forbid)(&ended), "{}, {under:?}, seed {seed}: forbidden", litmus.name);
            }
        }
    }
}

const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 1, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// Runs as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample of 100, of each way and shape.
#[test]
fn random_programs_without_races_behave_as_on_one_machine() {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    for under in Protocol::ALL.into_iter().flat_map(ways) {
        let mut moves = 0;
        for (shape, seed) in SHAPES
            .into_iter()
            .flat_map(|shape| (0..asked.unwrap_or(sample::of(100))).map(move |s| (shape, s)))
        {
            match under.run(&generate(seed, shape), seed, None) {
                Ok((_, moved)) => moves += moved.len(),
                Err(wrong) => panic!("{under:?}, {shape:?}, seed {seed}: {wrong}"),
            }
        }
        assert_eq!(moves > 0, PLACING.contains(&under.protocol), "{under:?}: {moves} moves");
    }
}

#[test]
fn planted_bugs_show_in_where_pages_go() {
    let right = |moved: &[(u64, u16)]| moved == [(2, 2), (3, 0), (4, 0), (6, 1)];
    for under in PLACING.into_iter().flat_map(ways) {
        let lost = |seed| {
            let mutation: Box<dyn Mutation> = Box::new(Mutant::TouchIsAhead);
            under.run(&touching(), seed, Some(mutation)).map_or(true, |(_, moved)| !right(&moved))
        };
        assert!((0..20).any(lost), "{under:?}: nobody notices that touches are lost");
    }
    // Under eager release consistency one message requests one page for a node, whatever the purpose.
    for under in [Protocol::Hlrc, Protocol::Aurc, Protocol::Adaptive]
        .into_iter()
        .flat_map(ways)
        .filter(|way| !way.one_sided)
    {
        let taken = |seed| {
            let mutation: Box<dyn Mutation> = Box::new(Mutant::AheadIsTouch);
            let ran = under.run(&reading_ahead(), seed, Some(mutation));
            ran.map_or(true, |(_, moved)| moved.iter().any(|(page, node)| (*page < 13) != (*node == 0)))
        };
        assert!((0..200).any(taken), "{under:?}: nobody notices that what is fetched ahead counts");
    }
}

/// These moves work like all others, and so do the bugs.
#[test]
fn planted_bugs_of_moves_are_noticed_here_too() {
    each_is_noticed(moves::Mutant::ALL, |mutant| {
        ways(Protocol::Hlrc).find_map(|under| {
            let wrong = |program: &Program, seed| under.run(program, seed, Some(mutant.plant())).err();
            let by_touching = (0..30).find_map(|seed| wrong(&touching(), seed));
            by_touching.or_else(|| at_random(SHAPES, 0..100, wrong))
        })
    });
}
