//! Pages that their sole writers claim at barriers, under the adaptive protocol.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options};
use hiroba_check::litmus::{catalogue, early};
use hiroba_check::mutant::claims::Mutant;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_check::random_program::Shape;
use hiroba_protocol::adaptive::adaptive;
use hiroba_protocol::{Consistency, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{Limits, Message, Placement};

use crate::planted::{at_random, each_is_noticed};

const SHAPES: [Shape; 3] = [
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: false },
];

/// The conditions of a run.
#[derive(Clone, Copy, Debug)]
struct Under {
    tracking: WriteTracking,
    one_sided: bool,
}

impl Under {
    fn all() -> impl Iterator<Item = Under> {
        let trackings = [WriteTracking::Fault, WriteTracking::Async].into_iter();
        trackings.flat_map(|tracking| [false, true].map(|one_sided| Under { tracking, one_sided }))
    }

    fn run(self, program: &Program, seed: u64, mutant: Option<Mutant>) -> Result<Ended, String> {
        let Under { tracking, one_sided } = self;
        let mut options = Options { one_sided, steps_max: 100_000, ..Options::seeded(seed, tracking) };
        if let Some(mutant) = mutant {
            options.mutation = mutant.plant();
        }
        let engine = move |me, limits: Limits, tracking| {
            let others = NodeId::all(limits.nodes).filter(|node| one_sided && *node != me);
            Consistency::new(me, limits, tracking, Box::new(adaptive(others))).telling()
        };
        let ended = Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())?;
        let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
        if let Some(violation) = verdict.violations.first() {
            return Err(violation.explanation.clone());
        }
        let findings = page_axioms::judge(&ended.run, &Rules::hlrc(one_sided));
        match findings.breaches.first() {
            Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
            None => Ok(ended),
        }
    }

    /// Runs a program that must keep its promises.
    fn kept(self, program: &Program, seed: u64) -> Ended {
        self.run(program, seed, None).unwrap_or_else(|wrong| panic!("{self:?}, seed {seed}: {wrong}"))
    }
}

/// Returns how many messages of a kind a node has sent.
fn sent(ended: &Ended, node: usize, kind: &str) -> usize {
    let is_meant = |event: &Event| matches!(event, Event::Sent { kind: sent, .. } if Message::KINDS[usize::from(sent.0)] == kind);
    ended.run.nodes[node].records.iter().filter(|record| is_meant(&record.event)).count()
}

/// Returns how many times homes moved, according to node 0.
fn moves(ended: &Ended) -> u64 {
    let records = ended.run.nodes[0].records.iter();
    records.map(|record| if let Event::Moved { pages, .. } = &record.event { pages.len() } else { 0 }).sum()
}

fn page_on_node_0() -> Vec<Region> {
    vec![Region::new(0, 1, 1, Placement::On(NodeId(0)))]
}

fn in_teams(scripts: impl IntoIterator<Item = Vec<Instruction>>) -> Vec<Script> {
    scripts.into_iter().enumerate().map(|(node, code)| Script::team(node as u16, code)).collect()
}

/// Node 2 initialises a page that is homed on node 0; from then on node 1 writes it, and all read it at
/// intervals.
fn initialised_elsewhere(phases: u64) -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        if me == 2 {
            code.extend((0..4).map(|word| store(Address::word(0, word), 5)));
        }
        code.push(barrier());
        for phase in 0..phases {
            if me == 1 {
                code.push(store(Address::word(0, (phase % 4) as u32), phase + 10));
            }
            code.push(barrier());
            if phase % 4 == 3 {
                code.extend((0..4).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)]));
                code.push(barrier());
            }
        }
        code
    };
    Program::on(3, 0, in_teams((0..3).map(script))).with_regions(page_on_node_0())
}

