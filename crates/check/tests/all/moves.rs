//! Homes that move under home-based lazy release consistency, and under automatic update, which builds on it,
//! including atomic words and stores of threads outside the teams. Some tests also cover the eager protocols.

use core::fmt::Debug;

use hiroba_base::{Access, NodeId};
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options};
use hiroba_check::engines::SOON;
use hiroba_check::litmus::{catalogue, early};
use hiroba_check::mutant::{Mutation, aurc_moves, moves};
use hiroba_check::page_axioms::{self, Axiom, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_check::random_program::Shape;
use hiroba_protocol::aurc::Aurc;
use hiroba_protocol::coherence::Coherence;
use hiroba_protocol::erc::{Erc, Mode};
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::home::{HomePolicy, MoveThreshold};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_trace::{Activity, Event};
use hiroba_wire::{Limits, Placement};

use crate::planted::{at_random, each_is_noticed};

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
const PROTOCOLS: [Protocol; 2] = [Protocol::Hlrc, Protocol::Aurc];

/// The conditions of a run.
#[derive(Clone, Copy, Debug)]
struct Under {
    protocol: Protocol,
    policy: HomePolicy,
    threshold: MoveThreshold,
    tracking: WriteTracking,
    one_sided: bool,
}

impl Under {
    fn all() -> impl Iterator<Item = Under> {
        PROTOCOLS.into_iter().flat_map(Under::ways)
    }

    fn ways(protocol: Protocol) -> impl Iterator<Item = Under> {
        let moving = HomePolicy::ALL.into_iter().filter(|policy| *policy != HomePolicy::Fixed);
        let ways = moving.flat_map(|policy| TRACKINGS.map(|tracking| (policy, tracking)));
        ways.flat_map(move |(policy, tracking)| {
            let threshold = SOON;
            [false, true].map(|one_sided| Under { protocol, policy, threshold, tracking, one_sided })
        })
    }

    /// Returns every protocol whose homes move.
    fn everywhere() -> impl Iterator<Item = Under> {
        let eager = [Protocol::ErcInvalidate, Protocol::ErcUpdate].into_iter().flat_map(Under::ways);
        let faults = eager.filter(|under| under.tracking == WriteTracking::Fault && !under.one_sided);
        Under::all().chain(faults)
    }

    fn engine(self) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
        move |me, limits, tracking| {
            let others = NodeId::all(limits.nodes).filter(|node| self.one_sided && *node != me);
            let hlrc =
                Hlrc::new().reading_from(others).moving_homes(self.policy).moving_after(self.threshold);
            let eager = |mode| Erc::new(mode).moving_homes(self.policy).moving_after(self.threshold);
            let protocol: Box<dyn Coherence> = match self.protocol {
                Protocol::ErcInvalidate => Box::new(eager(Mode::Invalidate)),
                Protocol::ErcUpdate => Box::new(eager(Mode::Update)),
                Protocol::Aurc => Box::new(Aurc::new(hlrc)),
                _ => Box::new(hlrc.following_locks()),
            };
            Consistency::new(me, limits, tracking, protocol).telling()
        }
    }

    fn run(self, program: &Program, seed: u64, mutation: Option<Box<dyn Mutation>>) -> Result<Ended, String> {
        let is_planted = mutation.is_some();
        let mut options =
            Options { one_sided: self.one_sided, steps_max: 50_000, ..Options::seeded(seed, self.tracking) };
        if let Some(mutation) = mutation {
            options.mutation = mutation;
        }
        let ended = Cluster::new(program, self.engine(), options).run();
        let ended = ended.map_err(|failure| failure.to_string())?;
        let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
        if let Some(violation) = verdict.violations.first() {
            return Err(violation.explanation.clone());
        }
        let rules = Rules { one_sided: self.one_sided, ..Rules::of(self.protocol) };
        // A message out of order is not what the checker must catch, but its consequences.
        let of_pages = |axiom: &&Axiom| !is_planted || **axiom != Axiom::Messages;
        let axioms: Vec<Axiom> = rules.axioms.iter().filter(of_pages).copied().collect();
        let findings = page_axioms::judge(&ended.run, &Rules { axioms: &axioms, ..rules });
        match findings.breaches.first() {
            Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
            None => Ok(ended),
        }
    }

    /// Returns true if records must show moves. A node that reads a page from its home's frame sends no
    /// request, so its home does not see fetches; and eager engines report nothing about homes.
    fn shows_moves(self) -> bool {
        PROTOCOLS.contains(&self.protocol) && (self.policy == HomePolicy::Modification || !self.one_sided)
    }
}

