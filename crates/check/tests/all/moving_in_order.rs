//! Homes that move while pages are put under sequential consistency and fetches are ordered: what executables
//! run under. The random programs of `converting.rs` and `ordered.rs` move few pages; these move many.

use hiroba_base::{RngExt, seeded};
use hiroba_check::cluster::Ended;
use hiroba_check::mutant::moving_in_order::Mutant;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_trace::Event;
use hiroba_wire::{Message, Placement};

use crate::converting::{MOVING, run_with, wrong};
use crate::planted::each_is_noticed;
use crate::sample;

const SEEDS: u64 = 1500;
/// Programs among which each planted bug shows at least once.
const NOTICED_SEEDS: u64 = 8000;
const PAGES: u64 = 6;
/// The places of a page that threads load and store.
const WORDS: u32 = 3;

/// Returns a program full of data races, in which nodes mostly write pages of their own, which change from
/// time to time. Threads convert a page now and then. They take locks for nothing, and meet. Some belong to
/// no team.
fn racy(seed: u64) -> Program {
    let mut random = seeded(seed ^ 0x0dd5_eed5);
    let nodes = random.random_range(2..=4u16);
    let phases = random.random_range(3..=8u64);
    let converts_one_in = [12, 60, 1000][random.random_range(0..3)];
    let changes = random.random_range(1..=4u64);
    let mut value = 0;
    let mut script = |node: u16, meets: bool| {
        let mut code: Vec<Instruction> = Vec::new();
        for phase in 0..phases {
            if meets && phase > 0 {
                code.push(barrier());
            }
            let own = (u64::from(node) + phase / changes) % u64::from(nodes);
            for _ in 0..random.random_range(1..=5) {
                let any = random.random_range(0..PAGES);
                let page = if random.random_range(0..4) == 0 { any } else { own };
                let at = |page, word: u32| Address::word(page, word * 40);
                let word = random.random_range(0..WORDS);
                value += 1;
                match random.random_range(0..16) {
                    _ if random.random_range(0..converts_one_in) == 0 => {
                        code.extend([
                            convert(any),
                            exchange(at(any, word), value, random.random_range(0..16)),
                        ]);
                    }
                    0 => code.extend([lock(0), unlock(0)]),
                    1..9 => code.push(store(at(page, word), value)),
                    _ => code.push(load(at(any, word), random.random_range(0..16))),
                }
            }
        }
        code
    };
    let mut threads: Vec<Script> = (0..nodes).map(|node| Script::team(node, script(node, true))).collect();
    let foreign = random_nodes(seed, nodes);
    threads.extend(foreign.map(|node| Script::foreign(node, script(node, false))));
    let region = Region::new(0, PAGES, 1, Placement::Cyclic);
    Program::on(nodes, PAGES, threads).with_regions(vec![region])
}

/// Half of the programs have threads that belong to no team.
fn random_nodes(seed: u64, nodes: u16) -> std::ops::Range<u16> {
    if seed.is_multiple_of(2) { 0..nodes } else { 0..0 }
}

/// What runs have in common with what executables do.
#[derive(Debug, Default)]
struct Seen {
    moves: u64,
    conversions: u64,
    after_moves: u64,
    pleas: u64,
    answers: u64,
}

impl Seen {
    fn note(&mut self, ended: &Ended) {
        for node in &ended.run.nodes {
            let mut moved = hiroba_base::PageSet::new();
            for record in &node.records {
                match &record.event {
                    Event::Moved { pages, .. } => moved.extend(pages),
                    Event::Converted { page } => {
                        self.conversions += 1;
                        self.after_moves += u64::from(moved.contains(*page));
                    }
                    Event::Sent { kind, .. } => match Message::KINDS[usize::from(kind.0)] {
                        "KeepHomes" => self.pleas += 1,
                        "HomesKept" => self.answers += 1,
                        _ => {}
                    },
                    _ => {}
                }
            }
            self.moves += moved.len();
        }
    }
}

/// Runs as many seeds as `HIROBA_CHECK_SEEDS` says, else a sample.
#[test]
fn racy_programs_whose_pages_move_and_are_converted_are_causally_consistent() {
    let asked = std::env::var("HIROBA_CHECK_SEEDS").ok().map(|seeds| seeds.parse().expect("a number"));
    let mut seen = Seen::default();
    let seeds = asked.unwrap_or(sample::of(SEEDS));
    for seed in 0..seeds {
        let ended = run_with(&racy(seed), MOVING, seed, None);
        let ended = ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        seen.note(&ended);
        assert_eq!(wrong(&ended, MOVING), None, "seed {seed}");
    }
    println!("{seeds} programs: {seen:?}");
    let Seen { moves, conversions, after_moves, pleas, answers } = seen;
    assert!(moves > 3 * seeds, "pages move: {moves}");
    assert!(conversions > seeds, "pages are converted: {conversions}");
    assert!(after_moves > seeds / 10, "some of them have moved: {after_moves}");
    assert!(pleas > answers && answers > 0, "homes ask the root, in time and too late: {pleas}, {answers}");
}

#[test]
fn each_planted_bug_is_noticed() {
    each_is_noticed(Mutant::ALL, |mutant| {
        (0..NOTICED_SEEDS).find_map(|seed| match run_with(&racy(seed), MOVING, seed, Some(mutant.plant())) {
            Ok(ended) => wrong(&ended, MOVING).map(|wrong| format!("seed {seed}: {wrong}")),
            Err(failure) => Some(format!("seed {seed}: {failure}")),
        })
    });
}
