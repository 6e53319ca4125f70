//! Planted bugs: messages of a node are lost, doubled or altered, without changes to the engine. Each breaks
//! one duty of the protocol, and random programs must detect it within a bounded number of them: by the
//! model, by the conditions at rest, or by an engine's own assertion.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hiroba_base::NodeId;
use hiroba_ports::wire::{Acceptance, Envelope, FlowKey, Head, Load, OnceOnWire, Packet, RightOnWire, Word};
use hiroba_ports::{
    Call, Config, Disposition, Message, Outcome, Patience, UNIT_BYTES, notification, right, service,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::found::{DEAD_ORIGIN_SEED, LOSS_SEED, a_loss_between_relayed_messages, a_loss_of_a_dead_origin};
use crate::random::{landing, ops, run, tight};
use crate::simulator::{Cluster, Lands, Mutation, bytes_message, send};

/// The treatment of a packet.
enum Fate {
    Sent,
    Lost,
    Twice,
}

type Wrong = fn(&mut Packet<'_>, &mut Word) -> Fate;

struct Mutant(Wrong);

impl Mutation for Mutant {
    fn on_send(&mut self, _from: NodeId, _to: NodeId, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let Ok(mut envelope) = Envelope::decode(&bytes, u16::MAX) else { return vec![bytes] };
        let fate = (self.0)(&mut envelope.packet, &mut envelope.word);
        let altered = envelope.encode();
        match fate {
            Fate::Sent => vec![altered],
            Fate::Lost => Vec::new(),
            Fate::Twice => vec![altered.clone(), altered],
        }
    }
}

fn lost_if(is_lost: bool) -> Fate {
    if is_lost { Fate::Lost } else { Fate::Sent }
}

fn rights<'a>(packet: &'a mut Packet<'_>) -> Option<&'a mut Head> {
    match packet {
        Packet::Request { load: Load::Whole { head, .. }, .. } | Packet::Begin { head, .. } => Some(head),
        _ => None,
    }
}

fn on_bodies(packet: &mut Packet<'_>, change: fn(&mut hiroba_ports::wire::BodyOnWire)) -> Fate {
    for right in rights(packet).into_iter().flat_map(|head| &mut head.rights) {
        if let RightOnWire::Receive(body) = right {
            change(body);
        }
    }
    Fate::Sent
}

/// The name of each bug, whether it shows only if nodes die, and the bug.
const MUTANTS: &[(&str, bool, Wrong)] = &[
    ("a message in the queue is not said to be", false, |_, word| {
        word.queued.clear();
        Fate::Sent
    }),
    ("another message is said to be in the queue", false, |_, word| {
        word.queued.iter_mut().for_each(|answered| answered.number += 1);
        Fate::Sent
    }),
    ("a small request comes twice", false, |packet, _| match packet {
        Packet::Request { load: Load::Whole { .. }, .. } => Fate::Twice,
        _ => Fate::Sent,
    }),
    ("who waits is not told that there is room", false, |packet, _| {
        lost_if(matches!(packet, Packet::Ready { .. }))
    }),
    ("who was refused is not told to wait", false, |packet, _| {
        lost_if(matches!(packet, Packet::Wait { .. }))
    }),
    ("memory is set aside, and the sender is not told", false, |packet, _| {
        lost_if(matches!(packet, Packet::Permit { .. }))
    }),
    ("the window never opens again", false, |packet, _| lost_if(matches!(packet, Packet::More { .. }))),
    ("a piece comes twice", false, |packet, _| match packet {
        Packet::Data { .. } => Fate::Twice,
        _ => Fate::Sent,
    }),
    ("a piece is another one", false, |packet, _| {
        if let Packet::Data { offset, .. } = packet {
            *offset += 1;
        }
        Fate::Sent
    }),
    ("a piece has another one's bytes", false, |packet, _| {
        if let Packet::Data { bytes, .. } = packet {
            *bytes = &[0x55; 256][..bytes.len().min(256)];
        }
        Fate::Sent
    }),
    ("a piece is shorter than it was sent", false, |packet, _| {
        if let Packet::Data { bytes, .. } = packet {
            *bytes = &bytes[..bytes.len().saturating_sub(1)];
        }
        Fate::Sent
    }),
    ("messages taken are not told of", false, |_, word| {
        word.accepted.clear();
        Fate::Sent
    }),
    ("messages not taken are said to be", false, |_, word| {
        for answered in &word.queued {
            if let FlowKey::Own(port) = answered.flow {
                word.accepted.push(Acceptance { port, through: answered.number + 3 });
            }
        }
        Fate::Sent
    }),
    ("messages skip a number", false, |packet, _| {
        if let Packet::Request { flow: FlowKey::Own(_), number, .. } = packet {
            *number += u64::from(*number > 0);
        }
        Fate::Sent
    }),
    ("a holder is never reported", false, |packet, _| {
        lost_if(matches!(packet, Packet::Report { holds: true, .. }))
    }),
    ("a former holder is never reported", false, |packet, _| {
        lost_if(matches!(packet, Packet::Report { holds: false, .. }))
    }),
    ("a holder says that it is none", false, |packet, _| {
        if let Packet::Report { holds, .. } = packet {
            *holds = false;
        }
        Fate::Sent
    }),
    ("a report claims grants that are under way", false, |packet, _| {
        if let Packet::Report { seen, holds: false, .. } = packet {
            *seen += 1;
        }
        Fate::Sent
    }),
    ("a report is not acknowledged", false, |packet, _| lost_if(matches!(packet, Packet::Reported { .. }))),
    ("who sent a right on keeps it pinned", false, |packet, _| {
        lost_if(matches!(packet, Packet::Unpin { .. }))
    }),
    ("a pinned right counts as granted", false, |packet, _| {
        for right in rights(packet).into_iter().flat_map(|head| &mut head.rights) {
            if let RightOnWire::Send { granted, .. } = right {
                *granted = true;
            }
        }
        Fate::Sent
    }),
    ("a right is forged", false, |packet, _| {
        if let Some(head) = rights(packet)
            && let Some(right @ RightOnWire::Send { .. }) = head.rights.last()
        {
            let copy = right.clone();
            head.rights.push(copy);
        }
        Fate::Sent
    }),
    ("a right is left out", false, |packet, _| {
        if let Some(head) = rights(packet)
            && !head.has_reply
        {
            head.rights.pop();
        }
        Fate::Sent
    }),
    ("a send-once right comes as another", false, |packet, _| {
        for right in rights(packet).into_iter().flat_map(|head| &mut head.rights) {
            if let RightOnWire::SendOnce(OnceOnWire { once, .. }) = right {
                once.serial += 1;
            }
        }
        Fate::Sent
    }),
    ("a send-once right is claimed too late for all that was claimed since", false, |packet, _| {
        if let Packet::Claim { once, .. } = packet {
            once.hop = 0;
        }
        Fate::Sent
    }),
    ("a send-once right is not claimed", false, |packet, _| lost_if(matches!(packet, Packet::Claim { .. }))),
    ("a port's death is not told of", false, |packet, _| lost_if(matches!(packet, Packet::Dead { .. }))),
    ("a port's place is not told", false, |packet, _| lost_if(matches!(packet, Packet::Moved { .. }))),
    ("a port's former place is believed", false, |packet, _| {
        if let Packet::Moved { moves, .. } = packet {
            *moves += 100;
        }
        Fate::Sent
    }),
    ("an answer of the port's former node lets a flow wait", false, |packet, _| {
        if let Packet::Wait { moves, .. } = packet {
            *moves += 100;
        }
        Fate::Sent
    }),
    ("a port is not said to have come", false, |packet, _| lost_if(matches!(packet, Packet::Taken { .. }))),
    ("a port forgets who holds rights to it", false, |packet, _| {
        on_bodies(packet, |body| body.holders.clear())
    }),
    ("a port forgets its send-once rights", false, |packet, _| on_bodies(packet, |body| body.onces.clear())),
    ("a port forgets what has come", false, |packet, _| {
        on_bodies(packet, |body| body.holders.iter_mut().for_each(|holder| holder.next = 0))
    }),
    ("a port expects what it was not sent", false, |packet, _| {
        on_bodies(packet, |body| body.holders.iter_mut().for_each(|holder| holder.next += 1))
    }),
    ("a port forgets who waits for its senders to end", false, |packet, _| {
        on_bodies(packet, |body| body.no_senders = None)
    }),
    ("a port forgets who gets it back", false, |packet, _| {
        on_bodies(packet, |body| body.port_destroyed = None)
    }),
    ("another name is said to be dead", false, |packet, _| {
        if let Packet::Request { load: Load::Whole { head, data, .. }, .. } = packet
            && head.id == notification::DEAD_NAME
        {
            *data = &[0; 8];
        }
        Fate::Sent
    }),
    ("a send right comes as a dead one", false, |packet, _| {
        if let Some(right) = rights(packet).and_then(|head| head.rights.last_mut())
            && matches!(right, RightOnWire::Send { granted: false, .. })
        {
            *right = RightOnWire::Dead;
        }
        Fate::Sent
    }),
    ("the name service is asked for another name", false, |packet, _| {
        if let Packet::Request { load: Load::Whole { head, data, .. }, .. } = packet
            && head.id == service::LOOK_UP
            && data.starts_with(b"name ")
        {
            *data = b"name 0";
        }
        Fate::Sent
    }),
    ("nodes do not tell where ports are that were on a dying node", true, |packet, _| {
        lost_if(matches!(packet, Packet::Relocated { .. }))
    }),
    ("a node does not say that it has told of ports", true, |packet, _| {
        lost_if(matches!(packet, Packet::Told { .. }))
    }),
    ("a node does not mourn", true, |packet, _| lost_if(matches!(packet, Packet::Mourned { .. }))),
];

/// The number of random programs that a mutant may survive.
const PROGRAMS: usize = 2500;

fn is_killed(wrong: Wrong, deaths: bool) -> Option<usize> {
    is_killed_in(tight, deaths, || Box::new(Mutant(wrong)))
}

/// Returns the number of programs that a planted bug survives.
fn is_killed_in(
    config: fn(usize) -> Config,
    deaths: bool,
    mutation: impl Fn() -> Box<dyn Mutation>,
) -> Option<usize> {
    let mut runner = TestRunner::deterministic();
    let strategy = ops(deaths);
    (0..PROGRAMS).find(|at| {
        let program = strategy.new_tree(&mut runner).expect("a program").current();
        let nodes = 3 + (*at % 3) as u16;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run(nodes, config(2 + at / 2 % 2 * 4), *at as u64, &program, mutation())
        }));
        !matches!(ran, Ok(Ok(())))
    })
}

