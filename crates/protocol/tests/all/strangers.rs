//! Messages that no correct node sends are refused, with or without debug assertions. They never make an
//! assertion fail, and never leave a page in no row of its protocol's state table.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSize, VersionVector};
use hiroba_protocol::{
    Consistency, Effect, Engine, Expected, Protocol, ProtocolError, Waiter, WriteTracking,
};
use hiroba_wire::{Limits, Message, PageCopy, PageOwned, Placement};

const GRANULE_BYTES: u32 = 4096;
const PAGE: PageId = PageId(8);
const HERE: NodeId = NodeId(0);
const THERE: NodeId = NodeId(1);
const THREAD: Waiter = Waiter(0);

/// Returns the engine of node 0 of two, with one page.
fn engine(protocol: Protocol, home: NodeId) -> Consistency {
    let limits = Limits { nodes: 2, region_granules: 64, granule_bytes: GRANULE_BYTES };
    let mut engine = Consistency::under(protocol, HERE, limits, WriteTracking::Fault, []);
    engine.add_region(PageRange::single(PAGE), PageSize::KIB_4, Placement::On(home));
    engine
}

/// Discards the effects that the host would carry out.
fn drain(engine: &mut Consistency) -> Vec<Effect> {
    std::iter::from_fn(|| engine.poll_effect()).collect()
}

fn refusal(engine: &mut Consistency, message: &Message<'_>) -> Option<Expected> {
    match engine.handle_message(THERE, message) {
        Err(ProtocolError::Unexpected { expected, .. }) => Some(expected),
        _ => None,
    }
}

/// Returns a version that names this node's intervals through `seq`.
fn naming(seq: u64) -> VersionVector {
    let mut version = VersionVector::new();
    version.advance(HERE, seq);
    version
}

#[test]
fn a_page_is_handed_to_who_asked_for_it_with_a_copyset_of_others() {
    let mut node = engine(Protocol::Sc, THERE);
    node.handle_fault(PAGE, Access::Write, Some(THREAD));
    drain(&mut node);
    let owned = PageOwned { page: PAGE, copyset: vec![HERE], turns: Vec::new() };
    let with_this_node = Message::Ownership { pages: vec![owned] };
    assert_eq!(refusal(&mut node, &with_this_node), Some(Expected::CopysetOfOthers));
}

#[test]
fn nobody_is_asked_to_hand_a_page_to_itself() {
    let mut node = engine(Protocol::Sc, HERE);
    let to_itself = Message::OwnershipForward { pages: [PAGE].into_iter().collect(), requester: HERE };
    assert_eq!(refusal(&mut node, &to_itself), Some(Expected::AnotherNode));
}

#[test]
fn copies_hold_no_interval_that_has_yet_to_end() {
    for protocol in [Protocol::Hlrc, Protocol::Aurc, Protocol::Adaptive] {
        let mut node = engine(protocol, THERE);
        node.handle_fault(PAGE, Access::Read, Some(THREAD));
        drain(&mut node);
        let copies = vec![PageCopy { page: PAGE, version: naming(1), is_zero: true }];
        let reply = Message::PagesReply { copies, content: &[] };
        assert_eq!(refusal(&mut node, &reply), Some(Expected::EndedIntervals), "{}", protocol.name());
    }
}

#[test]
fn a_home_page_is_sent_to_nobody_who_is_its_home() {
    let mut node = engine(Protocol::Hlrc, HERE);
    node.handle_fault(PAGE, Access::Write, Some(THREAD));
    drain(&mut node);
    let copies = vec![PageCopy { page: PAGE, version: VersionVector::new(), is_zero: true }];
    let reply = Message::PagesReply { copies, content: &[] };
    assert_eq!(refusal(&mut node, &reply), Some(Expected::RequestedPage));
}

#[test]
fn an_owner_is_not_asked_for_a_copy_of_its_own() {
    let mut node = engine(Protocol::Sc, HERE);
    let for_the_owner = Message::CopiesRequest { pages: [PAGE].into_iter().collect(), requester: HERE };
    assert_eq!(refusal(&mut node, &for_the_owner), Some(Expected::RequestWithoutCopy));
}

#[test]
fn homes_hold_no_interval_that_has_yet_to_end() {
    let mut node = engine(Protocol::Lrc, THERE);
    let caught_up = Message::CaughtUp { page: PAGE, version: naming(1) };
    assert!(refusal(&mut node, &caught_up).is_some());
}

/// A copy on which requests wait is in no row. A node that would cause that is refused if rows are checked;
/// otherwise the request waits for ever, and nothing wrong is shown.
#[test]
fn words_that_lead_to_no_row_of_the_state_table_are_refused() {
    let mut node = engine(Protocol::Hlrc, THERE);
    let mut needed = VersionVector::new();
    needed.advance(THERE, 1);
    let refused = refusal(&mut node, &Message::PageRequest { page: PAGE, needed });
    assert_eq!(refused, cfg!(debug_assertions).then_some(Expected::RowOfStateTable));
}
