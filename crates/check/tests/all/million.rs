//! The checkers' time grows linearly with the events: a million of them are checked at once.

use std::time::Instant;

use hiroba_base::{LockId, NodeId, PageId};
use hiroba_check::execution::{Execution, History};
use hiroba_check::sequential::{self, Sequential};
use hiroba_check::{axioms, execution};
use hiroba_trace::{Event, ThreadNumber};

const THREADS: u64 = 4;
/// Words to which each hold stores, having loaded what the previous hold stored there.
const WORDS: u64 = 8;
const EVENTS: u64 = 1_000_000;

/// Makes threads take turns at a few words under a lock; `spoiled` is the turn whose first load returns the
/// initial zero.
fn turns(spoiled: Option<u64>) -> Execution {
    let mut threads: Vec<Vec<Event>> = (0..THREADS).map(|_| Vec::new()).collect();
    for turn in 0..EVENTS / (2 * WORDS + 2) {
        let events = &mut threads[(turn % THREADS) as usize];
        events.push(Event::Acquired { lock: LockId(0), turn });
        for word in 0..WORDS {
            let (page, offset) = (PageId(word % 3), (word * 8) as u32);
            let stale = word == 0 && spoiled == Some(turn);
            let value = if turn == 0 || stale { 0 } else { (turn - 1) * WORDS + word + 1 };
            events.push(Event::Load { page, offset, bytes: 8, value });
            events.push(Event::Store { page, offset, bytes: 8, value: turn * WORDS + word + 1 });
        }
        events.push(Event::Released { lock: LockId(0), turn });
    }
    let histories = threads.into_iter().enumerate().map(|(node, events)| History {
        node: NodeId(node as u16),
        thread: ThreadNumber(0),
        events,
    });
    Execution { threads: histories.collect() }
}

#[test]
fn a_million_events_are_judged() {
    let right = turns(None);
    let loads = right.events().filter(|(_, event)| matches!(event, Event::Load { .. })).count();
    let began = Instant::now();
    let verdict = axioms::judge(&right).expect("it is complete");
    println!("{} accesses byte by byte: {:.2} s", right.accesses(), began.elapsed().as_secs_f64());
    assert_eq!((verdict.loads_judged, verdict.violations_found, verdict.races.len()), (loads, 0, 0));
    let began = Instant::now();
    let verdict = sequential::judge(&right);
    println!("against sequential consistency: {:.2} s", began.elapsed().as_secs_f64());
    assert_eq!(verdict, Sequential::Plausible { loads_judged: loads });
}

#[test]
fn one_wrong_load_among_a_million_events_is_found() {
    let wrong = turns(Some(40_001));
    let verdict = axioms::judge(&wrong).expect("it is complete");
    assert_eq!((verdict.violations_found, verdict.violations.len()), (1, 1));
    let loads = |event: &Event| execution::is_access(event) && matches!(event, Event::Load { value: 0, .. });
    let position = verdict.violations[0].position;
    assert!(loads(wrong.event(position)), "{:?}", verdict.violations);
    assert!(matches!(sequential::judge(&wrong), Sequential::No { .. }));
}
