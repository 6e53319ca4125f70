//! Fresh pages that get homes on all nodes (`protocol/src/consistency/placing.rs`).

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSize};
use hiroba_protocol::{
    Consistency, Effect, Engine, Outcome, Protocol, Synchronisation, Waiter, WriteTracking,
};
use hiroba_wire::{Limits, Message, Placement};

const FIRST: NodeId = NodeId(0);
const OTHERS: [NodeId; 2] = [NodeId(1), NodeId(2)];
const THREAD: Waiter = Waiter(0);
const ARENA: PageRange = PageRange { first: PageId(0), count: 64 };
const BLOCK: PageRange = PageRange { first: PageId(8), count: 7 };

fn engine(me: NodeId, protocol: Protocol) -> Consistency {
    let limits = Limits { nodes: 3, region_granules: 64, granule_bytes: 4096 };
    let mut engine = Consistency::under(protocol, me, limits, WriteTracking::Fault, []);
    engine.add_region(ARENA, PageSize::KIB_4, Placement::On(FIRST));
    engine
}

fn effects(engine: &mut Consistency) -> Vec<Effect> {
    std::iter::from_fn(|| engine.poll_effect()).collect()
}

fn outcome(effects: &[Effect]) -> Option<Outcome> {
    effects.iter().find_map(|effect| match effect {
        Effect::Wake { waiter: THREAD, outcome } => Some(*outcome),
        _ => None,
    })
}

fn homes(engine: &Consistency) -> Vec<u16> {
    (6..17).map(|page| engine.home_of(PageId(page)).expect("it is allocated").0).collect()
}

const PLACED: [u16; 11] = [0, 0, 0, 0, 0, 1, 1, 2, 2, 0, 0];

#[test]
fn all_nodes_know_the_homes_of_a_block_before_its_allocation_returns() {
    let place = Message::Place { first: BLOCK.first, count: BLOCK.count };
    let placed = Message::Placed { first: BLOCK.first };
    let mut first = engine(FIRST, Protocol::Adaptive);
    first.handle_sync(Synchronisation::Place(BLOCK), THREAD);
    let told = effects(&mut first);
    assert_eq!(told, OTHERS.map(|to| Effect::Send { to, message: place.encode() }));
    for node in OTHERS {
        let mut other = engine(node, Protocol::Adaptive);
        other.handle_message(FIRST, &place).expect("they are fresh");
        let answer = Effect::Send { to: FIRST, message: placed.encode() };
        assert_eq!((effects(&mut other), homes(&other)), (vec![answer], PLACED.to_vec()));
        assert!(other.handle_message(FIRST, &place).is_err(), "they are not the sender's any more");
        assert_eq!(outcome(&effects(&mut first)), None, "a node has not answered");
        first.handle_message(node, &placed).expect("it was asked");
    }
    assert_eq!(outcome(&effects(&mut first)), Some(Outcome::Done));
    assert_eq!(homes(&first), PLACED);
    assert!(first.handle_message(OTHERS[0], &placed).is_err(), "it has answered");
}

#[test]
fn pages_that_somebody_has_touched_stay() {
    let touched = |mut engine: Consistency| {
        engine.handle_fault(BLOCK.first, Access::Write, Some(Waiter(1)));
        effects(&mut engine);
        engine
    };
    let mut first = touched(engine(FIRST, Protocol::Adaptive));
    first.handle_sync(Synchronisation::Place(BLOCK), THREAD);
    assert_eq!(outcome(&effects(&mut first)), Some(Outcome::Refused));
    assert_eq!(homes(&first), [0; 11]);

    let place = Message::Place { first: BLOCK.first, count: BLOCK.count };
    let error = touched(engine(OTHERS[0], Protocol::Adaptive)).handle_message(FIRST, &place);
    let error = error.expect_err("it waits for the page").to_string();
    assert!(error.contains("pages of the sender that nobody has touched"), "{error}");
    let beyond = Message::Place { first: PageId(60), count: 5 };
    assert!(engine(OTHERS[0], Protocol::Adaptive).handle_message(FIRST, &beyond).is_err());
    assert!(engine(OTHERS[0], Protocol::Adaptive).handle_message(OTHERS[1], &place).is_err());
}

#[test]
fn protocols_whose_homes_stay_place_nothing() {
    for protocol in [Protocol::Sc, Protocol::Lrc] {
        let mut first = engine(FIRST, protocol);
        first.handle_sync(Synchronisation::Place(BLOCK), THREAD);
        assert_eq!(outcome(&effects(&mut first)), Some(Outcome::Refused), "{}", protocol.name());
    }
}
