//! Pages that are fetched before a thread touches them: at barriers by habit, and with locks.

use hiroba_base::NodeId;
use hiroba_check::axioms::judge;
use hiroba_check::cluster::{Cluster, Ended, Options};
use hiroba_check::litmus::catalogue;
use hiroba_check::page_axioms::{self, Rules};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program, Region, Script};
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::{Consistency, Engine, WriteTracking};
use hiroba_trace::{Activity, Event};
use hiroba_wire::{Limits, Message, Placement};

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];

/// Returns an engine that requests pages that go with locks together with them.
fn following(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    Consistency::new(me, limits, tracking, Box::new(Hlrc::new().following_locks())).telling()
}

/// Returns an engine that fetches nothing with locks.
fn plain(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    Consistency::new(me, limits, tracking, Box::new(Hlrc::new())).telling()
}

/// Returns an engine whose nodes learn of changes with each page that they fetch.
fn ordering(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    let mut engine = plain(me, limits, tracking);
    engine.order_fetches();
    engine
}

fn run(
    program: &Program,
    seed: u64,
    tracking: WriteTracking,
    engine: fn(NodeId, Limits, WriteTracking) -> Consistency,
) -> Result<Ended, String> {
    let options = Options { steps_max: 200_000, ..Options::seeded(seed, tracking) };
    let ended = Cluster::new(program, engine, options).run().map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    let findings = page_axioms::judge(&ended.run, &Rules::hlrc(false));
    match findings.breaches.first() {
        Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
        None => Ok(ended),
    }
}

/// Returns how many messages with requests for pages all nodes have sent.
fn requests(ended: &Ended) -> usize {
    (0..ended.run.nodes.len()).map(|node| requests_of(ended, node)).sum()
}

/// Returns how many of them a node has sent.
fn requests_of(ended: &Ended, node: usize) -> usize {
    let records = &ended.run.nodes[node].records;
    let kind = |event: &Event| match event {
        Event::Sent { kind, .. } => Message::KINDS[usize::from(kind.0)],
        _ => "",
    };
    records.iter().filter(|record| ["PageRequest", "PagesRequest"].contains(&kind(&record.event))).count()
}

fn pages_on_node_0(pages: u32) -> Vec<Region> {
    vec![Region::new(0, pages.into(), 1, Placement::On(NodeId(0)))]
}

/// Node 0 writes pages in each of `phases`; the others read them in the next one while `reads` returns true.
fn producer(pages: u32, phases: u64, reads: impl Fn(u64) -> bool) -> Program {
    let mut scripts: Vec<Vec<Instruction>> = vec![Vec::new(); 3];
    for phase in 0..phases {
        for page in 0..pages {
            scripts[0].push(store(Address::word(page.into(), 0), phase + 10));
        }
        scripts.iter_mut().for_each(|script| script.push(barrier()));
        if reads(phase) {
            for script in &mut scripts[1..] {
                for page in 0..pages {
                    script.extend([load(Address::word(page.into(), 0), 0), add_register(1, 0)]);
                }
            }
        }
        scripts.iter_mut().for_each(|script| script.push(barrier()));
    }
    Program::new(0, scripts).with_regions(pages_on_node_0(pages))
}

/// All nodes write words of their own in one page, and read all of it in the next phase.
fn neighbours(nodes: u16, phases: u64) -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..phases {
            code.extend([store(Address::word(0, me as u32), phase + 10 * me), barrier()]);
            let words = 0..u32::from(nodes);
            code.extend(words.flat_map(|word| [load(Address::word(0, word), 0), add_register(1, 0)]));
            code.push(barrier());
        }
        code
    };
    Program::new(0, (0..u64::from(nodes)).map(script)).with_regions(pages_on_node_0(1))
}

/// Both nodes repeatedly increment words of two pages under a lock; the pages are homed on node 0.
fn migratory(times: u64) -> Program {
    let mut code = Vec::new();
    for _ in 0..times {
        code.push(lock(0));
        for page in 0..2u64 {
            let word = Address::word(page, 5);
            code.extend([load(word, 0), add(0, 1), store_from(word, 0)]);
        }
        code.push(unlock(0));
    }
    code.extend([barrier(), load(Address::word(0, 5), 2), load(Address::word(1, 5), 3)]);
    Program::new(0, vec![code; 2]).with_regions(pages_on_node_0(2))
}