#[test]
fn who_writes_alone_becomes_home_at_the_first_barrier_and_sends_nothing() {
    const PHASES: u64 = 16;
    for under in Under::all() {
        for seed in 0..60 {
            let ended = under.kept(&initialised_elsewhere(PHASES), seed);
            let read: u64 =
                (0..PHASES / 4).map(|round| (0..4).map(|word| 4 * round + word + 10).sum::<u64>()).sum();
            for thread in 0..3 {
                assert_eq!(ended.register(thread, 1), read, "{under:?}, seed {seed}, thread {thread}");
            }
            assert_eq!(moves(&ended), 1, "{under:?}, seed {seed}: node 1 claims the page once");
            assert_eq!(sent(&ended, 1, "Diffs"), 0, "{under:?}, seed {seed}: what is claimed is not sent");
        }
    }
}

/// All nodes write words of their own in one page, all the time.
fn falsely_shared(phases: u64) -> Program {
    let script = |me: u64| {
        let phase = |phase| vec![store(Address::word(0, me as u32), phase + 100 * me), barrier()];
        let code = (0..phases).flat_map(phase);
        code.chain((0..3).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)])).collect()
    };
    Program::on(3, 0, in_teams((0..3).map(script))).with_regions(page_on_node_0())
}

#[test]
fn a_page_that_several_write_is_claimed_in_vain_once() {
    const PHASES: u64 = 12;
    for under in Under::all() {
        for seed in 0..60 {
            let ended = under.kept(&falsely_shared(PHASES), seed);
            for thread in 0..3 {
                let read = ended.register(thread, 1);
                assert_eq!(read, 3 * (PHASES - 1) + 300, "{under:?}, seed {seed}, thread {thread}");
            }
            assert_eq!(moves(&ended), 0, "{under:?}, seed {seed}");
        }
    }
}

/// The page's home and another node write it in every other phase; the other node alone writes it in the
/// phases between.
fn sometimes_alone(phases: u64) -> Program {
    let script = |me: u64| {
        let phase = |phase: u64| {
            let written = (me == 1 || phase.is_multiple_of(2))
                .then(|| store(Address::word(0, me as u32), phase + 100 * me));
            written.into_iter().chain([barrier()])
        };
        let code = (0..phases).flat_map(phase);
        code.chain((0..2).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)])).collect()
    };
    Program::on(2, 0, in_teams((0..2).map(script))).with_regions(page_on_node_0())
}

#[test]
fn a_contended_page_stays_where_one_node_sometimes_writes_it_alone() {
    const PHASES: u64 = 40;
    for under in Under::all() {
        for seed in 0..60 {
            let ended = under.kept(&sometimes_alone(PHASES), seed);
            for thread in 0..2 {
                let read = ended.register(thread, 1);
                assert_eq!(read, PHASES - 2 + PHASES - 1 + 100, "{under:?}, seed {seed}, thread {thread}");
            }
            // A home whose pages are fetched by messages sends no notice of what it wrote before.
            let most = if under.tracking == WriteTracking::Async && !under.one_sided { 2 } else { 0 };
            assert!(moves(&ended) <= most, "{under:?}, seed {seed}: {} moves", moves(&ended));
        }
    }
}

/// Node 2 alone writes a page that is placed on node 1, and then both write words of their own in it.
fn contended_later(alone: u64, phases: u64) -> Program {
    let script = |me: u64| {
        let phase = |phase: u64| {
            let writes = me == 2 || me == 1 && phase >= alone;
            writes.then(|| store(Address::word(0, me as u32), phase + 1)).into_iter().chain([barrier()])
        };
        let code = (0..phases).flat_map(phase);
        code.chain((1..3).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)])).collect()
    };
    let region = Region::new(0, 1, 1, Placement::On(NodeId(1)));
    Program::on(3, 0, in_teams((0..3).map(script))).with_regions(vec![region])
}

#[test]
fn a_contended_page_returns_to_where_it_was_placed_and_stays() {
    const PHASES: u64 = 24;
    for under in Under::all() {
        for seed in 0..60 {
            let ended = under.kept(&contended_later(4, PHASES), seed);
            for thread in 0..3 {
                assert_eq!(ended.register(thread, 1), 2 * PHASES, "{under:?}, seed {seed}, thread {thread}");
            }
            assert_eq!(moves(&ended), 2, "{under:?}, seed {seed}: to node 2 and back");
        }
    }
}

