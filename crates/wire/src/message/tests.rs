//! Tests one message of each kind, and messages that are refused.

use proptest::prelude::*;

use super::*;
use crate::MoveKind;
use crate::PROGRAM_DATA_BYTES_MAX;
use crate::agent::{FromAgent, NodeEvent};
use crate::collective::CONTRIBUTION_BYTES_MAX;
use crate::intervals::IntervalNotice;
use crate::pages::PAGES_PER_MESSAGE_MAX;

const LIMITS: Limits = Limits { nodes: 4, region_granules: 100, granule_bytes: 4096 };

fn samples() -> Vec<Message<'static>> {
    let mut version = VersionVector::new();
    version.advance(NodeId(2), 7);
    let timestamp = VectorTimestamp::new(4);
    let pages: PageSet = [3, 4, 9].into_iter().map(PageId).collect();
    let moved = PageHandedOver {
        page: PageId(3),
        version: version.clone(),
        moves: 2,
        is_sent: true,
        has_words: true,
        turns: vec![(8, 3)],
    };
    let knowledge = Knowledge {
        timestamp: timestamp.clone(),
        notices: vec![IntervalNotice { node: NodeId(1), seq: 2, pages: pages.clone() }],
        epoch: 3,
        beyond_arrival: true,
    };
    vec![
        Message::PageRequest { page: PageId(99), needed: version.clone() },
        Message::PagesReply {
            copies: vec![PageCopy { page: PageId(0), version: version.clone(), is_zero: false }],
            content: &[7; 4096],
        },
        Message::PagesRequest {
            wanted: vec![PagesWanted { needed: version.clone(), pages: pages.clone() }],
            descending: true,
        },
        Message::Diffs { seq: 1, last: true, diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }] },
        Message::LockRequest { lock: LockId(u32::MAX), timestamp: timestamp.clone() },
        Message::LockForward { lock: LockId(1), requester: NodeId(3), timestamp: timestamp.clone() },
        Message::LockGrant { lock: LockId(1), turn: 5, knowledge: knowledge.clone() },
        Message::Arrive {
            epoch: 1,
            collective: Collective::Barrier,
            caller: NodeId(3),
            least: Some(VectorTimestamp::new(4)),
            knowledge: knowledge.clone(),
            moves: vec![HomeMoves { to: NodeId(2), pages: pages.clone(), kind: MoveKind::Given }],
            contributions: vec![
                Contribution { node: NodeId(1), bytes: &[1, 2] },
                Contribution { node: NodeId(3), bytes: &[7; CONTRIBUTION_BYTES_MAX] },
            ],
        },
        Message::AtomicRequest {
            ticket: 1,
            page: PageId(1),
            offset: 4088,
            operation: AtomicOperation::FetchAdd(1),
            needed: version.clone(),
        },
        Message::ProgramData { identity: 9, offset: 1, bytes: &[1, 2, 3] },
        Message::Ownership {
            pages: vec![
                PageOwned { page: PageId(3), copyset: vec![NodeId(0), NodeId(3)], turns: vec![(8, 3)] },
                PageOwned { page: PageId(4), copyset: vec![], turns: vec![] },
            ],
        },
        Message::CopyRequest { page: PageId(3), requester: NodeId(1) },
        Message::CopiesRequest { pages: (3..6).map(PageId).collect(), requester: NodeId(1) },
        Message::OwnershipRequest { pages: (3..6).map(PageId).collect() },
        Message::OwnershipForward { pages: (3..6).map(PageId).collect(), requester: NodeId(2) },
        Message::InvalidateCopy { pages: (3..6).map(PageId).collect(), are_lent: true },
        Message::CopyInvalidated { pages: (3..6).map(PageId).collect() },
        Message::ConversionRequest { page: PageId(3) },
        Message::Convert { pages: (3..5).map(PageId).collect() },
        Message::Converted { pages: (3..5).map(PageId).collect() },
        Message::EarlyDiffs { seq: 1, diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }] },
        Message::LockTry { lock: LockId(2), timestamp: timestamp.clone() },
        Message::LockTryForward { lock: LockId(2), requester: NodeId(0), timestamp: timestamp.clone() },
        Message::LockTryOutcome { lock: LockId(2), requester: NodeId(0), granted: true },
        Message::LockTryRefused { lock: LockId(2) },
        Message::CondWait { cond: CondId(1), ticket: 4 },
        Message::CondNoted { ticket: 4 },
        Message::CondSignal { cond: CondId(1), all: true },
        Message::CondWake { ticket: 4 },
        Message::Depart {
            epoch: 1,
            collective: Collective::Barrier,
            knowledge: knowledge.clone(),
            moves: vec![HomeMoves { to: NodeId(2), pages: pages.clone(), kind: MoveKind::Given }],
        },
        Message::AtomicReply {
            ticket: 1,
            page: PageId(3),
            outcome: AtomicOutcome { previous: 1, current: 2, written: true },
            turn: 9,
        },
        Message::TouchedPages { seq: 1, timestamp, epoch: 0, interval_end: None, pages: Vec::new() },
        Message::TouchedAll,
        Message::TouchedHeard,
        Message::Ports { bytes: &[1, 2, 3] },
        Message::Publish { knowledge, count: 3 },
        Message::Free { address: 4096 },
        Message::SizeRequest { ticket: 1, address: 4096 },
        Message::SizeReply { ticket: 1, bytes: Some(64) },
        Message::EagerDiffs {
            writer: NodeId(2),
            diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }],
        },
        Message::DiffsPerformed { page: PageId(5), count: 3 },
        Message::InvalidateCopies { transaction: 7, pages: pages.clone() },
        Message::UpdateCopies { transaction: 7, diffs: vec![PageDiff { page: PageId(5), runs: &[1, 2, 3] }] },
        Message::CopiesSettled { page: PageId(3), transaction: 7, left: pages.clone() },
        Message::AtomicForward {
            requester: NodeId(3),
            ticket: 1,
            page: PageId(1),
            offset: 4088,
            operation: AtomicOperation::Load,
        },
        Message::HomeTransfer { page: PageId(3), moves: 2, copyset: vec![NodeId(0)], turns: vec![(8, 3)] },
        Message::HomeMoved { page: PageId(3), moves: 2 },
        Message::HomeMovesHeard {
            page: PageId(3),
            held: vec![PagesHeld { version: moved.version.clone(), pages: pages.clone() }],
        },
        Message::HomeHandedOver { pages: vec![moved] },
        Message::DiffsRequest { page: PageId(3), after: 0, through: 4 },
        Message::DiffsReply {
            page: PageId(3),
            last: true,
            diffs: vec![IntervalDiff { seq: 4, version: version.clone(), runs: &[0, 1, 9] }],
        },
        Message::DiffsCollected { page: PageId(3) },
        Message::CatchUpRequest { page: PageId(3), version: version.clone() },
        Message::CaughtUp { page: PageId(3), version: version.clone() },
        Message::WordReply {
            ticket: 1,
            page: PageId(3),
            outcome: AtomicOutcome { previous: 1, current: 2, written: true },
            turn: 9,
            version,
        },
        Message::Alive,
        Message::KeepHomes { epoch: 7 },
        Message::HomesKept { epoch: 7 },
        Message::Place { first: PageId(3), count: 4 },
        Message::Placed { first: PageId(3) },
        Message::LentMemory { port: 40_000 },
    ]
}