/// Node 0 writes; its reader also writes a word of its own in the same phase, between the barriers and after
/// a lock.
fn reader_writes(phases: u64) -> Program {
    let mut scripts: Vec<Vec<Instruction>> = vec![Vec::new(); 2];
    for phase in 0..phases {
        scripts[0].push(store(Address::word(0, 0), phase + 1));
        scripts[1].extend([store(Address::word(0, 1), phase + 1), lock(0), unlock(0)]);
        scripts.iter_mut().for_each(|script| script.push(barrier()));
        scripts[1].extend([load(Address::word(0, 0), 0), add_register(1, 0)]);
        scripts[1].extend([
            load(Address::word(0, 1), 0),
            add_register(2, 0),
            store(Address::word(0, 2), phase),
        ]);
        scripts.iter_mut().for_each(|script| script.push(barrier()));
    }
    let mut threads: Vec<Script> =
        scripts.into_iter().enumerate().map(|(node, code)| Script::team(node as u16, code)).collect();
    threads.push(Script::foreign(1, vec![store(Address::word(0, 3), 7); 6]));
    Program::on(2, 0, threads).with_regions(pages_on_node_0(1))
}

#[test]
fn what_is_read_in_every_phase_is_requested_together() {
    const PHASES: u64 = 40;
    const PAGES: u32 = 3;
    for tracking in TRACKINGS {
        for seed in 0..20 {
            let told = format!("{tracking:?}, seed {seed}");
            let ended = run(&producer(PAGES, PHASES, |_| true), seed, tracking, following);
            let ended = ended.unwrap_or_else(|wrong| panic!("{told}: {wrong}"));
            let read: u64 = (0..PHASES).map(|phase| (phase + 10) * u64::from(PAGES)).sum();
            assert_eq!((ended.register(1, 1), ended.register(2, 1)), (read, read), "{told}");
            // One request for each page and reader would be 240. A node that leaves late may miss a habit.
            let asked = requests(&ended);
            assert!(asked <= 160, "{told}: {asked} requests");
        }
    }
}

/// Node 0 writes pages in each phase, and node 2 reads them in each; node 1 reads them after distances that
/// repeat.
#[test]
fn what_is_read_at_distances_that_repeat_is_requested_together() {
    const PHASES: u64 = 140;
    const PAGES: u64 = 4;
    let word = |page| Address::word(page, 0);
    let mut scripts = vec![Vec::new(); 3];
    let mut expected = 0;
    for phase in 1..=PHASES {
        scripts[0].extend((0..PAGES).map(|page| store(word(page), phase)));
        scripts.iter_mut().for_each(|code| code.push(barrier()));
        let reads = [0, 1, 4].contains(&(phase % 7));
        expected += if reads { phase * PAGES } else { 0 };
        for code in &mut scripts[if reads { 1 } else { 2 }..] {
            code.extend((0..PAGES).flat_map(|page| [load(word(page), 0), add_register(1, 0)]));
        }
        scripts.iter_mut().for_each(|code| code.push(barrier()));
    }
    let program = Program::new(0, scripts).with_regions(pages_on_node_0(PAGES as u32));
    for tracking in TRACKINGS {
        for seed in 0..20 {
            let told = format!("{tracking:?}, seed {seed}");
            let ended = run(&program, seed, tracking, plain);
            let ended = ended.unwrap_or_else(|wrong| panic!("{told}: {wrong}"));
            assert_eq!(ended.register(1, 1), expected, "{told}");
            // One request in each of the 60 phases, or one for each page.
            let asked = requests_of(&ended, 1);
            assert!((60..=180).contains(&asked), "{told}: {asked} requests");
        }
    }
}

