//! Many synchronisations must not make anything grow: a hundred thousand, or a million with
//! `HIROBA_MATRIX=all`.

use hiroba_base::NodeId;
use hiroba_check::cluster::{Cluster, NetworkChoice, Options};
use hiroba_check::engines::engine_under;
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program};
use hiroba_protocol::lrc::Lrc;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::Limits;

use crate::sample;

/// Returns the number of synchronisations. Only optimised code completes them in seconds.
fn rounds() -> u64 {
    if cfg!(debug_assertions) { 20_000 } else { 100_000 * if sample::all() { 10 } else { 1 } }
}

const SAMPLES: u64 = 20;
const NODES: u16 = 3;

/// Makes a node's engine.
trait Engines: Fn(NodeId, Limits, WriteTracking) -> Consistency {}

impl<F: Fn(NodeId, Limits, WriteTracking) -> Consistency> Engines for F {}

/// Returns engines that keep diffs, a few at a time.
fn homeless(me: NodeId, limits: Limits, tracking: WriteTracking) -> Consistency {
    Consistency::new(me, limits, tracking, Box::new(Lrc::new().collecting_beyond(2000)))
}

/// Returns how much the engines remember: the entries of their histories, and the length of their printed
/// state.
fn remembered(cluster: &Cluster<Consistency>) -> (usize, usize) {
    let engines = || NodeId::all(NODES).map(|node| cluster.engine(node));
    (engines().map(Consistency::history_len).sum(), engines().map(|engine| format!("{engine:?}").len()).sum())
}

/// Runs until thread 0 has counted its rounds, taking samples on the way.
fn stays_bounded(program: &Program, rounds: u64, engine: impl Engines, tracking: WriteTracking) {
    let synchronisations = self::rounds();
    let options = Options {
        record: false,
        steps_max: u64::MAX,
        network: NetworkChoice::Direct,
        ..Options::seeded(0, tracking)
    };
    let mut cluster = Cluster::new(program, engine, options);
    let mut samples = Vec::new();
    while cluster.step().unwrap_or_else(|failure| panic!("{failure}")) {
        if cluster.register(0, 0) >= (samples.len() as u64 + 1) * rounds / SAMPLES {
            samples.push(remembered(&cluster));
            assert!(
                cluster.messages_under_way() <= 100,
                "messages pile up: {}",
                cluster.messages_under_way()
            );
            assert!(cluster.twins() <= 8, "twins pile up: {}", cluster.twins());
        }
    }
    assert_eq!(cluster.register(0, 0), rounds);
    assert!(
        cluster.deliveries() >= 3 * synchronisations,
        "the nodes hardly met: {} messages",
        cluster.deliveries()
    );
    let history = samples.iter().map(|(history, _)| *history).max().unwrap_or(0);
    assert!(history <= 30, "the history holds {history} entries: {samples:?}");
    // Numbers get more digits; nothing else may grow.
    let early = samples[1].1.max(samples[2].1);
    let late = samples.iter().map(|(_, length)| *length).max().unwrap_or(0);
    assert!(late <= early * 2 + 4000, "the engines' state grows: {samples:?}");
}

fn looped(mut body: Vec<Instruction>, rounds: u64) -> Vec<Instruction> {
    body.push(add(0, 1));
    body.push(jump_unless(0, rounds, 0));
    body
}

fn barriers(engine: impl Engines, tracking: WriteTracking) {
    let rounds = rounds();
    let mine = |node: u32| Address::word(1, node);
    let scripts = (0..u32::from(NODES)).map(|node| {
        let body = if node == 0 { vec![store_from(mine(node), 0), barrier()] } else { vec![barrier()] };
        looped(body, rounds)
    });
    stays_bounded(&Program::new(3, scripts), rounds, engine, tracking);
}

fn hand_overs(engine: impl Engines, tracking: WriteTracking) {
    let counter = Address::word(1, 0);
    let rounds = rounds() / u64::from(NODES);
    let scripts = (0..NODES).map(|_| {
        looped(vec![lock(0), load(counter, 1), add(1, 1), store_from(counter, 1), unlock(0)], rounds)
    });
    stays_bounded(&Program::new(3, scripts), rounds, engine, tracking);
}

#[test]
fn many_barriers_do_not_grow_memory_where_writes_fault() {
    barriers(engine_under(Protocol::Hlrc), WriteTracking::Fault);
}

#[test]
fn many_barriers_do_not_grow_memory_where_writes_are_noted() {
    barriers(engine_under(Protocol::Hlrc), WriteTracking::Async);
}

#[test]
fn many_hand_overs_without_a_barrier_do_not_grow_memory_where_writes_fault() {
    hand_overs(engine_under(Protocol::Hlrc), WriteTracking::Fault);
}

#[test]
fn many_hand_overs_without_a_barrier_do_not_grow_memory_where_writes_are_noted() {
    hand_overs(engine_under(Protocol::Hlrc), WriteTracking::Async);
}

#[test]
fn many_barriers_do_not_grow_memory_where_diffs_stay_with_their_writers() {
    barriers(homeless, WriteTracking::Fault);
}

#[test]
fn many_hand_overs_without_a_barrier_do_not_grow_memory_where_diffs_stay_with_their_writers() {
    hand_overs(homeless, WriteTracking::Fault);
}