#[test]
fn a_packet_of_ports_may_be_put_behind_its_head() {
    for length in [0, 3, 127, 128, 70_000] {
        let packet = vec![7; length];
        let whole = Message::Ports { bytes: &packet }.encode();
        let (head, head_bytes) = Message::ports_head(length);
        assert_eq!(whole, [&head[..head_bytes], &packet].concat());
        for payload_bytes in [0, length / 2, length] {
            let beginning = &whole[..whole.len() - payload_bytes];
            let expected = &packet[..length - payload_bytes];
            assert_eq!(Message::beginning_of_ports(beginning, payload_bytes), Ok(expected));
            assert!(Message::beginning_of_ports(beginning, payload_bytes + 1).is_err());
        }
    }
}

#[test]
fn a_beginning_of_something_else_is_no_packet_of_ports() {
    for kind in 0..=u8::MAX {
        let bytes = [kind, 5, 1, 2];
        let taken = Message::beginning_of_ports(&bytes, 3);
        assert_eq!(taken.is_ok(), Message::KINDS.get(usize::from(kind)) == Some(&"Ports"), "{kind}");
    }
    let ports = Message::ports_head(0).0[0];
    for bytes in [&[][..], &[ports], &[ports, 0xff], &[ports, 2, 1, 2, 3]] {
        assert!(Message::beginning_of_ports(bytes, 0).is_err(), "{bytes:?}");
    }
    // A length that no sum reaches without an overflow.
    let (head, head_bytes) = Message::ports_head(0);
    assert!(Message::beginning_of_ports(&head[..head_bytes], usize::MAX).is_err());
}