/// The reader learns of the changes by a page that it reads while they are made, and not by the barrier.
#[test]
fn what_a_publication_has_voided_is_requested_together() {
    const PHASES: u64 = 40;
    const PAGES: u64 = 4;
    let word = |page| Address::word(page, 0);
    let (mut writer, mut reader) = (Vec::new(), Vec::new());
    for phase in 1..=PHASES {
        writer.extend((0..=PAGES).map(|page| store(word(page), phase)));
        reader.extend(vec![load(word(PAGES), 0); 20]);
        for code in [&mut writer, &mut reader] {
            code.push(barrier());
        }
        reader.extend((0..PAGES).flat_map(|page| [load(word(page), 0), add_register(1, 0)]));
        for code in [&mut writer, &mut reader] {
            code.push(barrier());
        }
    }
    let program = Program::new(0, vec![writer, reader]).with_regions(pages_on_node_0(PAGES as u32 + 1));
    let mut asked = 0;
    for seed in 0..20 {
        let ended = run(&program, seed, WriteTracking::Fault, ordering);
        let ended = ended.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(ended.register(1, 1), (1..=PHASES).sum::<u64>() * PAGES, "seed {seed}");
        asked += requests(&ended);
    }
    // Of each run, 40 are for the page that is read while it is written, or a little less.
    assert!(asked <= 20 * (40 + 45), "{asked} requests");
}

/// Pages that others have read before, and only their home uses now, are opened together when it stores to
/// them one after the other.
#[test]
fn pages_without_readers_are_opened_in_runs() {
    const PAGES: u64 = 16;
    let stores = |value| (0..PAGES).map(move |page| store(Address::word(page, 0), value));
    let mut scripts = vec![Vec::new(), Vec::new()];
    scripts[0].extend(stores(1));
    scripts.iter_mut().for_each(|code| code.push(barrier()));
    scripts[1].extend((0..PAGES).map(|page| load(Address::word(page, 0), 0)));
    scripts.iter_mut().for_each(|code| code.extend(vec![barrier(); 12]));
    scripts[0].extend(stores(2));
    scripts.iter_mut().for_each(|code| code.extend(vec![barrier(); 2]));
    scripts[0].extend(stores(3));
    let program = Program::new(0, scripts).with_regions(pages_on_node_0(PAGES as u32));
    let mut faults = 0;
    for seed in 0..20 {
        let ended = run(&program, seed, WriteTracking::Fault, ordering);
        let ended = ended.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let records = ended.run.nodes[0].records.iter();
        let is_fault = |event: &Event| matches!(event, Event::Enter(Activity::Fault { .. }));
        faults += records.filter(|record| is_fault(&record.event)).count();
    }
    // The pages are stored to in three phases.
    assert!(faults <= 20 * 35, "{faults} faults");
}

#[test]
fn what_nobody_reads_any_more_is_not_requested_for_long() {
    const PHASES: u64 = 60;
    for tracking in TRACKINGS {
        for seed in 0..20 {
            let ended = run(&producer(1, PHASES, |phase| phase < 20), seed, tracking, following).unwrap();
            let asked = requests(&ended);
            // Two readers; a habit is trusted at most sixteen times, and fails in a few trials after that.
            assert!((40..=2 * (20 + 20)).contains(&asked), "{tracking:?}, seed {seed}: {asked} requests");
        }
    }
}

#[test]
fn what_goes_with_a_lock_is_requested_together() {
    const TIMES: u64 = 30;
    for tracking in TRACKINGS {
        let (mut asked, mut asked_without) = (0, 0);
        for seed in 0..20 {
            let told = format!("{tracking:?}, seed {seed}");
            let ended = run(&migratory(TIMES), seed, tracking, following);
            let ended = ended.unwrap_or_else(|wrong| panic!("{told}: {wrong}"));
            for thread in 0..2 {
                let counted = (ended.register(thread, 2), ended.register(thread, 3));
                assert_eq!(counted, (2 * TIMES, 2 * TIMES), "{told}, thread {thread}");
            }
            asked += requests(&ended);
            let without = run(&migratory(TIMES), seed, tracking, plain).unwrap();
            asked_without += requests(&without);
        }
        // One message for both pages. Sometimes a lock stays where it is.
        assert!(3 * asked < 2 * asked_without, "{tracking:?}: {asked} requests, {asked_without} without");
    }
}

