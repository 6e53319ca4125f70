//! Messages about pages that are put under sequential consistency: each in its place, and no others.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, PageSize};
use hiroba_protocol::{
    Consistency, Effect, Engine, HomePolicy, Outcome, Protocol, Synchronisation, Waiter, WriteTracking,
};
use hiroba_wire::{Limits, Message, PageOwned, Placement};

const HOME: NodeId = NodeId(0);
const FIRST: NodeId = NodeId(1);
const SECOND: NodeId = NodeId(2);
const PAGE: PageId = PageId(8);
const THREAD: Waiter = Waiter(0);

fn engine_under(protocol: Protocol, me: NodeId, tracking: WriteTracking) -> Consistency {
    let limits = Limits { nodes: 3, region_granules: 64, granule_bytes: 4096 };
    let mut engine = Consistency::under(protocol, me, limits, tracking, []);
    engine.add_region(PageRange { first: PAGE, count: 4 }, PageSize::KIB_4, Placement::On(HOME));
    engine
}

fn engine(me: NodeId) -> Consistency {
    engine_under(Protocol::Hlrc, me, WriteTracking::Fault)
}

/// The home's order to give up the first pages of the region.
fn convert(pages: u64) -> Message<'static> {
    Message::Convert { pages: first(pages) }
}

fn converted(pages: u64) -> Message<'static> {
    Message::Converted { pages: first(pages) }
}

fn first(pages: u64) -> PageSet {
    (PAGE.0..PAGE.0 + pages).map(PageId).collect()
}

fn ownership_request(pages: u64) -> Message<'static> {
    Message::OwnershipRequest { pages: first(pages) }
}

fn copies_request(requester: NodeId) -> Message<'static> {
    Message::CopiesRequest { pages: first(1), requester }
}

fn effects(engine: &mut Consistency) -> Vec<Effect> {
    std::iter::from_fn(|| engine.poll_effect()).collect()
}

/// Returns the messages that the engine sends now, by receiver, except what it makes known before them.
fn sent(engine: &mut Consistency) -> Vec<(NodeId, Vec<u8>)> {
    let sent = |effect| match effect {
        Effect::Send { to, message } if !is_publication(&message) => Some((to, message)),
        _ => None,
    };
    effects(engine).into_iter().filter_map(sent).collect()
}

fn is_publication(message: &[u8]) -> bool {
    Message::KINDS[usize::from(message[0])] == "Publish"
}

fn must_refuse(engine: &mut Consistency, from: NodeId, message: &Message<'_>, expected: &str) {
    let error = engine.handle_message(from, message).expect_err("it has no place");
    assert!(error.to_string().contains(expected), "{error}");
}

/// A home that is told by all others that they have given the page up becomes its owner.
#[test]
fn a_home_converts_a_page_once_and_waits_for_every_node() {
    let mut home = engine(HOME);
    let request = Message::ConversionRequest { page: PAGE };
    let order = convert(1).encode();
    home.handle_message(FIRST, &request).unwrap();
    assert_eq!(sent(&mut home), [(FIRST, order.clone()), (SECOND, order)]);
    home.handle_message(SECOND, &request).unwrap();
    assert_eq!(sent(&mut home), [], "it is under way");
    let report = converted(1);
    home.handle_message(FIRST, &report).unwrap();
    must_refuse(&mut home, FIRST, &report, "one report of each node");
    // A request under the new protocol waits, but only one of each node.
    home.handle_message(FIRST, &ownership_request(1)).unwrap();
    must_refuse(&mut home, FIRST, &ownership_request(1), "one request at a time");
    assert_eq!(sent(&mut home), []);
    home.handle_message(SECOND, &report).unwrap();
    let owned = PageOwned { page: PAGE, copyset: vec![], turns: vec![] };
    let ownership = Message::Ownership { pages: vec![owned] }.encode();
    assert_eq!(sent(&mut home), [(FIRST, ownership)]);
    home.handle_message(SECOND, &request).unwrap();
    assert_eq!(sent(&mut home), [], "it is done");
    must_refuse(&mut home, SECOND, &report, "one report of each node");
}

#[test]
fn a_copy_is_given_up_once_for_its_home() {
    let mut node = engine(FIRST);
    let order = convert(1);
    must_refuse(&mut node, SECOND, &order, "an order of its home");
    must_refuse(&mut node, HOME, &Message::ConversionRequest { page: PAGE }, "requests to the page's home");
    must_refuse(&mut node, HOME, &converted(1), "one report of each node");
    node.handle_message(HOME, &order).unwrap();
    assert_eq!(sent(&mut node), [(HOME, converted(1).encode())]);
    must_refuse(&mut node, HOME, &order, "an order of its home");
    // From now on the page is asked for as under sequential consistency.
    node.handle_fault(PAGE, Access::Read, Some(THREAD));
    assert_eq!(sent(&mut node), [(HOME, copies_request(FIRST).encode())]);
}

/// A fetch is under way: the copy comes, serves its thread, and is given up.
#[test]
fn a_page_that_is_being_fetched_is_given_up_when_it_has_come() {
    let mut node = engine(FIRST);
    node.handle_fault(PAGE, Access::Read, Some(THREAD));
    effects(&mut node);
    node.handle_message(HOME, &convert(1)).unwrap();
    assert_eq!(sent(&mut node), []);
    node.handle_fault(PAGE, Access::Write, Some(Waiter(1)));
    assert_eq!(effects(&mut node), [], "an access waits for the new protocol");
    let copies = vec![hiroba_wire::PageCopy { page: PAGE, version: Default::default(), is_zero: true }];
    node.handle_message(HOME, &Message::PagesReply { copies, content: &[] }).unwrap();
    let effects = effects(&mut node);
    let woken = effects.iter().position(|effect| matches!(effect, Effect::Wake { waiter: THREAD, .. }));
    let reports = converted(1).encode();
    let report =
        effects.iter().position(|effect| *effect == Effect::Send { to: HOME, message: reports.clone() });
    assert!(woken.is_some() && woken < report, "{effects:?}");
    let wants = ownership_request(1).encode();
    assert_eq!(effects.last(), Some(&Effect::Send { to: HOME, message: wants }));
}