#[test]
fn every_planted_bug_is_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let survived: Vec<_> = MUTANTS
        .iter()
        .filter(|(_, deaths, wrong)| is_killed(*wrong, *deaths).is_none())
        .map(|(name, _, _)| name)
        .collect();
    std::panic::set_hook(hook);
    assert!(survived.is_empty(), "not noticed: {survived:?}");
}

/// Bugs of messages whose regions go to landing pools.
const OF_LANDING: &[(&str, Wrong)] = &[
    ("who gives a place up does not say so", |packet, _| lost_if(matches!(packet, Packet::GaveUp { .. }))),
    ("another place is named", |packet, _| {
        if let Packet::Permit { landing: Some(start), .. } = packet {
            *start = if *start == 0 { UNIT_BYTES } else { 0 };
        }
        Fate::Sent
    }),
    ("a place is named outside the pool", |packet, _| {
        if let Packet::Permit { landing: Some(start), .. } = packet {
            *start += 1 << 40;
        }
        Fate::Sent
    }),
    ("a place is named that nobody asked for", |packet, _| {
        if let Packet::Permit { landing, .. } = packet {
            *landing = Some(0);
        }
        Fate::Sent
    }),
    ("what is in its place is said to come in pieces", |packet, _| {
        if let Packet::Begin { landed, .. } = packet {
            *landed = false;
        }
        Fate::Sent
    }),
    ("what comes in pieces is said to be in its place", |packet, _| {
        if let Packet::Begin { landed, .. } = packet {
            *landed = true;
        }
        Fate::Sent
    }),
    ("regions are said to lie elsewhere in their place", |packet, _| {
        if let Packet::Begin { landed: true, head, .. } = packet
            && head.region_bytes.len() > 1
        {
            head.region_bytes.rotate_left(1);
        }
        Fate::Sent
    }),
];