#[test]
fn pages_that_their_readers_write_hold_all_changes() {
    const PHASES: u64 = 30;
    for tracking in TRACKINGS {
        for nodes in [2, 3] {
            for seed in 0..40 {
                let told = format!("{tracking:?}, {nodes} nodes, seed {seed}");
                let ended = run(&neighbours(nodes, PHASES), seed, tracking, following);
                let ended = ended.unwrap_or_else(|wrong| panic!("{told}: {wrong}"));
                let read: u64 = (0..PHASES)
                    .map(|phase| (0..nodes).map(|node| phase + 10 * u64::from(node)).sum::<u64>())
                    .sum();
                for thread in 0..usize::from(nodes) {
                    assert_eq!(ended.register(thread, 1), read, "{told}, thread {thread}");
                }
            }
        }
    }
}

/// Threads that have got a lock wait for its pages, so that they do not fault on them.
#[test]
fn threads_that_get_a_lock_have_its_pages() {
    const TIMES: u64 = 30;
    let mut counts = Vec::new();
    for seed in 0..40 {
        let ended = run(&migratory(TIMES), seed, WriteTracking::Async, following);
        let ended = ended.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let is_fault = |event: &Event| matches!(event, Event::Enter(Activity::Fault { .. }));
        let faults = ended.run.nodes[1].records.iter().filter(|record| is_fault(&record.event)).count();
        counts.push(faults);
    }
    counts.sort_unstable();
    // Two pages: at first, and whenever they have been trusted twice as often as before.
    assert!(counts[counts.len() / 2] <= 10, "{counts:?}");
}

/// As [`neighbours`] on two nodes. In the last phase the reader also increments a word of the page, which has
/// never been operated on.
fn reader_operates(phases: u64) -> Program {
    let script = |me: u64| {
        let mut code = Vec::new();
        for phase in 0..=phases {
            code.push(store(Address::word(0, me as u32), phase + 10 * me));
            if me == 1 && phase == phases {
                // The store makes a diff of the interval of the operation, which is in no diff.
                code.extend([fetch_add(Address::word(0, 7), 1, 5), store(Address::word(0, 2), 9)]);
            }
            code.extend([barrier(), load(Address::word(0, 0), 0), load(Address::word(0, 7), 3), barrier()]);
        }
        code
    };
    Program::new(0, (0..2).map(script)).with_regions(pages_on_node_0(1))
}

#[test]
fn a_reader_finds_the_word_that_it_has_operated_on() {
    for tracking in TRACKINGS {
        for seed in 0..200 {
            let ended = run(&reader_operates(6), seed, tracking, following);
            let ended = ended.unwrap_or_else(|wrong| panic!("{tracking:?}, seed {seed}: {wrong}"));
            let found = (ended.register(0, 3), ended.register(1, 3));
            assert_eq!(found, (1, 1), "{tracking:?}, seed {seed}");
        }
    }
}

#[test]
fn a_reader_keeps_what_it_has_written_itself() {
    for tracking in TRACKINGS {
        for seed in 0..100 {
            let ended = run(&reader_writes(12), seed, tracking, following);
            let ended = ended.unwrap_or_else(|wrong| panic!("{tracking:?}, seed {seed}: {wrong}"));
            assert_eq!((ended.register(1, 1), ended.register(1, 2)), (78, 78), "{tracking:?}, seed {seed}");
        }
    }
}

#[test]
fn litmus_programs_show_nothing_forbidden() {
    for tracking in TRACKINGS {
        for litmus in catalogue() {
            for seed in 0..30 {
                let ended = run(&litmus.program, seed, tracking, following);
                let ended = ended
                    .unwrap_or_else(|wrong| panic!("{}, {tracking:?}, seed {seed}: {wrong}", litmus.name));
                assert!(!(litmus.forbid)(&ended), "{}, {tracking:?}, seed {seed}", litmus.name);
            }
        }
    }
}
