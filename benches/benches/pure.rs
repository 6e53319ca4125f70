//! Measures the cost of pure code, without nodes, sockets and page faults.
//!
//! ```text
//! cd benches
//! cargo bench -- --save-baseline before     # measure and keep the result as a baseline
//! cargo bench -- --baseline before          # compare with it after a change
//! ```
//!
//! `hiroba bench diff` measures the same comparison with the vector instructions of this machine, next to the
//! lower bound.

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hiroba_base::{NodeId, PageId};
use hiroba_protocol::hlrc::Hlrc;
use hiroba_protocol::{Consistency, Effect, Engine, Synchronisation, Waiter, WriteTracking, diff};
use hiroba_wire::{Collective, Limits, Message, PageDiff};

const PAGE_BYTES: usize = 4096;
const LIMITS: Limits = Limits { nodes: 2, region_granules: 1 << 20, granule_bytes: PAGE_BYTES as u32 };

/// Makes a twin, and a page of which every `stride`th word differs from it.
fn page(stride: usize) -> (Vec<u8>, Vec<u8>) {
    let twin = vec![0; PAGE_BYTES];
    let mut page = twin.clone();
    for word in page.chunks_exact_mut(8).step_by(stride) {
        word.fill(0x5a);
    }
    (twin, page)
}

fn diffs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("diff");
    group.throughput(Throughput::Bytes(PAGE_BYTES as u64));
    for (name, stride) in [("one word", 512), ("every other word", 2), ("all", 1)] {
        let (twin, page) = page(stride);
        let mut runs = Vec::with_capacity(2 * PAGE_BYTES);
        group.bench_function(format!("encode, {name}"), |bencher| {
            bencher.iter(|| {
                runs.clear();
                diff::encode(black_box(&page), black_box(&twin), &mut runs);
            });
        });
        let mut into = twin.clone();
        group.bench_function(format!("apply, {name}"), |bencher| {
            bencher.iter(|| {
                let write =
                    |offset: usize, bytes: &[u8]| into[offset..][..bytes.len()].copy_from_slice(bytes);
                diff::apply(black_box(&runs), PAGE_BYTES, write)
            });
        });
        assert_eq!(into, page, "the diff turns the twin into the page");
    }
    group.finish();
}

fn codec(criterion: &mut Criterion) {
    let (twin, page) = page(2);
    let mut runs = Vec::new();
    diff::encode(&page, &twin, &mut runs);
    let of = |page| PageDiff { page: PageId(page), runs: &runs };
    let message = Message::EagerDiffs { writer: NodeId(1), diffs: (0..8).map(of).collect() };
    let bytes = message.encode();
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode, 8 diffs", |bencher| bencher.iter(|| black_box(&message).encode()));
    group.bench_function("decode, 8 diffs", |bencher| {
        bencher.iter(|| Message::decode(black_box(&bytes), &LIMITS));
    });
    group.finish();
}

/// Takes the messages that an engine sends. Returns the number of threads that it wakes.
fn drain(from: NodeId, engine: &mut Consistency, network: &mut VecDeque<(NodeId, NodeId, Vec<u8>)>) -> usize {
    let mut woken = 0;
    while let Some(effect) = engine.poll_effect() {
        match effect {
            Effect::Send { to, message } => network.push_back((from, to, message)),
            Effect::Wake { .. } => woken += 1,
            _ => {}
        }
    }
    woken
}

/// Lets both nodes arrive at a barrier and leave it.
fn meet(engines: &mut [Consistency; 2]) {
    let mut network = VecDeque::new();
    let mut woken = 0;
    for (node, engine) in engines.iter_mut().enumerate() {
        engine.handle_sync(Synchronisation::Collective(Collective::Barrier), Waiter(0));
        woken += drain(NodeId(node as u16), engine, &mut network);
    }
    while let Some((from, to, bytes)) = network.pop_front() {
        let message = Message::decode(&bytes, &LIMITS).expect("a message of this job");
        let engine = &mut engines[usize::from(to.0)];
        engine.handle_message(from, &message).expect("a message that fits");
        woken += drain(to, engine, &mut network);
    }
    assert_eq!(woken, 2, "both threads leave the barrier");
}

fn engine(criterion: &mut Criterion) {
    let make = || {
        [0, 1].map(|node| Consistency::new(NodeId(node), LIMITS, WriteTracking::Fault, Box::new(Hlrc::new())))
    };
    let mut engines = make();
    criterion.bench_function("engine/barrier of 2, nothing written", |bencher| {
        bencher.iter(|| meet(&mut engines));
    });
    criterion.bench_function("engine/first barrier of 2", |bencher| {
        bencher.iter_batched_ref(make, meet, BatchSize::SmallInput);
    });
}

criterion_group!(pure, diffs, codec, engine);
criterion_main!(pure);