/// Regions reach their place at another time than their sender says.
struct Landed(Lands);

impl Mutation for Landed {
    fn on_land(&mut self) -> Lands {
        self.0
    }
}

#[test]
fn every_planted_bug_of_landing_is_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let killed = |(name, wrong): &(&'static str, Wrong)| {
        (*name, is_killed_in(landing, false, || Box::new(Mutant(*wrong))))
    };
    let late = |(name, lands)| (name, is_killed_in(landing, false, || Box::new(Landed(lands))));
    let times = [("regions never come", Lands::Never), ("regions come after their message", Lands::Late)];
    let killed: Vec<_> = OF_LANDING.iter().map(killed).chain(times.map(late)).collect();
    std::panic::set_hook(hook);
    println!("programs that each bug survives: {killed:?}");
    let survived: Vec<_> = killed.iter().filter(|(_, programs)| programs.is_none()).collect();
    assert!(survived.is_empty(), "not noticed: {survived:?}");
}

#[test]
fn without_a_bug_the_same_programs_run() {
    for deaths in [false, true] {
        let mut runner = TestRunner::deterministic();
        let strategy = ops(deaths);
        for at in 0..PROGRAMS / 3 {
            let program = strategy.new_tree(&mut runner).expect("a program").current();
            let nodes = 3 + (at % 3) as u16;
            for config in [tight, landing] {
                let config = config(2 + at / 2 % 2 * 4);
                let ran = run(nodes, config, at as u64, &program, Box::new(Mutant(|_, _| Fate::Sent)));
                assert_eq!(ran, Ok(()), "program {at}, deaths: {deaths}");
            }
        }
    }
}

