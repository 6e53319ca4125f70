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
use hiroba_check::program::{Address, Program, Region, Script};
use hiroba_check::random_program::Shape;
use hiroba_protocol::adaptive::adaptive;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::{Limits, Placement};

use crate::planted::{at_random, by_litmus, each_is_noticed, shown};

const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];

const SHAPES: [Shape; 3] = [
    Shape { team: 1, foreign: 0, publications: false, waits: false },
    Shape { team: 2, foreign: 0, publications: false, waits: false },
    Shape { team: 1, foreign: 2, publications: true, waits: true },
];

/// How homes behave, and copies come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Homes stay, and pages come by messages.
    Fixed,
    /// Homes stay, and nodes read each other's frames.
    OneSided,
    /// Homes move to nodes that claim them, and readers order pages.
    Adaptive,
    /// The same, and nodes read each other's frames.
    AdaptiveOneSided,
}

impl Way {
    fn protocol(self) -> Protocol {
        if matches!(self, Way::Adaptive | Way::AdaptiveOneSided) {
            Protocol::Adaptive
        } else {
            Protocol::Hlrc
        }
    }

    fn is_one_sided(self) -> bool {
        matches!(self, Way::OneSided | Way::AdaptiveOneSided)
    }

    /// Under the adaptive protocol everything happens at the first occasion.
    fn engine(self) -> impl FnMut(NodeId, Limits, WriteTracking) -> Consistency {
        let mut fixed = hlrc(self == Way::OneSided);
        move |me, limits, tracking| match self {
            Way::Fixed | Way::OneSided => fixed(me, limits, tracking),
            Way::Adaptive | Way::AdaptiveOneSided => {
                let reached = NodeId::all(limits.nodes).filter(|node| self.is_one_sided() && *node != me);
                let protocol = adaptive(reached).moving_after(SOON);
                Consistency::new(me, limits, tracking, Box::new(protocol)).telling()
            }
        }
    }
}

fn run(
    program: &Program,
    seed: u64,
    tracking: WriteTracking,
    way: Way,
    mutant: Option<Mutant>,
) -> Result<Ended, String> {
    let one_sided = way.is_one_sided();
    let mut options = Options { one_sided, shortages: true, ..Options::seeded(seed, tracking) };
    if let Some(mutant) = mutant {
        options.mutation = mutant.plant();
    }
    let ended = Cluster::new(program, way.engine(), options).run();
    let ended = ended.map_err(|failure| failure.to_string())?;
    let verdict = judge(&ended.execution()).map_err(|error| error.to_string())?;
    if let Some(violation) = verdict.violations.first() {
        return Err(violation.explanation.clone());
    }
    let findings = page_axioms::judge(&ended.run, &Rules { one_sided, ..Rules::of(way.protocol()) });
    match findings.breaches.first() {
        Some(breach) => Err(format!("{}: {}", breach.axiom, breach.explanation)),
        None => Ok(ended),
    }
}

/// Returns what catches the bug first, and how.
fn noticed(tracking: WriteTracking, way: Way, mutant: Option<Mutant>) -> Option<String> {
    let run = |program: &Program, seed| run(program, seed, tracking, way, mutant);
    by_litmus(catalogue(), 0..60, |litmus, seed| shown(litmus, run(&litmus.program, seed)))
        .or_else(|| at_random(SHAPES, 0..400, |program, seed| run(program, seed).err()))
}

fn every_mutant_is_noticed_in(way: Way) {
    for tracking in TRACKINGS {
        let concerned = Mutant::ALL.into_iter().filter(|mutant| mutant.concerns(tracking));
        each_is_noticed(concerned, |mutant| noticed(tracking, way, Some(mutant)));
    }
}

/// Nodes write pages in turn, so that these move. Threads outside the teams read and write them meanwhile.
fn read_while_they_move() -> Program {
    const PAGES: u64 = 4;
    const PHASES: u64 = 10;
    let script = |me: u32| {
        let phase = |phase: u64| {
            let mine = (0..PAGES).filter(move |page| (phase / 2 + page) % 3 == u64::from(me));
            let store = move |page| store(Address::word(page, me), phase + 1);
            mine.map(store).chain([barrier()])
        };
        Script::team(me as u16, (0..PHASES).flat_map(phase).collect())
    };
    let outside = |node: u16| {
        let pass = |round: u64| {
            let own = Address::word(round % PAGES, 4 + u32::from(node));
            [lock(0), load(own, 0), add_register(1, 0), store(own, round), unlock(0)]
        };
        Script::foreign(node, (0..24).flat_map(pass).collect())
    };
    let scripts = (0..3).map(script).chain([outside(0), outside(1), outside(2)]);
    let regions = (0..PAGES).map(|page| Region::new(page, 1, 1, Placement::On(NodeId(1))));
    Program::on(3, 1, scripts.collect()).with_regions(regions.collect())
}

/// Among these seeds are some in which a page is claimed while it is still on its way to its home, and some
/// in which the last message of an interval comes before the page that it names.
#[test]
fn pages_that_move_may_leave_and_be_read_meanwhile() {
    for tracking in TRACKINGS {
        for seed in 0..2500 {
            let ended = run(&read_while_they_move(), seed, tracking, Way::AdaptiveOneSided, None);
            assert!(ended.is_ok(), "{tracking:?}, seed {seed}: {:?}", ended.err());
        }
    }
}

#[test]
fn nothing_is_lost_with_copies_that_leave() {
    for tracking in TRACKINGS {
        assert_eq!(noticed(tracking, Way::Fixed, None), None, "{tracking:?}");
    }
}

#[test]
fn nothing_is_lost_where_nodes_read_each_others_frames() {
    for tracking in TRACKINGS {
        assert_eq!(noticed(tracking, Way::OneSided, None), None, "{tracking:?}");
    }
}

#[test]
fn nothing_is_lost_where_homes_move_and_pages_come_unrequested() {
    for tracking in TRACKINGS {
        assert_eq!(noticed(tracking, Way::Adaptive, None), None, "{tracking:?}");
    }
}

#[test]
fn every_mutant_is_noticed() {
    every_mutant_is_noticed_in(Way::Fixed);
}

#[test]
fn every_mutant_is_noticed_where_homes_move() {
    every_mutant_is_noticed_in(Way::Adaptive);
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
            let ended = run(&program, seed, tracking, Way::Fixed, None);
            let ended = ended.unwrap_or_else(|wrong| panic!("{tracking:?}, seed {seed}: {wrong}"));
            for at in 0..8 {
                assert_eq!(ended.register(0, at), 200 + at as u64, "{tracking:?}, seed {seed}, word {at}");
                assert_eq!(ended.register(1, at), 100 + at as u64, "{tracking:?}, seed {seed}, word {at}");
            }
        }
    }
}
