//! Measures copies out of another node's frames over shared memory, the same copies between plain mappings,
//! and a round trip and a stream of messages between two spinning threads. Prints times and ratios.
//!
//! `cargo run --release -p hiroba-fabric --example one_sided`

use std::fs::File;
use std::hint::black_box;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_fabric::{Fabric, FabricConfig, OneSided, ShmFabric, ShmFiles};
use hiroba_wire::control::JobKey;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

const FRAMES_BYTES: usize = 256 << 20;
const ROUNDS: usize = 20_000;
const STREAM_MESSAGES: usize = 1000;

fn main() {
    let files = files();
    let frames: File = files.frames[0].try_clone().expect("a descriptor").into();
    let data: Vec<u8> = (0..FRAMES_BYTES).map(|at| (at / 8) as u8 | 1).collect();
    frames.write_all_at(&data, 0).expect("memory for the frames");
    let [one, other] = [(0, inherit(&files)), (1, files)].map(|(node, files)| open(node, files));
    let reader = other.one_sided().expect("its capabilities say so");
    for bytes in [4 << 10, 64 << 10, 2 << 20] {
        for (state, stride) in [("hot", 0), ("cold", 7919 * bytes)] {
            compare(reader, &data, bytes, state, stride);
        }
    }
    println!("round trip of 64 B, spinning, median: {:.2?}", round_trip(&one, &other));
    println!("stream of 1 MiB messages: {:.1} GB/s", stream(&one, &other));
}

fn files() -> ShmFiles {
    let memory = || {
        let file = |_| memfd_create("example", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        (0..2).map(|node| file(node).expect("a memory file")).collect()
    };
    let bell = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    ShmFiles { frames: memory(), boards: memory(), doorbells: (0..2).map(bell).collect() }
}

fn inherit(files: &ShmFiles) -> ShmFiles {
    let copy = |file: &OwnedFd| file.try_clone().expect("a descriptor");
    let copies = |files: &[OwnedFd]| files.iter().map(copy).collect();
    ShmFiles {
        frames: copies(&files.frames),
        boards: copies(&files.boards),
        doorbells: copies(&files.doorbells),
    }
}

fn open(local: u16, files: ShmFiles) -> ShmFabric {
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
    let key = JobKey::new(&[1; 32]);
    let config = FabricConfig { local: NodeId(local), addresses, job: 1, key, inject: None };
    ShmFabric::open(files, &config).expect("a fabric")
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// Copies `bytes` at a time, `stride` bytes apart, into memory of the same size: the fabric's first reads,
/// its later reads, and plain copies.
fn compare(reader: &dyn OneSided, data: &[u8], bytes: usize, state: &str, stride: usize) {
    let mut into = vec![1; FRAMES_BYTES];
    let times = (FRAMES_BYTES / bytes).min(2000);
    let mut measure = |copy: &mut dyn FnMut(usize, &mut [u8])| {
        let samples = (0..times).map(|time| {
            let at = time * stride % FRAMES_BYTES;
            let start = Instant::now();
            copy(at, &mut into[at..at + bytes]);
            start.elapsed()
        });
        median(samples.collect())
    };
    let mut read =
        |at: usize, into: &mut [u8]| reader.read(NodeId(0), at as u64, into).expect("there are frames");
    let first = measure(&mut read);
    for _ in 0..4 {
        measure(&mut read);
    }
    let later = measure(&mut read);
    let plain = measure(&mut |at, into| black_box(into).copy_from_slice(black_box(&data[at..at + bytes])));
    println!(
        "{:>4} KiB {state}: first {first:.2?}, later {later:.2?}, plain copy {plain:.2?}, ratio {:.2}",
        bytes >> 10,
        later.as_secs_f64() / plain.as_secs_f64()
    );
}

fn round_trip(one: &ShmFabric, other: &ShmFabric) -> Duration {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            other.begin_spinning();
            while !done.load(Ordering::Relaxed) {
                other.poll_now(&mut |from, bytes| other.send(from, &[bytes])).expect("polls");
            }
            other.end_spinning();
        });
        one.begin_spinning();
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            one.send(NodeId(1), &[&[0; 64]]);
            let mut answered = false;
            while !answered {
                one.poll_now(&mut |_, _| answered = true).expect("polls");
            }
            start.elapsed()
        });
        let result = median(samples.collect());
        one.end_spinning();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn stream(one: &ShmFabric, other: &ShmFabric) -> f64 {
    let message = vec![1; 1 << 20];
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut received = 0;
            while received < STREAM_MESSAGES {
                other.poll_now(&mut |_, _| received += 1).expect("polls");
            }
        });
        for _ in 0..STREAM_MESSAGES {
            one.send(NodeId(1), &[&message]);
            while one.backlog_bytes(NodeId(1)) > 2 << 20 {
                one.poll_now(&mut |_, _| {}).expect("polls");
            }
        }
        one.drain(Duration::from_secs(10));
    });
    (STREAM_MESSAGES << 20) as f64 / start.elapsed().as_secs_f64() / 1e9
}