/// Returns how many times homes moved, according to node 0.
fn moves(ended: &Ended) -> u64 {
    let records = ended.run.nodes[0].records.iter();
    records.map(|record| if let Event::Moved { pages, .. } = &record.event { pages.len() } else { 0 }).sum()
}

fn page_on_node_0() -> Vec<Region> {
    vec![Region::new(0, 1, 1, Placement::On(NodeId(0)))]
}

/// Makes all nodes read a page's first words at the end, each into its last register.
fn read_all(words: u32) -> impl Iterator<Item = Instruction> {
    (0..words).flat_map(|word| [load(Address::word(0, word), 0), add_register(1 + word as u8, 0)])
}

/// Node 1 writes in every phase, the others read; a thread of node 0 outside the team writes a word of its
/// own all the time.
fn one_writer() -> Program {
    let foreign = Address::word(0, 9);
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..4u64 {
            if me == 1 {
                code.push(store(Address::word(0, phase as u32), phase + 10));
            }
            code.push(barrier());
            code.extend(
                (0..=phase as u32).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)]),
            );
            code.push(barrier());
        }
        code
    };
    let mut threads: Vec<Script> = (0..3).map(|node| Script::team(node, script(u64::from(node)))).collect();
    let mut code = Vec::new();
    for value in 1..6 {
        code.extend([lock(0), store(foreign, value), unlock(0)]);
    }
    threads.push(Script::foreign(0, code));
    let reader = (0..4).flat_map(|_| [lock(0), load(foreign, 2), unlock(0)]);
    threads.push(Script::foreign(2, reader.collect()));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn a_page_goes_to_its_only_writer_and_everybody_reads_it_there() {
    for under in Under::all() {
        let mut moved = 0;
        for seed in 0..100 {
            let ended = under.run(&one_writer(), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            // 10, 10 + 11, …
            let read: u64 = (0..4).map(|phase| (0..=phase).map(|word| word + 10).sum::<u64>()).sum();
            for thread in 0..3 {
                assert_eq!(ended.register(thread, 1), read, "{under:?}, seed {seed}, thread {thread}");
            }
            moved += moves(&ended);
        }
        assert!(moved > 0 || !under.shows_moves(), "{under:?}: no move");
    }
}

fn alternating(phases: u64) -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..phases {
            if phase % 2 + 1 == me {
                code.push(store(Address::word(0, me as u32), phase + 1));
            }
            code.push(barrier());
        }
        code.extend(read_all(3));
        code
    };
    Program::new(0, (0..3).map(script)).with_regions(page_on_node_0())
}

/// Returns how many times a page may move at most that two nodes write in turn, 12 times each. The home that
/// it leaves for one of them must have seen more of that node than of all others, and each move doubles what
/// the next one needs.
fn moves_max(policy: HomePolicy, threshold: MoveThreshold) -> u64 {
    match policy {
        // No node has most of it in two successive periods; if one period suffices, then only for the first
        // move.
        HomePolicy::Modification => u64::from(threshold == SOON),
        // 8 faults, and 16 for the next one; or 1, 2, 4 and again 4.
        _ if threshold == SOON => 4,
        _ => 1,
    }
}

/// Node 1 writes, and node 0, which has the page at first, reads it before and after each barrier.
fn the_last_home_reads() -> Program {
    let (mut reader, mut writer) = (Vec::new(), Vec::new());
    for phase in 0..6 {
        writer.extend([store(Address::word(0, 0), phase + 10), barrier(), barrier(), barrier()]);
        reader.push(barrier());
        for _ in 0..2 {
            reader.extend([load(Address::word(0, 0), 0), add_register(1, 0), barrier()]);
        }
    }
    Program::new(0, vec![reader, writer]).with_regions(page_on_node_0())
}