/// Pages go to node 2, which has touched them first, while node 3 has valid copies of them. Node 3 then
/// writes them, and claims them at the next barrier, when they may still be on their way.
fn claimed_on_the_way(pages: u64) -> Program {
    let words = |value: u64, own: u32| (0..pages).map(move |page| store(Address::word(page, own), value));
    let loads = || (0..pages).flat_map(|page| [load(Address::word(page, 1), 0), add_register(1, 0)]);
    let script = |me: u64| {
        let mut code = Vec::new();
        if me == 2 {
            code.extend(words(5, 1));
        }
        code.push(barrier());
        if me == 3 {
            code.extend(loads());
        }
        code.push(barrier());
        for phase in 0..2 {
            if me == 3 {
                code.extend(words(6 + phase, 2));
            }
            code.push(barrier());
        }
        code.extend(loads());
        code.extend((0..pages).flat_map(|page| [load(Address::word(page, 2), 0), add_register(2, 0)]));
        code
    };
    let region = Region::new(0, pages, 1, Placement::FirstTouch);
    Program::on(5, 0, in_teams((0..5).map(script))).with_regions(vec![region])
}

#[test]
fn pages_that_are_on_their_way_are_not_given_to_others() {
    const PAGES: u64 = 5;
    for under in Under::all() {
        for seed in 0..200 {
            let ended = under.kept(&claimed_on_the_way(PAGES), seed);
            for thread in 0..5 {
                let read = (ended.register(thread, 1), ended.register(thread, 2));
                let before = if thread == 3 { 2 } else { 1 };
                assert_eq!(read, (before * 5 * PAGES, 7 * PAGES), "{under:?}, seed {seed}, thread {thread}");
            }
        }
    }
}

/// Two nodes write a page in turn.
fn alternating(phases: u64) -> Program {
    let script = |me: u64| {
        let phase = |phase: u64| {
            let written = (phase % 2 + 1 == me).then(|| store(Address::word(0, me as u32), phase + 1));
            written.into_iter().chain([barrier()])
        };
        let code = (0..phases).flat_map(phase);
        code.chain((1..3).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)])).collect()
    };
    Program::on(3, 0, in_teams((0..3).map(script))).with_regions(page_on_node_0())
}

#[test]
fn a_page_that_two_nodes_write_in_turn_comes_to_rest() {
    const PHASES: u64 = 40;
    for under in Under::all() {
        for seed in 0..30 {
            let ended = under.kept(&alternating(PHASES), seed);
            assert_eq!(ended.register(0, 1), PHASES - 1 + PHASES, "{under:?}, seed {seed}");
            assert!((1..=3).contains(&moves(&ended)), "{under:?}, seed {seed}: {} moves", moves(&ended));
        }
    }
}

/// Node 1 leaves a lock idle and waits at a barrier with what it has written since. Threads outside the teams
/// take the lock, read what it protects, and write words of their own, on the home, on the writer and
/// elsewhere.
fn lock_left_idle() -> Program {
    let (locked, plain) = (Address::word(0, 0), Address::word(0, 1));
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 1..6u64 {
            if me == 1 {
                code.extend([lock(0), store(locked, phase), unlock(0), store(plain, phase)]);
            }
            code.extend([barrier(), load(plain, 0), add_register(1, 0), barrier()]);
        }
        code
    };
    let stranger = |own: u32| {
        let round = |value: u64| {
            let own = Address::word(0, own);
            [lock(0), load(locked, 0), store(own, value), load(own, 2), add_register(3, 2), unlock(0)]
        };
        (1..6u64).flat_map(round).collect::<Vec<_>>()
    };
    let mut threads = in_teams((0..3).map(script));
    threads.extend((0..3).map(|node| Script::foreign(node, stranger(8 + u32::from(node)))));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn who_gets_a_lock_from_a_node_that_waits_finds_all_that_it_is_told_of() {
    for under in Under::all() {
        for seed in 0..200 {
            let ended = under.kept(&lock_left_idle(), seed);
            for thread in 0..3 {
                assert_eq!(ended.register(thread, 1), 15, "{under:?}, seed {seed}, thread {thread}");
                assert_eq!(ended.register(thread + 3, 3), 15, "{under:?}, seed {seed}, thread {thread}");
            }
        }
    }
}

