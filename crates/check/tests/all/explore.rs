//! Every interleaving of small programs on two and three nodes, and the planted bugs that these show.

use std::sync::Arc;

use hiroba_check::engines::{promise_of, trackings_of};
use hiroba_check::explore::{Exploration, Plant, scenarios};
use hiroba_check::mutant::{self, Mutant};
use hiroba_protocol::{Protocol, WriteTracking};

use crate::{model, sample};

/// Checks every interleaving of every scenario under a protocol: none goes wrong, and together they show
/// exactly the expected outcomes. The ways to track writes take turns, unless everything is wanted.
fn every_interleaving_is_right(protocol: Protocol) {
    let trackings = trackings_of(protocol);
    let scenarios =
        scenarios().into_iter().filter(|scenario| scenario.promises.contains(&promise_of(protocol)));
    for (number, scenario) in scenarios.enumerate() {
        let of_turn = |index: usize| sample::all() || index == number % trackings.len();
        for (_, tracking) in trackings.iter().enumerate().filter(|(index, _)| of_turn(*index)) {
            let exploration = Arc::new(Exploration::new(scenario.clone(), protocol, *tracking));
            let explored = model::explore(&exploration);
            let place = format!("{}, {tracking:?}, '{}'", protocol.name(), scenario.name);
            println!("{place}: {} situations, {} choices", explored.situations, explored.choices);
            if let Some((situation, told)) = explored.wrong {
                panic!("{place}:\n{told}{}", situation.wrong.as_deref().unwrap_or_default());
            }
            assert_eq!(scenario.compare(promise_of(protocol), &exploration.outcomes()), Ok(()), "{place}");
        }
    }
}

#[test]
fn every_interleaving_under_sequential_consistency_is_right() {
    every_interleaving_is_right(Protocol::Sc);
}

#[test]
fn every_interleaving_under_home_based_lazy_release_consistency_is_right() {
    every_interleaving_is_right(Protocol::Hlrc);
}

#[test]
fn every_interleaving_under_lazy_release_consistency_is_right() {
    every_interleaving_is_right(Protocol::Lrc);
}

#[test]
fn every_interleaving_under_eager_release_consistency_is_right() {
    every_interleaving_is_right(Protocol::ErcInvalidate);
    every_interleaving_is_right(Protocol::ErcUpdate);
}

#[test]
fn every_interleaving_under_automatic_update_is_right() {
    every_interleaving_is_right(Protocol::Aurc);
}

#[test]
fn every_interleaving_under_the_adaptive_protocol_is_right() {
    every_interleaving_is_right(Protocol::Adaptive);
}

/// By protocol, the test that explores it: a new protocol does not compile without one.
const _: fn(Protocol) -> fn() = |protocol| match protocol {
    Protocol::Sc => every_interleaving_under_sequential_consistency_is_right,
    Protocol::Hlrc => every_interleaving_under_home_based_lazy_release_consistency_is_right,
    Protocol::Lrc => every_interleaving_under_lazy_release_consistency_is_right,
    Protocol::ErcInvalidate | Protocol::ErcUpdate => {
        every_interleaving_under_eager_release_consistency_is_right
    }
    Protocol::Aurc => every_interleaving_under_automatic_update_is_right,
    Protocol::Adaptive => every_interleaving_under_the_adaptive_protocol_is_right,
};

/// A planted bug that shows: what is wrong, and the way there if it went wrong on the way.
struct Found {
    wrong: String,
    told: String,
}

/// Returns what the first scenario shows in which a planted bug shows.
fn found(protocol: Protocol, plant: &Plant) -> Option<Found> {
    scenarios().into_iter().filter(|scenario| scenario.promises.contains(&promise_of(protocol))).find_map(
        |scenario| {
            let exploration = Exploration::new(scenario.clone(), protocol, WriteTracking::Fault);
            let exploration = Arc::new(exploration.with_bug(plant.clone()));
            match model::explore(&exploration).wrong {
                Some((situation, told)) => {
                    Some(Found { wrong: situation.wrong.as_deref().unwrap_or_default().to_owned(), told })
                }
                None => {
                    let amiss = scenario.compare(promise_of(protocol), &exploration.outcomes()).err()?;
                    Some(Found { wrong: amiss, told: String::new() })
                }
            }
        },
    )
}