/// Runs a port that leaves its node while messages come to it; the node dies, and their sender continues.
/// Returns whether all later messages reach the port, or `None` if the port was lost.
fn comes_after_a_loss(seed: u64, steps: usize, wrong: Wrong) -> Option<bool> {
    let config = Config { queue_limit: 8, ..Config::default() };
    let mut cluster = Cluster::with_mutation(3, config, seed, Box::new(Mutant(wrong)));
    let (port, names) = cluster.share(1, &[0]);
    let (carrier, carriers) = cluster.share(2, &[1]);
    for number in 0..3u8 {
        cluster.call(0, send(names[0], bytes_message(&[number]), Patience::Endless));
    }
    let rights = vec![right(port, Disposition::MoveReceive)];
    cluster.call(1, send(carriers[0], Message { rights, ..Message::default() }, Patience::Endless));
    (0..steps).for_each(|_| _ = cluster.step());
    cluster.kill(1);
    cluster.settle();
    [0, 2].into_iter().for_each(|by| cluster.hear(NodeId(1), NodeId(by)));
    cluster.settle();
    let receive = |cluster: &mut Cluster, from| {
        let call = Call::Receive { from, bytes_max: None, patience: Patience::None };
        match cluster.now(2, call) {
            Ok(Outcome::Received(received)) => Some(*received),
            _ => None,
        }
    };
    let moved = receive(&mut cluster, carrier)?.rights.first()?.name;
    for number in 3..6u8 {
        cluster.call(0, send(names[0], bytes_message(&[number]), Patience::Endless));
    }
    cluster.settle();
    let came = core::iter::from_fn(|| receive(&mut cluster, moved)).map(|received| received.inline[0]);
    Some(came.filter(|number| *number >= 3).eq(3..6))
}

#[test]
fn what_was_lost_with_a_node_is_not_waited_for() {
    let runs = || (0..40).flat_map(|seed| (0..40).map(move |steps| (seed, steps)));
    let of = |wrong: Wrong| runs().filter_map(move |(seed, steps)| comes_after_a_loss(seed, steps, wrong));
    assert!(of(|_, _| Fate::Sent).all(|comes| comes), "without a bug nothing is waited for in vain");
    assert!(of(|_, _| Fate::Sent).count() > 100, "the port survives often enough");
    let skips_are_lost: Wrong = |packet, _| lost_if(matches!(packet, Packet::Skip { .. }));
    assert!(of(skips_are_lost).any(|comes| !comes), "lost word of what was lost is not noticed");
}

/// Random programs need this knowledge too rarely, so programs that do are kept.
#[test]
fn what_was_lost_is_known_to_later_nodes_of_a_port_and_for_dead_origins() {
    let fails = |nodes, requests_max, seed, ops: &[_], wrong| {
        run(nodes, tight(requests_max), seed, ops, Box::new(Mutant(wrong))).is_err()
    };
    let forgets: Wrong = |packet, _| on_bodies(packet, |body| body.lost.clear());
    let wrong = fails(5, 2, LOSS_SEED, &a_loss_between_relayed_messages(), forgets);
    assert!(wrong, "a port that forgets what was lost is not noticed");
    let silent: Wrong = |packet, _| lost_if(matches!(packet, Packet::Survives { .. }));
    let wrong = fails(3, 4, DEAD_ORIGIN_SEED, &a_loss_of_a_dead_origin(), silent);
    assert!(wrong, "a node that does not say which messages survive is not noticed");
}