/// Threads outside the teams write words of their own in a page that node 1 claims, while their nodes wait at
/// barriers.
fn strangers() -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..6u64 {
            if me == 1 {
                code.push(store(Address::word(0, phase as u32), phase + 1));
            }
            code.push(barrier());
        }
        code.extend((0..6).flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)]));
        code
    };
    let stranger = |node: u32| {
        let own = Address::word(0, 16 + node);
        let code = (1..8u64).flat_map(|value| vec![store(own, value), load(own, 0), load(own, 0)]);
        code.chain([lock(0), unlock(0), load(own, 1)]).collect::<Vec<_>>()
    };
    let mut threads = in_teams((0..3).map(script));
    threads.extend((0..3).map(|node| Script::foreign(node, stranger(u32::from(node)))));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn what_is_written_while_a_claim_is_under_way_is_neither_lost_nor_taken_back() {
    for under in Under::all() {
        for seed in 0..200 {
            let ended = under.kept(&strangers(), seed);
            for thread in 0..3 {
                assert_eq!(ended.register(thread, 1), 21, "{under:?}, seed {seed}, thread {thread}");
                assert_eq!(ended.register(thread + 3, 1), 7, "{under:?}, seed {seed}, thread {thread}");
            }
        }
    }
}

/// All nodes operate on a word of a page of which node 1 writes another word in each phase.
fn words() -> Program {
    let word = Address::word(0, 7);
    let script = |me: u64| {
        let phase = |phase: u64| {
            let written = (me == 1).then(|| store(Address::word(0, 1), phase + 1));
            let operated = (phase >= 3).then(|| fetch_add(word, 1, 0));
            written.into_iter().chain(operated).chain([barrier()])
        };
        let code = (0..8).flat_map(phase);
        code.chain([load(word, 1), load(Address::word(0, 1), 2)]).collect()
    };
    let mut threads = in_teams((0..3).map(script));
    threads.push(Script::foreign(1, vec![fetch_add(word, 1, 0); 5]));
    Program::on(3, 0, threads).with_regions(page_on_node_0())
}

#[test]
fn pages_with_words_count_on() {
    for under in Under::all() {
        for seed in 0..100 {
            let ended = under.kept(&words(), seed);
            for thread in 0..3 {
                let (count, written) = (ended.register(thread, 1), ended.register(thread, 2));
                assert!((15..=20).contains(&count), "{under:?}, seed {seed}: {count}");
                assert_eq!(written, 8, "{under:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn litmus_programs_show_nothing_forbidden() {
    for under in Under::all() {
        for litmus in early().into_iter().chain(catalogue()) {
            for seed in 0..20 {
                let ended = under.run(&litmus.program, seed, None);
                let ended =
                    ended.unwrap_or_else(|wrong| panic!("{}, {under:?}, seed {seed}: {wrong}", litmus.name));
                assert!(!(litmus.forbid)(&ended), "{}, {under:?}, seed {seed}", litmus.name);
            }
        }
    }
}

/// Returns what catches the bug first.
fn noticed(mutant: Option<Mutant>) -> Option<String> {
    let written = [
        initialised_elsewhere(8),
        falsely_shared(6),
        alternating(8),
        lock_left_idle(),
        strangers(),
        words(),
        claimed_on_the_way(5),
    ];
    Under::all().find_map(|under| {
        let by_written = written.iter().find_map(|program| {
            let wrong = |seed| Some(format!("seed {seed}: {}", under.run(program, seed, mutant).err()?));
            (0..100).find_map(wrong)
        });
        by_written
            .or_else(|| at_random(SHAPES, 0..150, |program, seed| under.run(program, seed, mutant).err()))
    })
}

#[test]
fn every_mutant_is_noticed() {
    each_is_noticed(Mutant::ALL, |mutant| noticed(Some(mutant)));
}

#[test]
fn the_faithful_engine_passes_the_same_seeds() {
    assert_eq!(noticed(None), None);
}