/// Where stores are noted instead of having them fault, no copies are given.
#[test]
fn a_page_whose_stores_cannot_fault_has_no_copies() {
    let mut node = engine_under(Protocol::Hlrc, FIRST, WriteTracking::Async);
    assert!(node.notes_stores(PAGE));
    node.handle_message(HOME, &convert(1)).unwrap();
    while let Some(effect) = node.poll_effect() {
        if effect == Effect::CollectWritten {
            node.handle_done(hiroba_protocol::Done::Written { granules: Default::default() });
        }
    }
    assert!(!node.notes_stores(PAGE), "its content is no twin");
    node.handle_fault(PAGE, Access::Read, Some(THREAD));
    assert_eq!(sent(&mut node), [(HOME, ownership_request(1).encode())]);
    let request = copies_request(SECOND);
    must_refuse(&mut node, SECOND, &request, "a request for the page itself");
}

#[test]
fn pages_that_cannot_be_given_up_stay() {
    let outcomes = |mut engine: Consistency, page| {
        engine.handle_sync(Synchronisation::Convert(page), THREAD);
        let woken = |effect| if let Effect::Wake { outcome, .. } = effect { Some(outcome) } else { None };
        effects(&mut engine).into_iter().find_map(woken)
    };
    for protocol in Protocol::ALL.into_iter().filter(|protocol| !protocol.converts_pages()) {
        let engine = engine_under(protocol, FIRST, WriteTracking::Fault);
        assert_eq!(outcomes(engine, PAGE), Some(Outcome::Refused), "{}", protocol.name());
    }
    let moving = engine(FIRST).moving_homes(HomePolicy::Modification);
    assert_eq!(outcomes(moving, PAGE), None, "its home was asked, wherever it may have moved");
    assert!(matches!(outcomes(engine(FIRST), PageId(0)), Some(Outcome::Misuse(_))), "it is not allocated");
    assert_eq!(outcomes(engine(FIRST), PAGE), None, "its home was asked");
}

/// Only where many pages of a block are asked for, others of it are converted with them.
#[test]
fn a_block_whose_pages_are_asked_for_again_and_again_is_converted_in_runs() {
    let limits = Limits { nodes: 3, region_granules: 512, granule_bytes: 4096 };
    let region = PageRange { first: PageId(0), count: 256 };
    let converted_by = |asked: &[u64], block: Option<(u64, u64)>| -> Vec<u64> {
        let mut home = Consistency::under(Protocol::Hlrc, HOME, limits, WriteTracking::Fault, []);
        home.add_region(region, PageSize::KIB_4, Placement::On(HOME));
        let mut told = Vec::new();
        for page in asked {
            if let Some((first, count)) = block {
                home.note_converted_block(PageRange { first: PageId(first), count });
            }
            home.handle_message(FIRST, &Message::ConversionRequest { page: PageId(*page) }).unwrap();
            for (_, message) in sent(&mut home).into_iter().filter(|(to, _)| *to == FIRST) {
                match Message::decode(&message, &limits).unwrap() {
                    Message::Convert { pages } => told.extend(pages.iter().map(|page| page.0)),
                    other => panic!("{other:?}"),
                }
            }
        }
        told.sort_unstable();
        told
    };
    let whole = Some((0, 256));
    assert_eq!(converted_by(&[1, 5, 7], whole), [1, 5, 7], "three pages are few");
    assert_eq!(converted_by(&[1, 40, 100, 150], whole), [1, 40, 100, 150], "they are far from each other");
    assert_eq!(converted_by(&[1, 3, 5, 7], whole), (0..32).collect::<Vec<_>>());
    assert_eq!(converted_by(&[1, 3, 5, 7], None), [1, 3, 5, 7], "the block is not known");
    assert_eq!(converted_by(&[9, 3, 5, 7], Some((2, 8))), (2..10).collect::<Vec<_>>(), "only in the block");
    // The pages of the first run are not asked for any more, those of the next one are.
    let all = [1, 3, 5, 7, 33, 40, 47, 63, 64];
    assert_eq!(converted_by(&all, whole), (0..65).collect::<Vec<_>>());
}

/// A node reports the pages of a run together, when it has given up the last one.
#[test]
fn pages_of_a_run_are_reported_together() {
    let mut node = engine(FIRST);
    node.handle_fault(PAGE, Access::Read, Some(THREAD));
    effects(&mut node);
    node.handle_message(HOME, &convert(3)).unwrap();
    assert_eq!(sent(&mut node), [], "one of them is being fetched");
    let copies = vec![hiroba_wire::PageCopy { page: PAGE, version: Default::default(), is_zero: true }];
    node.handle_message(HOME, &Message::PagesReply { copies, content: &[] }).unwrap();
    assert_eq!(sent(&mut node), [(HOME, converted(3).encode())]);
    must_refuse(&mut node, HOME, &convert(4), "an order of its home");
    must_refuse(&mut node, HOME, &Message::Convert { pages: PageSet::new() }, "a message of the protocol");
}