#[test]
fn diffs_alone_are_unhurried() {
    let kinds = (0..Message::KINDS.len()).filter(|kind| Message::is_unhurried(*kind as u8));
    assert_eq!(kinds.map(|kind| Message::KINDS[kind]).collect::<Vec<_>>(), ["Diffs"]);
}

#[test]
fn messages_survive_the_wire() {
    assert_eq!(samples().len(), Message::KINDS.len(), "one of each kind");
    for message in samples() {
        let bytes = message.encode();
        let name = Message::KINDS[usize::from(bytes[0])];
        let said = format!("{message:?}");
        assert_eq!(said.split_whitespace().next(), Some(name), "{said}");
        assert_eq!(Message::decode(&bytes, &LIMITS).as_ref(), Ok(&message));
    }
}

#[test]
fn fields_out_of_bounds_are_refused() {
    let mut version = VersionVector::new();
    version.advance(NodeId(4), 1);
    let knowledge = Knowledge {
        timestamp: VectorTimestamp::new(4),
        notices: Vec::new(),
        epoch: 0,
        beyond_arrival: false,
    };
    // Each set alone is within the region, but together they have more pages than a message may name.
    let all = PagesWanted { needed: VersionVector::new(), pages: (0..100).map(PageId).collect() };
    let too_many = vec![all; PAGES_PER_MESSAGE_MAX as usize / 100 + 1];
    let contributing = |second| Message::Arrive {
        epoch: 0,
        collective: Collective::Barrier,
        caller: NodeId(3),
        least: None,
        knowledge: knowledge.clone(),
        moves: Vec::new(),
        contributions: vec![Contribution { node: NodeId(2), bytes: &[1] }, second],
    };
    let bad = [
        Message::PageRequest { page: PageId(100), needed: VersionVector::new() },
        Message::PageRequest { page: PageId(1), needed: version },
        Message::PagesReply {
            copies: vec![PageCopy { page: PageId(1), version: VersionVector::new(), is_zero: false }],
            content: &[0; 4095],
        },
        Message::PagesReply { copies: Vec::new(), content: &[0; 4096] },
        Message::PagesReply {
            copies: vec![PageCopy { page: PageId(100), version: VersionVector::new(), is_zero: true }],
            content: &[],
        },
        Message::PagesRequest { wanted: too_many, descending: false },
        Message::Arrive {
            epoch: 0,
            collective: Collective::Barrier,
            caller: NodeId(4),
            least: None,
            knowledge: knowledge.clone(),
            moves: Vec::new(),
            contributions: Vec::new(),
        },
        Message::Depart {
            epoch: 0,
            collective: Collective::Barrier,
            knowledge: knowledge.clone(),
            moves: vec![HomeMoves { to: NodeId(4), pages: PageSet::new(), kind: MoveKind::Claimed }],
        },
        Message::Arrive {
            epoch: 0,
            collective: Collective::Barrier,
            caller: NodeId(3),
            least: Some(VectorTimestamp::new(5)),
            knowledge: knowledge.clone(),
            moves: Vec::new(),
            contributions: Vec::new(),
        },
        contributing(Contribution { node: NodeId(4), bytes: &[1] }),
        contributing(Contribution { node: NodeId(3), bytes: &[] }),
        contributing(Contribution { node: NodeId(3), bytes: &[0; CONTRIBUTION_BYTES_MAX + 1] }),
        // Each node contributes once, in the order of the nodes.
        contributing(Contribution { node: NodeId(2), bytes: &[1] }),
        contributing(Contribution { node: NodeId(1), bytes: &[1] }),
        Message::Diffs { seq: 0, last: false, diffs: vec![] },
        Message::EarlyDiffs { seq: 1, diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
        Message::LockRequest { lock: LockId(0), timestamp: VectorTimestamp::new(5) },
        Message::LockTryOutcome { lock: LockId(0), requester: NodeId(9), granted: true },
        Message::Ownership {
            pages: vec![PageOwned { page: PageId(3), copyset: vec![NodeId(4)], turns: Vec::new() }],
        },
        Message::Ownership {
            pages: vec![PageOwned { page: PageId(100), copyset: Vec::new(), turns: Vec::new() }],
        },
        Message::Ownership { pages: Vec::new() },
        Message::OwnershipForward { pages: (99..101).map(PageId).collect(), requester: NodeId(1) },
        Message::OwnershipForward { pages: (1..3).map(PageId).collect(), requester: NodeId(4) },
        Message::OwnershipRequest { pages: PageSet::new() },
        Message::CopiesRequest { pages: (1..3).map(PageId).collect(), requester: NodeId(4) },
        Message::InvalidateCopy { pages: PageSet::new(), are_lent: false },
        Message::CopyInvalidated { pages: (99..101).map(PageId).collect() },
        Message::Convert { pages: (99..101).map(PageId).collect() },
        Message::EagerDiffs { writer: NodeId(4), diffs: Vec::new() },
        Message::EagerDiffs { writer: NodeId(3), diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
        Message::UpdateCopies { transaction: 0, diffs: vec![PageDiff { page: PageId(100), runs: &[] }] },
        Message::InvalidateCopies { transaction: 0, pages: (99..101).map(PageId).collect() },
        Message::CopiesSettled { page: PageId(0), transaction: 0, left: (99..101).map(PageId).collect() },
        Message::HomeTransfer { page: PageId(0), moves: 1, copyset: vec![NodeId(4)], turns: Vec::new() },
        Message::HomeMoved { page: PageId(100), moves: 1 },
        Message::AtomicRequest {
            ticket: 0,
            page: PageId(1),
            offset: 4,
            operation: AtomicOperation::Load,
            needed: VersionVector::new(),
        },
        Message::ProgramData { identity: 9, offset: 0, bytes: &[] },
        Message::ProgramData { identity: 9, offset: 0, bytes: &[0; PROGRAM_DATA_BYTES_MAX + 1] },
    ];
    for message in bad {
        let bytes = message.encode();
        assert!(
            matches!(Message::decode(&bytes, &LIMITS), Err(WireError::OutOfBounds { .. })),
            "{message:?}"
        );
    }
    let mut trailing = samples()[0].encode();
    trailing.push(0);
    assert!(Message::decode(&trailing, &LIMITS).is_err());
}

/// Counts the bytes that were encoded one by one.
struct OneByOne(usize);

impl postcard::ser_flavors::Flavor for OneByOne {
    type Output = usize;

    fn try_push(&mut self, _: u8) -> postcard::Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn try_extend(&mut self, _: &[u8]) -> postcard::Result<()> {
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.0)
    }
}

fn one_by_one<T: Serialize>(message: &T) -> usize {
    postcard::serialize_with_flavor(message, OneByOne(0)).expect("it can be encoded")
}

#[test]
fn bytes_are_not_encoded_one_by_one() {
    let content = &[7; 4096];
    let (page, writer, version) = (PageId(5), NodeId(1), VersionVector::new());
    let diffs = vec![PageDiff { page, runs: content }];
    let copies = vec![PageCopy { page, version: version.clone(), is_zero: false }];
    let messages = [
        Message::PagesReply { copies: copies.clone(), content },
        Message::Diffs { seq: 1, last: true, diffs: diffs.clone() },
        Message::EarlyDiffs { seq: 1, diffs: diffs.clone() },
        Message::EagerDiffs { writer, diffs: diffs.clone() },
        Message::UpdateCopies { transaction: 1, diffs },
        Message::DiffsReply {
            page,
            last: true,
            diffs: vec![IntervalDiff { seq: 1, version, runs: content }],
        },
        Message::ProgramData { identity: 1, offset: 0, bytes: content },
    ];
    for message in messages {
        assert!(one_by_one(&message) < 20, "{message:?}");
    }
    let bytes = content.to_vec();
    let trace = FromAgent::Trace { node: NodeId(1), bytes: bytes.clone() };
    let output = FromAgent::Node { node: NodeId(1), event: NodeEvent::Output { to_error: false, bytes } };
    for said in [trace, output] {
        assert!(one_by_one(&said) < 20, "{said:?}");
        assert_eq!(crate::control::decode(&crate::control::encode(&said)), Ok(said));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::decode(&bytes, &LIMITS);
    }

    #[test]
    fn mutated_messages_never_panic(which in 0usize..Message::KINDS.len(), at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = samples()[which].encode();
        let position = at.index(bytes.len());
        bytes[position] = value;
        let _ = Message::decode(&bytes, &LIMITS);
        bytes.truncate(cut.index(bytes.len()));
        let _ = Message::decode(&bytes, &LIMITS);
    }
}