/// A page that was open at its last home stays open there as a copy, if it is valid.
#[test]
fn the_last_home_goes_on_with_its_copy_without_a_fault() {
    for tracking in TRACKINGS {
        let policy = HomePolicy::Modification;
        let under = Under { protocol: Protocol::Hlrc, policy, threshold: SOON, tracking, one_sided: false };
        let (mut opened, mut faulted) = (0, 0);
        for seed in 0..50 {
            let ended = under.run(&the_last_home_reads(), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            let read: u64 = (0..6).map(|phase| 2 * (phase + 10)).sum();
            assert_eq!(ended.register(0, 1), read, "{under:?}, seed {seed}");
            let records = ended.run.nodes[0].records.iter().map(|record| &record.event);
            let after = records.skip_while(|event| !matches!(event, Event::Moved { .. }));
            let shows = |event: &Event| match event {
                Event::Access { access, .. } if *access > Access::None => Some(true),
                Event::Enter(Activity::Fault { .. }) => Some(false),
                _ => None,
            };
            match after.into_iter().find_map(shows) {
                Some(true) => opened += 1,
                Some(false) => faulted += 1,
                None => {}
            }
        }
        assert!(opened > faulted, "{tracking:?}: opened in {opened} runs, faulted in {faulted}");
    }
}

#[test]
fn a_page_that_two_nodes_write_in_turn_comes_to_rest() {
    for (under, threshold) in Under::all().flat_map(|way| [MoveThreshold::default(), SOON].map(|t| (way, t)))
    {
        let under = Under { threshold, ..under };
        for seed in 0..40 {
            let ended = under.run(&alternating(24), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            let most = moves_max(under.policy, threshold);
            assert!(moves(&ended) <= most, "{under:?}, seed {seed}: {} moves", moves(&ended));
            assert_eq!((ended.register(0, 2), ended.register(0, 3)), (23, 24), "{under:?}, seed {seed}");
        }
    }
}

/// A page moves, and then all nodes operate on a word of it.
fn words_on_a_moved_page() -> Program {
    let word = Address::word(0, 7);
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..3u64 {
            if me == 2 {
                code.push(store(Address::word(0, phase as u32), phase + 1));
            }
            code.push(barrier());
        }
        code.extend([fetch_add(word, 1, 0), fetch_add(word, 1, 0), barrier(), load(word, 1)]);
        code
    };
    let mut threads: Vec<Script> = (0..3).map(|node| Script::team(node, script(u64::from(node)))).collect();
    // Some operations happen during the move.
    threads.push(Script::foreign(1, vec![fetch_add(word, 1, 0); 4]));
    threads.push(Script::foreign(0, vec![fetch_add(word, 1, 0); 4]));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn atomic_words_count_on_while_their_page_moves() {
    for under in Under::everywhere() {
        for seed in 0..100 {
            let ended = under.run(&words_on_a_moved_page(), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            for thread in 0..3 {
                let read = ended.register(thread, 1);
                assert!((6..=14).contains(&read), "{under:?}, seed {seed}: thread {thread} reads {read}");
            }
        }
    }
}

/// A page with a word on which three threads of one node operate while it moves between two others.
fn words_from_afar() -> Program {
    let word = Address::word(0, 7);
    let script = |me: u64| {
        let code = (1..4u64).flat_map(|phase| {
            let written = (me == 1).then(|| store(Address::word(0, 1), phase));
            let operated = (me == 2).then(|| [fetch_add(word, 1, 0), load(word, 1)]);
            written.into_iter().chain(operated.into_iter().flatten()).chain([barrier()])
        });
        code.collect::<Vec<_>>()
    };
    let mut threads: Vec<Script> = (0..3).map(|node| Script::team(node, script(u64::from(node)))).collect();
    let afar = (0..6).flat_map(|_| [fetch_add(word, 1, 0), load(word, 1)]);
    threads.extend((0..2).map(|_| Script::foreign(2, afar.clone().collect())));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn who_operates_on_both_sides_of_a_move_finds_the_latest() {
    for under in Under::everywhere() {
        for seed in 0..300 {
            let ended = under.run(&words_from_afar(), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            for thread in [3, 4] {
                let read = ended.register(thread, 1);
                assert!((6..=15).contains(&read), "{under:?}, seed {seed}: thread {thread} reads {read}");
            }
        }
    }
}

#[test]
fn litmus_programs_show_nothing_forbidden_while_homes_move() {
    for under in Under::all() {
        for litmus in early().into_iter().chain(catalogue()) {
            for seed in 0..30 {
                let ended = under.run(&litmus.program, seed, None);
                let ended =
                    ended.unwrap_or_else(|wrong| panic!("{}, {under:?}, seed {seed}: {wrong}", litmus.name));
                assert!(
                    !(litmus.forbid)(&ended),
                    "{}, {under:?}, seed {seed}: a forbidden outcome",
                    litmus.name
                );
            }
        }
    }
}

const SHAPES: [Shape; 3] = [
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// Node 1 writes all pages in every phase, so that they move there. A thread of node 2 outside the team
/// writes words of its own in them, reads these repeatedly, and publishes them in the end.
fn stranger() -> Program {
    const PAGES: u64 = 6;
    let own = |page| Address::word(page, 9);
    let writer = |phase: u64| (0..PAGES).map(move |page| store(Address::word(page, 1), phase));
    let script = |me: u64| {
        let mut code: Vec<Instruction> =
            (1..4).flat_map(|phase| writer(phase).filter(move |_| me == 1).chain([barrier()])).collect();
        code.extend([lock(0)]);
        code.extend((0..PAGES).map(|page| load(own(page), 0)));
        code.extend([unlock(0), barrier()]);
        code
    };
    let mut threads: Vec<Script> = (0..3).map(|node| Script::team(node, script(u64::from(node)))).collect();
    let mut code: Vec<Instruction> = (0..PAGES)
        .flat_map(|page| [vec![store(own(page), page + 1)], vec![load(own(page), 0); 8]].concat())
        .collect();
    code.extend([lock(0), unlock(0)]);
    code.extend((0..PAGES).flat_map(|page| [load(own(page), 0), add_register(1, 0)]));
    threads.push(Script::foreign(2, code));
    Program::on(3, 0, threads).with_regions(vec![Region::new(0, PAGES, 1, Placement::On(NodeId(0)))])
}

#[test]
fn what_a_node_writes_while_homes_move_is_neither_lost_nor_taken_back() {
    for under in Under::everywhere() {
        let mut moved = 0;
        for seed in 0..200 {
            let ended = under.run(&stranger(), seed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            assert_eq!(ended.register(3, 1), 21, "{under:?}, seed {seed}");
            moved += moves(&ended);
        }
        assert!(moved > 0 || !under.shows_moves(), "{under:?}: no move");
    }
}

/// Plants a bug anew for each run.
type Plant<'a> = &'a dyn Fn() -> Option<Box<dyn Mutation>>;

/// Returns what catches the bug first.
fn noticed(under: Under, plant: Plant<'_>) -> Option<String> {
    let written = [one_writer(), alternating(6), words_on_a_moved_page(), stranger()];
    let by_written = written.iter().find_map(|program| {
        (0..100).find_map(|seed| Some(format!("seed {seed}: {}", under.run(program, seed, plant()).err()?)))
    });
    by_written.or_else(|| at_random(SHAPES, 0..150, |program, seed| under.run(program, seed, plant()).err()))
}

/// Checks every way in which homes move under the protocol.
fn each_is_noticed_under<M: Copy + Debug>(
    protocol: Protocol,
    mutants: impl IntoIterator<Item = M>,
    plant: impl Fn(M) -> Box<dyn Mutation>,
) {
    println!("under {protocol:?}:");
    let noticed = |mutant| Under::ways(protocol).find_map(|under| noticed(under, &|| Some(plant(mutant))));
    each_is_noticed(mutants, noticed);
}

#[test]
fn every_mutant_is_noticed() {
    for protocol in PROTOCOLS {
        each_is_noticed_under(protocol, moves::Mutant::ALL, moves::Mutant::plant);
    }
}

#[test]
fn every_mutant_of_what_leaves_early_is_noticed() {
    each_is_noticed_under(Protocol::Aurc, aurc_moves::Mutant::ALL, aurc_moves::Mutant::plant);
}

#[test]
fn the_faithful_engine_passes_the_same_seeds() {
    for under in Under::all() {
        assert_eq!(noticed(under, &|| None), None, "{under:?}");
    }
}