/// Bugs that no small program can show are in other suites: these pages all have one granule, no thread
/// publishes, and no run of pages goes together.
#[test]
fn planted_bugs_of_sequential_consistency_are_found() {
    use mutant::sc::Mutant;
    let is_shown = |mutant: &Mutant| *mutant != Mutant::TruncateInstall && !Mutant::OF_RUNS.contains(mutant);
    let shown = Mutant::ALL.into_iter().filter(is_shown);
    let missed: Vec<_> = shown.filter(|mutant| found(Protocol::Sc, &plant_sc(*mutant)).is_none()).collect();
    assert_eq!(missed, []);
}

#[test]
fn planted_bugs_of_home_based_lazy_release_consistency_are_found() {
    let shown = [
        Mutant::DropNoticeOfGrant,
        Mutant::DropNoticeOfBarrier,
        Mutant::DepartureAheadOfNotices,
        Mutant::RequestAheadOfNotices,
        Mutant::DropRuns,
        Mutant::SkipApply,
        Mutant::JoinRuns,
        Mutant::ZeroTwin,
        Mutant::StaleTwin,
        Mutant::OverwriteInsteadOfMerge,
        Mutant::LoseInvalidation,
        Mutant::SkipProtectAtRelease,
        Mutant::SkipPatch,
        Mutant::AtomicTwice,
        Mutant::StaleContent,
        Mutant::IgnoreNeeded,
        Mutant::DiffsTwice,
        Mutant::LoseSignal,
        Mutant::TeamOneShort,
    ];
    let missed: Vec<Mutant> =
        shown.into_iter().filter(|mutant| found(Protocol::Hlrc, &plant_hlrc(*mutant)).is_none()).collect();
    assert_eq!(missed, []);
}

#[test]
fn planted_bugs_of_lazy_release_consistency_are_found() {
    use mutant::lrc::Mutant;
    let shown = [
        Mutant::DropNoticeOfGrant,
        Mutant::DropNoticeOfBarrier,
        Mutant::LoseInvalidation,
        Mutant::SkipProtectAtRelease,
        Mutant::ReverseOrder,
        Mutant::ForgetVersions,
        Mutant::LeaveWriterOut,
        Mutant::DropRuns,
        Mutant::AskForTooLittle,
        Mutant::OwnDiffLate,
        Mutant::ZeroTwin,
        Mutant::StaleCopy,
        Mutant::ClaimTooMuch,
        Mutant::AtomicTwice,
        Mutant::ForgetOperation,
    ];
    let missed: Vec<Mutant> =
        shown.into_iter().filter(|mutant| found(Protocol::Lrc, &plant_lrc(*mutant)).is_none()).collect();
    assert_eq!(missed, []);
}

fn plant_lrc(mutant: mutant::lrc::Mutant) -> Plant {
    Arc::new(move || mutant.plant())
}

fn plant_sc(mutant: mutant::sc::Mutant) -> Plant {
    Arc::new(move || mutant.plant())
}

fn plant_hlrc(mutant: Mutant) -> Plant {
    Arc::new(move || mutant.plant())
}

#[test]
fn the_way_to_a_bug_can_be_read() {
    let Found { wrong, told } =
        found(Protocol::Sc, &plant_sc(mutant::sc::Mutant::ForgetOneReader)).expect("it shows");
    println!("{told}{wrong}\n");
    assert!(told.contains("Ownership page 0, copies at []"), "who has a copy is forgotten");
    assert!(wrong.contains("expected no other node to have access to page 0"), "{wrong}");

    let Found { wrong, told } =
        found(Protocol::Hlrc, &plant_hlrc(Mutant::DropNoticeOfGrant)).expect("it shows");
    println!("{told}{wrong}");
    let grant = told.lines().find(|line| line.contains("LockGrant 0")).expect("the lock is handed over");
    assert!(grant.ends_with("no notices"), "{grant}");
    assert!(wrong.contains("it should have read") && wrong.contains("release of lock 0"), "{wrong}");
}
